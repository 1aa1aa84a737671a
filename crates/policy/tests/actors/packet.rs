//! Builds and parses packets between this host and a peer, without code of the tested programs.

use std::net::{IpAddr, SocketAddr};

use plait_policy::Hook;
use plait_policy::engine::TestPacket;
use plait_wire::checksum::PseudoHeader;
use plait_wire::ethernet::{self, MacAddr, ether_type};
use plait_wire::mptcp::{Capable, CapableFlags, CapableKeys, Key, MptcpOption, Version};
use plait_wire::tcp::{self, Flags, Seq, TcpOption};
use plait_wire::{LinkType, Segment, ipv4, ipv6, protocol};

/// A packet to build.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) hook: Hook,
    pub(crate) ipv6: bool,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) options: Vec<TcpOption<'static>>,
    pub(crate) payload: usize,
    /// The TCP checksum covers the pseudo header only, to be completed by an interface.
    pub(crate) partial: bool,
}

pub(crate) const SYN: Flags = Flags::SYN;
pub(crate) const ACK: Flags = Flags::ACK;

impl Packet {
    pub(crate) fn new(hook: Hook, flags: Flags) -> Packet {
        let mptcp = TcpOption::Mptcp(MptcpOption::Dss(plait_wire::mptcp::Dss {
            data_ack: Some(plait_wire::mptcp::SeqField::Low32(7)),
            ..Default::default()
        }));
        Packet {
            hook,
            ipv6: false,
            sequence: 1000,
            acknowledgment: if flags.contains(ACK) { 2001 } else { 0 },
            flags,
            window: 60_000,
            options: vec![TcpOption::NoOperation, TcpOption::NoOperation, timestamps(), mptcp],
            payload: 0,
            partial: false,
        }
    }

    /// With exactly these options.
    pub(crate) fn with(self, options: Vec<TcpOption<'static>>) -> Packet {
        Packet { options, ..self }
    }

    /// The frame.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (here, there) = tuple(self.ipv6);
        let (source, destination) = if self.hook == Hook::Egress { (here, there) } else { (there, here) };
        let tcp = tcp::Repr {
            source_port: source.port(),
            destination_port: destination.port(),
            seq: Seq(self.sequence),
            ack: Seq(self.acknowledgment),
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: self.options.clone(),
        };
        let pseudo = PseudoHeader::new(source.ip(), destination.ip()).expect("one family");
        let mut segment = Vec::new();
        tcp.emit(pseudo, &vec![0x5a; self.payload], &mut segment).expect("options that fit");
        if self.partial {
            let sum = !pseudo.checksum(segment.len() as u32).finish();
            segment[16..18].copy_from_slice(&sum.to_be_bytes());
        }
        let mut bytes = Vec::new();
        let kind = if self.ipv6 { ether_type::IPV6 } else { ether_type::IPV4 };
        let (mine, other) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let (from, to) = if self.hook == Hook::Egress { (mine, other) } else { (other, mine) };
        ethernet::Repr { destination: to, source: from, ether_type: kind }.emit(&mut bytes);
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ipv4::Repr::new(source, destination, protocol::TCP)
                    .emit(segment.len(), &mut bytes)
                    .expect("short")
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ipv6::Repr::new(source, destination, protocol::TCP)
                    .emit(segment.len(), &mut bytes)
                    .expect("short")
            }
            _ => unreachable!("both tuple have one family"),
        }
        bytes.extend_from_slice(&segment);
        bytes
    }
}

/// A packet for XDP or TC egress.
pub(crate) fn frame(hook: Hook, bytes: &[u8]) -> TestPacket<'_> {
    TestPacket { hook, via_tc: false, bytes, mark: 0 }
}

/// A packet for TC at ingress.
pub(crate) fn via_tc(hook: Hook, bytes: &[u8]) -> TestPacket<'_> {
    TestPacket { via_tc: true, ..frame(hook, bytes) }
}

