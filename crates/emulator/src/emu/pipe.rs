//! One direction of a link in virtual time: frames are lost and doubled, wait, and are under way.
//!
//! What a frame is made of does not matter here. Frames may come as a train: the ones that a super-packet of segmentation
//! offload stands for, which stay together in trains as long as nothing sets them apart.

use std::collections::VecDeque;
use std::ops::Range;

use super::chance::Chances;
use super::pace::Pacer;
use super::red::Red;
use crate::spec::MIN_QUEUE;
use crate::{Counters, Direction, Medium, Pace};

/// How many frames there are in a train and how large they are: all alike, but for the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Train {
    /// At least 1.
    pub(super) frames: u32,
    /// Bytes of each but the last.
    pub(super) each: u32,
    /// Bytes of the last.
    pub(super) last: u32,
}

impl Train {
    pub(super) const fn single(bytes: u32) -> Self {
        Self { frames: 1, each: bytes, last: bytes }
    }

    pub(super) fn bytes(&self, frames: &Range<u32>) -> u64 {
        let alike = u64::from(frames.len() as u32) * u64::from(self.each);
        if frames.end == self.frames && !frames.is_empty() {
            alike - u64::from(self.each) + u64::from(self.last)
        } else {
            alike
        }
    }
}

/// Some frames of a train that follow each other, and what the train is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part<P> {
    pub(super) payload: P,
    pub(super) frames: Range<u32>,
    /// All of them.
    pub(super) bytes: u64,
}

/// Frames that wait to be sent.
#[derive(Debug)]
pub(super) struct Waiting<P> {
    /// When they came, nanoseconds.
    pub(super) arrival: u64,
    pub(super) part: Part<P>,
}

/// Frames that are under way.
#[derive(Debug)]
pub(super) struct Flying<P> {
    /// When they are to be delivered, nanoseconds.
    pub(super) due: u64,
    pub(super) part: Part<P>,
}

/// One direction. Frames come by [`enter`](Self::enter) into the queue, are taken from there by whoever says when they
/// are sent, go on their way by [`depart`](Self::depart), and leave by [`arrive`](Self::arrive).
pub(super) struct Pipe<P> {
    pub(super) pacer: Pacer,
    pub(super) counters: Tally,
    chances: Chances,
    open: bool,
    waiting: VecDeque<Waiting<P>>,
    waiting_bytes: u64,
    queue: u64,
    /// What drops frames before the queue is full, and the time of a full frame on the line, nanoseconds.
    red: Option<(Red, f64)>,
    longest: Longest,
    flying: VecDeque<Flying<P>>,
    flying_memory: u64,
    reorder: bool,
    last_due: u64,
}

/// What a pipe counts, in frames but for the bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) frames_in: u64,
    pub(super) bytes_in: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) early: u64,
    pub(super) queue_full: u64,
    pub(super) no_path: u64,
    pub(super) queue_most: u64,
}

/// How long a train may be that is sent as one.
#[derive(Debug, Clone, Copy)]
enum Longest {
    Any,
    /// This many bytes, but at least one frame.
    Bytes(u64),
}

/// Below this, and wherever every frame counts, frames come one by one: then few enough per second to.
const TRAINS_FROM: u64 = 200_000_000;
/// What a train lasts on the line at most, so that its first frame is this late at most.
const LONGEST_TRAIN_US: u64 = 200;
/// Frames under way are kept in memory, which has an end however long the delay; small ones take as much as full ones.
const MAX_UNDER_WAY: u64 = 1 << 28;
const MIN_MEMORY: u64 = 1500;
/// Bytes of one as RED counts them.
const FULL_FRAME: f64 = 1500.0;

/// Whether this direction takes trains, which is faster, or wants frames one by one.
pub(super) fn takes_trains(direction: &Direction, medium: Medium) -> bool {
    let fast = match direction.pace {
        Pace::Unlimited => true,
        Pace::Rate(rate) => rate.bits_per_second() >= TRAINS_FROM,
        Pace::Trace(_) => false,
    };
    fast && medium == Medium::FullDuplex && !direction.jitter.reorder
}

