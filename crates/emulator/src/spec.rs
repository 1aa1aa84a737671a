//! What a link is asked to be, and how that may change while it carries frames.

use std::sync::Arc;
use std::time::Duration;

use plait_config::Size;
use serde::Deserialize;

use crate::{Probability, Rate, Trace};

/// A link: what each direction does to frames, and what they share.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// What happens to frames from end `a` to end `b`.
    pub a_to_b: Direction,
    /// What happens to frames from end `b` to end `a`.
    pub b_to_a: Direction,
    /// Whether the directions wait for each other.
    pub medium: Medium,
    /// The largest IP packet, in bytes, 1280 (IPv6's least, RFC 8200 section 5) to 65535.
    pub mtu: u16,
}

impl Default for LinkSpec {
    /// A mere wire, full duplex, with Ethernet's usual MTU of 1500.
    fn default() -> Self {
        let wire = Direction::default;
        Self { a_to_b: wire(), b_to_a: wire(), medium: Medium::FullDuplex, mtu: 1500 }
    }
}

/// What may be asked to wait in a queue.
pub type Queue = Size<1_000_000_000>;

/// The least of the queues that nobody asked for, in bytes: 20 full frames.
pub(crate) const MIN_QUEUE: u64 = 30_000;

/// What happens to frames of one direction, in this order: loss, duplication, queue, rate, delay with jitter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Direction {
    /// How fast frames leave the queue.
    pub pace: Pace,
    /// From the end of a frame's transmission to its arrival.
    pub delay: Duration,
    /// How the delay varies.
    pub jitter: Jitter,
    /// Which frames are lost.
    pub loss: Loss,
    /// How probable it is that a frame arrives twice.
    pub duplication: Probability,
    /// How many bytes may wait, the frame in transmission included; `None`: what crosses in 100 ms, at least 30,000.
    pub queue: Option<u64>,
    /// Whether the queue drops frames by chance before it is full: random early detection (Floyd and Jacobson, 1993),
    /// gentle, from a twelfth to a third of the queue. Where frames leave at once, none wait, and none are dropped.
    pub red: bool,
}

/// How fast frames leave.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Pace {
    /// At once.
    #[default]
    Unlimited,
    /// At a constant rate, counted over whole Ethernet frames without preamble and checksum, as tcpdump counts them.
    Rate(Rate),
    /// At recorded moments.
    Trace(Arc<Trace>),
}

/// How a delay varies from frame to frame: normally distributed around it, cut off at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Jitter {
    /// The standard deviation.
    pub deviation: Duration,
    /// Whether a frame may overtake an earlier one; otherwise it waits for it.
    pub reorder: bool,
}

/// Which frames are lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// Each one independently.
    Random(Probability),
    /// In bursts: a chain of a good and a bad state, which moves before each frame (Gilbert 1960, Elliott 1963).
    GilbertElliott {
        /// From good to bad (p).
        enter_bad: Probability,
        /// From bad to good (r).
        leave_bad: Probability,
        /// That a frame is lost in the good state (1 - k).
        in_good: Probability,
        /// That a frame is lost in the bad state (1 - h).
        in_bad: Probability,
    },
}

/// Whether the directions of a link wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Medium {
    /// Each direction has its own.
    #[default]
    FullDuplex,
    /// One frame at a time, whichever its direction, each with a time that is not payload: preamble, contention,
    /// acknowledgement (IEEE 802.11).
    HalfDuplex {
        /// Added to the transmission of every frame.
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

/// Some properties of a direction, each to be set; what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Adjustment {
    /// See [`Direction::pace`].
    pub pace: Option<Pace>,
    /// See [`Direction::delay`].
    pub delay: Option<Duration>,
    /// See [`Direction::jitter`].
    pub jitter: Option<Jitter>,
    /// See [`Direction::loss`].
    pub loss: Option<Loss>,
    /// See [`Direction::duplication`].
    pub duplication: Option<Probability>,
    /// See [`Direction::queue`].
    pub queue: Option<u64>,
    /// See [`Direction::red`].
    pub red: Option<bool>,
}

/// What may happen to a link that is up.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Frames vanish, and neither end is told: the ones that wait or are under way as well.
    Blackhole,
    /// The end of a blackhole.
    Restore,
    /// Both ends see whether there is a carrier; without one, frames vanish as in a blackhole.
    Carrier(bool),
    /// Properties of a direction, or of both, for the frames that come from now on.
    Adjust(Toward, Adjustment),
}

impl Direction {
    /// This direction with some properties set.
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
    /// None.
    fn default() -> Self {
        Self::Random(Probability::default())
    }
}
