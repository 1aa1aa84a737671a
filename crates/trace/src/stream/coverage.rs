//! A set of covered stream positions in bounded memory.

use std::ops::Range;

use crate::byte_ranges::ByteRanges;
use crate::exposure::Exposure;

/// A set of covered positions of a stream in bounded memory: the latest runs exactly, older ones only as totals. Positions
/// before the horizon count as covered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage {
    latest: ByteRanges,
    /// End of the runs that are only part of the totals below.
    horizon: u64,
    bytes: u64,
    runs: usize,
    longest_run: u64,
}

/// Maximum number of exact runs: far more than there are between a byte and its reinjection.
const MAX_RUNS: usize = 1 << 16;

impl Coverage {
    /// The exact runs: all, if there are few.
    pub(crate) fn latest(&self) -> &ByteRanges {
        &self.latest
    }

    /// The first position.
    pub(crate) fn start(&self) -> Option<u64> {
        self.latest.runs().first().map(|run| run.start)
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        self.latest.insert(range.start.max(self.horizon)..range.end);
        if self.latest.runs().len() > MAX_RUNS {
            for run in self.latest.split_off_first(MAX_RUNS / 2) {
                self.horizon = run.end;
                self.bytes += run.end - run.start;
                self.longest_run = self.longest_run.max(run.end - run.start);
                self.runs += 1;
            }
        }
    }

    /// Number of covered positions in `range`.
    pub(crate) fn overlap(&self, range: Range<u64>) -> u64 {
        let behind = range.end.min(self.horizon).saturating_sub(range.start);
        behind + self.latest.overlap(range.start.max(self.horizon)..range.end)
    }

    /// The covered part of a stream of `length` bytes.
    pub(crate) fn exposure(&self, length: u64) -> Exposure {
        let latest = Exposure::new(&self.latest, length);
        let bytes = self.bytes + latest.bytes;
        Exposure {
            bytes,
            fraction: if length == 0 { 0.0 } else { bytes as f64 / length as f64 },
            longest_run: self.longest_run.max(latest.longest_run),
            runs: self.runs + latest.runs,
        }
    }

    /// Makes positions relative to `origin`.
    pub(crate) fn rebase(&mut self, origin: u64) {
        self.latest = self.latest.rebased(origin);
        self.horizon = self.horizon.saturating_sub(origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares far more runs than are kept with a set that keeps all.
    #[test]
    fn totals_include_all_runs() {
        let (mut coverage, mut all) = (Coverage::default(), ByteRanges::new());
        for index in 0..200_000u64 {
            let start = index * 10;
            let length = if index == 777 { 9 } else { 1 + index % 8 };
            coverage.insert(start..start + length);
            all.insert(start..start + length);
        }
        assert_eq!(coverage.exposure(2_000_000), Exposure::new(&all, 2_000_000));
        assert!(coverage.latest().runs().len() <= MAX_RUNS);
        assert_eq!(coverage.overlap(1_999_990..2_000_010), all.overlap(1_999_990..2_000_010));
        assert_eq!(coverage.overlap(0..50), 50, "far behind counts as covered");
        coverage.insert(0..50);
        assert_eq!(coverage.exposure(2_000_000), Exposure::new(&all, 2_000_000));
    }
}
