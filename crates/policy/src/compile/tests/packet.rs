//! Packet records, and a reference evaluator of selectors.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};

use plait_config::Role;
use proptest::prelude::*;
use proptest::sample::select;

use super::host;
use crate::bindings::plait_packet;
use crate::model::Interface;
use crate::model::{PacketKind, Ports, Prefix, Selector, strategies};

pub(super) const LOOPBACK: u32 = 1;
pub(super) const WLAN0: u32 = 2;
pub(super) const WWAN0: u32 = 3;
pub(super) const VLAN: u32 = 7;

/// The properties of a packet.
#[derive(Debug, Clone)]
pub(super) struct Packet {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) kinds: Vec<PacketKind>,
    pub(super) sequence: u32,
    pub(super) data_sequence: u64,
    pub(super) flow_bytes: u64,
    pub(super) connection_bytes: u64,
    pub(super) token: u32,
    pub(super) interface: u32,
    pub(super) mark: u32,
    pub(super) custom: Vec<&'static str>,
}

/// A TCP packet without other properties.
pub(super) fn packet(source: &str, destination: &str) -> Packet {
    Packet {
        source: source.parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        source_port: 50_000,
        destination_port: 443,
        kinds: Vec::new(),
        sequence: 0,
        data_sequence: 0,
        flow_bytes: 0,
        connection_bytes: 0,
        token: 0,
        interface: WLAN0,
        mark: 0,
        custom: Vec::new(),
    }
}

impl Packet {
    fn is_ipv6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Its `struct plait_packet`.
    pub(super) fn record(&self) -> Vec<u8> {
        let mut record = vec![0; size_of::<plait_packet>()];
        macro_rules! put {
            ($field:ident, $number:expr) => {
                let bytes = $number.to_ne_bytes();
                let at = offset_of!(plait_packet, $field);
                record[at..at + bytes.len()].copy_from_slice(&bytes);
            };
        }
        let halves = |address: IpAddr| {
            let bits = match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
                IpAddr::V6(v6) => v6.to_bits(),
            };
            [(bits >> 64) as u64, bits as u64].map(u64::to_ne_bytes).concat()
        };
        let source = offset_of!(plait_packet, source);
        record[source..source + 16].copy_from_slice(&halves(self.source));
        let destination = offset_of!(plait_packet, destination);
        record[destination..destination + 16].copy_from_slice(&halves(self.destination));
        let family = if self.is_ipv6() { PacketKind::Ipv6.bit() } else { 0 };
        put!(kinds, u64::from(self.kinds.iter().fold(family, |bits, kind| bits | kind.bit())));
        put!(custom_matched, self.custom.iter().fold(0, |bits, name| bits | 1u64 << host().custom[*name]));
        put!(source_port, self.source_port);
        put!(destination_port, self.destination_port);
        put!(sequence, self.sequence);
        put!(data_sequence, self.data_sequence);
        put!(flow_bytes, self.flow_bytes);
        put!(connection_bytes, self.connection_bytes);
        put!(token, self.token);
        put!(interface, self.interface);
        put!(mark, self.mark);
        record
    }
}

