//! The thread of a link: reads frames from the interfaces, lets the model decide, and writes them in time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};

use super::alarm::{Alarm, Until};
use super::buffers::{Buffers, Packet};
use super::lateness::Latenesses;
use super::model::{Model, Way};
use super::pipe::{Flying, Part};
use super::priority;
use super::tap::Tap;
use crate::{Change, Error, LinkSpec, Statistics};

/// What the thread is told to do, and where to answer. When nobody is left to tell it anything, it ends.
pub(super) enum Order {
    Apply(Change, SyncSender<Result<(), Error>>),
    Report(SyncSender<Statistics>),
}

/// Wakes the thread up.
#[derive(Debug)]
pub(super) struct Bell {
    rung: AtomicBool,
    event: OwnedFd,
}

pub(super) struct Engine {
    taps: [Tap; 2],
    /// The interface was deleted.
    gone: [bool; 2],
    out: [Out; 2],
    model: Model<Packet>,
    buffers: Buffers,
    alarm: Alarm,
    latenesses: Latenesses,
    real_time: bool,
    start: Instant,
    /// When the thread last went to sleep, if it was woken since by frames that it has not read yet.
    asleep_since: Option<u64>,
    orders: Receiver<Order>,
    bell: Arc<Bell>,
}

/// What became of the frames that left a direction.
#[derive(Debug, Clone, Copy, Default)]
struct Out {
    frames: u64,
    bytes: u64,
    refused: u64,
}

/// Packets that are read in a row, unless one is due before.
const BATCH: usize = 32;

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { rung: AtomicBool::new(false), event })
    }

    pub(super) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        // It can only fail if it has been rung 2^64 times without being heard.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn heard(&self) -> bool {
        self.rung.swap(false, Ordering::Acquire)
    }

    /// It is set after `rung` was, which so is heard of before the thread sleeps again.
    fn silence(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl Engine {
    pub(super) fn new(
        spec: &LinkSpec,
        seed: u64,
        taps: [Tap; 2],
        orders: Receiver<Order>,
        bell: Arc<Bell>,
    ) -> Result<Self, Error> {
        // Headers of Ethernet, two VLAN tags and virtio.
        let small = usize::from(spec.mtu) + 14 + 8 + super::super_packet::VNET_HEADER;
        let engine = Self {
            taps,
            gone: [false; 2],
            out: [Out::default(); 2],
            model: Model::new(spec, seed, 0),
            buffers: Buffers::new(small),
            alarm: Alarm::new(),
            latenesses: Latenesses::new(),
            real_time: priority::raise(),
            start: Instant::now(),
            asleep_since: None,
            orders,
            bell,
        };
        engine.set_offloads()?;
        Ok(engine)
    }

    /// Until nobody can give orders any more.
    pub(super) fn run(mut self) {
        loop {
            if self.bell.heard() {
                if !self.obey() {
                    return;
                }
                // The model has come to know a later time.
                self.asleep_since = None;
            }
            let received = Way::BOTH.map(|way| self.receive(way));
            self.asleep_since = None;
            self.deliver();
            if received == [false; 2] {
                self.wait();
            }
        }
    }

    /// Whether there may be more orders.
    fn obey(&mut self) -> bool {
        loop {
            match self.orders.try_recv() {
                // Whoever asked may have gone away, which is not our matter.
                Ok(Order::Apply(change, answer)) => drop(answer.send(self.apply(&change))),
                Ok(Order::Report(answer)) => drop(answer.send(self.report())),
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

    /// Each interface sends into one direction.
    fn set_offloads(&self) -> Result<(), Error> {
        let mut each = Way::BOTH.iter().zip(&self.taps);
        each.try_for_each(|(way, tap)| tap.set_offload(self.model.takes_trains(*way)))
    }

    fn report(&self) -> Statistics {
        let [a_to_b, b_to_a] = Way::BOTH.map(|way| {
            let out = self.out[way.index()];
            let missed = self.taps[way.index()].missed();
            self.model.tally(way).with(out.frames, out.bytes, out.refused, missed)
        });
        Statistics { a_to_b, b_to_a, lateness: Some(self.latenesses.summary(self.real_time)) }
    }

    /// Takes what has come, at most until something is due. Whether anything had.
    fn receive(&mut self, way: Way) -> bool {
        let index = way.index();
        for count in 0..BATCH {
            if self.gone[index] {
                return false;
            }
            match self.taps[index].read(self.buffers.reading()) {
                Ok(length) => {
                    let now = self.now();
                    let packet = self.buffers.packet(length);
                    self.model.enter(way, self.arrival(now), packet.train(), packet);
                    if self.model.next().is_some_and(|next| next <= now) {
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return count > 0,
                // The kernel gives up a packet that it cannot describe.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EINTR)) => {}
                Err(_) => self.gone[index] = true,
            }
        }
        true
    }

    /// When a frame that is read now came.
    fn arrival(&self, now: u64) -> u64 {
        match self.asleep_since {
            None => now,
            Some(since) => now.saturating_sub(self.alarm.usual_latency()).max(since),
        }
    }

    /// Hands over what is due.
    fn deliver(&mut self) {
        loop {
            let delivered = Way::BOTH.map(|way| {
                let now = self.now();
                let Some(Flying { due, part }) = self.model.arrive(way, now) else { return false };
                self.latenesses.count(now - due, part.frames.len());
                self.hand_over(way, &part);
                true
            });
            if delivered == [false; 2] {
                return;
            }
        }
    }

    fn hand_over(&mut self, way: Way, part: &Part<Packet>) {
        let tap = &self.taps[1 - way.index()];
        let written = match part.payload.part(&part.frames) {
            None => tap.write(&[part.payload.as_bytes()]),
            Some((headers, payload)) => tap.write(&[headers.as_bytes(), payload]),
        };
        let out = &mut self.out[way.index()];
        match written {
            Ok(()) => {
                out.frames += part.frames.len() as u64;
                out.bytes += part.bytes;
            }
            Err(_) => out.refused += part.frames.len() as u64,
        }
    }

    /// Until something comes, will soon be due, or an order is given.
    fn wait(&mut self) {
        let alarm = match self.model.next() {
            None => None,
            Some(due) => match self.alarm.until(due, self.now()) {
                Until::Awake => return,
                Until::Sleep(time) => Some(time),
            },
        };
        let timeout = alarm.map(|time| {
            let left = time.saturating_sub(self.now());
            Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 }
        });
        let asleep_since = self.now();
        let bell = self.bell.event.as_fd();
        let end = |index: usize| if self.gone[index] { bell } else { self.taps[index].as_fd() };
        let mut watched = [bell, end(0), end(1)].map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
        // Interrupted or not, the loop finds out what there is to do.
        let ready = poll(&mut watched, timeout.as_ref());
        if !watched[0].revents().is_empty() {
            self.bell.silence();
        }
        match (ready, alarm) {
            (Ok(0), Some(time)) => self.alarm.rang(time, self.now()),
            _ => self.asleep_since = Some(asleep_since),
        }
    }

    /// Nanoseconds since the start.
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}
