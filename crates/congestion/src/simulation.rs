//! Flows over shared links, packet by packet: what theory expects of the algorithms.
//!
//! A flow always has something to send, and one or more paths, each a sequence of links. Senders are TCP's with selective
//! acknowledgments: slow start; congestion avoidance by an [`Algorithm`]; one decrease for all losses of a window,
//! noticed when a later packet is acknowledged; a timeout when nothing is acknowledged any more. A packet that was
//! lost is not sent again: what counts is how many arrive. Time and chance are the simulation's own, so that a run is
//! the same each time.

mod sender;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::Algorithm;
use sender::Sender;

/// A link, for one direction.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Packets per second.
    pub rate: f64,
    /// Seconds that each packet takes beside its time in the queue and on the wire.
    pub delay: f64,
    /// Packets that fit into its queue.
    pub queue: usize,
    /// What becomes of packets before the queue is full.
    pub discipline: Discipline,
}

/// When a queue drops packets.
#[derive(Clone, Copy, Debug)]
pub enum Discipline {
    /// When it is full.
    DropTail,
    /// Random early detection (Floyd and Jacobson, 1993), "gentle": by the mean length of the queue (weight 0.002), with a
    /// probability that grows from 0 at `least` to `most_probability` at `most` packets, and to 1 at twice that.
    Red {
        /// Packets.
        least: f64,
        /// Packets.
        most: f64,
        /// The probability at `most`.
        most_probability: f64,
    },
}

/// A flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// How its windows grow and shrink; `None`: each as a reno of its own.
    pub algorithm: Option<Algorithm>,
    /// For each path, the links that a packet passes, by their places.
    pub paths: Vec<Vec<usize>>,
}

/// What became of a flow.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// For each path, packets per second that arrived.
    pub rates: Vec<f64>,
    /// For each path, the mean window in packets.
    pub windows: Vec<f64>,
    /// For each path, the share of packets that were lost.
    pub losses: Vec<f64>,
}

impl Outcome {
    /// Packets per second of all paths.
    pub fn rate(&self) -> f64 {
        self.rates.iter().sum()
    }
}

/// Runs flows over links for `seconds`, of which those before `from` do not count. Flows begin within the first second, by
/// chance that `seed` decides.
pub fn run(links: &[Link], flows: &[Flow], seconds: f64, from: f64, seed: u64) -> Vec<Outcome> {
    let mut network = Network {
        random: SmallRng::seed_from_u64(seed),
        queues: links.iter().map(|link| Queue { link: *link, free_at: 0.0, mean: 0.0 }).collect(),
        events: BinaryHeap::new(),
        number: 0,
    };
    let mut senders: Vec<_> =
        flows.iter().enumerate().map(|(place, flow)| Sender::new(place, flow)).collect();
    for (flow, described) in flows.iter().enumerate() {
        for path in 0..described.paths.len() {
            let at = network.random.random::<f64>();
            network.at(at, What::Begin { flow, path });
        }
    }
    let mut counted = false;
    while let Some(Event { time, what, .. }) = network.events.pop() {
        if time > seconds {
            break;
        }
        if !counted && time >= from {
            senders.iter_mut().for_each(|sender| sender.forget_counts(time));
            counted = true;
        }
        match what {
            What::Begin { flow, path } => senders[flow].send(path, time, &mut network),
            What::Arrive { packet, hop } => network.forward(packet, hop, time, &flows[packet.flow]),
            What::Acknowledge(packet) => senders[packet.flow].acknowledged(packet, time, &mut network),
            What::Timer { flow, path, number } => senders[flow].timer(path, number, time, &mut network),
        }
    }
    senders.into_iter().map(|sender| sender.outcome(seconds)).collect()
}

/// What is between senders and receivers.
struct Network {
    random: SmallRng,
    queues: Vec<Queue>,
    events: BinaryHeap<Event>,
    /// So that events of the same time come in the order in which they were made.
    number: u64,
}

struct Queue {
    link: Link,
    /// When the last packet in it will have left.
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

enum What {
    Begin { flow: usize, path: usize },
    Arrive { packet: Packet, hop: usize },
    Acknowledge(Packet),
    Timer { flow: usize, path: usize, number: u64 },
}

struct Event {
    time: f64,
    number: u64,
    what: What,
}

impl Network {
    fn at(&mut self, time: f64, what: What) {
        self.number += 1;
        self.events.push(Event { time, number: self.number, what });
    }

    /// Sends a packet by the link that is the next on its path, or its acknowledgment back.
    fn forward(&mut self, packet: Packet, hop: usize, now: f64, flow: &Flow) {
        let path = &flow.paths[packet.path];
        let Some(link) = path.get(hop) else {
            // Acknowledgments have no queue.
            let back: f64 = path.iter().map(|link| self.queues[*link].link.delay).sum();
            return self.at(now + back, What::Acknowledge(packet));
        };
        let chance = self.random.random::<f64>();
        if let Some(leaves) = self.queues[*link].take(now, chance) {
            self.at(leaves, What::Arrive { packet, hop: hop + 1 });
        }
    }
}

impl Queue {
    /// When a packet that comes now reaches the other end; `None` if it is dropped.
    fn take(&mut self, now: f64, chance: f64) -> Option<f64> {
        let waiting = (self.free_at - now).max(0.0) * self.link.rate;
        self.mean += (waiting - self.mean) * 0.002;
        let dropped = match self.link.discipline {
            Discipline::DropTail => false,
            Discipline::Red { least, most, most_probability } => {
                chance < early(self.mean, least, most, most_probability)
            }
        };
        if dropped || waiting + 1.0 > self.link.queue as f64 {
            return None;
        }
        self.free_at = self.free_at.max(now) + 1.0 / self.link.rate;
        Some(self.free_at + self.link.delay)
    }
}

/// The probability of an early drop.
fn early(mean: f64, least: f64, most: f64, most_probability: f64) -> f64 {
    if mean < least {
        0.0
    } else if mean < most {
        most_probability * (mean - least) / (most - least)
    } else {
        most_probability + (1.0 - most_probability) * (mean - most) / most
    }
}

impl Ord for Event {
    /// The earliest is the greatest, as a heap gives its greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.time.total_cmp(&self.time).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

#[cfg(test)]
mod tests;