/// The addresses of this host and its peer.
pub(crate) fn tuple(ipv6: bool) -> (SocketAddr, SocketAddr) {
    let (here, there) =
        if ipv6 { ("[fd00::1]:40000", "[fd00::2]:443") } else { ("192.0.2.1:40000", "198.51.100.1:443") };
    (here.parse().expect("an address"), there.parse().expect("an address"))
}

/// Parses a packet and verifies its checksums; `partial`: the TCP checksum covers the pseudo header only.
pub(crate) fn parsed(bytes: &[u8], partial: bool) -> Segment<'_> {
    let segment = Segment::parse(LinkType::Ethernet, bytes, bytes.len()).expect("a segment");
    let ip = ethernet::Frame::parse(bytes).expect("Ethernet").payload;
    if segment.source.is_ipv4() {
        assert_eq!(sum(&[&ip[..20]]), 0xffff, "the checksum of IP");
    }
    let tcp = &ip[if segment.source.is_ipv4() { 20 } else { 40 }..];
    let mut pseudo = Vec::new();
    for address in [segment.source.ip(), segment.destination.ip()] {
        match address {
            IpAddr::V4(address) => pseudo.extend(address.octets()),
            IpAddr::V6(address) => pseudo.extend(address.octets()),
        }
    }
    pseudo.extend((tcp.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, 6]);
    if partial {
        assert_eq!(sum(&[&pseudo]), segment.tcp.checksum(), "the sum of the pseudo header");
    } else {
        assert_eq!(sum(&[&pseudo, tcp]), 0xffff, "the checksum of TCP");
    }
    segment
}

/// The checksum of RFC 1071; all parts but the last have an even length.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for word in part.chunks(2) {
            sum += u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from);
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum as u16
}

/// The options of a packet.
pub(crate) fn options<'a>(segment: &Segment<'a>) -> Vec<TcpOption<'a>> {
    segment.tcp.options().collect::<Result<_, _>>().expect("well-formed options")
}

/// The MPTCP options of a packet.
pub(crate) fn mptcp<'a>(segment: &Segment<'a>) -> Vec<MptcpOption<'a>> {
    let mptcp = |option| if let TcpOption::Mptcp(mptcp) = option { Some(mptcp) } else { None };
    options(segment).into_iter().filter_map(mptcp).collect()
}

pub(crate) fn timestamps() -> TcpOption<'static> {
    TcpOption::Timestamps { value: 5, echo: 6 }
}

/// The options of a Linux SYN, followed by an MPTCP option.
pub(crate) fn syn_options(scale: Option<u8>, last: MptcpOption<'static>) -> Vec<TcpOption<'static>> {
    let mut options = vec![TcpOption::MaxSegmentSize(1460), TcpOption::SackPermitted, timestamps()];
    if let Some(scale) = scale {
        options.extend([TcpOption::NoOperation, TcpOption::WindowScale(scale)]);
    }
    options.push(TcpOption::Mptcp(last));
    options
}

/// MP_CAPABLE of version 1.
pub(crate) fn capable(keys: CapableKeys) -> MptcpOption<'static> {
    MptcpOption::Capable(Capable { version: Version::V1, flags: CapableFlags::HMAC, keys })
}

pub(crate) fn key(byte: u8) -> Key {
    Key::new([byte; 8])
}

/// The handshake of a connection that this host initiates, with the window scales of both ends.
pub(crate) fn handshake(here: Option<u8>, there: Option<u8>, partial: bool, ipv6: bool) -> [Packet; 2] {
    let syn = Packet::new(Hook::Egress, SYN).with(syn_options(here, capable(CapableKeys::None)));
    let answer = Packet::new(Hook::Ingress, SYN | ACK);
    let answer = answer.with(syn_options(there, capable(CapableKeys::Sender(key(2)))));
    [
        Packet { sequence: 1000, partial, ipv6, ..syn },
        Packet { sequence: 2000, acknowledgment: 1001, partial, ipv6, ..answer },
    ]
}
