//! Errors of capture readers.

use std::{fmt, io};

use thiserror::Error;

use super::format::EXPECTED;
use super::{Format, MAX_RECORD_LEN};
use crate::error::ParseError;

/// Why a capture cannot be read, or only in part.
///
/// Offsets count bytes of the capture, after decompression.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The input itself failed.
    #[error("cannot read the capture: {0}")]
    Io(#[from] io::Error),
    /// The input has no bytes.
    #[error("the capture is empty (0 bytes): expected {EXPECTED}")]
    Empty,
    /// A known format that is not supported.
    #[error("expected {expected}, found {found}: {hint}")]
    Unsupported {
        /// The supported formats.
        expected: &'static str,
        /// The format found.
        found: &'static str,
        /// How to convert it to a supported format.
        hint: &'static str,
    },
    /// An unknown format.
    #[error("not a capture: expected {EXPECTED}, found {}", Beginning(.got))]
    NotACapture {
        /// The first bytes, at most 8.
        got: Vec<u8>,
    },
    /// An unknown version of the format.
    #[error("{format} version {expected} expected, got {got}")]
    Version {
        /// The format.
        format: Format,
        /// The major version that is supported.
        expected: u16,
        /// The major version found.
        got: u16,
    },
    /// An unsupported link type, in a file that has no other.
    #[error("link type {0} is not supported (known: 0, 1, 9, 12, 14, 101, 108, 113, 228, 229, 276)")]
    LinkType(u16),
    /// The input ends within a header, record or block, or within compressed data.
    #[error("the capture is truncated at byte {offset}: {expected} bytes expected there, got {got}")]
    Truncated {
        /// Where the unfinished part starts.
        offset: u64,
        /// How long it should be.
        expected: usize,
        /// How many bytes are present.
        got: usize,
    },
    /// The compressed data violates its format, does not match its checksum, or needs a window of more than 32 MiB.
    #[error("the compressed capture cannot be unpacked beyond byte {offset}: {reason}")]
    Damaged {
        /// How many bytes were decompressed before.
        offset: u64,
        /// The decoder's error.
        reason: io::Error,
    },
    /// A record with an impossible length.
    #[error("corrupt record at byte {offset}: at most {MAX_RECORD_LEN} captured bytes expected, got {got}")]
    RecordTooLong {
        /// Where the record starts.
        offset: u64,
        /// The length it claims.
        got: u32,
    },
    /// A block of a pcapng file that contradicts itself or the blocks before it.
    #[error("corrupt block at byte {offset}: {reason}")]
    Block {
        /// Where the block starts.
        offset: u64,
        /// What is wrong with it.
        reason: ParseError,
    },
}

/// Displays bytes in hexadecimal, and also as text if they are text.
struct Beginning<'a>(&'a [u8]);

impl fmt::Display for Beginning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes ")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        match std::str::from_utf8(self.0) {
            Ok(text) if !text.contains('\0') => write!(f, " ({text:?})"),
            _ => Ok(()),
        }
    }
}
