//! Time series of a connection's subflows, with no more points than a plot can show.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::direction::Direction;
use crate::interval::{Interval, RttSamples};

/// Maximum number of points of a series, beyond which its intervals are doubled.
const MAX_POINTS_PER_SERIES: usize = 2_000;

/// The series of a connection's subflows, with intervals of one length.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionSeries {
    subflows: Vec<[DirectionSeries; 2]>,
    points: usize,
    doublings: u32,
}

/// What one side sent in one subflow, by number of the interval since 1970; empty intervals are left out.
pub(super) type DirectionSeries = BTreeMap<u64, Point>;

/// What was counted in an interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Point {
    /// Payload bytes, all copies.
    pub(super) bytes: u64,
    /// Bytes that no subflow had carried before.
    pub(super) new: u64,
    pub(super) rtt: RttRange,
    /// Their range in the stream; empty if unknown.
    pub(super) positions: Range<i64>,
}

/// Round-trip times in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RttRange {
    pub(super) count: u32,
    pub(super) min: f32,
    pub(super) max: f32,
    sum: f64,
}

impl ConnectionSeries {
    /// Adds the counts of an interval. Intervals may repeat and come in any order; all have the same `length`, in
    /// nanoseconds.
    pub(super) fn add(&mut self, interval: &Interval, length: u64) {
        let point = Point::of(interval);
        if point.is_empty() {
            return;
        }
        if self.subflows.len() <= interval.subflow {
            self.subflows.resize_with(interval.subflow + 1, Default::default);
        }
        let number = (interval.start.0 / length) >> self.doublings;
        let series = &mut self.subflows[interval.subflow][interval.direction as usize];
        let before = series.len();
        series.entry(number).or_default().add(&point);
        self.points += series.len() - before;
        if series.len() > MAX_POINTS_PER_SERIES {
            self.coarsen();
        }
    }

    /// Doubles the length of the intervals.
    pub(super) fn coarsen(&mut self) {
        self.doublings += 1;
        for series in self.subflows.iter_mut().flatten() {
            let mut merged = DirectionSeries::new();
            for (number, point) in std::mem::take(series) {
                merged.entry(number >> 1).or_default().add(&point);
            }
            *series = merged;
        }
        self.points = self.subflows.iter().flatten().map(BTreeMap::len).sum();
    }

    /// How often the length of the intervals was doubled.
    pub(super) fn doublings(&self) -> u32 {
        self.doublings
    }

    /// The series of each subflow in a direction.
    pub(super) fn sent(&self, direction: Direction) -> impl Iterator<Item = &DirectionSeries> {
        self.subflows.iter().map(move |subflow| &subflow[direction as usize])
    }

    /// Total number of points.
    pub(super) fn points(&self) -> usize {
        self.points
    }

    /// Number of points of the longest series.
    pub(super) fn longest(&self) -> usize {
        self.subflows.iter().flatten().map(BTreeMap::len).max().unwrap_or_default()
    }

    /// The range of interval numbers; `None` without intervals.
    pub(super) fn span(&self) -> Option<Range<u64>> {
        let series = || self.subflows.iter().flatten();
        let first = series().filter_map(|series| series.keys().next()).min()?;
        let last = series().filter_map(|series| series.keys().next_back()).max()?;
        Some(*first..last.saturating_add(1))
    }
}

impl Point {
    fn of(interval: &Interval) -> Self {
        let counts = &interval.counts;
        Self {
            bytes: counts.bytes,
            new: counts.new,
            rtt: counts.rtt.map(RttRange::of).unwrap_or_default(),
            positions: counts.positions.clone().unwrap_or_default(),
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes == 0 && self.rtt.count == 0
    }

    fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.new += other.new;
        self.rtt.add(&other.rtt);
        if self.positions.is_empty() {
            self.positions = other.positions.clone();
        } else if !other.positions.is_empty() {
            self.positions.start = self.positions.start.min(other.positions.start);
            self.positions.end = self.positions.end.max(other.positions.end);
        }
    }
}

impl RttRange {
    fn of(spread: RttSamples) -> Self {
        let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        Self {
            count: u32::try_from(spread.count).unwrap_or(u32::MAX),
            min: milliseconds(spread.min) as f32,
            max: milliseconds(spread.max) as f32,
            sum: milliseconds(spread.sum),
        }
    }

    /// The mean; `None` without samples.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    fn add(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        self.count = self.count.saturating_add(other.count);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plait_wire::capture::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::IntervalCounts;

    const LENGTH: u64 = 100_000_000;

    fn interval(number: u64, bytes: u64) -> Interval {
        let time = Duration::from_micros(bytes);
        Interval {
            connection: 1,
            subflow: 0,
            direction: Direction::ServerToClient,
            start: Timestamp(number * LENGTH),
            counts: IntervalCounts {
                bytes,
                new: bytes / 2,
                rtt: Some(RttSamples { count: 1, sum: time, min: time, max: time }),
                positions: Some(number as i64..number as i64 + bytes as i64),
                ..IntervalCounts::default()
            },
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn nothing_is_lost_in_whatever_order_intervals_come_and_however_long_they_become(
            given in prop::collection::vec((0u64..20_000, 1u64..1_000), 1..6_000),
        ) {
            let mut series = ConnectionSeries::default();
            for &(number, bytes) in &given {
                series.add(&interval(number, bytes), LENGTH);
            }
            let sent = series.sent(Direction::ServerToClient).next().expect("one subflow");
            prop_assert!(sent.len() <= MAX_POINTS_PER_SERIES);
            let bytes = |point: &Point| point.bytes;
            prop_assert_eq!(sent.values().map(bytes).sum::<u64>(), given.iter().map(|given| given.1).sum::<u64>());
            let samples: u32 = sent.values().map(|point| point.rtt.count).sum();
            prop_assert_eq!(samples as usize, given.len());
            for (&number, point) in sent {
                let inside = |&&(at, _): &&(u64, u64)| at >> series.doublings() == number;
                let least = given.iter().filter(inside).map(|given| given.0).min();
                prop_assert_eq!(Some(point.positions.start as u64), least);
                let greatest = given.iter().filter(inside).map(|given| given.1).max().unwrap_or_default();
                prop_assert!((f64::from(point.rtt.max) - greatest as f64 / 1e3).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn an_interval_of_acknowledgements_alone_takes_no_room() {
        let mut series = ConnectionSeries::default();
        let counts = IntervalCounts { packets: 9, window: Some(65_535), ..IntervalCounts::default() };
        series.add(&Interval { counts, ..interval(1, 1) }, LENGTH);
        assert_eq!(series.points(), 0);
        assert_eq!(series.span(), None);
    }
}
