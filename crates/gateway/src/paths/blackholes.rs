//! Reverts the kernel's blackhole detection ([`plait_linux::blackhole`]), by which it stops using MPTCP for outgoing
//! connections.
//!
//! A gateway reverts it and connects again; where programs connect themselves, it is reverted periodically. Otherwise an
//! attacker who drops packets on the trusted path for three seconds could make all connections plain, or impossible, for an
//! hour.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::blackhole;
use tracing::warn;

/// On a path that does drop MPTCP each reset costs a connection three seconds, so it happens at most once in this time.
const RESET_INTERVAL: Duration = Duration::from_secs(10);

/// Detects and reverts it.
pub(crate) struct Blackholes(Mutex<State>);

struct State {
    /// The kernel's count at the last check.
    made_tcp: i64,
    resets: u64,
    last: Option<Instant>,
    failed: bool,
}

impl Blackholes {
    /// # Errors
    /// The kernel's counters cannot be read.
    pub(crate) fn watch() -> io::Result<Blackholes> {
        let made_tcp = blackhole::connections_made_tcp()?;
        Ok(Blackholes(Mutex::new(State { made_tcp, resets: 0, last: None, failed: false })))
    }

    /// The number of resets so far, to be read before connecting.
    pub(crate) fn resets(&self) -> u64 {
        self.state().resets
    }

    /// Whether a connection that became TCP should be retried: whether a blackhole was reset `since` that number of resets,
    /// or just now.
    pub(crate) fn was_reset(&self, since: u64) -> bool {
        let mut state = self.state();
        state.resets > since || state.reset()
    }

    /// Resets it, if connections became TCP since the last check.
    pub(crate) fn check(&self) {
        self.state().reset();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn reset(&mut self) -> bool {
        if self.last.is_some_and(|last| last.elapsed() < RESET_INTERVAL) {
            return false;
        }
        let Ok(made_tcp) = blackhole::connections_made_tcp() else { return false };
        if std::mem::replace(&mut self.made_tcp, made_tcp) == made_tcp {
            return false;
        }
        match blackhole::end() {
            Ok(()) => {
                warn!(
                    "the kernel had stopped using MPTCP, as it does for an hour or more after SYNs were unanswered for three \
                     seconds (MPTcpExtBlackhole); re-enabled it"
                );
                (self.last, self.failed) = (Some(Instant::now()), false);
                self.resets += 1;
            }
            Err(error) if !self.failed => {
                warn!(
                    "the kernel has stopped using MPTCP, because SYNs were unanswered for three seconds (MPTcpExtBlackhole), \
                     and it cannot be re-enabled: {error}; as root: sysctl -w net.mptcp.blackhole_timeout=0"
                );
                self.failed = true;
            }
            Err(_) => {}
        }
        !self.failed
    }
}
