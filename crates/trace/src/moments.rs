//! Mean, spread and range of durations.

use std::time::Duration;

/// Number, mean, standard deviation, minimum and maximum of durations, all exact.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    count: u64,
    /// Mean and sum of squared deviations, in nanoseconds (Welford 1962).
    mean: f64,
    squares: f64,
    min: u64,
    max: u64,
}

impl Moments {
    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Arithmetic mean; `None` without samples, as for all below.
    pub fn mean(&self) -> Option<Duration> {
        self.if_any(|moments| moments.mean.round() as u64)
    }

    /// Population standard deviation.
    pub fn stddev(&self) -> Option<Duration> {
        self.if_any(|moments| (moments.squares / moments.count as f64).sqrt().round() as u64)
    }

    /// Minimum.
    pub fn min(&self) -> Option<Duration> {
        self.if_any(|moments| moments.min)
    }

    /// Maximum.
    pub fn max(&self) -> Option<Duration> {
        self.if_any(|moments| moments.max)
    }

    pub(crate) fn add(&mut self, nanoseconds: u64) {
        self.min = if self.count == 0 { nanoseconds } else { self.min.min(nanoseconds) };
        self.max = self.max.max(nanoseconds);
        self.count += 1;
        let distance = nanoseconds as f64 - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (nanoseconds as f64 - self.mean);
    }

    fn if_any(&self, nanoseconds: impl Fn(&Self) -> u64) -> Option<Duration> {
        (self.count > 0).then(|| Duration::from_nanos(nanoseconds(self)))
    }
}
