use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use crate::sink::{Counts, Spread};

/// The interval that one side of a subflow is in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Current {
    /// How many of its length since 1970; `None` before the first.
    index: Option<u64>,
    counts: Counts,
}

/// The length of all intervals, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length(u64);

impl Length {
    pub(crate) fn new(interval: Duration) -> Self {
        Self(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1))
    }
}

impl Current {
    /// The counts of the interval that `time` is in. The one before goes to `ended`.
    #[inline]
    pub(crate) fn at(
        &mut self,
        length: Length,
        time: Timestamp,
        ended: impl FnOnce(Timestamp, Counts),
    ) -> &mut Counts {
        let index = time.0 / length.0;
        if self.index != Some(index) {
            self.end(length, ended);
            self.index = Some(index);
        }
        &mut self.counts
    }

    /// The counts of the interval, which begins at `time` if there is none. It goes on until it is known to what it
    /// belongs.
    pub(crate) fn begun(&mut self, length: Length, time: Timestamp) -> &mut Counts {
        self.index.get_or_insert(time.0 / length.0);
        &mut self.counts
    }

    /// The counts of the interval, if there is one.
    pub(crate) fn counts(&mut self) -> Option<&mut Counts> {
        self.index.is_some().then_some(&mut self.counts)
    }

    /// Ends the interval, if there is one.
    pub(crate) fn end(&mut self, length: Length, ended: impl FnOnce(Timestamp, Counts)) {
        if let Some(index) = self.index.take() {
            ended(Timestamp(index.saturating_mul(length.0)), std::mem::take(&mut self.counts));
        }
    }
}

impl Counts {
    pub(crate) fn round_trip(&mut self, sample: Duration) {
        let spread = self.round_trips.get_or_insert(Spread {
            count: 0,
            sum: Duration::ZERO,
            min: sample,
            max: sample,
        });
        spread.count += 1;
        spread.sum = spread.sum.saturating_add(sample);
        spread.min = spread.min.min(sample);
        spread.max = spread.max.max(sample);
    }

    pub(crate) fn carried(&mut self, positions: Range<i64>) {
        let before = self.positions.take().unwrap_or(positions.clone());
        self.positions = Some(before.start.min(positions.start)..before.end.max(positions.end));
    }
}
