//! What actors add to subflows and withhold from them: MP_PRIO and ADD_ADDR.
//!
//! Packet by packet, by test runs of the programs; and between two hosts, by the kernel's own counters.

mod announcements;
mod backup;
mod custom;
mod hosts;
mod scene;
#[path = "../../../linux/tests/topology/mod.rs"]
mod topology;
