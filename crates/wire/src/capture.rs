//! Capture files, read and written as streams: classic pcap
//! (<https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>) and pcapng
//! (<https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html>).
//!
//! [`CaptureReader`] detects the format, and gzip, zstd or xz compression. [`PcapReader`] reads files of both byte orders
//! and both time resolutions, [`PcapngReader`] everything that the draft allows. Each reads from anything that
//! implements [`Read`](std::io::Read), through one buffer that does not grow with the file, and lends each record from
//! it. Records longer than the snap length, which several tools write, are accepted up to [`MAX_RECORD_LEN`]. A file
//! that ends within a record, because its writer was killed for example, yields all records before it and then
//! [`CaptureError::Truncated`]. The error for any other file names its format, if known. No input causes a panic.

mod any;
mod clock;
mod error;
mod format;
mod pcap;
mod pcapng;
mod peeked;
mod window;
mod writer;

use std::fmt;
use std::time::Duration;

use crate::link::LinkType;
use crate::segment::Segment;
use crate::skip::Skip;

pub use any::CaptureReader;
pub use error::CaptureError;
pub use format::{Compression, Format};
pub use pcap::PcapReader;
pub use pcapng::PcapngReader;
pub use writer::PcapWriter;

/// Maximum length of a record in bytes: four times the longest snap length of the usual tools, and more than any packet
/// that Linux passes to a capture.
pub const MAX_RECORD_LEN: u32 = 1 << 20;

/// A time stamp: nanoseconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time since `earlier`; `None` if that is later.
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
    /// The interface: its number in its section of a pcapng file, 0 in a pcap file.
    pub interface: u32,
    /// The type of the frame's link-layer header.
    pub link_type: LinkType,
    /// Its length on the wire, in bytes; at least the captured length.
    pub wire_len: u32,
    /// The captured bytes.
    pub data: &'a [u8],
}

impl<'a> Record<'a> {
    /// The TCP segment in the frame.
    ///
    /// # Errors
    /// See [`Skip`].
    #[inline]
    pub fn segment(&self) -> Result<Segment<'a>, Skip> {
        Segment::parse(self.link_type, self.data, self.wire_len as usize)
    }
}

/// The header of a pcap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapHeader {
    /// The byte order of all fields of the file.
    pub byte_order: ByteOrder,
    /// The unit of the time stamps.
    pub resolution: Resolution,
    /// The snap length: the maximum number of bytes captured of each frame.
    pub snap_len: u32,
    /// The type of the frames' link-layer headers.
    pub link_type: LinkType,
}

impl PcapHeader {
    /// The header that tcpdump writes on little-endian machines for whole frames of this type, with nanoseconds.
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
    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

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
