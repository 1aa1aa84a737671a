//! Throughput statistics of `plait analyze`: mean and standard deviation for each subflow and direction.

use std::collections::HashMap;
use std::time::Duration;

use plait_trace::{Direction, Interval};
use plait_wire::capture::Timestamp;

/// Throughput of each direction of each subflow: mean and standard deviation over intervals, including empty ones between
/// the first and the last.
pub(super) struct Rates {
    interval: Duration,
    connections: HashMap<u64, SubflowRates>,
}

/// By index of the subflow and direction.
pub(super) type SubflowRates = HashMap<(usize, Direction), Rate>;

/// Throughput in one direction of a subflow.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    first: Timestamp,
    last: Timestamp,
    sum: f64,
    squares: f64,
}

impl Rates {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, connections: HashMap::new() }
    }

    pub(super) fn count(&mut self, Interval { connection, subflow, direction, start, counts }: &Interval) {
        let rates = self.connections.entry(*connection).or_default();
        let rate = rates.entry((*subflow, *direction)).or_insert(Rate {
            first: *start,
            last: *start,
            sum: 0.0,
            squares: 0.0,
        });
        rate.first = rate.first.min(*start);
        rate.last = rate.last.max(*start);
        let mbps = counts.bytes as f64 * 8.0 / 1e6 / self.interval.as_secs_f64();
        rate.sum += mbps;
        rate.squares += mbps * mbps;
    }

    /// Removes and returns the rates of a connection that has ended.
    pub(super) fn take(&mut self, connection: u64) -> SubflowRates {
        self.connections.remove(&connection).unwrap_or_default()
    }
}

impl Rate {
    /// Mean and standard deviation in Mbit/s, given the length of the intervals.
    pub(super) fn mean_and_stddev(&self, interval: Duration) -> (f64, f64) {
        let span = self.last.since(self.first).unwrap_or_default();
        let count = (span.as_secs_f64() / interval.as_secs_f64()).round() + 1.0;
        let mean = self.sum / count;
        (mean, (self.squares / count - mean * mean).max(0.0).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use plait_trace::IntervalCounts;

    use super::*;

    #[test]
    fn empty_intervals_count() {
        let second = Duration::from_secs(1);
        let mut rates = Rates::new(second);
        for (start, bytes) in [(10, 125_000), (11, 375_000), (14, 500_000)] {
            let counts = IntervalCounts { bytes, ..IntervalCounts::default() };
            let start = Timestamp(start * 1_000_000_000);
            let direction = Direction::ClientToServer;
            rates.count(&Interval { connection: 1, subflow: 0, direction, start, counts });
        }
        // 1, 3, 0, 0 and 4 Mbit/s.
        let (mean, stddev) = rates.take(1)[&(0, Direction::ClientToServer)].mean_and_stddev(second);
        assert!((mean - 1.6).abs() < 1e-9, "{mean}");
        assert!((stddev - 2.64_f64.sqrt()).abs() < 1e-9, "{stddev}");
        assert!(rates.take(1).is_empty());
    }
}
