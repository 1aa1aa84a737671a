//! The engine, in network namespaces on this kernel.

mod attaching;
mod faults;
mod host;
mod swapping;
#[path = "../../../linux/tests/topology/mod.rs"]
mod topology;
