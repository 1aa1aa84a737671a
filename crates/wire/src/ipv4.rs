//! IPv4 packets (RFC 791), with options and fragments.
//!
//! No input causes a panic. A capture on the sending host may contain packets longer than the total length field can
//! express (Linux then writes 0): such a packet extends to the end of the frame on the wire.

use std::net::Ipv4Addr;

use crate::checksum::Checksum;
use crate::error::{BuildError, ParseError};

/// The header without options, in bytes.
pub const MIN_HEADER_LEN: usize = 20;

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

    /// The total length field; 0 in packets too long for it.
    fn total_len(&self) -> u16 {
        u16::from_be_bytes([self.fixed[2], self.fixed[3]])
    }

    /// Whether this is a fragment and others follow it.
    pub fn more_fragments(&self) -> bool {
        self.fragment_field() & MORE_FRAGMENTS != 0
    }

    /// The offset of the payload in that of the unfragmented packet, in units of 8 bytes.
    pub fn fragment_offset(&self) -> u16 {
        self.fragment_field() & FRAGMENT_OFFSET
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

/// The header of an unfragmented packet to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repr {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    ttl: u8,
}

impl Repr {
    /// A header for a payload of this protocol.
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8) -> Self {
        Self { source, destination, protocol, ttl: 64 }
    }

    /// The header with this time to live instead of 64.
    pub fn with_ttl(self, ttl: u8) -> Self {
        Self { ttl, ..self }
    }

    /// Appends the header of a packet with `payload_len` bytes of payload, which follow it.
    ///
    /// # Errors
    /// The payload is too long.
    pub fn emit(&self, payload_len: usize, out: &mut Vec<u8>) -> Result<(), BuildError> {
        let max = usize::from(u16::MAX) - MIN_HEADER_LEN;
        let total = u16::try_from(payload_len.saturating_add(MIN_HEADER_LEN)).map_err(|_| BuildError {
            what: "IPv4 payload",
            max,
            got: payload_len,
        })?;
        let start = out.len();
        out.extend_from_slice(&[0x45, 0]);
        out.extend_from_slice(&total.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&DONT_FRAGMENT.to_be_bytes());
        out.extend_from_slice(&[self.ttl, self.protocol, 0, 0]);
        out.extend_from_slice(&self.source.octets());
        out.extend_from_slice(&self.destination.octets());
        let checksum = Checksum::new().with(&out[start..]).finish();
        out[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }
}

fn truncated(expected: usize, got: usize) -> ParseError {
    ParseError::Truncated { what: "IPv4 header", expected, got }
}