/// Whether a selector matches, by its documentation.
pub(super) fn holds(selector: &Selector, packet: &Packet) -> bool {
    let ports = |ports: Option<Ports>, port: u16| {
        ports.is_none_or(|ports| (ports.first..=ports.last).contains(&port))
    };
    match selector {
        Selector::Any => true,
        Selector::Not(inner) => !holds(inner, packet),
        Selector::And(parts) => parts.iter().all(|part| holds(part, packet)),
        Selector::Or(parts) => parts.iter().any(|part| holds(part, packet)),
        Selector::Subflow(subflow) => {
            subflow.source.is_none_or(|prefix| contains(prefix, packet.source))
                && subflow.destination.is_none_or(|prefix| contains(prefix, packet.destination))
                && ports(subflow.source_ports, packet.source_port)
                && ports(subflow.destination_ports, packet.destination_port)
        }
        Selector::IpPair(from, to) => contains(*from, packet.source) && contains(*to, packet.destination),
        Selector::Source(prefix, open) => {
            contains(*prefix, packet.source) && ports(*open, packet.source_port)
        }
        Selector::Destination(prefix, open) => {
            contains(*prefix, packet.destination) && ports(*open, packet.destination_port)
        }
        Selector::DataSequence(first, last) => {
            packet.kinds.contains(&PacketKind::Mapping) && in_circle(*first, *last, packet.data_sequence)
        }
        Selector::SubflowSequence(first, last) => {
            in_circle((*first).into(), (*last).into(), packet.sequence.into())
        }
        Selector::Packet(kinds) => kinds
            .iter()
            .any(|kind| packet.kinds.contains(kind) || (*kind == PacketKind::Ipv6 && packet.is_ipv6())),
        Selector::Connection(token) => packet.token == *token,
        Selector::Path(Interface::Named(name)) => {
            host().interfaces.iter().any(|there| there.name == *name && there.index == packet.interface)
        }
        Selector::Path(Interface::Role(Role::Trusted)) => packet.interface == WLAN0,
        Selector::Path(Interface::Role(Role::Untrusted)) => packet.interface == WWAN0,
        Selector::Path(Interface::All) => packet.interface != LOOPBACK,
        Selector::Size { from, to } => {
            packet.flow_bytes >= *from && to.is_none_or(|to| packet.flow_bytes < to)
        }
        Selector::ConnectionSize { from, to } => {
            packet.connection_bytes >= *from && to.is_none_or(|to| packet.connection_bytes < to)
        }
        Selector::Mark(mark) => packet.mark & mark.mask == mark.value,
        Selector::Cgroup(_) => false,
        Selector::Custom(name) => packet.custom.contains(&name.as_str()),
    }
}

/// Compares bit by bit.
fn contains(prefix: Prefix, address: IpAddr) -> bool {
    let bits = |address: IpAddr| -> Vec<bool> {
        let bytes = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect()
    };
    let length = usize::from(prefix.length());
    prefix.address().is_ipv4() == address.is_ipv4()
        && bits(prefix.address())[..length] == bits(address)[..length]
}

/// Whether a number is in an inclusive range that may wrap around.
fn in_circle(first: u64, last: u64, number: u64) -> bool {
    if first <= last { (first..=last).contains(&number) } else { number >= first || number <= last }
}

/// Random packets.
pub(super) fn packets() -> impl Strategy<Value = Packet> {
    let kinds = PacketKind::ALL.iter().copied().filter(|kind| *kind != PacketKind::Ipv6).collect::<Vec<_>>();
    let tuple = (strategies::addresses(), strategies::addresses(), strategies::port(), strategies::port());
    let numbers = (
        strategies::sequences(),
        strategies::data_sequences(),
        strategies::flow_bytes(),
        strategies::flow_bytes(),
    );
    let about = (strategies::tokens(), select(&[LOOPBACK, WLAN0, WWAN0, VLAN, 9][..]), strategies::mark());
    let custom = prop::sample::subsequence(&strategies::CUSTOM[..], 0..=2);
    (tuple, prop::sample::subsequence(kinds, 0..=20), numbers, about, custom).prop_map(
        |((source, destination, source_port, destination_port), kinds, numbers, about, custom)| {
            // Both addresses have the same family.
            let v6 = |address: IpAddr| -> Ipv6Addr {
                match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                }
            };
            let (source, destination) = match (source, destination) {
                (IpAddr::V4(_), IpAddr::V4(_)) => (source, destination),
                _ => (v6(source).into(), v6(destination).into()),
            };
            let (sequence, data_sequence, flow_bytes, connection_bytes) = numbers;
            let (token, interface, mark) = about;
            Packet {
                source,
                destination,
                source_port,
                destination_port,
                kinds,
                sequence,
                data_sequence,
                flow_bytes,
                connection_bytes,
                token,
                interface,
                mark,
                custom,
            }
        },
    )
}