impl<P: Clone> Pipe<P> {
    pub(super) fn new(direction: &Direction, medium: Medium, seed: u64, now: u64) -> Self {
        let mut pipe = Self {
            pacer: Pacer::new(&direction.pace, now),
            counters: Tally::default(),
            chances: Chances::new(direction, seed),
            open: true,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            queue: 0,
            red: None,
            longest: Longest::Any,
            flying: VecDeque::new(),
            flying_memory: 0,
            reorder: false,
            last_due: 0,
        };
        pipe.set(direction, medium);
        pipe
    }

    /// Sets everything but the pace. Loss, duplication and queue are for the frames that come from now on, delay and jitter
    /// for those that are sent from now on.
    pub(super) fn set(&mut self, direction: &Direction, medium: Medium) {
        self.chances.set(direction);
        self.reorder = direction.jitter.reorder;
        self.queue = queue_limit(direction, medium);
        self.set_red(direction);
        self.longest = match direction.pace {
            _ if !takes_trains(direction, medium) => Longest::Bytes(0),
            Pace::Rate(rate) => Longest::Bytes(rate.bits_per_second() / 8_000_000 * LONGEST_TRAIN_US),
            Pace::Unlimited | Pace::Trace(_) => Longest::Any,
        };
    }

    fn set_red(&mut self, direction: &Direction) {
        self.red = match (direction.red, bytes_in_a_tenth_of_a_second(&direction.pace)) {
            (true, Some(bytes)) => {
                let frame_time = FULL_FRAME * 1e8 / bytes.max(1) as f64;
                let mut red = self.red.take().map_or_else(|| Red::new(self.queue), |(red, _)| red);
                red.set(self.queue);
                Some((red, frame_time))
            }
            _ => None,
        };
    }

    /// Frames come.
    pub(super) fn enter(&mut self, now: u64, train: Train, payload: P) {
        self.counters.frames_in += u64::from(train.frames);
        self.counters.bytes_in += train.bytes(&(0..train.frames));
        if !self.open {
            self.counters.no_path += u64::from(train.frames);
        } else if self.chances.spare_all() && self.red.is_none() {
            self.queue_up(now, &train, 0..train.frames, payload);
        } else {
            self.enter_by_chance(now, &train, payload);
        }
    }

    fn enter_by_chance(&mut self, now: u64, train: &Train, payload: P) {
        let mut start = 0;
        for frame in 0..train.frames {
            if self.chances.lose() {
                self.counters.lost += 1;
                self.queue_up(now, train, start..frame, payload.clone());
                start = frame + 1;
            } else if self.drop_early(now, train.bytes(&(start..frame))) {
                self.counters.early += 1;
                self.queue_up(now, train, start..frame, payload.clone());
                start = frame + 1;
            } else if self.chances.duplicate() {
                self.counters.duplicated += 1;
                self.queue_up(now, train, start..frame + 1, payload.clone());
                start = frame;
            }
        }
        self.queue_up(now, train, start..train.frames, payload);
    }

    /// Whether the queue drops a frame although it may have room, with those of its train that come before it.
    fn drop_early(&mut self, now: u64, before: u64) -> bool {
        let Some((red, frame_time)) = &mut self.red else { return false };
        let probability = red.probability(now, self.waiting_bytes + before, *frame_time);
        self.chances.happens(probability)
    }

    /// Puts into the queue what has room there: of a train that has not, the frames that have. Those of a train that is
    /// being sent count until its last has been.
    fn queue_up(&mut self, now: u64, train: &Train, frames: Range<u32>, payload: P) {
        if self.waiting_bytes + train.bytes(&frames) <= self.queue {
            return self.wait(now, train, frames, payload);
        }
        let mut start = frames.start;
        let mut room = self.queue.saturating_sub(self.waiting_bytes);
        for frame in frames.clone() {
            match room.checked_sub(train.bytes(&(frame..frame + 1))) {
                Some(rest) => room = rest,
                None => {
                    self.counters.queue_full += 1;
                    self.wait(now, train, start..frame, payload.clone());
                    start = frame + 1;
                }
            }
        }
        self.wait(now, train, start..frames.end, payload);
    }

