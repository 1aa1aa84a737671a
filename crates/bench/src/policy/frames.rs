//! The packets of the benchmark: Ethernet, IPv4, TCP with timestamps, MPTCP options as Linux sends them.

use std::net::Ipv4Addr;

use plait_policy::Hook;
use plait_policy::engine::TestPacket;
use plait_wire::checksum::PseudoHeader;
use plait_wire::mptcp::{
    AddAddress, AddAddressForm, AddressId, Capable, CapableFlags, CapableKeys, DataSeq, Dss, Join, Key,
    Mapping, MptcpOption, Nonce, SeqField, SubflowSeq, Token, Version,
};
use plait_wire::tcp::{Flags, Repr, Seq, TcpOption};
use plait_wire::{ethernet, ipv4, protocol};

/// Payload of a full segment with timestamps and a mapping.
const PAYLOAD: usize = 1400;
/// The number of a subflow without a handshake.
const UNKNOWN: u16 = 30_000;
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
/// The initial sequence number.
const INITIAL: u32 = 1000;
/// A quarter of the sequence space: of four packets this far apart, each is later than its predecessor, and the first later
/// than the last.
const QUARTER: u32 = 1 << 30;
/// The token of the connection that subflows join.
const TOKEN: u32 = 0x1a2b_3c4d;
/// The mark of outgoing packets.
const MARK: u32 = 0x10;

/// A packet and the hook that sees it.
pub(super) struct Packet {
    hook: Hook,
    bytes: Vec<u8>,
}

impl Packet {
    pub(super) fn frame(&self) -> TestPacket<'_> {
        TestPacket { hook: self.hook, via_tc: false, bytes: &self.bytes, mark: MARK }
    }

    /// A full segment that ends after its headers, whose lengths stay as they are: programs at XDP do not notice.
    pub(super) fn without_payload(mut self) -> Packet {
        self.bytes.truncate(self.bytes.len() - PAYLOAD);
        self
    }
}

/// An incoming full segment of plain TCP, with ports of no subflow.
pub(super) fn plain() -> Packet {
    Segment { payload: PAYLOAD, ..Segment::of(UNKNOWN, Hook::Ingress) }.build()
}

/// A full segment with the first data of a subflow.
pub(super) fn data(subflow: u16, hook: Hook) -> Packet {
    Segment::data(subflow, hook, 0).build()
}

/// Incoming full segments that, repeated in a cycle, always carry new data.
pub(super) fn new_data() -> Vec<Packet> {
    (0..4).map(|quarter| Segment::data(0, Hook::Ingress, quarter).build()).collect()
}

/// Incoming full segments that, repeated in a cycle, always acknowledge more.
pub(super) fn new_acknowledgments() -> Vec<Packet> {
    let acknowledgment = |quarter: u32| Segment {
        acknowledgment: quarter.wrapping_mul(QUARTER),
        ..Segment::data(0, Hook::Ingress, 0)
    };
    (0..4).map(|quarter| acknowledgment(quarter).build()).collect()
}

/// A pure acknowledgment with DATA_ACK.
pub(super) fn acknowledgment(hook: Hook) -> Packet {
    Segment::of(0, hook).with(data_ack()).build()
}

/// An incoming acknowledgment with ADD_ADDR of one of two addresses.
pub(super) fn add_addr(n: u8) -> Packet {
    let form = AddAddressForm::Announce { hmac: [7; 8] };
    let address = Ipv4Addr::new(192, 0, 2, 100 + n).into();
    let announced = AddAddress { id: AddressId(2), address, port: None, form };
    Segment::of(0, Hook::Ingress).with(MptcpOption::AddAddress(announced)).build()
}

/// The SYNs of both directions, with MP_CAPABLE.
pub(super) fn handshake(subflow: u16) -> [Packet; 2] {
    [syn_mp_capable(subflow, 0, CapableFlags::HMAC), syn_ack(subflow)]
}

/// An incoming SYN with MP_CAPABLE of subflow 0, one of two: after one, the other starts the subflow anew.
pub(super) fn mp_capable(n: u32) -> Packet {
    syn_mp_capable(0, n, CapableFlags::HMAC)
}

/// The same with flag D, which the actor `capable_flag` clears.
pub(super) fn mp_capable_with_flag_d() -> Packet {
    syn_mp_capable(0, 0, CapableFlags::HMAC | CapableFlags(0x10))
}

/// The SYN-ACK with MP_CAPABLE.
pub(super) fn syn_ack(subflow: u16) -> Packet {
    let keys = CapableKeys::Sender(Key::new([7; 8]));
    let segment = Segment { flags: Flags::SYN | Flags::ACK, ..Segment::syn(subflow, Hook::Egress) };
    segment.with(capable(CapableFlags::HMAC, keys)).build()
}

