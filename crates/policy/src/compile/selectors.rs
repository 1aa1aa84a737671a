//! From a selector to a formula of tests.

use std::net::IpAddr;

use super::formula::Formula;
use super::test::{
    Address, CONNECTION_BYTES, DATA_SEQUENCE, DESTINATION, DESTINATION_PORT, FLOW_BYTES, Field, INTERFACE,
    KINDS, MARK, OWN_MATCHED, SEQUENCE, SOURCE, SOURCE_PORT, TOKEN,
};
use super::{CompileError, Host};
use crate::bindings::{
    PLAIT_HAS_MAPPING, PLAIT_IS_IPV6, PLAIT_IS_MPTCP, PLAIT_NEEDS_CONNECTION, PLAIT_NEEDS_FLOW,
    PLAIT_NEEDS_RECORD, PLAIT_NEEDS_TOKEN,
};
use crate::model::{Hook, Interface};
use crate::model::{MAX_SELECTOR_DEPTH, PacketKind, Ports, Prefix, Selector};

/// What translating a chain needs and finds out.
pub(super) struct Translation<'h> {
    pub(super) host: &'h Host,
    pub(super) hook: Hook,
    pub(super) needs: u32,
    pub(super) custom_selectors: u32,
    pub(super) absent: Vec<String>,
}

/// IPv4 addresses in the record are mapped: ::ffff:0:0/96.
const MAPPED: u128 = 0xffff << 32;

impl Translation<'_> {
    pub(super) fn selector(&mut self, selector: &Selector, depth: usize) -> Result<Formula, CompileError> {
        if depth > MAX_SELECTOR_DEPTH {
            return Err(CompileError::TooDeep { max: MAX_SELECTOR_DEPTH });
        }
        Ok(match selector {
            Selector::Any => Formula::Constant(true),
            Selector::Not(inner) => self.part(selector, inner, depth + 1)?.not(),
            Selector::And(parts) => Formula::all(self.parts(selector, parts, depth)?),
            Selector::Or(parts) => Formula::any(self.parts(selector, parts, depth)?),
            Selector::Subflow(subflow) => Formula::all([
                subflow.source.map_or(Formula::Constant(true), |prefix| within_prefix(SOURCE, prefix)),
                subflow
                    .destination
                    .map_or(Formula::Constant(true), |prefix| within_prefix(DESTINATION, prefix)),
                within_ports(SOURCE_PORT, subflow.source_ports),
                within_ports(DESTINATION_PORT, subflow.destination_ports),
            ]),
            Selector::IpPair(from, to) => {
                Formula::all([within_prefix(SOURCE, *from), within_prefix(DESTINATION, *to)])
            }
            Selector::Source(prefix, ports) => {
                Formula::all([within_prefix(SOURCE, *prefix), within_ports(SOURCE_PORT, *ports)])
            }
            Selector::Destination(prefix, ports) => {
                Formula::all([within_prefix(DESTINATION, *prefix), within_ports(DESTINATION_PORT, *ports)])
            }
            Selector::DataSequence(first, last) => Formula::all([
                Formula::any_of(KINDS, PLAIT_HAS_MAPPING.into()),
                Formula::within(DATA_SEQUENCE, *first, *last),
            ]),
            Selector::SubflowSequence(first, last) => {
                Formula::within(SEQUENCE, (*first).into(), (*last).into())
            }
            Selector::Packet(kinds) => self.packet(kinds),
            Selector::Connection(token) => {
                self.needs |= PLAIT_NEEDS_FLOW | PLAIT_NEEDS_TOKEN;
                Formula::equal(TOKEN, (*token).into())
            }
            Selector::Path(interface) => self.interface(interface),
            Selector::Size { from, to } => {
                self.needs |= PLAIT_NEEDS_FLOW;
                within_size(FLOW_BYTES, *from, *to)
            }
            Selector::ConnectionSize { from, to } => {
                self.needs |=
                    PLAIT_NEEDS_FLOW | PLAIT_NEEDS_TOKEN | PLAIT_NEEDS_RECORD | PLAIT_NEEDS_CONNECTION;
                within_size(CONNECTION_BYTES, *from, *to)
            }
            Selector::Mark(mark) => {
                self.only_egress("the selector mark")?;
                Formula::masked(MARK, mark.mask.into(), mark.value.into())
            }
            Selector::Cgroup(path) => self.cgroup(path)?,
            Selector::Custom(name) => self.custom(name)?,
        })
    }

    fn parts(
        &mut self,
        of: &Selector,
        parts: &[Selector],
        depth: usize,
    ) -> Result<Vec<Formula>, CompileError> {
        parts.iter().map(|part| self.part(of, part, depth)).collect()
    }

    /// Depth counts parentheses in the text.
    fn part(&mut self, of: &Selector, part: &Selector, depth: usize) -> Result<Formula, CompileError> {
        self.selector(part, depth + usize::from(part.needs_parentheses_in(of)))
    }

    fn packet(&mut self, kinds: &[PacketKind]) -> Formula {
        let bits = kinds.iter().fold(0, |bits, kind| bits | kind.bit());
        // A packet without MPTCP options may belong to a known subflow.
        if bits & PLAIT_IS_MPTCP != 0 {
            self.needs |= PLAIT_NEEDS_FLOW;
        }
        Formula::any_of(KINDS, bits.into())
    }

    /// Whether the packet's interface is one of these.
    pub(super) fn interface(&mut self, interface: &Interface) -> Formula {
        let is = |index: u32| Formula::equal(INTERFACE, index.into());
        let interfaces = || self.host.interfaces.iter();
        match interface {
            // Includes interfaces that do not exist yet.
            Interface::All => Formula::any(
                interfaces().filter(|interface| interface.loopback).map(|interface| is(interface.index)),
            )
            .not(),
            Interface::Role(role) => Formula::any(
                interfaces()
                    .filter(|interface| self.host.roles.get(&interface.name) == Some(role))
                    .map(|interface| is(interface.index)),
            ),
            Interface::Named(name) => match interfaces().find(|interface| interface.name == *name) {
                Some(interface) => is(interface.index),
                None => self.absent(name),
            },
        }
    }

    fn cgroup(&mut self, path: &str) -> Result<Formula, CompileError> {
        self.only_egress("the selector cgroup")?;
        let level = path.split('/').filter(|name| !name.is_empty()).count();
        Ok(match (self.host.cgroups.get(path), u32::try_from(level)) {
            (Some(id), Ok(level)) => Formula::equal(Field::Ancestor { level }, *id),
            _ => self.absent(path),
        })
    }

    fn custom(&mut self, name: &str) -> Result<Formula, CompileError> {
        let bit = self.host.custom.get(name).and_then(|number| 1u32.checked_shl(*number));
        let bit = bit.ok_or_else(|| CompileError::UnknownCustom(name.into()))?;
        self.custom_selectors |= bit;
        // What a custom selector needs is unknown, so provide everything.
        self.needs |= PLAIT_NEEDS_FLOW | PLAIT_NEEDS_TOKEN;
        Ok(Formula::any_of(OWN_MATCHED, bit.into()))
    }

    pub(super) fn absent(&mut self, name: &str) -> Formula {
        if !self.absent.iter().any(|absent| absent == name) {
            self.absent.push(name.into());
        }
        Formula::Constant(false)
    }

    pub(super) fn only_egress(&self, what: &'static str) -> Result<(), CompileError> {
        if self.hook == Hook::Egress { Ok(()) } else { Err(CompileError::OnlyEgress(what)) }
    }
}

