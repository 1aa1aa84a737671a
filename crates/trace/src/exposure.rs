//! How much of a stream crossed a path.

use crate::byte_ranges::ByteRanges;

/// How much of a stream crossed a path at least once, retransmissions and reinjections included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exposure {
    /// Bytes, each counted once.
    pub bytes: u64,
    /// Their share of the stream, 0 to 1; 0 for an empty stream.
    pub fraction: f64,
    /// The longest contiguous run, in bytes.
    pub longest_run: u64,
    /// The number of contiguous runs.
    pub runs: usize,
}

impl Exposure {
    /// Of a stream of `length` bytes of which `exposed` crossed.
    pub fn new(exposed: &ByteRanges, length: u64) -> Self {
        let bytes = exposed.total();
        let fraction = if length == 0 { 0.0 } else { bytes as f64 / length as f64 };
        Self { bytes, fraction, longest_run: exposed.longest_run(), runs: exposed.runs().len() }
    }
}
