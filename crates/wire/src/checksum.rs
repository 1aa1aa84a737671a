//! The Internet checksum (RFC 1071) and the pseudo-headers that it covers: TCP's (RFC 9293 3.1, RFC 8200 8.1) and that
//! of a DSS mapping (RFC 8684 3.3.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::mptcp::{DataSeq, SubflowSeq};
use crate::protocol;

/// A running one's complement sum. Parts are summed as if concatenated without padding, so only the last may have an
/// odd length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum {
    sum: u64,
}

impl Checksum {
    /// The empty sum.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes; an odd last byte counts as the high half of a 16-bit word (RFC 1071 1).
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        // Summing 32-bit words yields the same modulo 0xffff, and 2^32 of them fit in the accumulator.
        let (words, tail) = bytes.as_chunks::<4>();
        for word in words {
            self.sum += u64::from(u32::from_be_bytes(*word));
        }
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        self.sum += u64::from(u32::from_be_bytes(last));
        // Keeps the accumulator far from overflow however many parts are added.
        self.sum = (self.sum & 0xffff_ffff) + (self.sum >> 32);
        self
    }

    /// The complement of the sum: the value of the checksum field, and 0 over bytes that contain a correct one.
    pub fn finish(self) -> u16 {
        let mut sum = self.sum;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        // The loop leaves at most 16 bits.
        !(sum as u16)
    }
}

/// The addresses that the TCP checksum covers besides the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PseudoHeader {
    /// Over IPv4 (RFC 9293 3.1).
    V4 {
        /// The packet's source.
        source: Ipv4Addr,
        /// The packet's destination.
        destination: Ipv4Addr,
    },
    /// Over IPv6 (RFC 8200 8.1).
    V6 {
        /// The packet's source.
        source: Ipv6Addr,
        /// The packet's final destination.
        destination: Ipv6Addr,
    },
}

impl PseudoHeader {
    /// `None` if the addresses are of different families.
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6 { source, destination }),
            _ => None,
        }
    }

    /// The sum over the pseudo-header of a TCP segment of `length` bytes, header included.
    pub fn checksum(self, length: u32) -> Checksum {
        let sum = match self {
            Self::V4 { source, destination } => {
                Checksum::new().with(&source.octets()).with(&destination.octets())
            }
            Self::V6 { source, destination } => {
                Checksum::new().with(&source.octets()).with(&destination.octets())
            }
        };
        sum.with(&length.to_be_bytes()).with(&[0, 0, 0, protocol::TCP])
    }
}

/// The checksum of a DSS mapping: over the 64-bit data sequence number (even if the option carries only its lower
/// half), the relative subflow sequence number, the data-level length, 16 zero bits and the data it maps (RFC 8684
/// 3.3.1, figure 10).
pub fn dss(data_seq: DataSeq, subflow_seq: SubflowSeq, length: u16, data: &[u8]) -> u16 {
    Checksum::new()
        .with(&data_seq.0.to_be_bytes())
        .with(&subflow_seq.0.to_be_bytes())
        .with(&length.to_be_bytes())
        .with(data)
        .finish()
}
