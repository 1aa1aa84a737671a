use std::ops::Range;

use crate::{ByteRanges, Exposure};

/// Which positions of a stream something covered, in bounded memory however long the stream: the latest runs as they
/// are, those far behind only as figures. Positions far behind are taken to be covered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage {
    latest: ByteRanges,
    /// Behind the last position that only the figures below tell of.
    horizon: u64,
    bytes: u64,
    runs: usize,
    longest_run: u64,
}

/// How many runs are kept as they are: far more than are between a byte and its reinjection.
const RUNS_KEPT: usize = 1 << 16;

impl Coverage {
    /// The runs that are kept as they are: all, of a stream with few.
    pub(crate) fn latest(&self) -> &ByteRanges {
        &self.latest
    }

    /// The first position, if there is any.
    pub(crate) fn start(&self) -> Option<u64> {
        self.latest.runs().first().map(|run| run.start)
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        self.latest.insert(range.start.max(self.horizon)..range.end);
        if self.latest.runs().len() > RUNS_KEPT {
            for run in self.latest.split_off_first(RUNS_KEPT / 2) {
                self.horizon = run.end;
                self.bytes += run.end - run.start;
                self.longest_run = self.longest_run.max(run.end - run.start);
                self.runs += 1;
            }
        }
    }

    /// How many positions of `range` are covered.
    pub(crate) fn overlap(&self, range: Range<u64>) -> u64 {
        let behind = range.end.min(self.horizon).saturating_sub(range.start);
        behind + self.latest.overlap(range.start.max(self.horizon)..range.end)
    }

    /// How much of a stream of `length` bytes is covered.
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

    /// Counts positions from `origin` on, when nothing more comes.
    pub(crate) fn rebase(&mut self, origin: u64) {
        self.latest = self.latest.rebased(origin);
        self.horizon = self.horizon.saturating_sub(origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every other byte, many more of them than are kept, beside the set that keeps all.
    #[test]
    fn figures_are_those_of_all_runs() {
        let (mut coverage, mut all) = (Coverage::default(), ByteRanges::new());
        for index in 0..200_000u64 {
            let start = index * 10;
            let length = if index == 777 { 9 } else { 1 + index % 8 };
            coverage.insert(start..start + length);
            all.insert(start..start + length);
        }
        assert_eq!(coverage.exposure(2_000_000), Exposure::new(&all, 2_000_000));
        assert!(coverage.latest().runs().len() <= RUNS_KEPT);
        assert_eq!(coverage.overlap(1_999_990..2_000_010), all.overlap(1_999_990..2_000_010));
        assert_eq!(coverage.overlap(0..50), 50, "far behind counts as covered");
        coverage.insert(0..50);
        assert_eq!(coverage.exposure(2_000_000), Exposure::new(&all, 2_000_000));
    }
}
