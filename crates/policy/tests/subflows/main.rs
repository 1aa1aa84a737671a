//! Actors that add MP_PRIO and ADD_ADDR to subflows or remove them.
//!
//! Packet by packet in dry runs, and between two hosts, verified by kernel counters.

mod announcements;
mod backup;
mod custom;
mod hosts;
mod packets;
#[path = "../../../linux/tests/topology/mod.rs"]
mod topology;
