//! Random impairments of one direction: loss, duplication, jitter.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

use crate::spec::{DirectionSpec, Loss};

/// The impairments of one direction, and the state of its loss process.
pub(super) struct Impairments {
    random: SmallRng,
    loss: Loss,
    /// Whether the Gilbert-Elliott loss process is in the bad state.
    bad: bool,
    duplication: f64,
    /// In nanoseconds.
    delay: u64,
    deviation: f64,
}

impl Impairments {
    /// Equal seeds produce equal events for equal frames.
    pub(super) fn new(direction: &DirectionSpec, seed: u64) -> Self {
        let mut impairments = Self {
            random: SmallRng::seed_from_u64(seed),
            loss: Loss::default(),
            bad: false,
            duplication: 0.0,
            delay: 0,
            deviation: 0.0,
        };
        impairments.set(direction);
        impairments
    }

    /// Sets the impairments. An unchanged loss process keeps its state; a new one starts in the good state.
    pub(super) fn set(&mut self, direction: &DirectionSpec) {
        if direction.loss != self.loss {
            self.loss = direction.loss;
            self.bad = false;
        }
        self.duplication = direction.duplication.value();
        self.delay = super::pacer::nanoseconds(direction.delay);
        self.deviation = super::pacer::nanoseconds(direction.jitter.deviation) as f64;
    }

    /// Whether no frame is lost or duplicated.
    pub(super) fn is_transparent(&self) -> bool {
        self.duplication == 0.0 && matches!(self.loss, Loss::Random(p) if p.value() == 0.0)
    }

    /// Whether the next frame is lost.
    pub(super) fn loses_next(&mut self) -> bool {
        let probability = match self.loss {
            Loss::Random(probability) => probability,
            Loss::GilbertElliott { enter_bad, leave_bad, in_good, in_bad } => {
                let change = if self.bad { leave_bad } else { enter_bad };
                self.bad ^= self.with_probability(change.value());
                if self.bad { in_bad } else { in_good }
            }
        };
        self.with_probability(probability.value())
    }

    /// Whether the next frame is duplicated.
    pub(super) fn duplicates_next(&mut self) -> bool {
        self.with_probability(self.duplication)
    }

    /// The delay of the next frame, in nanoseconds.
    pub(super) fn delay(&mut self) -> u64 {
        if self.deviation == 0.0 {
            return self.delay;
        }
        let deviate: f64 = StandardNormal.sample(&mut self.random);
        let shift = deviate * self.deviation;
        // Out-of-range casts saturate.
        if shift < 0.0 {
            self.delay.saturating_sub(-shift as u64)
        } else {
            self.delay.saturating_add(shift as u64)
        }
    }

    /// The minimum delay of any frame, in nanoseconds.
    pub(super) fn min_delay(&self) -> u64 {
        if self.deviation == 0.0 { self.delay } else { 0 }
    }

    /// Whether a random event of this probability occurs.
    pub(super) fn with_probability(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.random::<f64>() < probability
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::probability::Probability;
    use crate::spec::Jitter;

    const FRAMES: usize = 1_000_000;

    fn probability(value: f64) -> Probability {
        Probability::new(value).expect("a probability")
    }

    fn losses(loss: Loss) -> Vec<bool> {
        let mut impairments = Impairments::new(&DirectionSpec { loss, ..DirectionSpec::default() }, 1);
        (0..FRAMES).map(|_| impairments.loses_next()).collect()
    }

    fn share(losses: &[bool]) -> f64 {
        losses.iter().filter(|lost| **lost).count() as f64 / losses.len() as f64
    }

    #[test]
    fn random_loss_is_within_four_sigma_of_its_probability() {
        for p in [0.001, 0.01, 0.05, 0.5] {
            let found = share(&losses(Loss::Random(probability(p))));
            let sigma = (p * (1.0 - p) / FRAMES as f64).sqrt();
            assert!((found - p).abs() < 4.0 * sigma, "{found} for {p}");
        }
    }

    #[test]
    fn probabilities_0_and_1_are_exact() {
        assert_eq!(share(&losses(Loss::Random(probability(0.0)))), 0.0);
        assert_eq!(share(&losses(Loss::Random(probability(1.0)))), 1.0);
    }

    #[test]
    fn random_losses_are_independent() {
        let p = 0.05;
        let losses = losses(Loss::Random(probability(p)));
        let pairs = losses.windows(2).filter(|pair| pair[0] && pair[1]).count() as f64 / FRAMES as f64;
        assert!((pairs - p * p).abs() < 4.0 * (p * p / FRAMES as f64).sqrt(), "{pairs}");
    }

    #[test]
    fn bursts_have_the_mean_length_and_share_of_the_closed_form() {
        // In Gilbert's model, all frames in the bad state are lost, so burst lengths are geometric with mean 1/r.
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
        // Compared with a binomial, the variance of the share is larger by (1 + c) / (1 - c), c = 1 - p - r.
        let (pi, c) = (p / (p + r), 1.0 - p - r);
        let sigma = (pi * (1.0 - pi) * (1.0 + c) / (1.0 - c) / FRAMES as f64).sqrt();
        assert!((lost / FRAMES as f64 - pi).abs() < 4.0 * sigma, "{lost}");
    }

    #[test]
    fn both_states_have_their_own_loss() {
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
    fn jitter_has_the_configured_deviation() {
        let direction = DirectionSpec {
            delay: Duration::from_millis(20),
            jitter: Jitter { deviation: Duration::from_millis(2), reorder: true },
            ..DirectionSpec::default()
        };
        let mut impairments = Impairments::new(&direction, 1);
        let delays: Vec<f64> = (0..FRAMES).map(|_| impairments.delay() as f64).collect();
        let mean = delays.iter().sum::<f64>() / FRAMES as f64;
        let variance = delays.iter().map(|delay| (delay - mean).powi(2)).sum::<f64>() / FRAMES as f64;
        assert!((mean - 20e6).abs() < 4.0 * 2e6 / (FRAMES as f64).sqrt(), "{mean}");
        assert!((variance.sqrt() / 2e6 - 1.0).abs() < 0.005, "{}", variance.sqrt());
    }

    #[test]
    fn the_same_seed_reproduces_events() {
        let direction = DirectionSpec { loss: Loss::Random(probability(0.5)), ..DirectionSpec::default() };
        let draw = |seed| {
            let mut impairments = Impairments::new(&direction, seed);
            (0..64).map(|_| impairments.loses_next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
