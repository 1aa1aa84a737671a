//! Why connections to a host have no further subflow, and what its paths can carry.
//!
//! [`gather`] finds out facts: settings, one connection as any program would open it, and probes of paths. [`judge`] turns
//! them, without I/O, into a [`Diagnosis`]: checks in the order in which a connection depends on them, each with what was found
//! and the command that mends it.
//!
//! Nothing on this host or another is changed. No data from the network makes this crate panic.

#![forbid(unsafe_code)]

mod exchange;
mod facts;
mod firewall;
mod gather;
mod hops;
mod judge;
mod measure;
mod mtu;
mod report;
mod syn;

pub use facts::Facts;
pub use gather::{GatherError, gather};
pub use judge::judge;
pub use measure::{
    Idle, MeasuredPath, Measurement, OptionArrival, PeerMeasurement, PeerPlan, Plan, RttMs, measure, serve,
};
pub use report::{Check, Diagnosis, Subject, Verdict};
