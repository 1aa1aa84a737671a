//! How much of a stream crossed a path.

use schemars::JsonSchema;
use serde::Serialize;

use crate::byte_ranges::ByteRanges;

/// How much of a stream crossed a subflow or a path at least once.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct Exposure {
    /// Bytes, each counted once.
    pub bytes: u64,
    /// Their share of the stream; 0 for an empty stream.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub fraction: f64,
    /// Length of the longest contiguous run, in bytes.
    pub longest_run: u64,
    /// Number of contiguous runs.
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
