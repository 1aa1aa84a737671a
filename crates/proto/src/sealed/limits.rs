//! How many half-open sessions a responder keeps, and for whom.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Bounds of a [`Rendezvous`](super::Rendezvous), for each of its two pools of half-open sessions: those with HELLO and those without.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions. Each holds at most 16 connections. A new one displaces the oldest of the network that has the most.
    pub sessions: usize,
    /// With this many sessions, a network that has [`per_network`](Self::per_network) displaces its own oldest. With fewer
    /// it may have more, for many clients may share an address behind a NAT.
    pub crowded: usize,
    /// Sessions from one network: an IPv4 address, or a /64 of IPv6.
    pub per_network: usize,
    /// How long a session may take from its first message, and from its HELLO.
    pub timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { sessions: 1024, crowded: 256, per_network: 32, timeout: Duration::from_secs(10) }
    }
}

/// The network of an address, which counts as one peer, because a single host may use all its addresses: an IPv4 address (also
/// one mapped to IPv6), or the /64 of an IPv6 address.
#[must_use]
pub fn peer_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::from(Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_an_ipv4_address_or_a_64_of_ipv6() {
        let of = |text: &str| peer_network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
