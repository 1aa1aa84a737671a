//! Hosts, links and listeners on one machine, for demos, tests and experiments.
//!
//! A [`Lab`] owns what it makes: network namespaces ([`Host`]), veth links with token-bucket rates ([`Link`]) and a
//! folder for the files of its programs. Real programs run in it ([`Process`]) and real listeners capture on it
//! ([`Capture`]). Nothing outside its own namespaces is touched, and all of it is gone when the lab is dropped: after
//! success, an error, a panic or an [`Interrupt`]. What a killed run left behind is removed when the next lab is made.
//!
//! Links and addresses are set with the programs `ip` and `tc`; what they refuse is an error that carries their words,
//! so that no experiment goes on without a rate it was asked to have.

pub mod capture;
mod error;
mod host;
mod interrupt;
mod lab;
mod link;
mod output;
mod process;
pub mod topology;

pub use capture::Capture;
pub use error::Error;
pub use host::Host;
pub use interrupt::Interrupt;
pub use lab::{Lab, remove_leftovers};
pub use link::{End, Link, LinkSpec};
pub use plait_link::Rate;
pub use process::{Process, require_program};
pub use topology::{Mistake, Topology};
