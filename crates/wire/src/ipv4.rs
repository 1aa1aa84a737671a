//! IPv4 packets (RFC 791), with options and fragments.
//!
//! No input causes a panic. A capture on the sending host may contain packets longer than the total length field can
//! express (Linux then writes 0): such a packet extends to the end of the frame on the wire.

use std::net::Ipv4Addr;

use crate::checksum::Checksum;
use crate::{BuildError, ParseError};

/// The header without options, in bytes.
pub const MIN_HEADER_LEN: usize = 20;

/// Maximum length of the options (the header has at most 15 words).
const MAX_OPTIONS_LEN: usize = 40;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// A view of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    fixed: &'a [u8; MIN_HEADER_LEN],
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A view of `bytes`, which start with the header and may end with bytes that a link layer appended.
    ///
    /// # Errors
    /// Not version 4, a truncated header, or lengths that contradict each other.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk() else {
            return Err(truncated(MIN_HEADER_LEN, bytes.len()));
        };
        let packet = Self { fixed, bytes };
        if fixed[0] >> 4 != 4 {
            let got = u64::from(fixed[0] >> 4);
            return Err(ParseError::Value { what: "IPv4 header, version", expected: "4", got });
        }
        let header_len = packet.header_len();
        if header_len < MIN_HEADER_LEN {
            return Err(ParseError::Length { what: "IPv4 header", expected: "20 to 60", got: header_len });
        }
        if bytes.len() < header_len {
            return Err(truncated(header_len, bytes.len()));
        }
        let total = packet.total_len();
        if total != 0 && usize::from(total) < header_len {
            let got = usize::from(total);
            return Err(ParseError::Length { what: "IPv4 packet", expected: "its header's or more", got });
        }
        Ok(packet)
    }

    /// The header's length with options, 20 to 60 bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.fixed[0] & 0x0f) * 4
    }

    /// The octet of DSCP and ECN (RFC 2474, RFC 3168).
    pub fn traffic_class(&self) -> u8 {
        self.fixed[1]
    }

    /// The total length field; 0 in packets too long for it.
    pub fn total_len(&self) -> u16 {
        u16::from_be_bytes([self.fixed[2], self.fixed[3]])
    }

    /// The identification, equal in all fragments of a packet.
    pub fn identification(&self) -> u16 {
        u16::from_be_bytes([self.fixed[4], self.fixed[5]])
    }

    /// Whether routers must not fragment the packet.
    pub fn dont_fragment(&self) -> bool {
        self.fragment_field() & DONT_FRAGMENT != 0
    }

    /// Whether this is a fragment and others follow it.
    pub fn more_fragments(&self) -> bool {
        self.fragment_field() & MORE_FRAGMENTS != 0
    }

    /// The offset of the payload in that of the unfragmented packet, in units of 8 bytes.
    pub fn fragment_offset(&self) -> u16 {
        self.fragment_field() & FRAGMENT_OFFSET
    }

    /// The time to live.
    pub fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// The payload's protocol number.
    pub fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// The source.
    pub fn source(&self) -> Ipv4Addr {
        let [.., a, b, c, d, _, _, _, _] = *self.fixed;
        Ipv4Addr::new(a, b, c, d)
    }

    /// The destination.
    pub fn destination(&self) -> Ipv4Addr {
        let [.., a, b, c, d] = *self.fixed;
        Ipv4Addr::new(a, b, c, d)
    }

    /// The options with their padding, not interpreted.
    pub fn options(&self) -> &'a [u8] {
        &self.bytes[MIN_HEADER_LEN..self.header_len()]
    }

    /// Whether the header's checksum is correct.
    pub fn checksum_is_right(&self) -> bool {
        Checksum::new().with(&self.bytes[..self.header_len()]).finish() == 0
    }

    /// The captured part of the payload, without bytes that a link layer appended.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = match self.total_len() {
            0 => self.bytes.len(),
            total => usize::from(total).min(self.bytes.len()),
        };
        &self.bytes[self.header_len()..end]
    }

    /// The payload's length on the wire, where the packet and anything after it had `wire_len` bytes.
    #[inline]
    pub fn payload_len(&self, wire_len: usize) -> usize {
        let total = match self.total_len() {
            0 => wire_len,
            total => usize::from(total),
        };
        total.saturating_sub(self.header_len())
    }

    fn fragment_field(&self) -> u16 {
        u16::from_be_bytes([self.fixed[6], self.fixed[7]])
    }
}

