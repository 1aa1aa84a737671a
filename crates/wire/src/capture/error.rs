use std::{fmt, io};

use thiserror::Error;

use super::format::EXPECTED;
use super::{Format, MAX_RECORD_LEN};
use crate::ParseError;

/// Why a capture cannot be read, or not further.
///
/// Offsets count the bytes of the capture; where the input is compressed, of what it unpacks to.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The input itself failed.
    #[error("cannot read the capture: {0}")]
    Io(#[from] io::Error),
    /// No bytes at all.
    #[error("the capture is empty (0 bytes): expected {EXPECTED}")]
    Empty,
    /// A format that is known but not read.
    #[error("expected {expected}, found {found}: {hint}")]
    Unsupported {
        /// What can be read here.
        expected: &'static str,
        /// The format found.
        found: &'static str,
        /// How to get from it to what can be read.
        hint: &'static str,
    },
    /// Something else.
    #[error("not a capture: expected {EXPECTED}, found {}", Beginning(.got))]
    NotACapture {
        /// The first bytes, at most 8.
        got: Vec<u8>,
    },
    /// A version of the format that is not known.
    #[error("{format} version {expected} expected, got {got}")]
    Version {
        /// The format.
        format: Format,
        /// The major version that is known.
        expected: u16,
        /// The major version found.
        got: u16,
    },
    /// A link type that this crate cannot take apart, in a file that has no other.
    #[error("link type {0} is not supported (known: 0, 1, 9, 12, 14, 101, 108, 113, 228, 229, 276)")]
    LinkType(u16),
    /// The input ends within a header, record or block, or within its compressed form.
    #[error("the capture is truncated at byte {offset}: {expected} bytes expected there, got {got}")]
    Truncated {
        /// Where the unfinished part starts.
        offset: u64,
        /// How long it should be.
        expected: usize,
        /// How much of it there is.
        got: usize,
    },
    /// The compressed form is not what its format allows, does not match its checksum, or needs a window of more than
    /// 32 MiB to be unpacked.
    #[error("the compressed capture cannot be unpacked beyond byte {offset}: {reason}")]
    Damaged {
        /// How many bytes were unpacked before.
        offset: u64,
        /// What the decoder says.
        reason: io::Error,
    },
    /// A record whose length cannot be true.
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
        /// What is wrong in it.
        reason: ParseError,
    },
}

/// Bytes in hexadecimal, and as text where they are text.
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
