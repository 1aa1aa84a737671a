//! Policies that react to measurements: a loop that observes connections and requests actions.
//!
//! At every interval a [`Controller`] gets a [`View`] of this host's connections and returns [`Action`]s. They are the
//! complete set in force until the next tick: what is not requested again is reverted at once. All of them form one
//! policy, named after the controller, which is replaced atomically and coexists with other policies.
//!
//! Actions expire ([`Controller::expiry`]) unless the next tick renews them. The BPF programs check the expiry, so a
//! hung or killed controller stops having effect without any other process. The exception is the backup flag of
//! subflows, which a separate process reverts: see [`guard()`]. If a controller returns an error, its loop ends and its
//! policy is removed. Subflows it created or closed are not reverted.
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
//!     /// Limits subflows with a round-trip time above 200 ms to 1 Mbit/s.
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
//! # Ok::<(), plait_policy::controller::ControllerError>(())
//! ```

mod action;
mod backfill;
mod desired;
mod error;
mod expiry;
mod guard;
mod guard_process;
mod session;
mod view;

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

pub use action::Action;
pub use error::{ControllerError, Failure};
pub use expiry::default_expiry;
pub use guard::guard;
pub use session::Session;
pub use view::{ConnectionView, PathView, SubflowView, View};

/// Decides at every tick which actions are in force until the next one.
pub trait Controller {
    /// The time between ticks, at least 1 ms. Late ticks are skipped.
    fn interval(&self) -> Duration;

    /// How long the actions of a tick stay in force if no other tick follows.
    fn expiry(&self) -> Duration {
        default_expiry(self.interval())
    }

    /// The actions from now on.
    ///
    /// # Errors
    /// The controller cannot continue: its actions are reverted and the loop ends.
    fn tick(&mut self, view: &View) -> Result<Vec<Action>, Failure>;
}

/// Runs a controller until it fails or `pause` returns `false`, then removes its policy. `pause` is called with the time
/// to the next tick, sleeps for that long, and returns whether to continue.
///
/// The [`guard()`] process runs the command `plait`, found in `PATH` or named by the environment variable `PLAIT`.
///
/// Starting a controller with the name of a running one atomically replaces its policy; the old one ends with
/// [`ControllerError::Replaced`].
///
/// # Errors
/// The controller failed, requested invalid chains, or a system call failed.
pub fn run(
    name: &str,
    controller: &mut impl Controller,
    mut pause: impl FnMut(Duration) -> bool,
) -> Result<(), ControllerError> {
    let mut session = Session::start(name, controller.expiry())?.with_guard(guard_command(name));
    let interval = controller.interval().max(Duration::from_millis(1));
    let mut next = Instant::now();
    loop {
        let actions = controller.tick(&session.view()?).map_err(ControllerError::Controller)?;
        for refused in session.apply(&actions)? {
            tracing::warn!("{refused}");
        }
        let now = Instant::now();
        while next <= now {
            next += interval;
        }
        if !pause(next - now) {
            return session.finish();
        }
    }
}

/// The command that calls [`guard()`].
fn guard_command(name: &str) -> Command {
    let mut command = Command::new(env::var_os("PLAIT").unwrap_or_else(|| "plait".into()));
    command.args(["policy", "guard", name]);
    command
}
