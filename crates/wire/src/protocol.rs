//! Protocol numbers of the IP header (IANA "Assigned Internet Protocol Numbers") that this crate knows.

/// Transmission Control Protocol (RFC 9293).
pub const TCP: u8 = 6;
