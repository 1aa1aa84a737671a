//! A queue that drops frames by chance before it is full: random early detection (Floyd and Jacobson, 1993), "gentle" (Floyd,
//! 2000), each frame for itself.

/// How much a frame that comes moves the mean length of the queue.
const WEIGHT: f64 = 0.002;
/// With what probability a frame is dropped at `most`.
const AT_MOST: f64 = 0.1;

/// The state of one queue. Below a mean of `least` bytes nothing is dropped; from there the probability grows to a tenth at
/// `most`, and to 1 at twice that.
pub(super) struct Red {
    least: f64,
    most: f64,
    /// Of what waited when frames came, bytes.
    mean: f64,
    /// Since when nothing waits, nanoseconds.
    empty_since: Option<u64>,
}

impl Red {
    /// For a queue of so many bytes, which has been empty for long.
    pub(super) fn new(queue: u64) -> Self {
        let mut red = Self { least: 0.0, most: 0.0, mean: 0.0, empty_since: None };
        red.set(queue);
        red
    }

    /// For a queue of so many bytes from now on: its bounds are a twelfth and a third of it.
    pub(super) fn set(&mut self, queue: u64) {
        self.least = queue as f64 / 12.0;
        self.most = queue as f64 / 3.0;
    }

    /// The last frame has left.
    pub(super) fn emptied(&mut self, now: u64) {
        self.empty_since = Some(now);
    }

    /// The probability with which a frame is to be dropped that finds so many bytes waiting, where a full frame takes
    /// `frame_time` nanoseconds: the mean falls in an idle time as if frames had come that found nothing.
    pub(super) fn probability(&mut self, now: u64, waiting: u64, frame_time: f64) -> f64 {
        if let Some(since) = self.empty_since.take() {
            self.mean *= (1.0 - WEIGHT).powf(now.saturating_sub(since) as f64 / frame_time);
        }
        self.mean += (waiting as f64 - self.mean) * WEIGHT;
        if self.mean < self.least {
            0.0
        } else if self.mean < self.most {
            AT_MOST * (self.mean - self.least) / (self.most - self.least)
        } else {
            (AT_MOST + (1.0 - AT_MOST) * (self.mean - self.most) / self.most).min(1.0)
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
    fn the_probability_grows_with_the_mean_length() {
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
    fn a_burst_moves_the_mean_little() {
        let mut red = Red::new(120_000);
        assert!((0..40).all(|frame| red.probability(0, frame * 1500, FRAME) == 0.0));
    }

    #[test]
    fn an_idle_time_counts_as_frames_that_found_nothing() {
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
