//! The thread of a link: reads frames from the interfaces, passes them to the model, and writes them when they are due.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};

use super::buffers::{Buffers, Packet};
use super::lateness::LatenessHistogram;
use super::model::{Direction, Model};
use super::pipe::{InFlight, Part};
use super::priority::raise;
use super::sleep_timer::{SleepTimer, Wait};
use super::super_packet::VNET_HEADER;
use super::tap::Tap;
use crate::error::Error;
use crate::spec::{Change, LinkSpec};
use crate::statistics::Statistics;

/// A request to the thread, with a channel for the reply. The thread ends when all senders are dropped.
pub(super) enum Command {
    Apply(Change, SyncSender<Result<(), Error>>),
    Report(SyncSender<Statistics>),
}

/// Interrupts the thread's `poll`.
#[derive(Debug)]
pub(super) struct Waker {
    is_set: AtomicBool,
    event: OwnedFd,
}

pub(super) struct Engine {
    taps: [Tap; 2],
    /// Whether the interface was deleted.
    deleted: [bool; 2],
    out: [Delivered; 2],
    model: Model<Packet>,
    buffers: Buffers,
    sleep_timer: SleepTimer,
    lateness: LatenessHistogram,
    real_time: bool,
    start: Instant,
    /// When the thread last went to sleep, if frames woke it and it has not read them yet.
    asleep_since: Option<u64>,
    commands: Receiver<Command>,
    waker: Arc<Waker>,
}

/// Frames that left one direction.
#[derive(Debug, Clone, Copy, Default)]
struct Delivered {
    frames: u64,
    bytes: u64,
    refused: u64,
}

