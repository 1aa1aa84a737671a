//! One direction of a link in virtual time: loss, duplication, queue, and delay line.
//!
//! The content of frames is irrelevant here. Frames may arrive as a train, the frames of a super-packet of
//! segmentation offload, which stays together unless an impairment or the queue splits it.

use std::collections::VecDeque;
use std::ops::Range;

use super::impairments::Impairments;
use super::pacer::Pacer;
use super::red::Red;
use crate::spec::MIN_QUEUE;
use crate::spec::{DirectionSpec, Medium, Pace};
use crate::statistics::Counters;

/// The number of frames in a train and their sizes, which are equal except for the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Train {
    /// At least 1.
    pub(super) frames: u32,
    /// The size of each frame but the last, in bytes.
    pub(super) each: u32,
    /// The size of the last frame, in bytes.
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

/// Consecutive frames of a train, with the payload of the train.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part<P> {
    pub(super) payload: P,
    pub(super) frames: Range<u32>,
    /// The size of all these frames.
    pub(super) bytes: u64,
}

/// Frames queued for transmission.
#[derive(Debug)]
pub(super) struct Queued<P> {
    /// The arrival time, in nanoseconds.
    pub(super) arrival: u64,
    pub(super) part: Part<P>,
}

/// Transmitted frames in flight.
#[derive(Debug)]
pub(super) struct InFlight<P> {
    /// The delivery time, in nanoseconds.
    pub(super) due: u64,
    pub(super) part: Part<P>,
}

/// One direction. [`enqueue`](Self::enqueue) adds frames to the queue, the transmitter decides when they are
/// transmitted, [`finish_transmission`](Self::finish_transmission) moves them to the delay line, and
/// [`pop_due`](Self::pop_due) removes them.
pub(super) struct Pipe<P> {
    pub(super) pacer: Pacer,
    pub(super) counters: PipeCounters,
    impairments: Impairments,
    open: bool,
    queue: VecDeque<Queued<P>>,
    queued_bytes: u64,
    queue_limit: u64,
    /// Random early detection, and the transmission time of a full frame in nanoseconds.
    red: Option<(Red, f64)>,
    max_train: MaxTrain,
    in_flight: VecDeque<InFlight<P>>,
    in_flight_memory: u64,
    reorder: bool,
    last_due: u64,
}

/// The counters of a pipe, in frames unless named bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PipeCounters {
    pub(super) frames_in: u64,
    pub(super) bytes_in: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) early: u64,
    pub(super) queue_full: u64,
    pub(super) no_path: u64,
    pub(super) queue_max_bytes: u64,
}

/// The longest train that is transmitted as a unit.
#[derive(Debug, Clone, Copy)]
enum MaxTrain {
    Any,
    /// Up to this many bytes, but at least one frame.
    Bytes(u64),
}

/// The rate in bits per second from which trains are accepted. At lower rates, frames are few enough to handle one by
/// one.
const MIN_TRAIN_RATE: u64 = 200_000_000;
/// The maximum transmission time of a train, and therefore the maximum lateness of its first frame.
const MAX_TRAIN_US: u64 = 200;
/// Limits the memory of frames in flight, whatever the delay. A small frame occupies as much as a full one.
const MAX_IN_FLIGHT_BYTES: u64 = 1 << 28;
const MIN_FRAME_MEMORY: u64 = 1500;
/// In bytes, for RED.
const FULL_FRAME: f64 = 1500.0;

/// Whether this direction accepts trains, which are faster, or requires single frames.
pub(super) fn accepts_trains(direction: &DirectionSpec, medium: Medium) -> bool {
    let fast = match direction.pace {
        Pace::Unlimited => true,
        Pace::Rate(rate) => rate.bits_per_second() >= MIN_TRAIN_RATE,
        Pace::Trace(_) => false,
    };
    fast && medium == Medium::FullDuplex && !direction.jitter.reorder
}

impl<P: Clone> Pipe<P> {
    pub(super) fn new(direction: &DirectionSpec, medium: Medium, seed: u64, now: u64) -> Self {
        let mut pipe = Self {
            pacer: Pacer::new(&direction.pace, now),
            counters: PipeCounters::default(),
            impairments: Impairments::new(direction, seed),
            open: true,
            queue: VecDeque::new(),
            queued_bytes: 0,
            queue_limit: 0,
            red: None,
            max_train: MaxTrain::Any,
            in_flight: VecDeque::new(),
            in_flight_memory: 0,
            reorder: false,
            last_due: 0,
        };
        pipe.set(direction, medium);
        pipe
    }

