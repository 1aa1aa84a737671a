//! Netlink messages: builds requests, parses replies.
//!
//! The format (`netlink(7)`): a 16-byte header with the total length of the message, the header of its family, then
//! attributes, each a 4-byte header and a value, padded to 4 bytes. The parser never panics and always terminates: it
//! stops at a message or attribute with an invalid length.

use crate::bytes::{u8_at, u16_at, u32_at, without_nul};

/// A request under construction.
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// Starts a request of a message type, with the fixed header of its family.
    pub(crate) fn new(kind: u16, flags: u16, header: &[u8]) -> Request {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend(header);
        let mut request = Request(bytes);
        request.pad();
        request
    }

    /// Starts a generic netlink request.
    pub(crate) fn generic(family: u16, command: u8, version: u8, flags: u16) -> Request {
        Request::new(family, flags, &[command, version, 0, 0])
    }

    /// Adds an attribute.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        self.push(kind, value);
        self
    }

    /// Adds an attribute with the nested attributes that `fill` adds.
    pub(crate) fn nested(mut self, kind: u16, fill: impl FnOnce(Request) -> Request) -> Request {
        let start = self.0.len();
        self.push(kind | NLA_F_NESTED, &[]);
        let mut filled = fill(self);
        let length = u16::try_from(filled.0.len() - start).expect("a request is far shorter than 64 KiB");
        filled.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        filled
    }

    /// Returns the message, with its length and sequence number set.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("a request is far shorter than 64 KiB");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("a request is far shorter than 64 KiB");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// A message from the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    /// The message type: a control message, a generic netlink family, or a type of the routing family.
    pub(crate) kind: u16,
    /// The `NLM_F_*` flags.
    pub(crate) flags: u16,
    /// The sequence number of the request that this replies to.
    pub(crate) sequence: u32,
    /// The bytes after the netlink header.
    pub(crate) payload: &'a [u8],
}

/// The outcome of a request, from a control message.
pub(crate) enum Outcome {
    /// The request succeeded.
    Done,
    /// It failed with this error number and, if the kernel sent one, an explanation.
    Failed(i32, Option<String>),
}

impl<'a> Message<'a> {
    /// The attributes after a family header of `header` bytes.
    pub(crate) fn attributes(&self, header: usize) -> Attributes<'a> {
        Attributes(self.payload.get(header.next_multiple_of(4)..).unwrap_or_default())
    }

    /// Whether the data changed during the dump, so that it may be inconsistent.
    pub(crate) fn interrupted(&self) -> bool {
        self.flags & NLM_F_DUMP_INTR != 0
    }

    /// The outcome of the request, if this message ends the reply.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        if self.kind != NLMSG_ERROR && self.kind != NLMSG_DONE {
            return None;
        }
        // NLMSG_DONE of a dump contains an error number too, or nothing on old kernels.
        let errno = u32_at(self.payload, 0).map_or(0, |value| (value as i32).saturating_neg());
        if errno == 0 {
            return Some(Outcome::Done);
        }
        Some(Outcome::Failed(errno, self.explanation()))
    }

    /// The kernel's explanation of an error (`NLMSGERR_ATTR_MSG`).
    fn explanation(&self) -> Option<String> {
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        // After the error number, the header of the request and, unless capped, its payload.
        let start = match self.kind {
            NLMSG_DONE => 4,
            _ if self.flags & NLM_F_CAPPED != 0 => 4 + HEADER,
            _ => 4usize.checked_add(u32_at(self.payload, 4)? as usize)?.checked_next_multiple_of(4)?,
        };
        let text = Attributes(self.payload.get(start..)?).find(NLMSGERR_ATTR_MSG)?;
        Some(String::from_utf8_lossy(without_nul(text)).into_owned())
    }
}

