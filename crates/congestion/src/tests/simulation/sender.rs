//! The sender of a flow.

use std::collections::VecDeque;

use super::{EventKind, Flow, Network, Outcome, Packet};
use crate::{Algorithm, Path};

pub(super) struct Sender {
    /// The flow's index.
    flow: usize,
    algorithm: Option<Algorithm>,
    subflows: Vec<Subflow>,
    /// The start time of the measurement.
    since: f64,
}

struct Subflow {
    window: f64,
    threshold: f64,
    rtt: Option<f64>,
    /// The numbers of the packets in flight.
    in_flight: VecDeque<u64>,
    next: u64,
    /// Losses of packets before this one belong to the last window reduction.
    recovery_point: u64,
    /// The number of the current timer.
    timer: u64,
    /// Packets acknowledged, as OLIA counts them.
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
    pub(super) fn new(index: usize, flow: &Flow) -> Sender {
        let subflow = || Subflow {
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            rtt: None,
            in_flight: VecDeque::new(),
            next: 0,
            recovery_point: 0,
            timer: 0,
            acknowledged: 0,
            acknowledged_at_loss: 0,
            between_losses: 0,
            counts: Counts::default(),
        };
        let subflows = flow.paths.iter().map(|_| subflow()).collect();
        Sender { flow: index, algorithm: flow.algorithm, subflows, since: 0.0 }
    }

    /// Sends as much as the window of a path allows.
    pub(super) fn send(&mut self, path: usize, now: f64, network: &mut Network) {
        let subflow = &mut self.subflows[path];
        while (subflow.in_flight.len() as f64) < subflow.window.floor() {
            let packet = Packet { flow: self.flow, path, number: subflow.next, sent: now };
            subflow.in_flight.push_back(subflow.next);
            subflow.next += 1;
            network.at(now, EventKind::Send(packet));
        }
        subflow.timer += 1;
        let timeout = subflow.rtt.map_or(1.0, |rtt| (2.0 * rtt).max(MIN_TIMEOUT));
        network.at(now + timeout, EventKind::Timer { flow: self.flow, path, number: subflow.timer });
    }

    pub(super) fn on_acknowledgment(&mut self, packet: Packet, now: f64, network: &mut Network) {
        let subflow = &mut self.subflows[packet.path];
        let Some(index) = subflow.in_flight.iter().position(|number| *number == packet.number) else {
            return;
        };
        subflow.count_window(now);
        subflow.in_flight.remove(index);
        subflow.acknowledged += 1;
        subflow.counts.acknowledged += 1;
        let sample = now - packet.sent;
        subflow.rtt = Some(subflow.rtt.map_or(sample, |rtt| rtt + (sample - rtt) / 8.0));
        let mut is_new_loss = false;
        while subflow.in_flight.front().is_some_and(|number| number + REORDERING <= packet.number) {
            let lost = subflow.in_flight.pop_front();
            subflow.counts.lost += 1;
            is_new_loss |= lost >= Some(subflow.recovery_point);
        }
        if is_new_loss {
            self.reduce(packet.path);
        } else if packet.number >= self.subflows[packet.path].recovery_point {
            self.grow(packet.path);
        }
        self.send(packet.path, now, network);
    }

    /// The retransmission timer expired.
    pub(super) fn on_timer(&mut self, path: usize, number: u64, now: f64, network: &mut Network) {
        let subflow = &mut self.subflows[path];
        if subflow.timer != number || subflow.in_flight.is_empty() {
            return;
        }
        subflow.count_window(now);
        subflow.counts.lost += subflow.in_flight.len() as u64;
        subflow.in_flight.clear();
        self.reduce(path);
        self.subflows[path].window = 1.0;
        self.send(path, now, network);
    }

    pub(super) fn reset_counts(&mut self, now: f64) {
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
                let (paths, index) = self.paths(path);
                algorithm.increase(&paths, index)
            }
        }
    }

    fn reduce(&mut self, path: usize) {
        let window = match self.algorithm {
            None => (self.subflows[path].window / 2.0).max(2.0),
            Some(algorithm) => {
                let (paths, index) = self.paths(path);
                algorithm.after_loss(&paths, index)
            }
        };
        let subflow = &mut self.subflows[path];
        subflow.window = window;
        subflow.threshold = window;
        subflow.recovery_point = subflow.next;
        subflow.between_losses = subflow.acknowledged - subflow.acknowledged_at_loss;
        subflow.acknowledged_at_loss = subflow.acknowledged;
    }

    /// The paths with a round-trip time, and the index of `path` among them; only `path` if it has none.
    fn paths(&self, path: usize) -> (Vec<Path>, usize) {
        if self.subflows[path].rtt.is_none() {
            return (vec![self.subflows[path].model_path(1.0)], 0);
        }
        let model_path = |subflow: &Subflow| subflow.rtt.map(|rtt| subflow.model_path(rtt));
        let index = self.subflows[..path].iter().filter_map(model_path).count();
        (self.subflows.iter().filter_map(model_path).collect(), index)
    }
}

impl Subflow {
    fn model_path(&self, rtt: f64) -> Path {
        let since = self.acknowledged - self.acknowledged_at_loss;
        Path { window: self.window, rtt, transmitted: since.max(self.between_losses) as f64 }
    }

    fn count_window(&mut self, now: f64) {
        self.counts.window_seconds += self.window * (now - self.counts.until);
        self.counts.until = now;
    }
}

/// The number of later packets acknowledged before a packet is considered lost, like TCP's duplicate acknowledgments.
const REORDERING: u64 = 3;
/// In packets (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// The kernel's minimum retransmission timeout, in seconds.
const MIN_TIMEOUT: f64 = 0.2;
