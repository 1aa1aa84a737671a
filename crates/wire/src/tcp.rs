//! TCP segments (RFC 9293 3.1): a [`Packet`] is a view of a segment, a [`Repr`] a header to build.
//!
//! A header truncated to a capture's snap length is accepted if its 20 fixed bytes are present; the iterator over its
//! options then ends with an error. No input causes a panic.

mod options;

pub use options::{Experimental, ExperimentalKind, Options, SackBlock, SackBlocks, TcpOption, UnknownOption};

use crate::checksum::PseudoHeader;
use crate::error::{BuildError, ParseError};

/// A number in the 32-bit sequence space of one direction of a subflow. The space wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// The number `bytes` further on.
    #[must_use]
    pub fn advance(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// How many bytes this number is after `origin`; above 2^31 if it is before.
    pub fn since(self, origin: Self) -> u32 {
        self.0.wrapping_sub(origin.0)
    }
}

/// The control bits, with AE (RFC 9768) and the three reserved bits above the eight of RFC 9293.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// The sender has no more data.
    pub const FIN: Self = Self(0x001);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x002);
    /// Reset the connection.
    pub const RST: Self = Self(0x004);
    /// Push.
    pub const PSH: Self = Self(0x008);
    /// The acknowledgement number is valid.
    pub const ACK: Self = Self(0x010);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x020);

    /// The low twelve bits of `bits`; the others are dropped.
    pub fn new(bits: u16) -> Self {
        Self(bits & 0x0fff)
    }

    /// The twelve bits.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Whether all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The header without options, in bytes.
pub const MIN_HEADER_LEN: usize = 20;

/// Maximum length of the options (the header has at most 15 words).
const MAX_OPTIONS_LEN: usize = 40;

/// A view of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    fixed: &'a [u8; MIN_HEADER_LEN],
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A view of `bytes`, which are the captured part of a segment, starting with the TCP header.
    ///
    /// # Errors
    /// Fewer than 20 bytes, or a data offset below five words.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk() else {
            return Err(ParseError::Truncated {
                what: "TCP header",
                expected: MIN_HEADER_LEN,
                got: bytes.len(),
            });
        };
        let packet = Self { fixed, bytes };
        if packet.header_len() < MIN_HEADER_LEN {
            return Err(ParseError::Length {
                what: "TCP header",
                expected: "20 to 60",
                got: packet.header_len(),
            });
        }
        Ok(packet)
    }

    /// The source port.
    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.fixed[0], self.fixed[1]])
    }

    /// The destination port.
    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.fixed[2], self.fixed[3]])
    }

    /// The sequence number of the first byte, or of the SYN.
    pub fn seq(&self) -> Seq {
        let [_, _, _, _, a, b, c, d, ..] = *self.fixed;
        Seq(u32::from_be_bytes([a, b, c, d]))
    }

    /// The acknowledgement number; meaningful with [`Flags::ACK`].
    pub fn ack(&self) -> Seq {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *self.fixed;
        Seq(u32::from_be_bytes([a, b, c, d]))
    }

    /// The control bits.
    pub fn flags(&self) -> Flags {
        Flags::new(u16::from_be_bytes([self.fixed[12], self.fixed[13]]))
    }

    /// The window field, unscaled.
    pub fn window(&self) -> u16 {
        u16::from_be_bytes([self.fixed[14], self.fixed[15]])
    }

    /// The checksum field.
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.fixed[16], self.fixed[17]])
    }

    /// The urgent pointer; meaningful with [`Flags::URG`].
    pub fn urgent(&self) -> u16 {
        u16::from_be_bytes([self.fixed[18], self.fixed[19]])
    }

    /// The header's length with options, 20 to 60 bytes, whether or not all of it was captured.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.fixed[12] >> 4) * 4
    }

    /// The captured options.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        let end = self.header_len().min(self.bytes.len());
        Options::new(&self.bytes[MIN_HEADER_LEN..end])
    }

    /// Whether the capture lacks part of the options. The iterator over [`options`](Self::options) does not tell if it ends
    /// between two of them.
    #[inline]
    pub fn has_truncated_options(&self) -> bool {
        self.bytes.len() < self.header_len()
    }

    /// The captured part of the payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.header_len()..).unwrap_or_default()
    }

    /// Whether the checksum is correct. Meaningless for a segment that was captured in part, or on the sending host
    /// before the network card filled in the checksum.
    pub fn checksum_is_right(&self, pseudo: PseudoHeader) -> bool {
        let Ok(length) = u32::try_from(self.bytes.len()) else { return false };
        pseudo.checksum(length).with(self.bytes).finish() == 0
    }
}

/// The header of a segment to build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repr<'a> {
    /// The source port.
    pub source_port: u16,
    /// The destination port.
    pub destination_port: u16,
    /// The sequence number of the first byte, or of the SYN.
    pub seq: Seq,
    /// The acknowledgement number.
    pub ack: Seq,
    /// The control bits.
    pub flags: Flags,
    /// The window field, unscaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options in order; at most 40 bytes, padding included. The end is padded with zeros.
    pub options: Vec<TcpOption<'a>>,
}

impl<'a> Repr<'a> {
    /// Reads the header with all its options.
    ///
    /// # Errors
    /// The first option that is malformed.
    pub fn parse(packet: Packet<'a>) -> Result<Self, ParseError> {
        Ok(Self {
            source_port: packet.source_port(),
            destination_port: packet.destination_port(),
            seq: packet.seq(),
            ack: packet.ack(),
            flags: packet.flags(),
            window: packet.window(),
            urgent: packet.urgent(),
            options: packet.options().collect::<Result<_, _>>()?,
        })
    }

    /// Appends the segment with `payload` and a correct checksum.
    ///
    /// # Errors
    /// Options that do not fit into the header.
    pub fn emit(&self, pseudo: PseudoHeader, payload: &[u8], out: &mut Vec<u8>) -> Result<(), BuildError> {
        let start = out.len();
        out.extend_from_slice(&self.source_port.to_be_bytes());
        out.extend_from_slice(&self.destination_port.to_be_bytes());
        out.extend_from_slice(&self.seq.0.to_be_bytes());
        out.extend_from_slice(&self.ack.0.to_be_bytes());
        out.extend_from_slice(&self.flags.0.to_be_bytes());
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&self.urgent.to_be_bytes());
        for option in &self.options {
            option.emit(out);
        }
        let options_len = out.len() - start - MIN_HEADER_LEN;
        if options_len > MAX_OPTIONS_LEN {
            out.truncate(start);
            return Err(BuildError { what: "TCP options", max: MAX_OPTIONS_LEN, got: options_len });
        }
        let header_len = (MIN_HEADER_LEN + options_len).next_multiple_of(4);
        out.resize(start + header_len, 0);
        // At most 60 bytes, so at most 15 words.
        out[start + 12] |= (header_len as u8 / 4) << 4;
        out.extend_from_slice(payload);
        let length = u32::try_from(out.len() - start).map_err(|_| BuildError {
            what: "TCP segment",
            max: u32::MAX as usize,
            got: out.len() - start,
        })?;
        let checksum = pseudo.checksum(length).with(&out[start..]).finish();
        out[start + 16..start + 18].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }
}
