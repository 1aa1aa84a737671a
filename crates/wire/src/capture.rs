//! Capture files in the classic pcap format (<https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>), read
//! and written as streams.
//!
//! [`PcapReader`] takes files of both byte orders and both time resolutions from anything that implements
//! [`Read`](std::io::Read), keeps one buffer whatever the file's length, and lends each record from it. pcapng and
//! compressed files are recognised and refused by name. Records longer than the snap length, which several tools
//! write, are accepted up to [`MAX_RECORD_LEN`]. A file that ends within a record, as one does whose writer was
//! killed, gives all records before it and then [`CaptureError::Truncated`]. Nothing here panics on input.

mod reader;
mod writer;

use std::time::Duration;
use std::{fmt, io};

use thiserror::Error;

use crate::{LinkType, Segment, Skip};

pub use reader::PcapReader;
pub use writer::PcapWriter;

/// The longest record that is believed, in bytes: four times the longest snap length of the usual tools, and more
/// than any packet that Linux shows to a capture.
pub const MAX_RECORD_LEN: u32 = 1 << 20;

/// A time stamp: nanoseconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time since `earlier`; `None` when it is later.
    pub fn since(self, earlier: Self) -> Option<Duration> {
        self.0.checked_sub(earlier.0).map(Duration::from_nanos)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// One captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was captured.
    pub time: Timestamp,
    /// What the frame starts with.
    pub link_type: LinkType,
    /// How long it was on the wire, in bytes; never less than what was captured.
    pub wire_len: u32,
    /// What was captured of it.
    pub data: &'a [u8],
}

impl<'a> Record<'a> {
    /// The TCP segment in it.
    ///
    /// # Errors
    /// See [`Skip`].
    #[inline]
    pub fn segment(&self) -> Result<Segment<'a>, Skip> {
        Segment::parse(self.link_type, self.data, self.wire_len as usize)
    }
}

/// What the header of a pcap file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapHeader {
    /// The byte order of all fields of the file.
    pub byte_order: ByteOrder,
    /// The unit of the time stamps.
    pub resolution: Resolution,
    /// How many bytes of each frame were to be kept.
    pub snap_len: u32,
    /// What the frames start with.
    pub link_type: LinkType,
}

impl PcapHeader {
    /// What tcpdump writes on today's machines when asked for nanoseconds and whole frames of this type.
    pub fn new(link_type: LinkType) -> Self {
        let (byte_order, resolution) = (ByteOrder::Little, Resolution::Nanoseconds);
        Self { byte_order, resolution, snap_len: 262_144, link_type }
    }
}

/// A byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    fn bytes(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// The unit of a file's time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// 10^-6 s.
    Microseconds,
    /// 10^-9 s.
    Nanoseconds,
}

impl Resolution {
    fn nanoseconds(self) -> u64 {
        match self {
            Self::Microseconds => 1000,
            Self::Nanoseconds => 1,
        }
    }

    fn magic(self) -> u32 {
        match self {
            Self::Microseconds => 0xa1b2_c3d4,
            Self::Nanoseconds => 0xa1b2_3c4d,
        }
    }
}

/// Why a capture cannot be read, or not further.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The input itself failed.
    #[error("cannot read the capture: {0}")]
    Io(#[from] io::Error),
    /// No bytes at all.
    #[error("the capture is empty: expected a pcap header of 24 bytes")]
    Empty,
    /// A format that is known but not read.
    #[error("{format} is not supported: expected a classic pcap file ({hint})")]
    Unsupported {
        /// The format found.
        format: &'static str,
        /// How to get from it to pcap.
        hint: &'static str,
    },
    /// Something else.
    #[error("not a capture: expected a pcap magic number, got bytes {}", Hex(.got))]
    NotACapture {
        /// The first bytes.
        got: [u8; 4],
    },
    /// A version of pcap other than 2.
    #[error("pcap version 2 expected, got {got}")]
    Version {
        /// The major version found.
        got: u16,
    },
    /// A link type that this crate cannot take apart.
    #[error("link type {0} is not supported (known: 0, 1, 9, 12, 14, 101, 108, 113, 228, 229, 276)")]
    LinkType(u16),
    /// The input ends within a header or record.
    #[error("the capture is truncated at byte {offset}: {expected} bytes expected there, got {got}")]
    Truncated {
        /// Where the unfinished part starts.
        offset: u64,
        /// How long it should be.
        expected: usize,
        /// How much of it there is.
        got: usize,
    },
    /// A record whose length cannot be true.
    #[error("corrupt record at byte {offset}: at most {MAX_RECORD_LEN} captured bytes expected, got {got}")]
    RecordTooLong {
        /// Where the record starts.
        offset: u64,
        /// The length it claims.
        got: u32,
    },
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
