//! Measures how late frames are delivered.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::statistics::Lateness;

/// A histogram of lateness with two significant digits.
pub(super) struct LatenessHistogram(Histogram<u64>);

const MAX_LATENESS_NS: u64 = 60_000_000_000;

impl LatenessHistogram {
    pub(super) fn new() -> Self {
        Self(
            Histogram::new_with_bounds(1, MAX_LATENESS_NS, 2)
                .expect("bounds are in command, two digits are allowed"),
        )
    }

    /// Records frames with this lateness in nanoseconds; values above a minute count as a minute.
    pub(super) fn count(&mut self, late: u64, frames: usize) {
        self.0.saturating_record_n(late, frames as u64);
    }

    pub(super) fn summary(&self, real_time: bool) -> Lateness {
        let quantile = |quantile| Duration::from_nanos(self.0.value_at_quantile(quantile));
        Lateness {
            frames: self.0.len(),
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: Duration::from_nanos(self.0.max()),
            real_time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent() {
        let mut lateness = LatenessHistogram::new();
        for microseconds in 1..=1000 {
            lateness.count(microseconds * 1000, 10);
        }
        let summary = lateness.summary(true);
        assert_eq!(summary.frames, 10_000);
        for (found, microseconds) in
            [(summary.p50, 500.0), (summary.p99, 990.0), (summary.p999, 999.0), (summary.max, 1000.0)]
        {
            let found = found.as_secs_f64() * 1e6;
            assert!((found / microseconds - 1.0).abs() < 0.01, "{found} for {microseconds}");
        }
    }

    #[test]
    fn an_empty_histogram_reports_zero() {
        let summary = LatenessHistogram::new().summary(false);
        assert_eq!((summary.frames, summary.p99, summary.max), (0, Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn saturates_at_the_maximum() {
        let mut lateness = LatenessHistogram::new();
        lateness.count(u64::MAX, 1);
        assert!(lateness.summary(true).max >= Duration::from_secs(60));
    }
}
