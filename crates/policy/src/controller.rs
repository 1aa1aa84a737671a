//! Policies that change with what happens: a loop that looks, and says what shall hold.
//!
//! Once per interval a [`Controller`] gets a [`View`] of this host's connections and returns [`Action`]s. What it returns
//! is the whole of what shall hold until the next time: what it does not say again is taken back at once. All of it is one
//! policy, of the controller's own name, so that it is exchanged as a whole, and stands beside the host's other policies.
//!
//! What a controller says holds for a limited time ([`Controller::expiry`]) that every tick prolongs. The BPF programs
//! compare it with their clock: of a controller that hangs, or was killed, nothing is in force any more when that time is
//! over, whoever else is alive. Only that a subflow is a backup no clock takes back: another process, a [`guard`], does.
//! A controller that fails is ended, and its policy removed. Subflows that were made or ended stay so.
//!
//! ```no_run
//! use std::time::Duration;
//! use plait_policy::controller::{Action, Controller, Failure, View, run};
//!
//! struct Calm;
//!
//! impl Controller for Calm {
//!     fn interval(&self) -> Duration {
//!         Duration::from_millis(100)
//!     }
//!
//!     /// Subflows with a round-trip time of more than 200 ms send 1 Mbit/s at most.
//!     fn tick(&mut self, view: &View) -> Result<Vec<Action>, Failure> {
//!         let rate = "1mbit".parse()?;
//!         let slow = view.subflows().filter(|subflow| subflow.tcp.rtt_us > 200_000);
//!         Ok(slow.map(|subflow| Action::Pace { subflow: subflow.into(), rate }).collect())
//!     }
//! }
//!
//! run("calm", &mut Calm, |pause| {
//!     std::thread::sleep(pause);
//!     true
//! })?;
//! # Ok::<(), plait_policy::controller::Error>(())
//! ```

mod begun;
mod control;
mod guard;
mod view;
mod wishes;

use std::env;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use plait_linux::mptcp::Token;
use plait_linux::pm;

pub use control::{Control, Error};
pub use guard::guard;
pub use view::{Connection, Path, Subflow, View};

use crate::engine::Ends;
use crate::{Chain, Rate};

/// Why a controller cannot go on.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What decides, at every tick, what shall hold until the next.
pub trait Controller {
    /// The time from one tick to the next, 1 ms at least. Ticks that come too late are left out.
    fn interval(&self) -> Duration;

    /// How long what a tick said holds if no other follows, whatever became of the controller.
    fn expiry(&self) -> Duration {
        expiry_of(self.interval())
    }

    /// What shall hold now.
    ///
    /// # Errors
    /// The controller cannot go on: what it set is taken back, and it gets no more ticks.
    fn tick(&mut self, view: &View) -> Result<Vec<Action>, Failure>;
}

/// How long a tick holds unless the controller says: three intervals, 5 s at least, so that an interpreter that collects
/// its garbage, or a host that swaps, is not taken for dead.
pub fn expiry_of(interval: Duration) -> Duration {
    (interval * 3).max(Duration::from_secs(5))
}

/// Something that shall hold, or shall be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// This chain holds.
    Chain(Chain),
    /// This host sends no faster on a subflow (the actor `pace`).
    Pace {
        /// The subflow.
        subflow: Ends,
        /// How fast.
        rate: Rate,
    },
    /// The peer is let send no faster on a subflow (the actor `rate_limit`, on what is sent to it).
    Limit {
        /// The subflow.
        subflow: Ends,
        /// How fast.
        rate: Rate,
    },
    /// Both ends take a subflow as a backup (the actor `set_backup`, on what is sent and on what comes in). When it is no
    /// longer said, they are told that it is none (`clear_backup`), for as long as the controller's expiry.
    Backup {
        /// The subflow.
        subflow: Ends,
    },
    /// A subflow is made, once for every time this is said. Only of connections that user space manages: the kernel makes
    /// those of others by itself, and chains with `deny_join` hold them back.
    Create {
        /// The connection.
        token: Token,
        /// This host's end.
        local: pm::Local,
        /// The peer's end.
        remote: SocketAddr,
        /// The identifier of the peer's address; 0: the address of the initial subflow, or unknown.
        remote_id: u8,
    },
    /// A subflow ends; as [`Create`](Action::Create), of connections that user space manages.
    Remove {
        /// The connection.
        token: Token,
        /// The subflow.
        subflow: Ends,
    },
    /// A word to the log of this process.
    Log(String),
}

impl From<&Subflow> for Ends {
    fn from(subflow: &Subflow) -> Ends {
        Ends { local: subflow.local, remote: subflow.remote }
    }
}

/// Gives a controller its ticks until it fails, or `pause` says that it shall end; its policy is then removed. `pause` is
/// called with the time to the next tick, lets it pass, and says whether there shall be one.
///
/// Its [`guard`] is the command `plait`, as `PATH` has it, or the environment variable `PLAIT`.
///
/// A controller that takes over the name of one that runs takes over its policy as well, in one step: the other ends with
/// [`Error::Replaced`].
///
/// # Errors
/// The controller failed, asked for chains that cannot be, or the host could not be asked.
pub fn run(
    name: &str,
    controller: &mut impl Controller,
    mut pause: impl FnMut(Duration) -> bool,
) -> Result<(), Error> {
    let mut control = Control::begin(name, controller.expiry())?.guarded_by(command(name));
    let interval = controller.interval().max(Duration::from_millis(1));
    let mut next = Instant::now();
    loop {
        let actions = controller.tick(&control.view()?).map_err(Error::Controller)?;
        for refused in control.apply(&actions)? {
            tracing::warn!("{refused}");
        }
        let now = Instant::now();
        while next <= now {
            next += interval;
        }
        if !pause(next - now) {
            return control.end();
        }
    }
}

/// Calls [`guard`].
fn command(name: &str) -> Command {
    let mut command = Command::new(env::var_os("PLAIT").unwrap_or_else(|| "plait".into()));
    command.args(["policy", "guard", name]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_three_intervals_and_five_seconds_at_least() {
        assert_eq!(expiry_of(Duration::from_millis(100)), Duration::from_secs(5));
        assert_eq!(expiry_of(Duration::from_secs(10)), Duration::from_secs(30));
    }
}