/// The messages of one datagram.
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = u32_at(self.0, 0)? as usize;
        let message = Message {
            kind: u16_at(self.0, 4)?,
            flags: u16_at(self.0, 6)?,
            sequence: u32_at(self.0, 8)?,
            payload: self.0.get(HEADER..length)?,
        };
        self.0 = self.0.get(length.checked_next_multiple_of(4)?..).unwrap_or_default();
        Some(message)
    }
}

/// The attributes of a message or of a nested attribute, as types (without flag bits) and values.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// The value of the last attribute of this type.
    pub(crate) fn find(self, kind: u16) -> Option<&'a [u8]> {
        self.filter(|(found, _)| *found == kind).last().map(|(_, value)| value)
    }

    /// The attributes nested in the attribute of this type; none if it does not exist.
    pub(crate) fn nested(self, kind: u16) -> Attributes<'a> {
        Attributes(self.find(kind).unwrap_or_default())
    }

    /// The attribute of this type as a byte.
    pub(crate) fn u8(self, kind: u16) -> Option<u8> {
        u8_at(self.find(kind)?, 0)
    }

    /// The attribute of this type as a 16-bit number in host order.
    pub(crate) fn u16(self, kind: u16) -> Option<u16> {
        u16_at(self.find(kind)?, 0)
    }

    /// The attribute of this type as a 32-bit number in host order.
    pub(crate) fn u32(self, kind: u16) -> Option<u32> {
        u32_at(self.find(kind)?, 0)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & !(NLA_F_NESTED | NLA_F_NET_BYTEORDER);
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_F_NET_BYTEORDER: u16 = 0x4000;
const HEADER: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_round_trip() {
        let bytes = Request::generic(26, 10, 1, NLM_F_ACK)
            .attribute(4, &7u32.to_ne_bytes())
            .nested(1, |inner| inner.attribute(2, &[9]).attribute(3, &[10, 0, 0, 1]))
            .finish(3);
        let messages: Vec<_> = Messages(&bytes).collect();
        let [message] = messages.as_slice() else { panic!("expected one message, got {}", messages.len()) };
        assert_eq!((message.kind, message.flags, message.sequence), (26, NLM_F_REQUEST | NLM_F_ACK, 3));
        let attributes = message.attributes(4);
        assert_eq!(attributes.u32(4), Some(7));
        assert_eq!(attributes.nested(1).u8(2), Some(9));
        assert_eq!(attributes.nested(1).find(3), Some(&[10, 0, 0, 1][..]));
        assert_eq!(attributes.find(5), None);
    }

    #[test]
    fn finds_the_explanation_after_the_quoted_request() {
        let request = Request::generic(26, 10, 1, NLM_F_ACK).attribute(4, &[1, 2, 3]).finish(3);
        let mut payload = (-libc::EINVAL).to_ne_bytes().to_vec();
        payload.extend(&request);
        payload.extend([12, 0, 1, 0]);
        payload.extend(b"denied\0\0");
        let message = Message { kind: NLMSG_ERROR, flags: NLM_F_ACK_TLVS, sequence: 3, payload: &payload };
        let Some(Outcome::Failed(errno, Some(text))) = message.outcome() else {
            panic!("expected a failure with an explanation")
        };
        assert_eq!((errno, text.trim_end_matches('\0')), (libc::EINVAL, "denied"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_neither_panic_nor_loop(bytes: Vec<u8>) {
            for message in Messages(&bytes) {
                let _ = message.outcome();
                let total: usize = message.attributes(4).map(|(_, value)| value.len()).sum();
                prop_assert!(total <= bytes.len());
            }
            prop_assert!(Attributes(&bytes).count() <= bytes.len());
        }

        #[test]
        fn damaged_headers_do_not_panic(length: u32, kind in 0u16..5, flags: u16, payload: Vec<u8>) {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(flags.to_ne_bytes());
            bytes.extend([0; 8]);
            bytes.extend(&payload);
            for message in Messages(&bytes) {
                let _ = message.outcome();
            }
            let message = Message { kind, flags, sequence: 0, payload: &payload };
            let _ = message.outcome();
        }
    }
}
