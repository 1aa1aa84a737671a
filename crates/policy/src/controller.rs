//! Policies that react to measurements: sessions that observe connections and apply actions.
//!
//! At every tick a controller, such as those of the Python package, gets a [`View`] of this host's connections from its
//! [`Session`], and applies [`Action`]s. They are the complete set in force until the next tick: what is not requested
//! again is reverted at once. All of them form one policy, named after the controller, which is replaced atomically and
//! coexists with other policies.
//!
//! Actions expire unless the next tick renews them. The BPF programs check the expiry, so a hung or killed controller stops
//! having effect without any other process. The exception is the backup flag of subflows, which a separate process reverts:
//! see [`guard()`]. Subflows that a controller created or closed are not reverted.
//!
//! ```no_run
//! use std::time::Duration;
//! use plait_policy::controller::{Action, ControllerError, Session};
//!
//! // Limits subflows with a round-trip time above 200 ms to 1 Mbit/s.
//! let rate = "1mbit".parse().expect("a rate");
//! let mut session = Session::start("calm", Duration::from_secs(5))?;
//! loop {
//!     let view = session.view()?;
//!     let slow = view.subflows().filter(|subflow| subflow.tcp.rtt_us > 200_000);
//!     let actions: Vec<_> = slow.map(|subflow| Action::Pace { subflow: subflow.into(), rate }).collect();
//!     session.apply(&actions)?;
//!     std::thread::sleep(Duration::from_millis(100));
//! }
//! # Ok::<(), ControllerError>(())
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

pub use action::Action;
pub use error::ControllerError;
pub use expiry::default_expiry;
pub use guard::guard;
pub use session::Session;
pub use view::{ConnectionView, PathView, SubflowView, View};
