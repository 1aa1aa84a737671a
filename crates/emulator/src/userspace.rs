//! The backend `emu`: a link emulated in user space, which requires only TUN from the kernel.
//!
//! Both ends are TAP interfaces, with one thread between them. The fate of a frame is computed in virtual time
//! (`model`) from its arrival time, with exact arithmetic and a random generator, independently of when the thread
//! was scheduled. A late thread delays a frame but never reduces the rate of the link. The lateness of each delivery
//! is recorded and reported with every result.
//!
//! From 200 Mb/s, TCP arrives in super-packets of segmentation offload (GSO), each counted as the frames that it
//! represents (`super_packet`). Below that rate, and with reordering or a shared medium, frames arrive one by one as
//! on a wire, with complete checksums.
//!
//! A changed rate applies to queued frames and to the remaining bits of the frame in transmission, as with a modem.

mod buffers;
mod engine;
mod impairments;
mod lateness;
mod model;
mod pacer;
mod pipe;
mod priority;
mod red;
mod sleep_timer;
mod super_packet;
mod tap;
mod transmitter;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use rand::RngExt;
use rand::rngs::SmallRng;

use self::engine::{Command, Engine, Waker};
use self::tap::{MAX_MTU, Tap};
use crate::backend::Backend;
use crate::endpoint::End;
use crate::error::Error;
use crate::spec::{Adjustment, Change, LinkSpec, Medium, Pace};
use crate::statistics::Statistics;

/// A running link. Its interfaces are removed when it is dropped or the process ends.
///
/// It buffers all frames in flight, rate times delay, up to 256 MiB per direction. Frames beyond that limit count as
/// dropped by a full queue.
#[derive(Debug)]
pub(crate) struct UserspaceLink {
    medium: Medium,
    /// Dropping the sender stops the thread.
    commands: Option<Sender<Command>>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl UserspaceLink {
    /// Checks that the emulator supports `spec`.
    pub(crate) fn check(spec: &LinkSpec) -> Result<(), Error> {
        if spec.mtu > MAX_MTU {
            let property = format!("an MTU of {} bytes, only up to {MAX_MTU}", spec.mtu);
            return Err(Error::unsupported(Backend::Emu, property));
        }
        check_pace(spec.medium, &spec.a_to_b.pace)?;
        check_pace(spec.medium, &spec.b_to_a.pace)
    }

    /// Checks that the emulator supports this change on this medium.
    pub(crate) fn check_change(medium: Medium, change: &Change) -> Result<(), Error> {
        match change {
            Change::Adjust(_, Adjustment { pace: Some(pace), .. }) => check_pace(medium, pace),
            _ => Ok(()),
        }
    }

    /// Creates both interfaces, up and without addresses, and starts the thread between them.
    pub(crate) fn start(spec: &LinkSpec, a: End<'_>, b: End<'_>) -> Result<Self, Error> {
        let taps = [Tap::new(a, spec.mtu)?, Tap::new(b, spec.mtu)?];
        let waker = Arc::new(Waker::new().map_err(Error::refused("make an eventfd"))?);
        let (commands, receiver) = channel();
        let (started, outcome) = sync_channel(1);
        let work = {
            let (spec, waker) = (spec.clone(), Arc::clone(&waker));
            let seed = spec.seed.unwrap_or_else(|| rand::make_rng::<SmallRng>().random());
            move || match Engine::new(&spec, seed, taps, receiver, waker) {
                Ok(engine) => {
                    // `start` waits for this message.
                    let _ = started.send(Ok(()));
                    engine.run();
                }
                Err(error) => drop(started.send(Err(error))),
            }
        };
        let name = format!("link {}", a.interface);
        let thread = thread::Builder::new().name(name).spawn(work);
        let thread = thread.map_err(Error::refused("start a thread"))?;
        let emu = Self { medium: spec.medium, commands: Some(commands), waker, thread: Some(thread) };
        outcome.recv().unwrap_or_else(|_| Err(ended()))?;
        Ok(emu)
    }

    /// Changes the link while it carries traffic.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), Error> {
        Self::check_change(self.medium, change)?;
        self.ask(|answer| Command::Apply(change.clone(), answer))?
    }

    /// Counters since the start.
    pub(crate) fn statistics(&self) -> Result<Statistics, Error> {
        self.ask(Command::Report)
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, Error> {
        let (answer, answered) = sync_channel(1);
        let commands = self.commands.as_ref().ok_or_else(ended)?;
        commands.send(command(answer)).map_err(|_| ended())?;
        self.waker.wake();
        answered.recv().map_err(|_| ended())
    }
}

impl Drop for UserspaceLink {
    fn drop(&mut self) {
        self.commands = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has already been reported by the thread.
            let _ = thread.join();
        }
    }
}

/// Rejects a trace on a shared medium: it records one direction, without information on who transmits when.
fn check_pace(medium: Medium, pace: &Pace) -> Result<(), Error> {
    match (medium, pace) {
        (Medium::HalfDuplex { .. }, Pace::Trace(_)) => {
            Err(Error::unsupported(Backend::Emu, "a trace on a half-duplex medium"))
        }
        _ => Ok(()),
    }
}

fn ended() -> Error {
    Error::refused("reach the emulator")(io::Error::other("its thread has ended"))
}
