//! IPv6 packets (RFC 8200) with extension headers.
//!
//! No input causes a panic. A packet with a payload length of 0, as in jumbograms (RFC 2675) and in long packets that
//! Linux passes to a capture on the sending host, extends to the end of the frame on the wire.

use std::net::Ipv6Addr;

use crate::fields::Fields;
use crate::{BuildError, ParseError};

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
    fragment: Option<Fragment>,
}

impl<'a> Packet<'a> {
    /// A view of `bytes`, which start with the header and may end with bytes that a link layer appended. Extension
    /// headers are parsed up to the upper-layer header, or up to the fragment header of a later fragment.
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
        let mut packet = Self { fixed, bytes, upper: fixed[6], upper_start: HEADER_LEN, fragment: None };
        let mut extensions = packet.extensions();
        for extension in extensions.by_ref() {
            if let Extension::Fragment(fragment) = extension? {
                packet.fragment = Some(fragment);
            }
        }
        packet.upper = extensions.next_header;
        packet.upper_start = packet.end() - extensions.rest.len();
        Ok(packet)
    }

    /// The octet of DSCP and ECN (RFC 2474, RFC 3168).
    pub fn traffic_class(&self) -> u8 {
        self.fixed[0] << 4 | self.fixed[1] >> 4
    }

    /// The flow label, 20 bits (RFC 6437).
    pub fn flow_label(&self) -> u32 {
        u32::from_be_bytes([0, self.fixed[1] & 0x0f, self.fixed[2], self.fixed[3]])
    }

    /// The payload length field, which counts extension headers; 0 in packets too long for it.
    pub fn payload_len_field(&self) -> u16 {
        u16::from_be_bytes([self.fixed[4], self.fixed[5]])
    }

    /// The hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.fixed[7]
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

    /// The fragment header, if there is one.
    pub fn fragment(&self) -> Option<Fragment> {
        self.fragment
    }

    /// The extension headers in order.
    pub fn extensions(&self) -> Extensions<'a> {
        Extensions {
            next_header: self.fixed[6],
            rest: &self.bytes[HEADER_LEN..self.end()],
            later_fragment: false,
        }
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

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension<'a> {
    /// A header whose length counts units of 8 bytes after the first.
    General {
        /// Its kind.
        kind: ExtensionKind,
        /// The bytes after the length octet: 6 bytes plus a multiple of 8.
        body: &'a [u8],
    },
    /// The fragment header.
    Fragment(Fragment),
    /// The authentication header (RFC 4302), whose length counts units of 4 bytes after the second.
    Authentication {
        /// The bytes after the length octet: 6 bytes plus a multiple of 4.
        body: &'a [u8],
    },
}

/// The extension headers of the common form (RFC 6564).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionKind {
    /// Hop-by-hop options (RFC 8200 4.3).
    HopByHop = HOP_BY_HOP as isize,
    /// Routing (RFC 8200 4.4).
    Routing = ROUTING as isize,
    /// Destination options (RFC 8200 4.6).
    DestinationOptions = DESTINATION_OPTIONS as isize,
    /// Mobility (RFC 6275).
    Mobility = MOBILITY as isize,
    /// Host identity (RFC 7401).
    HostIdentity = HOST_IDENTITY as isize,
    /// Shim6 (RFC 5533).
    Shim6 = SHIM6 as isize,
}

/// The content of a fragment header (RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The offset of the payload in that of the unfragmented packet, in units of 8 bytes; below 8192.
    pub offset: u16,
    /// Whether other fragments follow.
    pub more: bool,
    /// Equal in all fragments of a packet.
    pub identification: u32,
}

/// Iterates over extension headers; ends after an error.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    next_header: u8,
    rest: &'a [u8],
    later_fragment: bool,
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, ParseError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // The fragment header of a later fragment is not followed by a header.
        if self.later_fragment {
            return None;
        }
        let kind = match self.next_header {
            HOP_BY_HOP => ExtensionKind::HopByHop,
            ROUTING => ExtensionKind::Routing,
            DESTINATION_OPTIONS => ExtensionKind::DestinationOptions,
            MOBILITY => ExtensionKind::Mobility,
            HOST_IDENTITY => ExtensionKind::HostIdentity,
            SHIM6 => ExtensionKind::Shim6,
            FRAGMENT => return Some(self.fragment()),
            AUTHENTICATION => {
                return Some(
                    self.body(|length| (length + 2) * 4).map(|body| Extension::Authentication { body }),
                );
            }
            _ => return None,
        };
        Some(self.body(|length| (length + 1) * 8).map(|body| Extension::General { kind, body }))
    }
}