/// The third packet of the MP_CAPABLE handshake, with both keys.
pub(super) fn handshake_ack() -> Packet {
    let keys = CapableKeys::Both { sender: Key::new([8; 8]), receiver: Key::new([7; 8]), data: None };
    Segment::of(0, Hook::Ingress).with(capable(CapableFlags::HMAC, keys)).build()
}

/// An incoming SYN with MP_JOIN; `n` as of [`mp_capable`].
pub(super) fn mp_join(n: u32, backup: bool) -> Packet {
    let join = Join::Syn { backup, address_id: AddressId(2), token: Token(TOKEN), nonce: Nonce(7) };
    let segment = Segment { sequence: INITIAL + n, ..Segment::syn(0, Hook::Ingress) };
    segment.with(MptcpOption::Join(join)).build()
}

fn syn_mp_capable(subflow: u16, n: u32, flags: CapableFlags) -> Packet {
    let segment = Segment { sequence: INITIAL + n, ..Segment::syn(subflow, Hook::Ingress) };
    segment.with(capable(flags, CapableKeys::None)).build()
}

fn capable(flags: CapableFlags, keys: CapableKeys) -> MptcpOption<'static> {
    MptcpOption::Capable(Capable { version: Version::V1, flags, keys })
}

fn data_ack() -> MptcpOption<'static> {
    MptcpOption::Dss(Dss { data_ack: Some(SeqField::Low32(99)), mapping: None, data_fin: false })
}

/// The fields of a segment that vary.
struct Segment {
    subflow: u16,
    hook: Hook,
    flags: Flags,
    sequence: u32,
    acknowledgment: u32,
    options: Vec<TcpOption<'static>>,
    payload: usize,
}

impl Segment {
    /// An acknowledgment with timestamps.
    fn of(subflow: u16, hook: Hook) -> Segment {
        let timestamps =
            [TcpOption::NoOperation, TcpOption::NoOperation, TcpOption::Timestamps { value: 1, echo: 2 }];
        Segment {
            subflow,
            hook,
            flags: Flags::ACK,
            sequence: INITIAL + 1,
            acknowledgment: INITIAL + 1,
            options: timestamps.into(),
            payload: 0,
        }
    }

    fn syn(subflow: u16, hook: Hook) -> Segment {
        Segment {
            flags: Flags::SYN,
            sequence: INITIAL,
            options: vec![TcpOption::WindowScale(7)],
            ..Segment::of(subflow, hook)
        }
    }

    /// Data from the start of this quarter of the sequence space.
    fn data(subflow: u16, hook: Hook, quarter: u32) -> Segment {
        let start = quarter.wrapping_mul(QUARTER);
        let mapping = Mapping {
            data_seq: SeqField::Full(DataSeq(4711 + (u64::from(quarter) << 62))),
            subflow_seq: SubflowSeq(start + 1),
            length: PAYLOAD as u16,
            checksum: None,
        };
        let dss = Dss { data_ack: Some(SeqField::Low32(99)), mapping: Some(mapping), data_fin: false };
        let segment = Segment::of(subflow, hook).with(MptcpOption::Dss(dss));
        Segment { sequence: start + INITIAL + 1, payload: PAYLOAD, ..segment }
    }

    fn with(mut self, option: MptcpOption<'static>) -> Segment {
        self.options.push(TcpOption::Mptcp(option));
        self
    }

    fn build(self) -> Packet {
        let Segment { subflow, hook, flags, sequence, acknowledgment, options, payload } = self;
        let (peer, host) = ((PEER, 20_000 + subflow), (HOST, 443));
        let (from, to) = if hook == Hook::Ingress { (peer, host) } else { (host, peer) };
        let tcp = Repr {
            source_port: from.1,
            destination_port: to.1,
            seq: Seq(sequence),
            ack: Seq(acknowledgment),
            flags,
            window: 500,
            urgent: 0,
            options,
        };
        let pseudo = PseudoHeader::V4 { source: from.0, destination: to.0 };
        let mut segment = Vec::new();
        tcp.emit(pseudo, &vec![0x5a; payload], &mut segment).expect("options fit into the header");
        let header = ethernet::Repr {
            destination: ethernet::MacAddr([2, 0, 0, 0, 0, 2]),
            source: ethernet::MacAddr([2, 0, 0, 0, 0, 1]),
            ether_type: ethernet::ether_type::IPV4,
        };
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        let ip = ipv4::Repr::new(from.0, to.0, protocol::TCP);
        ip.emit(segment.len(), &mut bytes).expect("the segment fits into a packet");
        bytes.extend(segment);
        Packet { hook, bytes }
    }
}
