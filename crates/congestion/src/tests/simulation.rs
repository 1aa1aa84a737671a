//! Simulates flows over shared links, packet by packet, to check properties of the algorithms that theory predicts.
//!
//! A flow always has data to send, over one or more paths, each of one link. Senders behave like TCP with
//! selective acknowledgments: slow start; congestion avoidance by an [`Algorithm`]; one decrease for all losses in a
//! window, detected when a later packet is acknowledged; a timeout when acknowledgments stop. Lost packets are not
//! retransmitted: the result is the number that arrive. Time and randomness are simulated, so runs are reproducible.

mod sender;
mod tests;

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::Algorithm;
use sender::Sender;

/// A link, for one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Packets per second.
    pub(super) rate: f64,
    /// Propagation delay in seconds.
    pub(super) delay: f64,
    /// Capacity of the queue in packets.
    pub(super) queue: usize,
    /// How packets are dropped.
    pub(super) discipline: Discipline,
}

/// When a queue drops packets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Discipline {
    /// When it is full.
    DropTail,
    /// Random early detection (Floyd and Jacobson, 1993), "gentle": by the mean length of the queue (weight 0.002),
    /// with a probability that grows from 0 at `min` to `max_probability` at `max` packets, and to 1 at twice that.
    Red {
        /// Packets.
        min: f64,
        /// Packets.
        max: f64,
        /// The probability at `max`.
        max_probability: f64,
    },
}

/// A flow.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// The algorithm; `None`: uncoupled reno on each path.
    pub(super) algorithm: Option<Algorithm>,
    /// The index of the link of each path.
    pub(super) paths: Vec<usize>,
}

/// The result of a flow.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// The packets per second that arrived, of each path.
    pub(super) rates: Vec<f64>,
    /// The mean window in packets, of each path.
    pub(super) windows: Vec<f64>,
    /// The loss rate of each path.
    pub(super) losses: Vec<f64>,
}

impl Outcome {
    /// The packets per second of all paths together.
    pub(super) fn rate(&self) -> f64 {
        self.rates.iter().sum()
    }
}

/// Runs flows over links for `seconds`, and measures from the time `from` on. Flows start at random times in the first
/// second.
pub(super) fn run(links: &[Link], flows: &[Flow], seconds: f64, from: f64, seed: u64) -> Vec<Outcome> {
    let mut network = Network {
        random: SmallRng::seed_from_u64(seed),
        queues: links.iter().map(|link| Queue { link: *link, free_at: 0.0, mean: 0.0 }).collect(),
        events: BTreeMap::new(),
        number: 0,
    };
    let mut senders: Vec<_> =
        flows.iter().enumerate().map(|(index, flow)| Sender::new(index, flow)).collect();
    for (flow, Flow { paths, .. }) in flows.iter().enumerate() {
        for path in 0..paths.len() {
            let at = network.random.random::<f64>();
            network.at(at, EventKind::Start { flow, path });
        }
    }
    let mut counted = false;
    while let Some(((time, _), kind)) = network.events.pop_first() {
        let time = f64::from_bits(time);
        if time > seconds {
            break;
        }
        if !counted && time >= from {
            senders.iter_mut().for_each(|sender| sender.reset_counts(time));
            counted = true;
        }
        match kind {
            EventKind::Start { flow, path } => senders[flow].send(path, time, &mut network),
            EventKind::Send(packet) => network.forward(packet, flows[packet.flow].paths[packet.path], time),
            EventKind::Acknowledge(packet) => {
                senders[packet.flow].on_acknowledgment(packet, time, &mut network)
            }
            EventKind::Timer { flow, path, number } => {
                senders[flow].on_timer(path, number, time, &mut network)
            }
        }
    }
    senders.into_iter().map(|sender| sender.outcome(seconds)).collect()
}

/// The links between senders and receivers.
struct Network {
    random: SmallRng,
    queues: Vec<Queue>,
    /// By the bits of their time, which are in the order of the times, as these are not negative. Events at the same time
    /// are processed in the order of their creation.
    events: BTreeMap<(u64, u64), EventKind>,
    number: u64,
}

struct Queue {
    link: Link,
    /// The time when the last queued packet will have been sent.
    free_at: f64,
    /// The mean length, for RED.
    mean: f64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    flow: usize,
    path: usize,
    number: u64,
    sent: f64,
}

enum EventKind {
    Start { flow: usize, path: usize },
    Send(Packet),
    Acknowledge(Packet),
    Timer { flow: usize, path: usize, number: u64 },
}

impl Network {
    fn at(&mut self, time: f64, kind: EventKind) {
        self.number += 1;
        self.events.insert((time.to_bits(), self.number), kind);
    }

    /// Sends a packet over a link, and its acknowledgment, which is not queued, back.
    fn forward(&mut self, packet: Packet, link: usize, now: f64) {
        let chance = self.random.random::<f64>();
        let queue = &mut self.queues[link];
        if let Some(arrival) = queue.enqueue(now, chance) {
            let back = queue.link.delay;
            self.at(arrival + back, EventKind::Acknowledge(packet));
        }
    }
}

impl Queue {
    /// Enqueues a packet. Returns the time of its arrival at the other end; `None` if it is dropped.
    fn enqueue(&mut self, now: f64, chance: f64) -> Option<f64> {
        let waiting = (self.free_at - now).max(0.0) * self.link.rate;
        self.mean += (waiting - self.mean) * 0.002;
        let dropped = match self.link.discipline {
            Discipline::DropTail => false,
            Discipline::Red { min, max, max_probability } => {
                chance < early_drop_probability(self.mean, min, max, max_probability)
            }
        };
        if dropped || waiting + 1.0 > self.link.queue as f64 {
            return None;
        }
        self.free_at = self.free_at.max(now) + 1.0 / self.link.rate;
        Some(self.free_at + self.link.delay)
    }
}

fn early_drop_probability(mean: f64, min: f64, max: f64, max_probability: f64) -> f64 {
    if mean < min {
        0.0
    } else if mean < max {
        max_probability * (mean - min) / (max - min)
    } else {
        max_probability + (1.0 - max_probability) * (mean - max) / max
    }
}
