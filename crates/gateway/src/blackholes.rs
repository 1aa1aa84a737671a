//! Connections that were to be MPTCP, and that the kernel made TCP without asking the peer: [`plait_linux::blackhole`].
//!
//! A gateway that is to protect connections ends that and connects again; where programs connect themselves, it is looked
//! for again and again. Otherwise somebody who drops what crosses the
//! trusted path for three seconds had it carry everything plain, or nothing at all, for an hour.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::blackhole;
use tracing::warn;

/// On a path that really drops MPTCP each ending costs a connection three seconds, so there is at most one in this time.
const BETWEEN_ENDINGS: Duration = Duration::from_secs(10);

/// What was seen and done of that.
pub(crate) struct Blackholes(Mutex<State>);

struct State {
    /// The kernel's count when it was last looked at.
    made_tcp: i64,
    endings: u64,
    last: Option<Instant>,
    failed: bool,
}

impl Blackholes {
    /// # Errors
    /// The kernel's counters cannot be read.
    pub(crate) fn watch() -> io::Result<Blackholes> {
        let made_tcp = blackhole::connections_made_tcp()?;
        Ok(Blackholes(Mutex::new(State { made_tcp, endings: 0, last: None, failed: false })))
    }

    /// How often one was ended; to be asked before connecting.
    pub(crate) fn endings(&self) -> u64 {
        self.state().endings
    }

    /// Whether it is worth connecting again, of a connection that became TCP: whether a blackhole was ended `since` that
    /// many, or just now.
    pub(crate) fn ended(&self, since: u64) -> bool {
        let mut state = self.state();
        state.endings > since || state.end()
    }

    /// Ends one, if connections became TCP since the last look.
    pub(crate) fn look(&self) {
        self.state().end();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end(&mut self) -> bool {
        if self.last.is_some_and(|last| last.elapsed() < BETWEEN_ENDINGS) {
            return false;
        }
        let Ok(made_tcp) = blackhole::connections_made_tcp() else { return false };
        if std::mem::replace(&mut self.made_tcp, made_tcp) == made_tcp {
            return false;
        }
        match blackhole::end() {
            Ok(()) => {
                warn!(
                    "the kernel had stopped using MPTCP here, as it does for an hour or more when SYNs went unanswered for \
                     three seconds (MPTcpExtBlackhole); ended that"
                );
                (self.last, self.failed) = (Some(Instant::now()), false);
                self.endings += 1;
            }
            Err(error) if !self.failed => {
                warn!(
                    "the kernel uses no MPTCP here for now, as SYNs went unanswered for three seconds (MPTcpExtBlackhole), \
                     and that cannot be ended: {error}; as root: sysctl -w net.mptcp.blackhole_timeout=0"
                );
                self.failed = true;
            }
            Err(_) => {}
        }
        !self.failed
    }
}
