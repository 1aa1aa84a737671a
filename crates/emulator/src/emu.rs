//! An emulator of a link in user space, which needs nothing of the kernel but TUN.
//!
//! Both ends are TAP interfaces, and one thread stands between them. What becomes of a frame, and when, is decided in
//! virtual time (`model`): the time at which a frame came, exact arithmetic, and chance. It does not depend on when the
//! thread had the processor, so that being late once delays a frame and never slows a link down. How late frames were
//! handed over is counted, and belongs to every result.
//!
//! From 200 Mb/s on, TCP comes in super-packets of segmentation offload, each of which counts as the frames it stands for
//! (`super_packet`). Below, and where frames may overtake each other or share a medium, each frame comes as it would be
//! on a wire, its checksums filled in.
//!
//! A rate that changes also changes for the frames that wait, and for the bits that are left of the one that is being
//! sent, as a modem's does.

mod alarm;
mod buffers;
mod chance;
mod engine;
mod lateness;
mod model;
mod pace;
mod pipe;
mod priority;
mod red;
mod super_packet;
mod tap;
mod transmitter;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

use self::engine::{Bell, Engine, Order};
use self::tap::{LARGEST_MTU, Tap};
use crate::{Adjustment, Backend, Change, End, Error, LinkSpec, Medium, Pace, Statistics};

/// A link that is emulated as long as this lives; its interfaces vanish with it, or with the process.
///
/// Its memory holds every frame under way: rate times delay, and no more than 256 MiB per direction, above which frames
/// count as having found the queue full.
#[derive(Debug)]
pub(crate) struct Emu {
    medium: Medium,
    /// Dropping it tells the thread to end.
    orders: Option<Sender<Order>>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Emu {
    /// Whether the emulator has what `spec` asks for.
    pub(crate) fn check(spec: &LinkSpec) -> Result<(), Error> {
        if spec.mtu > LARGEST_MTU {
            return Err(unsupported(format!("MTU of {} bytes, only up to {LARGEST_MTU}", spec.mtu)));
        }
        check_pace(spec.medium, &spec.a_to_b.pace)?;
        check_pace(spec.medium, &spec.b_to_a.pace)
    }

    /// Whether the emulator can make this change on such a medium.
    pub(crate) fn check_change(medium: Medium, change: &Change) -> Result<(), Error> {
        match change {
            Change::Adjust(_, Adjustment { pace: Some(pace), .. }) => check_pace(medium, pace),
            _ => Ok(()),
        }
    }

    /// Makes both interfaces, switched on and without addresses, and starts the thread between them.
    pub(crate) fn start(spec: &LinkSpec, a: End<'_>, b: End<'_>) -> Result<Self, Error> {
        let taps = [Tap::new(a, spec.mtu)?, Tap::new(b, spec.mtu)?];
        let bell = Arc::new(Bell::new().map_err(|source| refused("make an eventfd", source))?);
        let (orders, to_obey) = channel();
        let (started, outcome) = sync_channel(1);
        let work = {
            let (spec, bell) = (spec.clone(), Arc::clone(&bell));
            let seed = rand::make_rng::<SmallRng>().random();
            move || match Engine::new(&spec, seed, taps, to_obey, bell) {
                Ok(engine) => {
                    // Whoever started it waits for this.
                    let _ = started.send(Ok(()));
                    engine.run();
                }
                Err(error) => drop(started.send(Err(error))),
            }
        };
        let name = format!("link {}", a.interface);
        let thread = thread::Builder::new().name(name).spawn(work);
        let thread = thread.map_err(|source| refused("start a thread", source))?;
        let emu = Self { medium: spec.medium, orders: Some(orders), bell, thread: Some(thread) };
        outcome.recv().unwrap_or_else(|_| Err(ended()))?;
        Ok(emu)
    }

    /// Changes it while frames cross.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), Error> {
        Self::check_change(self.medium, change)?;
        self.ask(|answer| Order::Apply(change.clone(), answer))?
    }

    /// What it did so far.
    pub(crate) fn statistics(&self) -> Result<Statistics, Error> {
        self.ask(Order::Report)
    }

    fn ask<T>(&self, order: impl FnOnce(SyncSender<T>) -> Order) -> Result<T, Error> {
        let (answer, answered) = sync_channel(1);
        let orders = self.orders.as_ref().ok_or_else(ended)?;
        orders.send(order(answer)).map_err(|_| ended())?;
        self.bell.ring();
        answered.recv().map_err(|_| ended())
    }
}

impl Drop for Emu {
    fn drop(&mut self) {
        self.orders = None;
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the thread.
            let _ = thread.join();
        }
    }
}

/// Recorded opportunities are those of one direction: nothing says whose they are on a shared medium.
fn check_pace(medium: Medium, pace: &Pace) -> Result<(), Error> {
    match (medium, pace) {
        (Medium::HalfDuplex { .. }, Pace::Trace(_)) => {
            Err(unsupported("trace on a half-duplex medium".into()))
        }
        _ => Ok(()),
    }
}

/// Saturates after 584 years.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

fn unsupported(property: String) -> Error {
    Error::Unsupported { backend: Backend::Emu, property }
}

fn refused(step: &str, source: io::Error) -> Error {
    Error::Refused { step: step.into(), source }
}

fn ended() -> Error {
    refused("reach the emulator", io::Error::other("its thread has ended"))
}
