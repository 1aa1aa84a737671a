//! Links between network namespaces that behave like LTE, WLAN or a wire: one specification, three backends.
//!
//! A [`LinkSpec`] says what each [`Direction`] does to frames: rate, delay, jitter, loss, duplication, queue. [`Link::make`]
//! builds it between two [`End`]s and keeps it until dropped; [`Link::apply`] changes it while frames cross. Behind it:
//!
//! - [`Backend::Emu`]: an emulator in user space between two TAP interfaces, which needs nothing of the kernel but TUN;
//! - [`Backend::Netem`]: the kernel's `netem` and `tbf`, in a namespace between the two, where the kernel has them;
//! - [`Backend::None`]: a veth pair, for links that are asked to be nothing but a wire.
//!
//! Whether a backend is there is found out by really making one, and a property that a backend cannot give is an error,
//! never left out. This crate knows nothing of labs: a link is made between any two namespaces.

mod backend;
mod emu;
mod end;
mod error;
mod link;
mod netem;
mod parse;
mod probability;
mod program;
mod raw;
mod spec;
mod statistics;
mod trace;
mod veth;

pub use backend::Backend;
pub use end::End;
pub use error::Error;
pub use link::Link;
pub use plait_config::Rate;
pub use probability::Probability;
pub use raw::RawAdjustment;
pub use spec::{Adjustment, Change, Direction, Jitter, LinkSpec, Loss, Medium, Pace, Queue, Toward};
pub use statistics::{Counters, Lateness, Statistics};
pub use trace::Trace;
