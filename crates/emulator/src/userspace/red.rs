//! Random early detection (Floyd and Jacobson, 1993) in its "gentle" variant (Floyd, 2000), deciding per frame.

/// The weight of one arrival in the moving average of the queue length.
const WEIGHT: f64 = 0.002;
/// The drop probability at `max_threshold`.
const MAX_PROBABILITY: f64 = 0.1;

/// The state of one queue. Nothing is dropped while the average is below `min_threshold` bytes; from there the drop
/// probability grows to a tenth at `max_threshold`, and to 1 at twice that.
pub(super) struct Red {
    min_threshold: f64,
    max_threshold: f64,
    /// The average queue length at arrivals, in bytes.
    mean: f64,
    /// When the queue became empty, in nanoseconds.
    empty_since: Option<u64>,
}

impl Red {
    /// The state of an empty queue with a limit of `queue` bytes.
    pub(super) fn new(queue: u64) -> Self {
        let mut red = Self { min_threshold: 0.0, max_threshold: 0.0, mean: 0.0, empty_since: None };
        red.set(queue);
        red
    }

    /// Sets the queue size in bytes: the thresholds are a twelfth and a third of it.
    pub(super) fn set(&mut self, queue: u64) {
        self.min_threshold = queue as f64 / 12.0;
        self.max_threshold = queue as f64 / 3.0;
    }

    /// Records that the queue became empty.
    pub(super) fn emptied(&mut self, now: u64) {
        self.empty_since = Some(now);
    }

    /// The drop probability of a frame that finds `waiting` bytes in the queue. A full frame takes `frame_time`
    /// nanoseconds: during idle time, the average decays as if such frames had arrived at an empty queue.
    pub(super) fn probability(&mut self, now: u64, waiting: u64, frame_time: f64) -> f64 {
        if let Some(since) = self.empty_since.take() {
            self.mean *= (1.0 - WEIGHT).powf(now.saturating_sub(since) as f64 / frame_time);
        }
        self.mean += (waiting as f64 - self.mean) * WEIGHT;
        if self.mean < self.min_threshold {
            0.0
        } else if self.mean < self.max_threshold {
            MAX_PROBABILITY * (self.mean - self.min_threshold) / (self.max_threshold - self.min_threshold)
        } else {
            (MAX_PROBABILITY
                + (1.0 - MAX_PROBABILITY) * (self.mean - self.max_threshold) / self.max_threshold)
                .min(1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1500 bytes at 20 Mb/s.
    const FRAME: f64 = 600_000.0;

    fn settled(red: &mut Red, waiting: u64) -> f64 {
        (0..10_000).map(|_| red.probability(0, waiting, FRAME)).last().expect("one")
    }

    #[test]
    fn drop_probability_grows_with_the_average_length() {
        let mut red = Red::new(120_000);
        for (waiting, expected) in [
            (0, 0.0),
            (9_999, 0.0),
            (25_000, 0.05),
            (40_000, 0.1),
            (60_000, 0.55),
            (80_000, 1.0),
            (120_000, 1.0),
        ] {
            let probability = settled(&mut red, waiting);
            assert!((probability - expected).abs() < 1e-6, "{waiting} bytes: {probability}");
        }
    }

    #[test]
    fn a_burst_hardly_changes_the_average() {
        let mut red = Red::new(120_000);
        assert!((0..40).all(|frame| red.probability(0, frame * 1500, FRAME) == 0.0));
    }

    #[test]
    fn idle_time_decays_the_average() {
        let mut idle = Red::new(120_000);
        let mut busy = Red::new(120_000);
        settled(&mut idle, 40_000);
        settled(&mut busy, 40_000);
        idle.emptied(0);
        let after = idle.probability(500 * FRAME as u64, 0, FRAME);
        let steps = (0..501).map(|_| busy.probability(0, 0, FRAME)).last().expect("one");
        assert!((after - steps).abs() < 1e-9, "{after} {steps}");
        assert!(after < 0.03);
    }
}
