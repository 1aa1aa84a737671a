//! Hosts, links, services and listeners on one machine, for demos, tests and experiments.
//!
//! A [`Lab`] owns what it makes: network namespaces ([`Host`]), links between them ([`Link`]) and a directory for the files
//! of its programs. Real programs run in it ([`Process`], [`Service`]) and real listeners capture on it ([`Capture`]).
//! It is made step by step, or at once from a [`Topology`] that a person wrote. Nothing outside its own namespaces is
//! touched, and all of it is gone when the lab is dropped: after success, an error, a panic or an [`StopSignal`]. What a
//! killed run left behind is removed when the next lab is made.
//!
//! Addresses and routes are set with the program `ip`; what it refuses is an error that carries its words, and what a
//! link cannot be is one too, so that no experiment goes on without what it was asked to have.

mod attachment;
mod build;
pub mod capture;
mod error;
pub mod experiment;
mod host;
mod lab;
mod leftovers;
mod link;
mod output;
mod process;
mod routes;
mod schedule;
mod services;
pub mod topology;
mod wait;

pub use capture::Capture;
pub use error::Error;
pub use experiment::Experiment;
pub use host::Host;
pub use lab::Lab;
pub use leftovers::{Leftovers, remove_leftovers};
pub use link::{Link, LinkSpec};
pub use plait_config::Diagnostic;
pub use plait_emulator::{Backend, Rate};
pub use process::{Process, require_program};
pub use schedule::Applied;
pub use services::{Service, nginx_configuration};
pub use topology::{Side, Topology};
