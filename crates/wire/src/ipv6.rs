//! IPv6 packets (RFC 8200), whose extension headers are skipped.
//!
//! No input causes a panic. A packet with a payload length of 0, as in jumbograms (RFC 2675) and in long packets that
//! Linux passes to a capture on the sending host, extends to the end of the frame on the wire.

use std::net::Ipv6Addr;

use crate::error::{BuildError, ParseError};

/// The fixed header, in bytes.
pub const HEADER_LEN: usize = 40;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// A view of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    fixed: &'a [u8; HEADER_LEN],
    bytes: &'a [u8],
    upper: u8,
    upper_start: usize,
    /// Offset and flags of the last fragment header (RFC 8200 4.5).
    fragment: u16,
}

impl<'a> Packet<'a> {
    /// A view of `bytes`, which start with the header and may end with bytes that a link layer appended. Extension
    /// headers are skipped up to the upper-layer header, or up to the payload of a later fragment.
    ///
    /// # Errors
    /// Not version 6, or headers that are truncated or extend beyond the payload.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk() else {
            let got = bytes.len();
            return Err(ParseError::Truncated { what: "IPv6 header", expected: HEADER_LEN, got });
        };
        if fixed[0] >> 4 != 6 {
            let got = u64::from(fixed[0] >> 4);
            return Err(ParseError::Value { what: "IPv6 header, version", expected: "6", got });
        }
        let mut packet = Self { fixed, bytes, upper: fixed[6], upper_start: HEADER_LEN, fragment: 0 };
        packet.skip_extensions()?;
        Ok(packet)
    }

    #[inline]
    fn skip_extensions(&mut self) -> Result<(), ParseError> {
        let end = self.end();
        // The fragment header of a later fragment is not followed by a header.
        while self.fragment_offset() == 0 {
            let rest = &self.bytes[self.upper_start..end];
            let Some(expected) = extension_len(self.upper, rest) else { break };
            let Some(header) = rest.get(..expected) else {
                let (what, got) = ("IPv6 extension header", rest.len());
                return Err(ParseError::Truncated { what, expected, got });
            };
            if self.upper == FRAGMENT {
                self.fragment = u16::from_be_bytes([header[2], header[3]]);
            }
            self.upper = header[0];
            self.upper_start += expected;
        }
        Ok(())
    }

    /// The payload length field, which counts extension headers; 0 in packets too long for it.
    fn payload_len_field(&self) -> u16 {
        u16::from_be_bytes([self.fixed[4], self.fixed[5]])
    }

    /// The source.
    pub fn source(&self) -> Ipv6Addr {
        self.address(8)
    }

    /// The destination field; with a routing header, the next hop and not the final destination.
    pub fn destination(&self) -> Ipv6Addr {
        self.address(24)
    }

    /// The protocol number of the first header that is not an extension header.
    pub fn protocol(&self) -> u8 {
        self.upper
    }

    /// The offset of the payload in that of the unfragmented packet, in units of 8 bytes.
    pub fn fragment_offset(&self) -> u16 {
        self.fragment >> 3
    }

    /// Whether this is a fragment and others follow it.
    pub fn more_fragments(&self) -> bool {
        self.fragment & 1 != 0
    }

    /// The captured part of the upper-layer payload, without bytes that a link layer appended.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.upper_start..self.end()]
    }

    /// The upper-layer payload's length on the wire, where the packet and anything after it had `wire_len` bytes.
    #[inline]
    pub fn payload_len(&self, wire_len: usize) -> usize {
        let total = match self.payload_len_field() {
            0 => wire_len,
            length => HEADER_LEN + usize::from(length),
        };
        total.saturating_sub(self.upper_start)
    }

    fn address(&self, at: usize) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.fixed[at..at + 16]);
        Ipv6Addr::from(octets)
    }

    /// Where the captured part of the packet ends.
    fn end(&self) -> usize {
        match self.payload_len_field() {
            0 => self.bytes.len(),
            length => (HEADER_LEN + usize::from(length)).min(self.bytes.len()),
        }
    }
}

/// The length of the extension header with this number at the start of `bytes`; `None` for another header.
fn extension_len(number: u8, bytes: &[u8]) -> Option<usize> {
    let length = usize::from(bytes.get(1).copied().unwrap_or(0));
    match number {
        // Of the common form (RFC 6564).
        HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => {
            Some((length + 1) * 8)
        }
        // RFC 4302 2.2.
        AUTHENTICATION => Some((length + 2) * 4),
        // The octet in place of the length is reserved.
        FRAGMENT => Some(8),
        _ => None,
    }
}

/// The header of a packet to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repr {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    protocol: u8,
    hop_limit: u8,
}

impl Repr {
    /// A header for a payload of this protocol or extension header.
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8) -> Self {
        Self { source, destination, protocol, hop_limit: 64 }
    }

    /// The header with this hop limit instead of 64.
    pub fn with_hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }

    /// Appends the header of a packet with `payload_len` bytes of payload, which follow it.
    ///
    /// # Errors
    /// The payload is too long.
    pub fn emit(&self, payload_len: usize, out: &mut Vec<u8>) -> Result<(), BuildError> {
        let max = usize::from(u16::MAX);
        let length = u16::try_from(payload_len).map_err(|_| BuildError {
            what: "IPv6 payload",
            max,
            got: payload_len,
        })?;
        out.extend_from_slice(&[0x60, 0, 0, 0]);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&[self.protocol, self.hop_limit]);
        out.extend_from_slice(&self.source.octets());
        out.extend_from_slice(&self.destination.octets());
        Ok(())
    }
}
