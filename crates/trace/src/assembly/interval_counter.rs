//! Counts of one side of a subflow per interval.

use std::time::Duration;

use plait_wire::capture::Timestamp;

use crate::interval::IntervalCounts;

/// Counts what one side of a subflow sends in the current interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct IntervalCounter {
    /// The interval's number since 1970; `None` before the first.
    index: Option<u64>,
    counts: IntervalCounts,
}

/// The length of all intervals, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntervalLength(u64);

impl IntervalLength {
    pub(crate) fn new(interval: Duration) -> Self {
        Self(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1))
    }
}

impl IntervalCounter {
    /// The counts of the interval that contains `time`. A completed interval is passed to `completed`.
    #[inline]
    pub(crate) fn at(
        &mut self,
        length: IntervalLength,
        time: Timestamp,
        completed: impl FnOnce(Timestamp, IntervalCounts),
    ) -> &mut IntervalCounts {
        let index = time.0 / length.0;
        if self.index != Some(index) {
            self.finish(length, completed);
            self.index = Some(index);
        }
        &mut self.counts
    }

    /// The counts of a flow whose connection is not known yet: its interval stays open until it is.
    pub(crate) fn provisional(&mut self, length: IntervalLength, time: Timestamp) -> &mut IntervalCounts {
        self.index.get_or_insert(time.0 / length.0);
        &mut self.counts
    }

    /// The counts of the current interval, if there is one.
    pub(crate) fn counts(&mut self) -> Option<&mut IntervalCounts> {
        self.index.is_some().then_some(&mut self.counts)
    }

    /// Completes the current interval, if there is one.
    pub(crate) fn finish(
        &mut self,
        length: IntervalLength,
        completed: impl FnOnce(Timestamp, IntervalCounts),
    ) {
        if let Some(index) = self.index.take() {
            completed(Timestamp(index.saturating_mul(length.0)), std::mem::take(&mut self.counts));
        }
    }
}