    fn wait(&mut self, now: u64, train: &Train, frames: Range<u32>, payload: P) {
        let longest = match self.longest {
            Longest::Any => u32::MAX,
            Longest::Bytes(bytes) => {
                u32::try_from(bytes / u64::from(train.each.max(1))).unwrap_or(u32::MAX).max(1)
            }
        };
        let mut start = frames.start;
        while start < frames.end {
            let frames = start..start.saturating_add(longest).min(frames.end);
            start = frames.end;
            let bytes = train.bytes(&frames);
            self.waiting_bytes += bytes;
            let part = Part { payload: payload.clone(), frames, bytes };
            self.waiting.push_back(Waiting { arrival: now, part });
        }
        self.counters.queue_most = self.counters.queue_most.max(self.waiting_bytes);
    }

    /// What is to be sent next.
    pub(super) fn first_waiting(&self) -> Option<&Waiting<P>> {
        self.waiting.front()
    }

    /// The first of those that wait has been sent.
    pub(super) fn depart(&mut self, now: u64) {
        let Some(Waiting { part, .. }) = self.waiting.pop_front() else { return };
        self.waiting_bytes -= part.bytes;
        if let Some((red, _)) = &mut self.red
            && self.waiting.is_empty()
        {
            red.emptied(now);
        }
        let memory = part.bytes.max(MIN_MEMORY);
        if self.flying_memory + memory > MAX_UNDER_WAY {
            self.counters.queue_full += part.frames.len() as u64;
            return;
        }
        self.flying_memory += memory;
        let own = now.saturating_add(self.chances.delay());
        if self.reorder {
            let place = self.flying.partition_point(|other| other.due <= own);
            self.flying.insert(place, Flying { due: own, part });
        } else {
            self.last_due = self.last_due.max(own);
            self.flying.push_back(Flying { due: self.last_due, part });
        }
    }

    /// The next frames that are to be delivered by now.
    pub(super) fn arrive(&mut self, now: u64) -> Option<Flying<P>> {
        if self.next_due()? > now {
            return None;
        }
        let arrived = self.flying.pop_front()?;
        self.flying_memory -= arrived.part.bytes.max(MIN_MEMORY);
        Some(arrived)
    }

    /// When frames under way are to be delivered next.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.flying.front().map(|flying| flying.due)
    }

    /// What no frame is delivered earlier after it was sent, nanoseconds.
    pub(super) fn least_delay(&self) -> u64 {
        self.chances.least_delay()
    }

    /// Without a path, all that come, wait and are under way vanish.
    pub(super) fn set_open(&mut self, open: bool) {
        self.open = open;
        if !open {
            let vanish = |part: &Part<P>| part.frames.len() as u64;
            self.counters.no_path += self.waiting.iter().map(|waiting| vanish(&waiting.part)).sum::<u64>()
                + self.flying.iter().map(|flying| vanish(&flying.part)).sum::<u64>();
            self.waiting.clear();
            self.waiting_bytes = 0;
            self.flying.clear();
            self.flying_memory = 0;
        }
    }
}

impl Tally {
    /// With what became of the frames that left.
    pub(super) fn with(self, frames_out: u64, bytes_out: u64, refused: u64, missed: Option<u64>) -> Counters {
        Counters {
            frames_in: self.frames_in,
            bytes_in: self.bytes_in,
            frames_out,
            bytes_out,
            lost: Some(self.lost),
            duplicated: Some(self.duplicated),
            early: Some(self.early),
            queue_full: Some(self.queue_full),
            no_path: Some(self.no_path),
            refused: Some(refused),
            missed,
            queue_most: Some(self.queue_most),
        }
    }
}

/// Bytes that may wait. Where frames leave at once, none do.
fn queue_limit(direction: &Direction, medium: Medium) -> u64 {
    match bytes_in_a_tenth_of_a_second(&direction.pace) {
        None if medium == Medium::FullDuplex => u64::MAX,
        crossing => direction.queue.unwrap_or(crossing.unwrap_or(0).max(MIN_QUEUE)),
    }
}

/// `None` where frames leave at once.
fn bytes_in_a_tenth_of_a_second(pace: &Pace) -> Option<u64> {
    match pace {
        Pace::Unlimited => None,
        Pace::Rate(rate) => Some(rate.bytes_in(100)),
        Pace::Trace(trace) => {
            let opportunities = trace.opportunities.len() as u64;
            Some(opportunities * 1504 * 100 / trace.opportunities.last().copied().unwrap_or(1).max(1))
        }
    }
}
