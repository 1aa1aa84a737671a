//! The engine in network namespaces.

mod attaching;
mod faults;
mod host;
mod swapping;
#[path = "../../../linux/tests/topology/mod.rs"]
mod topology;