    /// Sets everything except the pace. Loss, duplication and queue apply to frames that arrive from now on, delay
    /// and jitter to frames transmitted from now on.
    pub(super) fn set(&mut self, direction: &DirectionSpec, medium: Medium) {
        self.impairments.set(direction);
        self.reorder = direction.jitter.reorder;
        self.queue_limit = queue_limit(direction, medium);
        self.set_red(direction);
        self.max_train = match direction.pace {
            _ if !accepts_trains(direction, medium) => MaxTrain::Bytes(0),
            Pace::Rate(rate) => MaxTrain::Bytes(rate.bits_per_second() / 8_000_000 * MAX_TRAIN_US),
            Pace::Unlimited | Pace::Trace(_) => MaxTrain::Any,
        };
    }

    fn set_red(&mut self, direction: &DirectionSpec) {
        self.red = match (direction.red, bytes_in_100_ms(&direction.pace)) {
            (true, Some(bytes)) => {
                let frame_time = FULL_FRAME * 1e8 / bytes.max(1) as f64;
                let mut red = self.red.take().map_or_else(|| Red::new(self.queue_limit), |(red, _)| red);
                red.set(self.queue_limit);
                Some((red, frame_time))
            }
            _ => None,
        };
    }

    /// Adds frames that arrive now.
    pub(super) fn enqueue(&mut self, now: u64, train: Train, payload: P) {
        self.counters.frames_in += u64::from(train.frames);
        self.counters.bytes_in += train.bytes(&(0..train.frames));
        if !self.open {
            self.counters.no_path += u64::from(train.frames);
        } else if self.impairments.is_transparent() && self.red.is_none() {
            self.enqueue_fitting(now, &train, 0..train.frames, payload);
        } else {
            self.enqueue_impaired(now, &train, payload);
        }
    }

    fn enqueue_impaired(&mut self, now: u64, train: &Train, payload: P) {
        let mut start = 0;
        for frame in 0..train.frames {
            if self.impairments.loses_next() {
                self.counters.lost += 1;
                self.enqueue_fitting(now, train, start..frame, payload.clone());
                start = frame + 1;
            } else if self.drop_early(now, train.bytes(&(start..frame))) {
                self.counters.early += 1;
                self.enqueue_fitting(now, train, start..frame, payload.clone());
                start = frame + 1;
            } else if self.impairments.duplicates_next() {
                self.counters.duplicated += 1;
                self.enqueue_fitting(now, train, start..frame + 1, payload.clone());
                start = frame;
            }
        }
        self.enqueue_fitting(now, train, start..train.frames, payload);
    }

    /// Whether RED drops a frame; `before` is the number of bytes of its train ahead of it.
    fn drop_early(&mut self, now: u64, before: u64) -> bool {
        let Some((red, frame_time)) = &mut self.red else { return false };
        let probability = red.probability(now, self.queued_bytes + before, *frame_time);
        self.impairments.with_probability(probability)
    }

    /// Queues the frames of a train that fit, and drops the rest. A train in transmission occupies the queue until
    /// its last frame has been transmitted.
    fn enqueue_fitting(&mut self, now: u64, train: &Train, frames: Range<u32>, payload: P) {
        if self.queued_bytes + train.bytes(&frames) <= self.queue_limit {
            return self.push(now, train, frames, payload);
        }
        let mut start = frames.start;
        let mut room = self.queue_limit.saturating_sub(self.queued_bytes);
        for frame in frames.clone() {
            match room.checked_sub(train.bytes(&(frame..frame + 1))) {
                Some(rest) => room = rest,
                None => {
                    self.counters.queue_full += 1;
                    self.push(now, train, start..frame, payload.clone());
                    start = frame + 1;
                }
            }
        }
        self.push(now, train, start..frames.end, payload);
    }