/// The header of a packet to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// The source.
    pub source: Ipv4Addr,
    /// The destination.
    pub destination: Ipv4Addr,
    /// The payload's protocol number.
    pub protocol: u8,
    /// The time to live.
    pub ttl: u8,
    /// The octet of DSCP and ECN.
    pub traffic_class: u8,
    /// The identification.
    pub identification: u16,
    /// Whether routers must not fragment the packet.
    pub dont_fragment: bool,
    /// Whether this is a fragment and others follow it.
    pub more_fragments: bool,
    /// The offset of the payload in that of the unfragmented packet, in units of 8 bytes; below 8192.
    pub fragment_offset: u16,
    /// Options, padded to a multiple of 4 bytes, at most 40.
    pub options: &'a [u8],
}

impl<'a> Repr<'a> {
    /// A header without options for an unfragmented packet.
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8) -> Self {
        Self {
            source,
            destination,
            protocol,
            ttl: 64,
            traffic_class: 0,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            options: &[],
        }
    }

    /// Reads the header.
    pub fn parse(packet: Packet<'a>) -> Self {
        Self {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            ttl: packet.ttl(),
            traffic_class: packet.traffic_class(),
            identification: packet.identification(),
            dont_fragment: packet.dont_fragment(),
            more_fragments: packet.more_fragments(),
            fragment_offset: packet.fragment_offset(),
            options: packet.options(),
        }
    }

    /// Appends the header of a packet with `payload_len` bytes of payload, which follow it.
    ///
    /// # Errors
    /// Options or payload too long, options not a multiple of 4 bytes, or a fragment offset of more than 13 bits.
    pub fn emit(&self, payload_len: usize, out: &mut Vec<u8>) -> Result<(), BuildError> {
        let options_len = self.options.len();
        if options_len > MAX_OPTIONS_LEN {
            return Err(BuildError::TooLong { what: "IPv4 options", max: MAX_OPTIONS_LEN, got: options_len });
        }
        if !options_len.is_multiple_of(4) {
            let expected = "a multiple of 4 bytes";
            return Err(BuildError::Unit { what: "IPv4 options", expected, got: options_len });
        }
        if self.fragment_offset > FRAGMENT_OFFSET {
            return Err(BuildError::TooLong {
                what: "IPv4 fragment offset",
                max: FRAGMENT_OFFSET.into(),
                got: self.fragment_offset.into(),
            });
        }
        let header_len = MIN_HEADER_LEN + options_len;
        let total =
            u16::try_from(header_len.saturating_add(payload_len)).map_err(|_| BuildError::TooLong {
                what: "IPv4 payload",
                max: usize::from(u16::MAX) - header_len,
                got: payload_len,
            })?;
        let fragment = self.fragment_offset
            | if self.dont_fragment { DONT_FRAGMENT } else { 0 }
            | if self.more_fragments { MORE_FRAGMENTS } else { 0 };
        let start = out.len();
        // At most 60 bytes, so at most 15 words.
        out.extend_from_slice(&[0x40 | (header_len / 4) as u8, self.traffic_class]);
        out.extend_from_slice(&total.to_be_bytes());
        out.extend_from_slice(&self.identification.to_be_bytes());
        out.extend_from_slice(&fragment.to_be_bytes());
        out.extend_from_slice(&[self.ttl, self.protocol, 0, 0]);
        out.extend_from_slice(&self.source.octets());
        out.extend_from_slice(&self.destination.octets());
        out.extend_from_slice(self.options);
        let checksum = Checksum::new().with(&out[start..]).finish();
        out[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }
}

fn truncated(expected: usize, got: usize) -> ParseError {
    ParseError::Truncated { what: "IPv4 header", expected, got }
}
