//! Schedulers for the MPTCP connections of a stock kernel.
//!
//! Mainline Linux has one scheduler, which hands data to every subflow that is idle, however slow. It skips a subflow whose
//! pacing rate is 0. The schedulers here are congestion control algorithms (BPF `struct_ops`) that are the kernel's cubic
//! and that close and open their subflow that way, with regard to the other subflows of the connection.
//!
//! [`Registry`](plait_congestion::Registry) loads a [`Scheduler`] into the kernel and enables it for network namespaces
//! and control groups.

#![deny(unsafe_op_in_unsafe_fn)]

mod bindings;
mod object;
mod registered;
mod requirements;
mod scheduler;
#[cfg(test)]
mod tests;

pub use object::probe;
pub use plait_congestion::Error;
pub use registered::Registered;
pub use scheduler::{Scheduler, UnknownScheduler};
