//! Hosts, links, services and captures on one machine, for demos, tests and experiments.
//!
//! A [`Lab`] owns network namespaces ([`Host`]), links between them ([`Link`]) and a directory for the files of its
//! programs. Real programs run in it ([`Process`], [`Service`]), and tcpdump captures their packets ([`Capture`]). A
//! lab is built from a [`Topology`] file. Nothing outside its own namespaces changes, and
//! everything is removed when the lab is dropped: after success, an error, a panic or a stop signal. The leftovers of
//! a killed run are removed when the next lab is created.
//!
//! Addresses and routes are set with `ip`, whose errors are reported with its stderr. A link property that the
//! backend does not support is an error too, so that no experiment runs with less than it specifies.

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
pub mod papers;
mod process;
mod routes;
mod schedule;
mod seed;
mod services;
pub mod topology;
pub mod traffic;
mod wait;

pub use capture::Capture;
pub use error::Error;
pub use experiment::Experiment;
pub use host::Host;
pub use lab::Lab;
pub use leftovers::{Leftovers, remove_leftovers};
pub use link::Link;
pub use plait_config::Diagnostic;
pub use plait_emulator::{Backend, Rate};
pub use process::{Process, require_program};
pub use schedule::Applied;
pub use seed::Seed;
pub use services::Service;
pub use topology::{Side, Topology};
