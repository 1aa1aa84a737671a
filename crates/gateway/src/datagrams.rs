//! What both ends of a [session of datagrams](plait_proto::datagrams) share: sockets, the state of paths, and copies.
//!
//! The client's end is `outbound::datagrams`, the exit's `inbound::exit::datagrams`.

mod copies;
mod counters;
mod paths;
mod reorder;
mod socket;
mod spread;

use std::time::Duration;

pub(crate) use copies::Copies;
pub(crate) use counters::{CountedAssociation, CountedLosses, DatagramCounters, PathCounters};
pub use paths::DatagramScheduler;
pub(crate) use paths::Paths;
pub(crate) use reorder::InOrder;
pub(crate) use socket::{DatagramSocket, ReceiveBuffers, Received, SOCKET_BUFFER, bind};
pub(crate) use spread::Spread;

/// Payload of a datagram, at most: that of a UDP datagram over IPv4, less what a packet adds to it with the longest destination.
pub(crate) const MAX_PAYLOAD: usize = 65_507 - 320;

/// How long an association is kept without a datagram, once the other end has answered (RFC 4787, REQ-5).
pub(crate) const ESTABLISHED_TIMEOUT: Duration = Duration::from_secs(120);

/// The same without an answer.
pub(crate) const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(30);
