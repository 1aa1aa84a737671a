//! The packets that are measured: Ethernet, IPv4, TCP with timestamps, MPTCP as Linux sends it.

use std::net::Ipv4Addr;

use plait_policy::Hook;
use plait_policy::engine::Frame;
use plait_wire::checksum::PseudoHeader;
use plait_wire::mptcp::{
    AddAddress, AddAddressForm, AddressId, Capable, CapableFlags, CapableKeys, DataSeq, Dss, Join, Key,
    Mapping, MptcpOption, Nonce, SeqField, SubflowSeq, Token, Version,
};
use plait_wire::tcp::{Flags, Repr, Seq, TcpOption};
use plait_wire::{ethernet, ipv4, protocol};

/// Payload of a full segment with timestamps and a mapping.
const PAYLOAD: usize = 1400;
/// The number of a subflow whose handshake is never shown.
const UNKNOWN: u16 = 30_000;
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
/// The sequence number of a SYN, unless it is another's.
const INITIAL: u32 = 1000;
/// A quarter of the sequence numbers: of four packets that are this far from each other, each is later than the one before
/// it, the first later than the last.
const QUARTER: u32 = 1 << 30;
/// What the connection of subflows that join is known by.
const TOKEN: u32 = 0x1a2b_3c4d;
/// The mark of what goes out.
const MARK: u32 = 0x10;

/// A packet and the hook that it passes.
pub(super) struct Passing {
    hook: Hook,
    bytes: Vec<u8>,
}

impl Passing {
    pub(super) fn frame(&self) -> Frame<'_> {
        Frame { hook: self.hook, by_tc: false, bytes: &self.bytes, mark: MARK }
    }
}

/// A full segment of plain TCP that comes in, with ports that no subflow has.
pub(super) fn plain() -> Passing {
    Segment { payload: PAYLOAD, ..Segment::of(UNKNOWN, Hook::Ingress) }.build()
}

/// A full segment of MPTCP, of a subflow by its number: its first data.
pub(super) fn data(subflow: u16, hook: Hook) -> Passing {
    Segment::data(subflow, hook, 0).build()
}

/// Full segments that come in, of which each has data that is new, again and again.
pub(super) fn new_data() -> Vec<Passing> {
    (0..4).map(|quarter| Segment::data(0, Hook::Ingress, quarter).build()).collect()
}

/// Full segments that come in, of which each acknowledges more, again and again.
pub(super) fn new_acknowledgments() -> Vec<Passing> {
    let acknowledging = |quarter: u32| Segment {
        acknowledgment: quarter.wrapping_mul(QUARTER),
        ..Segment::data(0, Hook::Ingress, 0)
    };
    (0..4).map(|quarter| acknowledging(quarter).build()).collect()
}

/// An acknowledgment of data, and nothing else.
pub(super) fn acknowledgment(hook: Hook) -> Passing {
    Segment::of(0, hook).with(acknowledging()).build()
}

/// An acknowledgment that comes in with ADD_ADDR of one of two addresses.
pub(super) fn announcement(of: u8) -> Passing {
    let form = AddAddressForm::Announce { hmac: [7; 8] };
    let address = Ipv4Addr::new(192, 0, 2, 100 + of).into();
    let announced = AddAddress { id: AddressId(2), address, port: None, form };
    Segment::of(0, Hook::Ingress).with(MptcpOption::AddAddress(announced)).build()
}

/// The SYNs of both directions, with MP_CAPABLE.
pub(super) fn handshake(subflow: u16) -> [Passing; 2] {
    [begin(subflow, 0, CapableFlags::HMAC), answer(subflow)]
}

/// A SYN that comes in, the first or second beginning of subflow 0: after one, the other is new.
pub(super) fn beginning(of: u32) -> Passing {
    begin(0, of, CapableFlags::HMAC)
}

/// One with flag D, which the actor `capable_flag` takes away.
pub(super) fn beginning_with_flag() -> Passing {
    begin(0, 0, CapableFlags::HMAC | CapableFlags(0x10))
}

/// The SYN-ACK.
pub(super) fn answer(subflow: u16) -> Passing {
    let keys = CapableKeys::Sender(Key::new([7; 8]));
    let segment = Segment { flags: Flags::SYN | Flags::ACK, ..Segment::syn(subflow, Hook::Egress) };
    segment.with(capable(CapableFlags::HMAC, keys)).build()
}

/// The third packet of a handshake, which has both keys.
pub(super) fn keys() -> Passing {
    let keys = CapableKeys::Both { sender: Key::new([8; 8]), receiver: Key::new([7; 8]), data: None };
    Segment::of(0, Hook::Ingress).with(capable(CapableFlags::HMAC, keys)).build()
}

/// A SYN with MP_JOIN that comes in, as [`beginning`].
pub(super) fn join(of: u32, backup: bool) -> Passing {
    let join = Join::Syn { backup, address_id: AddressId(2), token: Token(TOKEN), nonce: Nonce(7) };
    let segment = Segment { sequence: INITIAL + of, ..Segment::syn(0, Hook::Ingress) };
    segment.with(MptcpOption::Join(join)).build()
}

fn begin(subflow: u16, of: u32, flags: CapableFlags) -> Passing {
    let segment = Segment { sequence: INITIAL + of, ..Segment::syn(subflow, Hook::Ingress) };
    segment.with(capable(flags, CapableKeys::None)).build()
}

fn capable(flags: CapableFlags, keys: CapableKeys) -> MptcpOption<'static> {
    MptcpOption::Capable(Capable { version: Version::V1, flags, keys })
}

fn acknowledging() -> MptcpOption<'static> {
    MptcpOption::Dss(Dss { data_ack: Some(SeqField::Low32(99)), mapping: None, data_fin: false })
}

/// What varies of a segment.
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

    /// Data from this quarter of the sequence numbers on.
    fn data(subflow: u16, hook: Hook, quarter: u32) -> Segment {
        let begin = quarter.wrapping_mul(QUARTER);
        let mapping = Mapping {
            data_seq: SeqField::Full(DataSeq(4711 + (u64::from(quarter) << 62))),
            subflow_seq: SubflowSeq(begin + 1),
            length: PAYLOAD as u16,
            checksum: None,
        };
        let dss = Dss { data_ack: Some(SeqField::Low32(99)), mapping: Some(mapping), data_fin: false };
        let segment = Segment::of(subflow, hook).with(MptcpOption::Dss(dss));
        Segment { sequence: begin + INITIAL + 1, payload: PAYLOAD, ..segment }
    }

    fn with(mut self, option: MptcpOption<'static>) -> Segment {
        self.options.push(TcpOption::Mptcp(option));
        self
    }

    fn build(self) -> Passing {
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
        tcp.emit(pseudo, &vec![0x5a; payload], &mut segment).expect("options that fit into a header");
        let header = ethernet::Repr {
            destination: ethernet::MacAddr([2, 0, 0, 0, 0, 2]),
            source: ethernet::MacAddr([2, 0, 0, 0, 0, 1]),
            tags: Vec::new(),
            ether_type: ethernet::ether_type::IPV4,
        };
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        let ip = ipv4::Repr::new(from.0, to.0, protocol::TCP);
        ip.emit(segment.len(), &mut bytes).expect("a segment that fits into a packet");
        bytes.extend(segment);
        Passing { hook, bytes }
    }
}
