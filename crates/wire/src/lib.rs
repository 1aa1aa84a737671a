//! Packets and capture files, parsed and built: Ethernet, IPv4, IPv6, TCP with its options, every Multipath TCP
//! option of RFC 6824 (version 0) and RFC 8684 (version 1), and capture files (pcap, pcapng, plain or compressed).
//!
//! Each protocol is a module with two types. A `Packet` (or `Frame`) is a view of borrowed bytes: creating one checks
//! the lengths that its accessors need, and copies nothing. A `Repr` is a header to emit. [`Segment`] parses all layers
//! of a captured frame at once. TCP headers and their options round-trip; of the layers below, what no caller needs (IP
//! options, extension headers, VLAN tags) is skipped and cannot be emitted.
//!
//! **Contract.** No function of this crate panics or loops on any input bytes: every length is checked, and an invalid
//! one is a [`ParseError`] with the expected and the actual value. Views accept packets that a capture truncated, and
//! distinguish the captured from the original length. Reserved bits are ignored when parsed and zero when emitted, as
//! the RFCs require. The crate performs no I/O except on the readers and writers that it is given, does not allocate
//! per parsed packet, and has no `unsafe`.

#![forbid(unsafe_code)]

pub mod capture;
pub mod checksum;
mod error;
pub mod ethernet;
mod fields;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
mod link;
pub mod mptcp;
pub mod protocol;
mod segment;
mod skip;
pub mod tcp;

pub use error::{BuildError, ParseError};
pub use link::LinkType;
pub use segment::Segment;
pub use skip::Skip;
