//! A connection whose subflows are watched, and how often.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use plait_linux::mptcp::{FullInfo, Subflow};

use super::liveness::Liveness;

/// Between two looks at the subflows of a connection that carries bytes.
pub(super) const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// Between two looks at those of one that carried some lately.
const IN_USE_INTERVAL: Duration = Duration::from_millis(200);

/// Between two looks of this process, on average: a look takes some 10 µs, so that all take a tenth of a processor, however many
/// connections are in use.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// The connections of this process that are in use.
static CONNECTIONS_IN_USE: AtomicU32 = AtomicU32::new(0);

/// Between two looks at those of one that still waits for an answer.
const WAITING_INTERVAL: Duration = Duration::from_secs(5);

/// The clock of timers is that coarse.
const MARGIN: Duration = Duration::from_millis(1);

/// Without progress for this long, a connection is not busy.
const BUSY: Duration = Duration::from_secs(1);

/// Without progress for this long, a connection is not in use.
const IN_USE: Duration = Duration::from_secs(5);

/// A connection with a subflow that waits for an answer is in use for this long after its last progress.
const IN_USE_WAITING: Duration = Duration::from_secs(300);

/// A connection as those who watch its subflows see it.
pub(crate) trait Watched {
    /// What the kernel tells of it and its subflows.
    fn full_info(&self) -> io::Result<FullInfo>;

    /// The bytes carried so far, in both directions.
    fn carried(&self) -> u64;

    /// Whether the peer is known to have more to send.
    fn expects_more(&self) -> bool;

    /// Waits until more bytes are carried than these.
    fn more_than(&self, carried: u64) -> impl Future<Output = ()> + Send;

    /// Whether its subflows should be probed often.
    fn set_in_use(&self, in_use: bool);

    /// Gives all its subflows its receive buffer.
    fn share_receive_buffer(&self);
}

/// How often a connection's subflows are to be looked at.
pub(super) struct Pace {
    progress: u64,
    carried: u64,
    changed: Instant,
    in_use: bool,
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.set_in_use(false);
    }
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace { progress: 0, carried: 0, changed: Instant::now(), in_use: false }
    }

    /// Takes note of a connection's progress. Returns the time until the next look; without one, that can wait until
    /// [`active`](Self::active).
    pub(super) fn next(
        &mut self,
        connection: &impl Watched,
        subflows: &[Subflow],
        liveness: &Liveness,
    ) -> Option<Duration> {
        let pause = self.pause(connection, subflows, liveness.is_waiting())?;
        let now = Instant::now();
        let until_overdue = liveness.next_overdue(now).map_or(pause, |due| due - now + MARGIN);
        Some(pause.min(until_overdue.max(shortest_pause())))
    }

    fn pause(
        &mut self,
        connection: &impl Watched,
        subflows: &[Subflow],
        is_waiting: bool,
    ) -> Option<Duration> {
        self.carried = connection.carried();
        let acknowledged = subflows.iter().fold(0, |sum: u64, each| sum.wrapping_add(each.tcp.bytes_acked));
        let progress = self.carried.wrapping_add(acknowledged);
        if std::mem::replace(&mut self.progress, progress) != progress {
            self.changed = Instant::now();
        }
        let idle = self.changed.elapsed();
        let in_use = idle < if is_waiting { IN_USE_WAITING } else { IN_USE };
        if self.set_in_use(in_use) {
            connection.set_in_use(in_use);
        }
        match idle {
            _ if idle < BUSY => Some(BUSY_INTERVAL.max(shortest_pause())),
            _ if in_use => Some(IN_USE_INTERVAL.max(shortest_pause())),
            _ if is_waiting => Some(WAITING_INTERVAL),
            _ => None,
        }
    }

    /// Returns whether that has changed.
    fn set_in_use(&mut self, in_use: bool) -> bool {
        match (self.in_use, in_use) {
            (false, true) => _ = CONNECTIONS_IN_USE.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = CONNECTIONS_IN_USE.fetch_sub(1, Ordering::Relaxed),
            _ => return false,
        }
        self.in_use = in_use;
        true
    }

    /// Takes note of the progress of a connection whose subflows are not to be looked at yet, for as long as it is polled.
    pub(super) async fn keep(&mut self, connection: &impl Watched) -> Infallible {
        // A short connection costs nothing.
        tokio::time::sleep(BUSY_INTERVAL).await;
        loop {
            self.pause(connection, &[], false);
            match self.in_use {
                true => tokio::time::sleep(IN_USE).await,
                false => self.active(connection).await,
            }
        }
    }

    /// Whether the connection carried bytes lately.
    pub(super) fn in_use(&self) -> bool {
        self.in_use
    }

    /// Waits until the connection carries bytes again.
    pub(super) async fn active(&self, connection: &impl Watched) {
        connection.more_than(self.carried).await;
    }
}

fn shortest_pause() -> Duration {
    LOOK_INTERVAL * CONNECTIONS_IN_USE.load(Ordering::Relaxed)
}
