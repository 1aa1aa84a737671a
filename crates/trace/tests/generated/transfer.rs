//! A transfer from the client to the server over several paths, simulated in steps of a millisecond and captured at
//! both ends: a simple TCP and a simple MPTCP with the timers of Linux, and paths that fail.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::captures::{CaptureBuilder, MILLISECOND, Packet, joining, opening};

/// The parameters of a transfer, with times in milliseconds.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) paths: usize,
    /// The number of segments, and the milliseconds between them.
    pub(crate) segments: u64,
    pub(crate) every: u64,
    /// Spans in which a path loses everything.
    pub(crate) outages: Vec<(usize, Range<u64>)>,
    /// Lost data packets, by path and index among those sent on it.
    pub(crate) lost: Vec<(usize, usize)>,
    /// The span in which the application sends nothing.
    pub(crate) pause: Range<u64>,
    /// Paths that are used only while the others are full.
    pub(crate) backup: Vec<usize>,
    /// The interval in milliseconds at which the client pings the server on each path.
    pub(crate) ping: Option<u64>,
    /// The end of the simulation.
    pub(crate) end: u64,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            paths: 2,
            segments: 2000,
            every: 2,
            outages: Vec::new(),
            lost: Vec::new(),
            pause: 0..0,
            backup: Vec::new(),
            ping: None,
            end: 20_000,
        }
    }
}

/// Where a capture was taken.
pub(crate) const SENDER: usize = 0;
pub(crate) const RECEIVER: usize = 1;

/// Bytes of data in a segment.
pub(crate) const SEGMENT: usize = 1000;

/// The one-way delay, in milliseconds.
pub(crate) const DELAY: u64 = 5;

/// Maximum number of segments in flight on a path.
const WINDOW: usize = 10;

/// How long MPTCP waits for a DATA_ACK before it reinjects data on another path.
const REINJECT_AFTER: u64 = 300;

/// The events at either end, as the reference for the captures.
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) builder: CaptureBuilder,
    /// Times in nanoseconds at which a packet of the peer arrived, by end and path; pings too.
    pub(crate) heard: BTreeMap<(usize, usize), Vec<u64>>,
    /// Times in nanoseconds of DATA_ACKs that acknowledged new data, by the end at which they were captured.
    pub(crate) progress: [Vec<u64>; 2],
    /// Reinjected segments: when, and the path that carried them before.
    pub(crate) reinjected: Vec<(u64, usize)>,
}

#[derive(Clone, Default)]
struct OnPath {
    /// The next sequence number, and the unacknowledged segments by sequence number.
    next: u32,
    outstanding: BTreeMap<u32, u64>,
    deadline: u64,
    timeout: u64,
    recovering: bool,
    sent: usize,
    /// At the receiver: data received in order, and out of order.
    expected: u32,
    beyond: BTreeSet<u32>,
}

enum Under {
    Data { number: u32, segment: u64 },
    Ack { number: u32, data: u64 },
    Ping,
    Pong,
}

#[derive(Default)]
struct Run {
    script: Script,
    paths: Vec<OnPath>,
    under_way: Vec<(u64, usize, Under)>,
    account: Account,
    /// Orders events within a millisecond.
    tick: u64,
    now: u64,
    /// At the sender: the path that carried each segment first, and the first unacknowledged segment and since when.
    carried_by: Vec<usize>,
    acknowledged: u64,
    progressed: u64,
    /// At the receiver.
    has: BTreeSet<u64>,
    in_order: u64,
}

/// Minimum retransmission timeout: 200 ms, as in Linux.
const MIN_TIMEOUT: u64 = 200;

pub(crate) fn transfer(script: Script) -> Account {
    let path = OnPath { next: 1, deadline: u64::MAX, timeout: MIN_TIMEOUT, expected: 1, ..OnPath::default() };
    let mut run = Run { paths: vec![path; script.paths], script, ..Run::default() };
    run.open();
    for now in 100..run.script.end {
        (run.now, run.tick) = (now, 0);
        run.arrivals();
        run.pings();
        run.application();
        run.retransmit();
        run.reinject();
    }
    run.account
}

impl Run {
    fn time(&mut self) -> u64 {
        self.tick += 1;
        self.now * MILLISECOND + self.tick * 1000
    }

    fn open(&mut self) {
        for path in 0..self.paths.len() {
            let packets: Vec<_> = if path == 0 { opening(0).into() } else { joining(path).into() };
            for (step, packet) in packets.into_iter().enumerate() {
                let sent = (10 * path as u64 + step as u64 * DELAY) * MILLISECOND;
                let (from, to) = if packet.side == 0 { (SENDER, RECEIVER) } else { (RECEIVER, SENDER) };
                let arrives = sent + DELAY * MILLISECOND - 1000;
                self.account.builder.at(from, sent, &packet);
                self.account.builder.at(to, arrives, &packet);
                self.account.heard.entry((to, path)).or_default().push(arrives);
            }
        }
    }

    fn is_cut(&self, path: usize) -> bool {
        self.script.outages.iter().any(|(cut, span)| *cut == path && span.contains(&self.now))
    }

    fn leave(&mut self, path: usize, what: Under) {
        if !self.is_cut(path) {
            self.under_way.push((self.now + DELAY, path, what));
        }
    }

    fn send(&mut self, path: usize, number: u32, segment: u64) {
        let time = self.time();
        let packet = Packet::new(path, 0, number, 1).carries(segment * SEGMENT as u64, SEGMENT);
        self.account.builder.at(SENDER, time, &packet);
        let place = self.paths[path].sent;
        self.paths[path].sent += 1;
        if !self.script.lost.contains(&(path, place)) {
            self.leave(path, Under::Data { number, segment });
        }
        let (now, state) = (self.now, &mut self.paths[path]);
        if state.outstanding.is_empty() {
            state.deadline = now + state.timeout;
        }
        state.outstanding.insert(number, segment);
    }