/// The maximum number of packets to read before checking for due frames.
const BATCH: usize = 32;

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { is_set: AtomicBool::new(false), event })
    }

    pub(super) fn wake(&self) {
        self.is_set.store(true, Ordering::Release);
        // Fails only after 2^64 wake-ups without a read.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> bool {
        self.is_set.swap(false, Ordering::Acquire)
    }

    /// Must be called before the flag is tested again, so that no wake-up is lost before the next sleep.
    fn drain(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl Engine {
    pub(super) fn new(
        spec: &LinkSpec,
        seed: u64,
        taps: [Tap; 2],
        commands: Receiver<Command>,
        waker: Arc<Waker>,
    ) -> Result<Self, Error> {
        // Includes the headers of Ethernet, two VLAN tags and virtio.
        let small = usize::from(spec.mtu) + 14 + 8 + VNET_HEADER;
        let engine = Self {
            taps,
            deleted: [false; 2],
            out: [Delivered::default(); 2],
            model: Model::new(spec, seed, 0),
            buffers: Buffers::new(small),
            sleep_timer: SleepTimer::new(),
            lateness: LatenessHistogram::new(),
            real_time: raise(),
            start: Instant::now(),
            asleep_since: None,
            commands,
            waker,
        };
        engine.set_offloads()?;
        Ok(engine)
    }

    /// Runs until all command senders are dropped.
    pub(super) fn run(mut self) {
        loop {
            if self.waker.take() {
                if !self.handle_commands() {
                    return;
                }
                // By now the model has advanced to a later time.
                self.asleep_since = None;
            }
            let received = Direction::BOTH.map(|direction| self.receive(direction));
            self.asleep_since = None;
            self.deliver();
            if received == [false; 2] {
                self.wait();
            }
        }
    }

    /// Handles pending commands; `false` once all senders are dropped.
    fn handle_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                // The requester may have stopped waiting for the reply.
                Ok(Command::Apply(change, answer)) => drop(answer.send(self.apply(&change))),
                Ok(Command::Report(answer)) => drop(answer.send(self.report())),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn apply(&mut self, change: &Change) -> Result<(), Error> {
        self.model.apply(change, self.now());
        match change {
            Change::Carrier(carrier) => self.taps.iter_mut().try_for_each(|tap| tap.set_carrier(*carrier)),
            Change::Adjust(..) => self.set_offloads(),
            Change::Blackhole | Change::Restore => Ok(()),
        }
    }

    /// Enables offload on each interface if the direction that it sends in accepts trains.
    fn set_offloads(&self) -> Result<(), Error> {
        let mut each = Direction::BOTH.iter().zip(&self.taps);
        each.try_for_each(|(direction, tap)| tap.set_offload(self.model.accepts_trains(*direction)))
    }

    fn report(&self) -> Statistics {
        let [a_to_b, b_to_a] = Direction::BOTH.map(|direction| {
            let out = self.out[direction.index()];
            let overruns = self.taps[direction.index()].overruns();
            self.model.counters(direction).with(out.frames, out.bytes, out.refused, overruns)
        });
        Statistics { a_to_b, b_to_a, lateness: Some(self.lateness.summary(self.real_time)) }
    }

    /// Reads pending packets until a frame is due. Returns whether there were any.
    fn receive(&mut self, direction: Direction) -> bool {
        let index = direction.index();
        for count in 0..BATCH {
            if self.deleted[index] {
                return false;
            }
            match self.taps[index].read(self.buffers.reading()) {
                Ok(length) => {
                    let now = self.now();
                    let packet = self.buffers.packet(length);
                    self.model.enqueue(direction, self.arrival(now), packet.train(), packet);
                    if self.model.next().is_some_and(|next| next <= now) {
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return count > 0,
                // The kernel drops a packet that it cannot describe in a virtio header.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EINTR)) => {}
                Err(_) => self.deleted[index] = true,
            }
        }
        true
    }

    /// The arrival time of a frame that is being read now.
    fn arrival(&self, now: u64) -> u64 {
        match self.asleep_since {
            None => now,
            Some(since) => now.saturating_sub(self.sleep_timer.median_latency()).max(since),
        }
    }

    /// Writes the frames that are due.
    fn deliver(&mut self) {
        loop {
            let delivered = Direction::BOTH.map(|direction| {
                let now = self.now();
                let Some(InFlight { due, part }) = self.model.pop_due(direction, now) else { return false };
                self.lateness.count(now - due, part.frames.len());
                self.write_part(direction, &part);
                true
            });
            if delivered == [false; 2] {
                return;
            }
        }
    }

    fn write_part(&mut self, direction: Direction, part: &Part<Packet>) {
        let tap = &self.taps[1 - direction.index()];
        let written = match part.payload.part(&part.frames) {
            None => tap.write(&[part.payload.as_bytes()]),
            Some((headers, payload)) => tap.write(&[headers.as_bytes(), payload]),
        };
        let out = &mut self.out[direction.index()];
        match written {
            Ok(()) => {
                out.frames += part.frames.len() as u64;
                out.bytes += part.bytes;
            }
            Err(_) => out.refused += part.frames.len() as u64,
        }
    }

    /// Sleeps until a frame arrives, a frame is nearly due, or a command is sent.
    fn wait(&mut self) {
        let alarm = match self.model.next() {
            None => None,
            Some(due) => match self.sleep_timer.wait_for(due, self.now()) {
                Wait::Spin => return,
                Wait::Sleep(time) => Some(time),
            },
        };
        let timeout = alarm.map(|time| {
            let left = time.saturating_sub(self.now());
            Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 }
        });
        let asleep_since = self.now();
        let waker = self.waker.event.as_fd();
        let end = |index: usize| if self.deleted[index] { waker } else { self.taps[index].as_fd() };
        let mut watched = [waker, end(0), end(1)].map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
        // The result is irrelevant: the loop checks everything again even after an interruption.
        let ready = poll(&mut watched, timeout.as_ref());
        if !watched[0].revents().is_empty() {
            self.waker.drain();
        }
        match (ready, alarm) {
            (Ok(0), Some(time)) => self.sleep_timer.learn_from(time, self.now()),
            _ => self.asleep_since = Some(asleep_since),
        }
    }

    /// The time since the start, in nanoseconds.
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}
