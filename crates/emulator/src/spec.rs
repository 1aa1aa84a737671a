//! The specification of a link, and changes to it while it carries traffic.

use std::sync::Arc;
use std::time::Duration;

use plait_config::Size;
use serde::Deserialize;

use crate::probability::Probability;
use crate::trace::Trace;
use plait_config::Rate;

/// A link: the properties of each direction, and those that both share.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// Frames from end `a` to end `b`.
    pub a_to_b: DirectionSpec,
    /// Frames from end `b` to end `a`.
    pub b_to_a: DirectionSpec,
    /// Whether the directions share the medium.
    pub medium: Medium,
    /// The MTU in bytes: 1280 (the minimum of IPv6, RFC 8200 section 5) to 65535.
    pub mtu: u16,
    /// The seed of loss, duplication, jitter and random early detection with the backend `emu`: equal frames at equal
    /// times have the same fate with the same seed. `None` for a random one. Other backends ignore it.
    pub seed: Option<u64>,
}

impl Default for LinkSpec {
    /// A plain wire: full duplex, with an MTU of 1500.
    fn default() -> Self {
        let wire = DirectionSpec::default;
        Self { a_to_b: wire(), b_to_a: wire(), medium: Medium::FullDuplex, mtu: 1500, seed: None }
    }
}

impl LinkSpec {
    /// A full-duplex link with the same properties in both directions, and an MTU of 1500.
    pub fn symmetric(direction: DirectionSpec) -> Self {
        Self { a_to_b: direction.clone(), b_to_a: direction, ..Self::default() }
    }
}

/// The size of a queue.
pub type Queue = Size<1_000_000_000>;

/// The minimum default queue, in bytes: 20 full frames.
pub(crate) const MIN_QUEUE: u64 = 30_000;

/// The properties of one direction, applied in this order: loss, duplication, queue, rate, delay with jitter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DirectionSpec {
    /// The rate at which frames leave the queue.
    pub pace: Pace,
    /// The time from the end of a frame's transmission to its arrival.
    pub delay: Duration,
    /// The variation of the delay.
    pub jitter: Jitter,
    /// The loss process.
    pub loss: Loss,
    /// The probability that a frame is duplicated.
    pub duplication: Probability,
    /// The size of the queue in bytes, including the frame in transmission; `None` for what the rate carries in 100
    /// ms, at least 30,000.
    pub queue: Option<u64>,
    /// Random early detection (Floyd and Jacobson, 1993), gentle, with thresholds at a twelfth and a third of the
    /// queue. Without a rate there is no queue, and RED drops nothing.
    pub red: bool,
}

/// The rate at which frames leave the queue.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Pace {
    /// Immediately.
    #[default]
    Unlimited,
    /// At a constant rate of Ethernet frames, without preamble and frame check sequence, as tcpdump counts them.
    Rate(Rate),
    /// At the times recorded in a trace.
    Trace(Arc<Trace>),
}

/// The variation of the delay from frame to frame: normally distributed, truncated at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Jitter {
    /// The standard deviation.
    pub deviation: Duration,
    /// Whether frames may be reordered; otherwise a frame waits for the earlier ones.
    pub reorder: bool,
}

/// The loss process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// Independently for each frame.
    Random(Probability),
    /// In bursts: a Markov chain with a good and a bad state, and a transition before each frame (Gilbert 1960,
    /// Elliott 1963).
    GilbertElliott {
        /// The transition probability from good to bad (p).
        enter_bad: Probability,
        /// The transition probability from bad to good (r).
        leave_bad: Probability,
        /// The loss probability in the good state (1 - k).
        in_good: Probability,
        /// The loss probability in the bad state (1 - h).
        in_bad: Probability,
    },
}

/// Whether the directions of a link share the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Medium {
    /// Each direction has its own medium.
    #[default]
    FullDuplex,
    /// One frame at a time in either direction, with an overhead per frame for preamble, contention and
    /// acknowledgement (IEEE 802.11).
    HalfDuplex {
        /// The overhead of each transmission.
        per_frame: Duration,
    },
}

/// One of the directions, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Toward {
    /// Both directions.
    #[default]
    Each,
    /// From `b` to `a`.
    A,
    /// From `a` to `b`.
    B,
}

/// New values for properties of a direction; `None` keeps the current value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Adjustment {
    /// See [`DirectionSpec::pace`].
    pub pace: Option<Pace>,
    /// See [`DirectionSpec::delay`].
    pub delay: Option<Duration>,
    /// See [`DirectionSpec::jitter`].
    pub jitter: Option<Jitter>,
    /// See [`DirectionSpec::loss`].
    pub loss: Option<Loss>,
    /// See [`DirectionSpec::duplication`].
    pub duplication: Option<Probability>,
    /// See [`DirectionSpec::queue`].
    pub queue: Option<u64>,
    /// See [`DirectionSpec::red`].
    pub red: Option<bool>,
}

/// A change to a running link.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// All frames are dropped silently, including those queued or in flight.
    Blackhole,
    /// Ends a blackhole.
    Restore,
    /// Both ends gain or lose their carrier. Without a carrier, frames are dropped as in a blackhole.
    Carrier(bool),
    /// New properties for one direction or both. They apply to frames that arrive from now on.
    Adjust(Toward, Adjustment),
}

impl DirectionSpec {
    /// Returns a copy with these properties changed.
    pub fn adjusted(&self, to: &Adjustment) -> Self {
        Self {
            pace: to.pace.clone().unwrap_or_else(|| self.pace.clone()),
            delay: to.delay.unwrap_or(self.delay),
            jitter: to.jitter.unwrap_or(self.jitter),
            loss: to.loss.unwrap_or(self.loss),
            duplication: to.duplication.unwrap_or(self.duplication),
            queue: to.queue.or(self.queue),
            red: to.red.unwrap_or(self.red),
        }
    }
}

impl Default for Loss {
    /// No loss.
    fn default() -> Self {
        Self::Random(Probability::default())
    }
}
