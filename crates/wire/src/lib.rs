//! Packets and capture files, parsed and built: Ethernet, IPv4, IPv6, TCP with its options, every Multipath TCP
//! option of RFC 6824 (version 0) and RFC 8684 (version 1), and capture files (pcap, pcapng, plain or compressed).
//!
//! Each protocol is a module with two types. A `Packet` (or `Frame`) is a view of borrowed bytes: making one checks
//! the lengths that its accessors need, nothing is copied. A `Repr` is a value that says the same and can be
//! emitted; parsing what a `Repr` emitted gives an equal `Repr`. [`Segment`] goes through all layers at once, which
//! is what the reader of a capture wants.
//!
//! **Contract.** No function of this crate panics or loops on any input bytes: every length is checked, a bad one is
//! a [`ParseError`] that says what was expected and found. Views accept packets that a capture cut short, and tell
//! the captured from the original length. Reserved bits are ignored when parsed and zero when emitted, as the RFCs
//! demand. The crate does no I/O beyond reading from and writing to what it is given, allocates nothing per parsed
//! packet, and has no `unsafe`.

#![forbid(unsafe_code)]

pub mod capture;
pub mod checksum;
mod error;
pub mod ethernet;
mod fields;
pub mod ipv4;
pub mod ipv6;
mod link;
pub mod mptcp;
mod role;
mod segment;
pub mod tcp;

pub use error::{BuildError, ParseError};
pub use link::LinkType;
pub use role::Role;
pub use segment::{Segment, Skip};

/// Protocol numbers of the IP header (IANA "Assigned Internet Protocol Numbers") that this crate knows.
pub mod protocol {
    /// Transmission Control Protocol (RFC 9293).
    pub const TCP: u8 = 6;
}