fn within_prefix(address: Address, prefix: Prefix) -> Formula {
    let is_ipv6 = Formula::any_of(KINDS, PLAIT_IS_IPV6.into());
    let ones = |bits: u32| u64::MAX.checked_shl(64 - bits.min(64)).unwrap_or(0);
    let length = u32::from(prefix.length());
    match prefix.address() {
        IpAddr::V4(v4) => {
            let mask = ones(32 + length) & u64::from(u32::MAX);
            Formula::all([is_ipv6.not(), Formula::masked(address.v4(), mask, v4.to_bits().into())])
        }
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            let shared = length.min(96);
            // Most IPv6 prefixes cannot contain a mapped address: then no test is needed.
            let may_be_v4 = (bits ^ MAPPED).checked_shr(128 - shared).unwrap_or(0) == 0;
            Formula::all([
                if may_be_v4 { is_ipv6 } else { Formula::Constant(true) },
                Formula::masked(address.high(), ones(length), (bits >> 64) as u64),
                Formula::masked(address.low(), ones(length.saturating_sub(64)), bits as u64),
            ])
        }
    }
}

fn within_ports(field: Field, ports: Option<Ports>) -> Formula {
    match ports {
        None => Formula::Constant(true),
        Some(ports) if ports.first > ports.last => Formula::Constant(false),
        Some(ports) => Formula::within(field, ports.first.into(), ports.last.into()),
    }
}

fn within_size(bytes: Field, from: u64, to: Option<u64>) -> Formula {
    match to {
        Some(to) if to <= from => Formula::Constant(false),
        Some(to) => Formula::within(bytes, from, to - 1),
        None => Formula::within(bytes, from, u64::MAX),
    }
}
