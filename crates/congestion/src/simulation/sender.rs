//! The sending end of a flow.

use std::collections::VecDeque;

use super::{Flow, Network, Outcome, Packet, What};
use crate::{Algorithm, Path};

pub(super) struct Sender {
    /// Its place among the flows.
    flow: usize,
    algorithm: Option<Algorithm>,
    subflows: Vec<Subflow>,
    /// When what counts for the outcome began.
    since: f64,
}

struct Subflow {
    window: f64,
    threshold: f64,
    rtt: Option<f64>,
    /// Numbers of packets that were sent, and neither acknowledged nor given up.
    flying: VecDeque<u64>,
    next: u64,
    /// Losses of packets before this one belong to one that was answered already.
    answered: u64,
    /// The number of the timer that counts.
    timer: u64,
    /// Packets, as OLIA counts them.
    acknowledged: u64,
    acknowledged_at_loss: u64,
    between_losses: u64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    acknowledged: u64,
    lost: u64,
    window_seconds: f64,
    until: f64,
}

impl Sender {
    pub(super) fn new(place: usize, flow: &Flow) -> Sender {
        let subflow = || Subflow {
            window: FIRST_WINDOW,
            threshold: f64::INFINITY,
            rtt: None,
            flying: VecDeque::new(),
            next: 0,
            answered: 0,
            timer: 0,
            acknowledged: 0,
            acknowledged_at_loss: 0,
            between_losses: 0,
            counts: Counts::default(),
        };
        let subflows = flow.paths.iter().map(|_| subflow()).collect();
        Sender { flow: place, algorithm: flow.algorithm, subflows, since: 0.0 }
    }

    /// Sends what the window of a path allows.
    pub(super) fn send(&mut self, path: usize, now: f64, network: &mut Network) {
        let subflow = &mut self.subflows[path];
        while (subflow.flying.len() as f64) < subflow.window.floor() {
            let packet = Packet { flow: self.flow, path, number: subflow.next, sent: now };
            subflow.flying.push_back(subflow.next);
            subflow.next += 1;
            network.at(now, What::Arrive { packet, hop: 0 });
        }
        subflow.timer += 1;
        let timeout = subflow.rtt.map_or(1.0, |rtt| (2.0 * rtt).max(MIN_TIMEOUT));
        network.at(now + timeout, What::Timer { flow: self.flow, path, number: subflow.timer });
    }

    pub(super) fn acknowledged(&mut self, packet: Packet, now: f64, network: &mut Network) {
        let subflow = &mut self.subflows[packet.path];
        let Some(place) = subflow.flying.iter().position(|number| *number == packet.number) else { return };
        subflow.count_window(now);
        subflow.flying.remove(place);
        subflow.acknowledged += 1;
        subflow.counts.acknowledged += 1;
        let sample = now - packet.sent;
        subflow.rtt = Some(subflow.rtt.map_or(sample, |rtt| rtt + (sample - rtt) / 8.0));
        let mut is_news = false;
        while subflow.flying.front().is_some_and(|number| number + REORDERING <= packet.number) {
            let lost = subflow.flying.pop_front();
            subflow.counts.lost += 1;
            is_news |= lost >= Some(subflow.answered);
        }
        if is_news {
            self.lose(packet.path);
        } else if packet.number >= self.subflows[packet.path].answered {
            self.grow(packet.path);
        }
        self.send(packet.path, now, network);
    }

    /// Nothing has come for too long.
    pub(super) fn timer(&mut self, path: usize, number: u64, now: f64, network: &mut Network) {
        let subflow = &mut self.subflows[path];
        if subflow.timer != number || subflow.flying.is_empty() {
            return;
        }
        subflow.count_window(now);
        subflow.counts.lost += subflow.flying.len() as u64;
        subflow.flying.clear();
        self.lose(path);
        self.subflows[path].window = 1.0;
        self.send(path, now, network);
    }

    pub(super) fn forget_counts(&mut self, now: f64) {
        self.since = now;
        for subflow in &mut self.subflows {
            subflow.counts = Counts { until: now, ..Counts::default() };
        }
    }

    pub(super) fn outcome(mut self, now: f64) -> Outcome {
        self.subflows.iter_mut().for_each(|subflow| subflow.count_window(now));
        let seconds = now - self.since;
        let each = |of: &dyn Fn(&Counts) -> f64| self.subflows.iter().map(|s| of(&s.counts)).collect();
        Outcome {
            rates: each(&|counts| counts.acknowledged as f64 / seconds),
            windows: each(&|counts| counts.window_seconds / seconds),
            losses: each(&|counts| counts.lost as f64 / ((counts.lost + counts.acknowledged).max(1)) as f64),
        }
    }

    fn grow(&mut self, path: usize) {
        let slow_start = self.subflows[path].window < self.subflows[path].threshold;
        let gain = if slow_start { 1.0 } else { self.increase(path) };
        let subflow = &mut self.subflows[path];
        subflow.window = (subflow.window + gain).max(1.0);
    }

    fn increase(&self, path: usize) -> f64 {
        match self.algorithm {
            None => 1.0 / self.subflows[path].window,
            Some(algorithm) => {
                let (paths, place) = self.paths(path);
                algorithm.increase(&paths, place)
            }
        }
    }

    fn lose(&mut self, path: usize) {
        let left = match self.algorithm {
            None => (self.subflows[path].window / 2.0).max(2.0),
            Some(algorithm) => {
                let (paths, place) = self.paths(path);
                algorithm.after_loss(&paths, place)
            }
        };
        let subflow = &mut self.subflows[path];
        subflow.window = left;
        subflow.threshold = left;
        subflow.answered = subflow.next;
        subflow.between_losses = subflow.acknowledged - subflow.acknowledged_at_loss;
        subflow.acknowledged_at_loss = subflow.acknowledged;
    }

    /// The paths that have a round-trip time, and where among them one is; it alone, if it has none.
    fn paths(&self, path: usize) -> (Vec<Path>, usize) {
        if self.subflows[path].rtt.is_none() {
            return (vec![self.subflows[path].seen(1.0)], 0);
        }
        let seen = |subflow: &Subflow| subflow.rtt.map(|rtt| subflow.seen(rtt));
        let place = self.subflows[..path].iter().filter_map(seen).count();
        (self.subflows.iter().filter_map(seen).collect(), place)
    }
}

impl Subflow {
    fn seen(&self, rtt: f64) -> Path {
        let since = self.acknowledged - self.acknowledged_at_loss;
        Path { window: self.window, rtt, transmitted: since.max(self.between_losses) as f64 }
    }

    fn count_window(&mut self, now: f64) {
        self.counts.window_seconds += self.window * (now - self.counts.until);
        self.counts.until = now;
    }
}

/// As many later packets as duplicate acknowledgments that make TCP believe in a loss.
const REORDERING: u64 = 3;
/// In packets (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;
/// The shortest time in which nothing comes that means a loss, in seconds: that of the kernel.
const MIN_TIMEOUT: f64 = 0.2;
