//! What happens to the frames of one direction by chance: loss, duplication, jitter.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

use crate::{Direction, Loss};

/// The chances of one direction, and the state of its loss.
pub(super) struct Chances {
    random: SmallRng,
    loss: Loss,
    /// The state of a Gilbert-Elliott loss.
    bad: bool,
    duplication: f64,
    /// Nanoseconds.
    delay: u64,
    deviation: f64,
}

impl Chances {
    /// The same seed gives the same events for the same frames.
    pub(super) fn new(direction: &Direction, seed: u64) -> Self {
        let mut chances = Self {
            random: SmallRng::seed_from_u64(seed),
            loss: Loss::default(),
            bad: false,
            duplication: 0.0,
            delay: 0,
            deviation: 0.0,
        };
        chances.set(direction);
        chances
    }

    /// A loss that stays as it was also stays in its state; another begins in the good one.
    pub(super) fn set(&mut self, direction: &Direction) {
        if direction.loss != self.loss {
            self.loss = direction.loss;
            self.bad = false;
        }
        self.duplication = direction.duplication.value();
        self.delay = super::nanoseconds(direction.delay);
        self.deviation = super::nanoseconds(direction.jitter.deviation) as f64;
    }

    /// Whether all frames arrive, once.
    pub(super) fn spare_all(&self) -> bool {
        self.duplication == 0.0 && matches!(self.loss, Loss::Random(p) if p.value() == 0.0)
    }

    /// Whether the next frame is lost.
    pub(super) fn lose(&mut self) -> bool {
        let probability = match self.loss {
            Loss::Random(probability) => probability,
            Loss::GilbertElliott { enter_bad, leave_bad, in_good, in_bad } => {
                let change = if self.bad { leave_bad } else { enter_bad };
                self.bad ^= self.happens(change.value());
                if self.bad { in_bad } else { in_good }
            }
        };
        self.happens(probability.value())
    }

    /// Whether the next frame arrives twice.
    pub(super) fn duplicate(&mut self) -> bool {
        self.happens(self.duplication)
    }

    /// The delay of the next frame, nanoseconds.
    pub(super) fn delay(&mut self) -> u64 {
        if self.deviation == 0.0 {
            return self.delay;
        }
        let deviate: f64 = StandardNormal.sample(&mut self.random);
        let shift = deviate * self.deviation;
        // A cast of what is out of range saturates.
        if shift < 0.0 {
            self.delay.saturating_sub(-shift as u64)
        } else {
            self.delay.saturating_add(shift as u64)
        }
    }

    /// What no delay is below, nanoseconds.
    pub(super) fn least_delay(&self) -> u64 {
        if self.deviation == 0.0 { self.delay } else { 0 }
    }

    /// Whether what has this probability happens.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.random::<f64>() < probability
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Jitter, Probability};

    const FRAMES: usize = 1_000_000;

    fn probability(value: f64) -> Probability {
        Probability::new(value).expect("a probability")
    }

    fn losses(loss: Loss) -> Vec<bool> {
        let mut chances = Chances::new(&Direction { loss, ..Direction::default() }, 1);
        (0..FRAMES).map(|_| chances.lose()).collect()
    }

    fn share(losses: &[bool]) -> f64 {
        losses.iter().filter(|lost| **lost).count() as f64 / losses.len() as f64
    }

    #[test]
    fn random_loss_is_within_four_sigma_of_what_is_asked() {
        for p in [0.001, 0.01, 0.05, 0.5] {
            let found = share(&losses(Loss::Random(probability(p))));
            let sigma = (p * (1.0 - p) / FRAMES as f64).sqrt();
            assert!((found - p).abs() < 4.0 * sigma, "{found} for {p}");
        }
    }

    #[test]
    fn never_and_always_are_exact() {
        assert_eq!(share(&losses(Loss::Random(probability(0.0)))), 0.0);
        assert_eq!(share(&losses(Loss::Random(probability(1.0)))), 1.0);
    }

    #[test]
    fn random_losses_do_not_depend_on_each_other() {
        let p = 0.05;
        let losses = losses(Loss::Random(probability(p)));
        let pairs = losses.windows(2).filter(|pair| pair[0] && pair[1]).count() as f64 / FRAMES as f64;
        assert!((pairs - p * p).abs() < 4.0 * (p * p / FRAMES as f64).sqrt(), "{pairs}");
    }

    #[test]
    fn bursts_have_the_mean_length_and_share_of_the_closed_form() {
        // Gilbert's model: lost in the bad state only, so a burst is a stay there, geometric with mean 1/r.
        let (p, r) = (0.002, 0.2);
        let loss = Loss::GilbertElliott {
            enter_bad: probability(p),
            leave_bad: probability(r),
            in_good: probability(0.0),
            in_bad: probability(1.0),
        };
        let losses = losses(loss);
        let bursts = losses.chunk_by(|a, b| a == b).filter(|burst| burst[0]).count() as f64;
        let lost = losses.iter().filter(|lost| **lost).count() as f64;
        let length = lost / bursts;
        assert!((length - 1.0 / r).abs() < 4.0 * ((1.0 - r) / (r * r) / bursts).sqrt(), "{length}");
        // The variance of the share of a two-state chain is larger than binomial by (1 + c) / (1 - c), c = 1 - p - r.
        let (pi, c) = (p / (p + r), 1.0 - p - r);
        let sigma = (pi * (1.0 - pi) * (1.0 + c) / (1.0 - c) / FRAMES as f64).sqrt();
        assert!((lost / FRAMES as f64 - pi).abs() < 4.0 * sigma, "{lost}");
    }

    #[test]
    fn both_states_lose_what_they_are_asked_to() {
        let (p, r, good, bad) = (0.01, 0.1, 0.002, 0.4);
        let loss = Loss::GilbertElliott {
            enter_bad: probability(p),
            leave_bad: probability(r),
            in_good: probability(good),
            in_bad: probability(bad),
        };
        let expected = (p * bad + r * good) / (p + r);
        let found = share(&losses(loss));
        let (pi, c) = (p / (p + r), 1.0 - p - r);
        let of_states = pi * (1.0 - pi) * (bad - good).powi(2) * (1.0 + c) / (1.0 - c);
        let in_states = pi * bad * (1.0 - bad) + (1.0 - pi) * good * (1.0 - good);
        let sigma = ((of_states + in_states) / FRAMES as f64).sqrt();
        assert!((found - expected).abs() < 4.0 * sigma, "{found} for {expected}");
    }

    #[test]
    fn jitter_has_the_deviation_asked_around_the_delay() {
        let direction = Direction {
            delay: Duration::from_millis(20),
            jitter: Jitter { deviation: Duration::from_millis(2), reorder: true },
            ..Direction::default()
        };
        let mut chances = Chances::new(&direction, 1);
        let delays: Vec<f64> = (0..FRAMES).map(|_| chances.delay() as f64).collect();
        let mean = delays.iter().sum::<f64>() / FRAMES as f64;
        let variance = delays.iter().map(|delay| (delay - mean).powi(2)).sum::<f64>() / FRAMES as f64;
        assert!((mean - 20e6).abs() < 4.0 * 2e6 / (FRAMES as f64).sqrt(), "{mean}");
        assert!((variance.sqrt() / 2e6 - 1.0).abs() < 0.005, "{}", variance.sqrt());
    }

    #[test]
    fn the_same_seed_gives_the_same_events() {
        let direction = Direction { loss: Loss::Random(probability(0.5)), ..Direction::default() };
        let draw = |seed| {
            let mut chances = Chances::new(&direction, seed);
            (0..64).map(|_| chances.lose()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