    fn send_new(&mut self, path: usize, segment: u64) {
        let number = self.paths[path].next;
        self.paths[path].next += SEGMENT as u32;
        self.send(path, number, segment);
    }

    fn application(&mut self) {
        let sent = self.carried_by.len() as u64;
        let asleep = self.script.pause.contains(&self.now);
        if asleep || sent == self.script.segments || !self.now.is_multiple_of(self.script.every) {
            return;
        }
        // The receive window is full of unacknowledged segments.
        if sent - self.acknowledged >= 400 {
            return;
        }
        let has_room = |path: &usize| self.paths[*path].outstanding.len() < WINDOW;
        let count = self.paths.len();
        let in_turn = (0..count).map(|index| (sent as usize + index) % count).filter(has_room);
        let path = in_turn.min_by_key(|path| self.script.backup.contains(path));
        if let Some(path) = path {
            self.carried_by.push(path);
            self.send_new(path, sent);
        }
    }

    fn pings(&mut self) {
        if self.script.ping.is_some_and(|every| self.now.is_multiple_of(every)) {
            for path in 0..self.paths.len() {
                let time = self.time();
                self.account.builder.ping(SENDER, time, path, 0);
                self.leave(path, Under::Ping);
            }
        }
    }

    fn arrivals(&mut self) {
        let (now, before) = (self.now, std::mem::take(&mut self.under_way));
        let (arrived, under_way) = before.into_iter().partition(|(time, ..)| *time <= now);
        self.under_way = under_way;
        let arrived: Vec<(u64, usize, Under)> = arrived;
        for (_, path, what) in arrived {
            if self.is_cut(path) {
                continue;
            }
            let time = self.time();
            let at = if matches!(what, Under::Data { .. } | Under::Ping) { RECEIVER } else { SENDER };
            self.account.heard.entry((at, path)).or_default().push(time);
            match what {
                Under::Data { number, segment } => self.receive(path, number, segment, time),
                Under::Ack { number, data } => self.acknowledge(path, number, data, time),
                Under::Ping => {
                    self.account.builder.ping(RECEIVER, time, path, 0);
                    let time = self.time();
                    self.account.builder.ping(RECEIVER, time, path, 1);
                    self.leave(path, Under::Pong);
                }
                Under::Pong => self.account.builder.ping(SENDER, time, path, 1),
            }
        }
    }

    fn receive(&mut self, path: usize, number: u32, segment: u64, time: u64) {
        let packet = Packet::new(path, 0, number, 1).carries(segment * SEGMENT as u64, SEGMENT);
        self.account.builder.at(RECEIVER, time, &packet);
        let state = &mut self.paths[path];
        state.beyond.insert(number);
        while state.beyond.contains(&state.expected) {
            state.expected += SEGMENT as u32;
        }
        let number = state.expected;
        self.has.insert(segment);
        let before = self.in_order;
        while self.has.contains(&self.in_order) {
            self.in_order += 1;
        }
        let (data, time) = (self.in_order, self.time());
        if data > before {
            self.account.progress[RECEIVER].push(time);
        }
        self.account.builder.at(RECEIVER, time, &ack(path, number, data));
        self.leave(path, Under::Ack { number, data });
    }

    fn acknowledge(&mut self, path: usize, number: u32, data: u64, time: u64) {
        self.account.builder.at(SENDER, time, &ack(path, number, data));
        if data > self.acknowledged {
            (self.acknowledged, self.progressed) = (data, self.now);
            self.account.progress[SENDER].push(time);
        }
        let (now, state) = (self.now, &mut self.paths[path]);
        let before = state.outstanding.len();
        state.outstanding = state.outstanding.split_off(&number);
        if state.outstanding.len() < before {
            state.timeout = MIN_TIMEOUT;
            state.deadline = now + MIN_TIMEOUT;
            if std::mem::take(&mut state.recovering) {
                let again: Vec<_> =
                    state.outstanding.iter().map(|(number, segment)| (*number, *segment)).collect();
                again.into_iter().for_each(|(number, segment)| self.send(path, number, segment));
            }
        }
    }

    fn retransmit(&mut self) {
        for path in 0..self.paths.len() {
            let (now, state) = (self.now, &mut self.paths[path]);
            if state.deadline > now {
                continue;
            }
            if let Some((number, segment)) = state.outstanding.iter().next().map(|(at, what)| (*at, *what)) {
                state.timeout *= 2;
                state.deadline = now + state.timeout;
                state.recovering = true;
                self.send(path, number, segment);
            } else {
                state.deadline = u64::MAX;
            }
        }
    }

    /// While no DATA_ACK arrives, resends the first missing segment on a path with no data outstanding.
    fn reinject(&mut self) {
        let missing = self.acknowledged;
        if missing >= self.carried_by.len() as u64 || self.now - self.progressed < REINJECT_AFTER {
            return;
        }
        let from = self.carried_by[missing as usize];
        let idle =
            (0..self.paths.len()).find(|path| *path != from && self.paths[*path].outstanding.is_empty());
        if let Some(path) = idle {
            let time = self.now * MILLISECOND;
            self.account.reinjected.push((time, from));
            self.send_new(path, missing);
        }
    }
}

fn ack<'a>(path: usize, number: u32, data: u64) -> Packet<'a> {
    Packet::new(path, 1, 1, number).data_ack(data * SEGMENT as u64)
}
