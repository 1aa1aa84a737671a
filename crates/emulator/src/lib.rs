//! Emulated links between network namespaces: one specification, three backends.
//!
//! A [`LinkSpec`] describes each direction with a [`DirectionSpec`]: rate, delay, jitter, loss, duplication, queue.
//! [`Link::make`] creates the link between two [`End`]s and keeps it until dropped; [`Link::apply`] changes it while it
//! carries traffic. The backends:
//!
//! - [`Backend::Emu`]: an emulator in user space between two TAP interfaces, which requires only TUN from the kernel;
//! - [`Backend::Netem`]: the kernel's `netem` and `tbf`, in a namespace between the two;
//! - [`Backend::None`]: a veth pair, for plain wires.
//!
//! Whether a backend works is probed by creating a link. A property that a backend does not support is an error,
//! never ignored. Links connect any two namespaces and do not require a lab.

mod backend;
mod command;
mod endpoint;
mod error;
mod link;
mod netem;
mod parse;
mod probability;
mod raw;
mod spec;
mod statistics;
mod trace;
mod userspace;
mod veth;

pub use backend::Backend;
pub use endpoint::End;
pub use error::Error;
pub use link::Link;
pub use plait_config::Rate;
pub use probability::Probability;
pub use raw::RawAdjustment;
pub use spec::{Adjustment, Change, DirectionSpec, Jitter, LinkSpec, Loss, Medium, Pace, Queue, Toward};
pub use statistics::{Counters, Lateness, Statistics};
pub use trace::Trace;
