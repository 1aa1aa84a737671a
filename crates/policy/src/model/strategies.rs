//! Random selectors for property tests. They use few distinct values, so that random packets match often.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use plait_config::Role;
use proptest::prelude::*;
use proptest::sample::select;

use super::{Interface, Mark, PacketKind, Ports, Prefix, Selector, SubflowPattern};

/// The interfaces, control groups and custom selectors that expressions refer to.
pub(crate) const INTERFACES: [&str; 3] = ["wlan0", "wwan0", "eth0.7"];
pub(crate) const CGROUPS: [&str; 3] = ["/", "/user.slice", "/system.slice/sshd.service"];
pub(crate) const CUSTOM: [&str; 2] = ["urgent", "mine_2"];

/// Expressions nested a few levels deep.
pub(crate) fn selectors() -> impl Strategy<Value = Selector> {
    expressions(prop_oneof![12 => any_hook(), 1 => egress_only()])
}

/// The same, restricted to selectors that are valid at ingress.
pub(crate) fn ingress_selectors() -> impl Strategy<Value = Selector> {
    expressions(any_hook())
}

fn expressions(leaf: impl Strategy<Value = Selector> + 'static) -> impl Strategy<Value = Selector> {
    leaf.prop_recursive(5, 24, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| Selector::Not(Box::new(inner))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Selector::And),
            prop::collection::vec(inner, 2..4).prop_map(Selector::Or),
        ]
    })
}

fn any_hook() -> impl Strategy<Value = Selector> {
    prop_oneof![
        1 => Just(Selector::Any),
        2 => subflows().prop_map(Selector::Subflow),
        1 => (prefixes(), prefixes()).prop_map(|(from, to)| Selector::IpPair(from, to)),
        2 => (prefixes(), prop::option::of(ports())).prop_map(|(prefix, ports)| Selector::Source(prefix, ports)),
        2 => (prefixes(), prop::option::of(ports())).prop_map(|(prefix, ports)| Selector::Destination(prefix, ports)),
        2 => (data_sequences(), data_sequences()).prop_map(|(first, last)| Selector::DataSequence(first, last)),
        2 => (sequences(), sequences()).prop_map(|(first, last)| Selector::SubflowSequence(first, last)),
        4 => prop::collection::vec(select(PacketKind::ALL), 1..4).prop_map(Selector::Packet),
        1 => tokens().prop_filter("0 is not a token", |token| *token != 0).prop_map(Selector::Connection),
        2 => interfaces().prop_map(Selector::Path),
        2 => sizes().prop_map(|(from, to)| Selector::Size { from, to }),
        1 => sizes().prop_map(|(from, to)| Selector::ConnectionSize { from, to }),
        1 => select(&CUSTOM[..]).prop_map(|name| Selector::Custom(name.into())),
    ]
}

fn egress_only() -> impl Strategy<Value = Selector> {
    prop_oneof![
        marks().prop_map(Selector::Mark),
        select(&CGROUPS[..]).prop_map(|path| Selector::Cgroup(path.into())),
    ]
}

/// Addresses that share long prefixes.
pub(crate) fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..4u32, any::<bool>()).prop_map(|(low, far)| {
            IpAddr::from(Ipv4Addr::from_bits((if far { 0x0a80_0000 } else { 0x0a00_0000 }) | low))
        }),
        (0..4u128, select(&[0xfd00u128 << 112, (0xfd00 << 112) | (1 << 64), 0xffff << 32, 0][..]))
            .prop_map(|(low, high)| IpAddr::from(Ipv6Addr::from_bits(high | low))),
        any::<IpAddr>(),
    ]
}

fn prefixes() -> impl Strategy<Value = Prefix> {
    (addresses(), 0..=128u8).prop_map(|(address, length)| {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length = length.min(bits);
        let first: IpAddr = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        };
        Prefix::new(first, length).expect("a valid prefix")
    })
}

pub(crate) fn port() -> impl Strategy<Value = u16> {
    prop_oneof![select(&[0, 1, 443, 444, 1024, 65534, 65535][..]), any::<u16>()]
}

fn ports() -> impl Strategy<Value = Ports> {
    (port(), port()).prop_map(|(one, other)| Ports { first: one.min(other), last: one.max(other) })
}

fn subflows() -> impl Strategy<Value = SubflowPattern> {
    let prefix = || prop::option::of(prefixes());
    let ports = || prop::option::of(ports());
    (prefix(), prefix(), ports(), ports()).prop_map(
        |(source, destination, source_ports, destination_ports)| SubflowPattern {
            source,
            destination,
            source_ports,
            destination_ports,
        },
    )
}

pub(crate) fn sequences() -> impl Strategy<Value = u32> {
    prop_oneof![select(&[0, 1, 2, 1000, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX][..]), any::<u32>()]
}

pub(crate) fn data_sequences() -> impl Strategy<Value = u64> {
    let boundaries =
        [0, 1, 1000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
    prop_oneof![select(boundaries.to_vec()), any::<u64>()]
}

pub(crate) fn tokens() -> impl Strategy<Value = u32> {
    select(&[0, 1, 0x1a2b_3c4d, u32::MAX][..])
}

fn interfaces() -> impl Strategy<Value = Interface> {
    prop_oneof![
        select(&INTERFACES[..]).prop_map(|name| Interface::Named(name.into())),
        select(&[Role::Trusted, Role::Untrusted][..]).prop_map(Interface::Role),
        Just(Interface::All),
    ]
}

/// Bytes.
pub(crate) fn flow_bytes() -> impl Strategy<Value = u64> {
    select(&[0, 1, 99_999, 100_000, 1 << 31, (1 << 32) - 1, 1 << 32, 1_000_000_000_000][..])
}

fn sizes() -> impl Strategy<Value = (u64, Option<u64>)> {
    (flow_bytes(), prop::option::of(flow_bytes())).prop_map(|(one, other)| match other {
        Some(other) if other != one => (one.min(other), Some(one.max(other))),
        _ => (one, None),
    })
}

pub(crate) fn mark() -> impl Strategy<Value = u32> {
    prop_oneof![select(&[0, 1, 0x10, 0x110, u32::MAX][..]), any::<u32>()]
}

fn marks() -> impl Strategy<Value = Mark> {
    (mark(), select(&[0, 1, 0xff, 0xff00_0000, u32::MAX][..]))
        .prop_map(|(value, mask)| Mark { value: value & mask, mask })
}