    fn push(&mut self, now: u64, train: &Train, frames: Range<u32>, payload: P) {
        let max_train = match self.max_train {
            MaxTrain::Any => u32::MAX,
            MaxTrain::Bytes(bytes) => {
                u32::try_from(bytes / u64::from(train.each.max(1))).unwrap_or(u32::MAX).max(1)
            }
        };
        let mut start = frames.start;
        while start < frames.end {
            let frames = start..start.saturating_add(max_train).min(frames.end);
            start = frames.end;
            let bytes = train.bytes(&frames);
            self.queued_bytes += bytes;
            let part = Part { payload: payload.clone(), frames, bytes };
            self.queue.push_back(Queued { arrival: now, part });
        }
        self.counters.queue_max_bytes = self.counters.queue_max_bytes.max(self.queued_bytes);
    }

    /// The frames to transmit next.
    pub(super) fn next_queued(&self) -> Option<&Queued<P>> {
        self.queue.front()
    }

    /// Moves the first queued frames, which have been transmitted, to the delay line.
    pub(super) fn finish_transmission(&mut self, now: u64) {
        let Some(Queued { part, .. }) = self.queue.pop_front() else { return };
        self.queued_bytes -= part.bytes;
        if let Some((red, _)) = &mut self.red
            && self.queue.is_empty()
        {
            red.emptied(now);
        }
        let memory = part.bytes.max(MIN_FRAME_MEMORY);
        if self.in_flight_memory + memory > MAX_IN_FLIGHT_BYTES {
            self.counters.queue_full += part.frames.len() as u64;
            return;
        }
        self.in_flight_memory += memory;
        let own = now.saturating_add(self.impairments.delay());
        if self.reorder {
            let place = self.in_flight.partition_point(|other| other.due <= own);
            self.in_flight.insert(place, InFlight { due: own, part });
        } else {
            self.last_due = self.last_due.max(own);
            self.in_flight.push_back(InFlight { due: self.last_due, part });
        }
    }

    /// Removes and returns the next frames to deliver by `now`.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<InFlight<P>> {
        if self.next_due()? > now {
            return None;
        }
        let arrived = self.in_flight.pop_front()?;
        self.in_flight_memory -= arrived.part.bytes.max(MIN_FRAME_MEMORY);
        Some(arrived)
    }

    /// The delivery time of the next frames in flight.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.in_flight.front().map(|in_flight| in_flight.due)
    }

    /// The minimum delay between transmission and delivery, in nanoseconds.
    pub(super) fn min_delay(&self) -> u64 {
        self.impairments.min_delay()
    }

    /// Sets the link up or down. A link that is down drops frames that arrive, are queued or are in flight.
    pub(super) fn set_up(&mut self, open: bool) {
        self.open = open;
        if !open {
            let vanish = |part: &Part<P>| part.frames.len() as u64;
            self.counters.no_path += self.queue.iter().map(|queue| vanish(&queue.part)).sum::<u64>()
                + self.in_flight.iter().map(|in_flight| vanish(&in_flight.part)).sum::<u64>();
            self.queue.clear();
            self.queued_bytes = 0;
            self.in_flight.clear();
            self.in_flight_memory = 0;
        }
    }
}

impl PipeCounters {
    /// Adds the counters of frames that left.
    pub(super) fn with(
        self,
        frames_out: u64,
        bytes_out: u64,
        refused: u64,
        overruns: Option<u64>,
    ) -> Counters {
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
            overruns,
            queue_max_bytes: Some(self.queue_max_bytes),
        }
    }
}

/// The limit of the queue in bytes; without a rate, nothing is queued.
fn queue_limit(direction: &DirectionSpec, medium: Medium) -> u64 {
    match bytes_in_100_ms(&direction.pace) {
        None if medium == Medium::FullDuplex => u64::MAX,
        crossing => direction.queue.unwrap_or(crossing.unwrap_or(0).max(MIN_QUEUE)),
    }
}

/// The bytes that the rate carries in 100 ms; `None` without a rate.
fn bytes_in_100_ms(pace: &Pace) -> Option<u64> {
    match pace {
        Pace::Unlimited => None,
        Pace::Rate(rate) => Some(rate.bytes_in(100)),
        Pace::Trace(trace) => {
            let opportunities = trace.opportunities.len() as u64;
            Some(opportunities * 1504 * 100 / trace.opportunities.last().copied().unwrap_or(1).max(1))
        }
    }
}
