//! Detection of capture formats and compressions by their first bytes.

use std::fmt;

use super::{CaptureError, Resolution};

/// A format of capture files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Classic pcap: one link type per file.
    Pcap,
    /// pcapng: blocks of several interfaces, each with its link type and clock.
    Pcapng,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcap => "pcap",
            Self::Pcapng => "pcapng",
        })
    }
}

/// The compression of a whole capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// The .xz format of XZ Utils.
    Xz,
}

/// A kind of input that can be read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Capture(Format),
    Compressed(Compression),
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Capture(Format::Pcap) => "a pcap file",
            Self::Capture(Format::Pcapng) => "a pcapng file",
            Self::Compressed(Compression::Gzip) => "a gzip file",
            Self::Compressed(Compression::Zstd) => "a zstd file",
            Self::Compressed(Compression::Xz) => "an xz file",
        }
    }
}

/// How many bytes of a file [`recognise`] needs.
pub(super) const HEAD_LEN: usize = 8;

/// Detects the kind of a file by its first bytes; the error names unsupported formats.
pub(super) fn recognise(head: &[u8]) -> Result<Kind, CaptureError> {
    if head.is_empty() {
        return Err(CaptureError::Empty);
    }
    let magics = [Resolution::Microseconds.magic(), Resolution::Nanoseconds.magic()];
    if magics
        .iter()
        .any(|magic| head.starts_with(&magic.to_be_bytes()) || head.starts_with(&magic.to_le_bytes()))
    {
        return Ok(Kind::Capture(Format::Pcap));
    }
    let (found, hint) = match head {
        [0x0a, 0x0d, 0x0d, 0x0a, ..] => return Ok(Kind::Capture(Format::Pcapng)),
        [0x1f, 0x8b, ..] => return Ok(Kind::Compressed(Compression::Gzip)),
        // A zstd stream may start with a skippable frame.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            return Ok(Kind::Compressed(Compression::Zstd));
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => return Ok(Kind::Compressed(Compression::Xz)),
        [0x34, 0xcd, 0xb2, 0xa1, ..] | [0xa1, 0xb2, 0xcd, 0x34, ..] => {
            ("the modified pcap format of old Linux systems", CONVERT)
        }
        [b's', b'n', b'o', b'o', b'p', 0, ..] => ("a snoop capture", CONVERT),
        [b'R', b'T', b'S', b'S', ..] | [b'G', b'M', b'B', b'U', ..] => ("a Network Monitor capture", CONVERT),
        [b'B', b'Z', b'h', ..] => ("a bzip2 file", "unpack it with `bunzip2`"),
        [0x04, 0x22, 0x4d, 0x18, ..] => ("an lz4 file", "unpack it with `unlz4`"),
        [b'P', b'K', 3, 4, ..] => ("a zip file", "unpack it with `unzip`"),
        _ => return Err(CaptureError::NotACapture { got: head[..head.len().min(HEAD_LEN)].to_vec() }),
    };
    Err(CaptureError::Unsupported { expected: EXPECTED, found, hint })
}

const CONVERT: &str = "`editcap -F pcap IN OUT` converts it";

/// All supported inputs, for error messages.
pub(super) const EXPECTED: &str = "a pcap or pcapng file, plain or compressed by gzip, zstd or xz";