impl<'a> Extensions<'a> {
    /// Consumes a header whose length octet stands for `header_len` bytes, and returns the bytes after that octet.
    fn body(&mut self, header_len: impl Fn(usize) -> usize) -> Result<&'a [u8], ParseError> {
        let header = std::mem::take(&mut self.rest);
        let [next_header, length, ..] = *header else {
            self.later_fragment = true;
            return Err(truncated(8, header.len()));
        };
        let Some((header, rest)) = header.split_at_checked(header_len(length.into())) else {
            self.later_fragment = true;
            return Err(truncated(header_len(length.into()), header.len()));
        };
        self.next_header = next_header;
        self.rest = rest;
        Ok(&header[2..])
    }

    fn fragment(&mut self) -> Result<Extension<'a>, ParseError> {
        // The octet in place of the length is reserved.
        let body = self.body(|_| 8)?;
        let mut fields = Fields::new("IPv6 fragment header", body);
        let field = fields.u16()?;
        let fragment = Fragment { offset: field >> 3, more: field & 1 != 0, identification: fields.u32()? };
        self.later_fragment = fragment.offset != 0;
        Ok(Extension::Fragment(fragment))
    }
}

/// The headers of a packet to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// The source.
    pub source: Ipv6Addr,
    /// The destination.
    pub destination: Ipv6Addr,
    /// The protocol number of the payload; not one of an extension header.
    pub protocol: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The octet of DSCP and ECN.
    pub traffic_class: u8,
    /// The flow label; below 2^20.
    pub flow_label: u32,
    /// The extension headers in order.
    pub extensions: Vec<Extension<'a>>,
}

impl<'a> Repr<'a> {
    /// A header without extensions.
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8) -> Self {
        Self {
            source,
            destination,
            protocol,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            extensions: Vec::new(),
        }
    }

    /// Reads the headers.
    pub fn parse(packet: Packet<'a>) -> Self {
        Self {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            hop_limit: packet.hop_limit(),
            traffic_class: packet.traffic_class(),
            flow_label: packet.flow_label(),
            // The view has parsed all of them without an error.
            extensions: packet.extensions().flatten().collect(),
        }
    }

    /// Appends the headers of a packet with `payload_len` bytes of payload, which follow them.
    ///
    /// # Errors
    /// A flow label or fragment offset with too many bits, an extension header that is not a multiple of its unit, or
    /// more bytes than a length field can express.
    pub fn emit(&self, payload_len: usize, out: &mut Vec<u8>) -> Result<(), BuildError> {
        let start = out.len();
        let result = self.try_emit(payload_len, out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn try_emit(&self, payload_len: usize, out: &mut Vec<u8>) -> Result<(), BuildError> {
        if self.flow_label >> 20 != 0 {
            return Err(too_long("IPv6 flow label", 0xf_ffff, self.flow_label as usize));
        }
        let start = out.len();
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        out.extend_from_slice(&first.to_be_bytes());
        out.extend_from_slice(&[0, 0, self.header_number(0), self.hop_limit]);
        out.extend_from_slice(&self.source.octets());
        out.extend_from_slice(&self.destination.octets());
        for (index, extension) in self.extensions.iter().enumerate() {
            out.push(self.header_number(index + 1));
            extension.emit(out)?;
        }
        let extensions_len = out.len() - start - HEADER_LEN;
        let length = u16::try_from(extensions_len.saturating_add(payload_len))
            .map_err(|_| too_long("IPv6 payload", usize::from(u16::MAX) - extensions_len, payload_len))?;
        out[start + 4..start + 6].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// The protocol number of the extension header at `index`, or of the payload after the last.
    fn header_number(&self, index: usize) -> u8 {
        match self.extensions.get(index) {
            None => self.protocol,
            Some(Extension::General { kind, .. }) => *kind as u8,
            Some(Extension::Fragment(_)) => FRAGMENT,
            Some(Extension::Authentication { .. }) => AUTHENTICATION,
        }
    }
}

impl Extension<'_> {
    /// Appends the bytes after the next-header octet.
    fn emit(&self, out: &mut Vec<u8>) -> Result<(), BuildError> {
        let (body, unit, counted_from) = match *self {
            Self::Fragment(Fragment { offset, more, identification }) => {
                if offset > 0x1fff {
                    return Err(too_long("IPv6 fragment offset", 0x1fff, offset.into()));
                }
                out.push(0);
                out.extend_from_slice(&(offset << 3 | u16::from(more)).to_be_bytes());
                out.extend_from_slice(&identification.to_be_bytes());
                return Ok(());
            }
            Self::General { body, .. } => (body, 8, 8),
            Self::Authentication { body } => (body, 4, 8),
        };
        let header_len = body.len() + 2;
        if header_len < 8 || !header_len.is_multiple_of(unit) {
            return Err(BuildError::Unit {
                what: "IPv6 extension header",
                expected: "6 bytes and a multiple of its unit",
                got: body.len(),
            });
        }
        let length = u8::try_from((header_len - counted_from) / unit).map_err(|_| {
            too_long("IPv6 extension header", usize::from(u8::MAX) * unit + counted_from - 2, body.len())
        })?;
        out.push(length);
        out.extend_from_slice(body);
        Ok(())
    }
}

fn too_long(what: &'static str, max: usize, got: usize) -> BuildError {
    BuildError::TooLong { what, max, got }
}

fn truncated(expected: usize, got: usize) -> ParseError {
    ParseError::Truncated { what: "IPv6 extension header", expected, got }
}
