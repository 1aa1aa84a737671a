//! The packets that are measured: Ethernet, IPv4, TCP with timestamps, MPTCP as Linux sends it.

use std::net::Ipv4Addr;

use plait_policy::Hook;
use plait_policy::engine::Frame;
use plait_wire::checksum::PseudoHeader;
use plait_wire::mptcp::{
    Capable, CapableFlags, CapableKeys, DataSeq, Dss, Key, Mapping, MptcpOption, SeqField, SubflowSeq,
    Version,
};
use plait_wire::tcp::{Flags, Repr, Seq, TcpOption};
use plait_wire::{ethernet, ipv4, protocol};

/// Payload of a full segment with timestamps and a mapping.
const PAYLOAD: usize = 1400;
/// The number of a subflow whose handshake is never shown.
const UNKNOWN: u16 = 30_000;
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);

/// A packet and the hook that it passes.
pub(super) struct Passing {
    hook: Hook,
    bytes: Vec<u8>,
}

impl Passing {
    pub(super) fn frame(&self) -> Frame<'_> {
        Frame { hook: self.hook, by_tc: false, bytes: &self.bytes, mark: 0 }
    }
}

/// A full segment of plain TCP that comes in, with ports that no subflow has.
pub(super) fn plain() -> Vec<u8> {
    build(&segment(UNKNOWN, Hook::Ingress, Flags::ACK, timestamps()), Hook::Ingress, PAYLOAD)
}

/// A full segment of MPTCP that comes in, of a subflow by its number.
pub(super) fn data(subflow: u16) -> Vec<u8> {
    let mapping = Mapping {
        data_seq: SeqField::Full(DataSeq(4711)),
        subflow_seq: SubflowSeq(1),
        length: PAYLOAD as u16,
        checksum: None,
    };
    let dss = Dss { data_ack: Some(SeqField::Low32(99)), mapping: Some(mapping), data_fin: false };
    let options = [timestamps(), vec![TcpOption::Mptcp(MptcpOption::Dss(dss))]].concat();
    build(&segment(subflow, Hook::Ingress, Flags::ACK, options), Hook::Ingress, PAYLOAD)
}

/// The SYNs of both directions.
pub(super) fn handshake(subflow: u16) -> [Passing; 2] {
    let capable = |keys| {
        let capable = Capable { version: Version::V1, flags: CapableFlags::HMAC, keys };
        vec![TcpOption::WindowScale(7), TcpOption::Mptcp(MptcpOption::Capable(capable))]
    };
    let passing = |hook, flags, keys| Passing {
        hook,
        bytes: build(&segment(subflow, hook, flags, capable(keys)), hook, 0),
    };
    [
        passing(Hook::Ingress, Flags::SYN, CapableKeys::None),
        passing(Hook::Egress, Flags::SYN | Flags::ACK, CapableKeys::Sender(Key::new([7; 8]))),
    ]
}

fn timestamps() -> Vec<TcpOption<'static>> {
    vec![TcpOption::NoOperation, TcpOption::NoOperation, TcpOption::Timestamps { value: 1, echo: 2 }]
}

fn segment(subflow: u16, hook: Hook, flags: Flags, options: Vec<TcpOption<'static>>) -> Repr<'static> {
    let (peer, host) = (20_000 + subflow, 443);
    let (source_port, destination_port) = if hook == Hook::Ingress { (peer, host) } else { (host, peer) };
    Repr {
        source_port,
        destination_port,
        seq: Seq(1000),
        ack: Seq(2000),
        flags,
        window: 500,
        urgent: 0,
        options,
    }
}

fn build(tcp: &Repr<'_>, hook: Hook, payload: usize) -> Vec<u8> {
    let (source, destination) = if hook == Hook::Ingress { (PEER, HOST) } else { (HOST, PEER) };
    let mut segment = Vec::new();
    let pseudo = PseudoHeader::V4 { source, destination };
    tcp.emit(pseudo, &vec![0x5a; payload], &mut segment).expect("options that fit into a header");
    let mut frame = Vec::new();
    let (destination_mac, source_mac) =
        (ethernet::MacAddr([2, 0, 0, 0, 0, 2]), ethernet::MacAddr([2, 0, 0, 0, 0, 1]));
    let header = ethernet::Repr {
        destination: destination_mac,
        source: source_mac,
        tags: Vec::new(),
        ether_type: ethernet::ether_type::IPV4,
    };
    header.emit(&mut frame);
    let ip = ipv4::Repr::new(source, destination, protocol::TCP);
    ip.emit(segment.len(), &mut frame).expect("a segment that fits into a packet");
    frame.extend(segment);
    frame
}
