//! Counts of one side of a subflow for one interval.

use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use crate::direction::Direction;

/// What one side sent in one subflow during one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// The [connection's id](crate::Connection::id).
    pub connection: u64,
    /// Index of the subflow in the connection.
    pub subflow: usize,
    /// The direction in which it was sent.
    pub direction: Direction,
    /// Start of the interval: a multiple of its length since 1970-01-01 00:00:00 UTC, so that the intervals of different
    /// captures align.
    pub start: Timestamp,
    /// What was counted.
    pub counts: IntervalCounts,
}

/// What was counted in an [`Interval`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntervalCounts {
    /// Packets, with and without payload.
    pub packets: u64,
    /// Payload bytes, all copies.
    pub bytes: u64,
    /// Bytes that no subflow had carried before: the goodput.
    pub new: u64,
    /// Bytes that another subflow had carried before.
    pub reinjected: u64,
    /// Bytes that this subflow had sent before, by TCP sequence number.
    pub retransmitted: u64,
    /// Round-trip times that were completed within the interval, where the capture shows those of the path.
    pub rtt: Option<RttSamples>,
    /// The interarrival jitter (RFC 3550 6.4.1) after the last packet of the interval.
    pub jitter: Option<Duration>,
    /// The range of the stream that the payload belongs to, relative to the first byte of the stream, or to the first
    /// byte captured.
    pub positions: Option<Range<i64>>,
    /// The receive window that this side announced last, in bytes, if the window scale is known.
    pub window: Option<u64>,
}

impl IntervalCounts {
    pub(crate) fn add_rtt_sample(&mut self, sample: Duration) {
        let rtt =
            self.rtt.get_or_insert(RttSamples { count: 0, sum: Duration::ZERO, min: sample, max: sample });
        rtt.count += 1;
        rtt.sum = rtt.sum.saturating_add(sample);
        rtt.min = rtt.min.min(sample);
        rtt.max = rtt.max.max(sample);
    }

    pub(crate) fn extend_positions(&mut self, positions: Range<i64>) {
        let before = self.positions.take().unwrap_or(positions.clone());
        self.positions = Some(before.start.min(positions.start)..before.end.max(positions.end));
    }
}

/// Summary of the round-trip times of an interval; there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttSamples {
    /// Number of samples.
    pub count: u64,
    /// Their sum.
    pub sum: Duration,
    /// Minimum.
    pub min: Duration,
    /// Maximum.
    pub max: Duration,
}

impl RttSamples {
    /// Arithmetic mean.
    pub fn mean(&self) -> Duration {
        self.sum.div_f64(self.count as f64)
    }
}
