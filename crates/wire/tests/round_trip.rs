//! What is emitted is parsed, through all layers and with what only other senders emit, and no bytes make the parsers panic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use plait_wire::checksum::{Checksum, PseudoHeader};
use plait_wire::ethernet::{self, MacAddr, ether_type};
use plait_wire::mptcp::{
    AddAddress, AddAddressForm, AddressId, AddressIds, Capable, CapableFlags, CapableKeys, DataSeq, Dss,
    FirstData, Join, Key, Mapping, MptcpOption, Nonce, Priority, Reset, ResetFlags, SeqField, SubflowSeq,
    Token, Version,
};
use plait_wire::tcp::{
    Experimental, ExperimentalKind, Flags, Options, SackBlock, SackBlocks, Seq, TcpOption, UnknownOption,
};
use plait_wire::{LinkType, Segment, ipv4, ipv6, protocol, tcp};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

/// Leaks bytes, because borrowed parts of a `Repr` need an owner that outlives the strategy's value.
fn leak(bytes: Vec<u8>) -> &'static [u8] {
    Vec::leak(bytes)
}

fn key() -> impl Strategy<Value = Key> {
    any::<[u8; 8]>().prop_map(Key::new)
}

fn seq_field() -> impl Strategy<Value = SeqField> {
    prop_oneof![
        any::<u32>().prop_map(SeqField::Low32),
        any::<u64>().prop_map(|seq| SeqField::Full(DataSeq(seq)))
    ]
}

fn capable() -> impl Strategy<Value = Capable> {
    let first_data =
        (any::<u16>(), of(any::<u16>())).prop_map(|(length, checksum)| FirstData { length, checksum });
    let v0_keys = prop_oneof![
        key().prop_map(CapableKeys::Sender),
        (key(), key()).prop_map(|(sender, receiver)| CapableKeys::Both { sender, receiver, data: None }),
    ];
    let v1_keys = prop_oneof![
        Just(CapableKeys::None),
        key().prop_map(CapableKeys::Sender),
        (key(), key(), of(first_data)).prop_map(|(sender, receiver, data)| CapableKeys::Both {
            sender,
            receiver,
            data
        }),
    ];
    prop_oneof![
        (any::<u8>(), v0_keys).prop_map(|(flags, keys)| Capable {
            version: Version::V0,
            flags: CapableFlags(flags),
            keys
        }),
        (any::<u8>(), v1_keys).prop_map(|(flags, keys)| Capable {
            version: Version::V1,
            flags: CapableFlags(flags),
            keys
        }),
    ]
}

fn join() -> impl Strategy<Value = Join> {
    prop_oneof![
        any::<(bool, u8, u32, u32)>().prop_map(|(backup, id, token, nonce)| Join::Syn {
            backup,
            address_id: AddressId(id),
            token: Token(token),
            nonce: Nonce(nonce)
        }),
        any::<(bool, u8, [u8; 8], u32)>().prop_map(|(backup, id, hmac, nonce)| Join::SynAck {
            backup,
            address_id: AddressId(id),
            hmac,
            nonce: Nonce(nonce)
        }),
        any::<[u8; 20]>().prop_map(|hmac| Join::Ack { hmac }),
    ]
}

fn dss() -> impl Strategy<Value = Dss> {
    let mapping = (seq_field(), any::<u32>(), any::<u16>(), of(any::<u16>())).prop_map(
        |(data_seq, subflow_seq, length, checksum)| Mapping {
            data_seq,
            subflow_seq: SubflowSeq(subflow_seq),
            length,
            checksum,
        },
    );
    (of(seq_field()), of(mapping), any::<bool>()).prop_map(|(data_ack, mapping, data_fin)| Dss {
        data_ack,
        mapping,
        data_fin,
    })
}

fn add_address() -> impl Strategy<Value = AddAddress> {
    let form = prop_oneof![
        Just(AddAddressForm::V0),
        Just(AddAddressForm::Echo),
        any::<[u8; 8]>().prop_map(|hmac| AddAddressForm::Announce { hmac }),
    ];
    (any::<u8>(), any::<IpAddr>(), of(any::<u16>()), form).prop_map(|(id, address, port, form)| AddAddress {
        id: AddressId(id),
        address,
        port,
        form,
    })
}

fn mptcp_option() -> impl Strategy<Value = MptcpOption<'static>> {
    prop_oneof![
        capable().prop_map(MptcpOption::Capable),
        join().prop_map(MptcpOption::Join),
        dss().prop_map(MptcpOption::Dss),
        add_address().prop_map(MptcpOption::AddAddress),
        vec(any::<u8>(), 1..=37)
            .prop_map(|ids| MptcpOption::RemoveAddress(AddressIds::new(leak(ids)).expect("one id or more"))),
        (any::<bool>(), of(any::<u8>())).prop_map(|(backup, id)| MptcpOption::Priority(Priority {
            backup,
            address_id: id.map(AddressId)
        })),
        any::<u64>().prop_map(|seq| MptcpOption::Fail(DataSeq(seq))),
        key().prop_map(MptcpOption::FastClose),
        any::<(u8, u8)>()
            .prop_map(|(flags, reason)| MptcpOption::Reset(Reset { flags: ResetFlags::new(flags), reason })),
    ]
}

fn tcp_option() -> impl Strategy<Value = TcpOption<'static>> {
    let sack = vec(any::<(u32, u32)>(), 1..=4).prop_map(|blocks| {
        let blocks: Vec<_> = blocks
            .into_iter()
            .map(|(left, right)| SackBlock { left: Seq(left), right: Seq(right) })
            .collect();
        TcpOption::Sack(SackBlocks::new(&blocks).expect("one to four blocks"))
    });
    let unknown = (any::<u8>(), vec(any::<u8>(), 0..=38))
        .prop_filter_map("a kind of its own", |(kind, data)| UnknownOption::new(kind, leak(data)))
        .prop_map(TcpOption::Unknown);
    let kind = select(vec![ExperimentalKind::Kind253, ExperimentalKind::Kind254]);
    prop_oneof![
        2 => Just(TcpOption::NoOperation),
        1 => any::<u16>().prop_map(TcpOption::MaxSegmentSize),
        1 => any::<u8>().prop_map(TcpOption::WindowScale),
        1 => Just(TcpOption::SackPermitted),
        1 => sack,
        1 => any::<(u32, u32)>().prop_map(|(value, echo)| TcpOption::Timestamps { value, echo }),
        8 => mptcp_option().prop_map(TcpOption::Mptcp),
        1 => (kind, vec(any::<u8>(), 0..=38)).prop_map(|(kind, body)| TcpOption::Experimental(Experimental {
            kind,
            body: leak(body)
        })),
        1 => unknown,
    ]
}

fn pseudo() -> PseudoHeader {
    PseudoHeader::new([127, 0, 0, 1].into(), [127, 0, 0, 2].into()).expect("one family")
}

/// A header with as many of the generated options as fit.
fn tcp_repr() -> impl Strategy<Value = tcp::Repr<'static>> {
    (any::<(u16, u16, u32, u32, u16, u16, u16)>(), vec(tcp_option(), 0..6)).prop_map(|(fields, options)| {
        let (source_port, destination_port, seq, ack, flags, window, urgent) = fields;
        let mut repr = tcp::Repr {
            source_port,
            destination_port,
            seq: Seq(seq),
            ack: Seq(ack),
            flags: Flags::new(flags),
            window,
            urgent,
            options,
        };
        while repr.emit(pseudo(), &[], &mut Vec::new()).is_err() {
            repr.options.pop();
        }
        repr
    })
}

/// Addresses and VLAN tags: EtherType and control information of each.
type Ethernet = ([u8; 6], [u8; 6], Vec<(u16, u16)>);

fn ethernet() -> impl Strategy<Value = Ethernet> {
    use ether_type::{OLD_SERVICE_VLAN, SERVICE_VLAN, VLAN};
    let protocol = select(vec![VLAN, SERVICE_VLAN, OLD_SERVICE_VLAN]);
    (any::<[u8; 6]>(), any::<[u8; 6]>(), vec((protocol, any::<u16>()), 0..4))
}

/// An IP header with what a `Repr` does not emit: options of IPv4, or extension headers of IPv6.
#[derive(Clone, Debug)]
struct Ip {
    source: IpAddr,
    destination: IpAddr,
    /// The protocol number in the fixed header.
    protocol: u8,
    extra: Vec<u8>,
    more_fragments: bool,
}

fn ipv4() -> impl Strategy<Value = Ip> {
    (any::<(Ipv4Addr, Ipv4Addr, bool)>(), vec(any::<u32>(), 0..=10)).prop_map(
        |((source, destination, more_fragments), options)| Ip {
            source: source.into(),
            destination: destination.into(),
            protocol: protocol::TCP,
            extra: options.into_iter().flat_map(u32::to_be_bytes).collect(),
            more_fragments,
        },
    )
}

fn ipv6() -> impl Strategy<Value = Ip> {
    const FRAGMENT: u8 = 44;
    // The number of each extension header, and the bytes in a unit of its length.
    let kind = select(vec![(0, 8), (43, 8), (60, 8), (135, 8), (139, 8), (140, 8), (51, 4), (FRAGMENT, 0)]);
    (any::<(Ipv6Addr, Ipv6Addr)>(), vec((kind, 0u8..4, any::<bool>()), 0..4)).prop_map(
        |((source, destination), headers)| {
            let (mut next, mut extra) = (protocol::TCP, Vec::new());
            for ((number, unit), units, more) in headers.iter().rev() {
                let mut header = vec![next, *units, 0, u8::from(*more)];
                header.resize(8 + unit * usize::from(*units), 0xa5);
                extra.splice(..0, header);
                next = *number;
            }
            // With several fragment headers, which no sender makes, the last counts.
            let last = headers.iter().rfind(|((number, _), ..)| *number == FRAGMENT);
            let more_fragments = last.is_some_and(|(.., more)| *more);
            Ip {
                source: source.into(),
                destination: destination.into(),
                protocol: next,
                extra,
                more_fragments,
            }
        },
    )
}

impl Ip {
    fn emit(&self, payload_len: usize, out: &mut Vec<u8>) {
        let (start, length) = (out.len(), self.extra.len() + payload_len);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ipv4::Repr::new(source, destination, self.protocol)
                    .emit(length, out)
                    .expect("a short packet");
                assert_eq!(Checksum::new().with(&out[start..]).finish(), 0);
                out[start] += (self.extra.len() / 4) as u8;
                out[start + 6] |= u8::from(self.more_fragments) << 5;
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ipv6::Repr::new(source, destination, self.protocol)
                    .emit(length, out)
                    .expect("a short packet");
            }
            _ => unreachable!("both addresses are of one family"),
        }
        out.extend_from_slice(&self.extra);
    }
}

fn frame(ethernet: &Ethernet, ip: &Ip, tcp: &tcp::Repr<'_>, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    let pseudo = PseudoHeader::new(ip.source, ip.destination).expect("one family");
    tcp.emit(pseudo, payload, &mut segment).expect("options that fit");
    let mut out = Vec::new();
    let (destination, source, tags) = ethernet;
    let last = if ip.source.is_ipv4() { ether_type::IPV4 } else { ether_type::IPV6 };
    let mut types = tags.iter().map(|(protocol, _)| *protocol).chain([last]);
    let ether_type = types.next().expect("the last");
    ethernet::Repr { destination: MacAddr(*destination), source: MacAddr(*source), ether_type }
        .emit(&mut out);
    for ((_, control), ether_type) in tags.iter().zip(types) {
        out.extend_from_slice(&control.to_be_bytes());
        out.extend_from_slice(&ether_type.to_be_bytes());
    }
    ip.emit(segment.len(), &mut out);
    out.extend_from_slice(&segment);
    out
}

fn whole_frame() -> impl Strategy<Value = (Ethernet, Ip, tcp::Repr<'static>, Vec<u8>)> {
    (ethernet(), prop_oneof![ipv4(), ipv6()], tcp_repr(), vec(any::<u8>(), 0..64))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn tcp_headers_with_options(repr in tcp_repr(), payload in vec(any::<u8>(), 0..40)) {
        let mut bytes = Vec::new();
        repr.emit(pseudo(), &payload, &mut bytes).expect("options that fit");
        let packet = tcp::Packet::parse(&bytes).expect("a whole header");
        prop_assert_eq!(packet.payload(), payload);
        prop_assert!(packet.checksum_is_right(pseudo()));
        prop_assert_eq!(tcp::Repr::parse(packet), Ok(repr));
    }

    #[test]
    fn whole_frames((ethernet, ip, tcp, payload) in whole_frame(), trailer in vec(any::<u8>(), 0..9)) {
        let bytes = [frame(&ethernet, &ip, &tcp, &payload), trailer].concat();
        prop_assert_eq!(&bytes[..12], [ethernet.0, ethernet.1].concat());
        let segment = Segment::parse(LinkType::Ethernet, &bytes, bytes.len()).expect("a segment");
        prop_assert_eq!(segment.source, SocketAddr::new(ip.source, tcp.source_port));
        prop_assert_eq!(segment.destination, SocketAddr::new(ip.destination, tcp.destination_port));
        prop_assert_eq!(segment.payload(), payload.as_slice());
        prop_assert_eq!(segment.payload_len as usize, payload.len());
        prop_assert_eq!(segment.fragmented, ip.more_fragments);
        prop_assert_eq!(tcp::Repr::parse(segment.tcp), Ok(tcp));
    }

    /// A snap length truncates the payload and then the headers, but never changes the rest.
    #[test]
    fn snapped_frames((ethernet, ip, tcp, payload) in whole_frame(), cut in any::<prop::sample::Index>()) {
        let bytes = frame(&ethernet, &ip, &tcp, &payload);
        let whole = Segment::parse(LinkType::Ethernet, &bytes, bytes.len()).expect("a segment");
        let snapped = &bytes[..cut.index(bytes.len())];
        match Segment::parse(LinkType::Ethernet, snapped, bytes.len()) {
            Ok(segment) => {
                prop_assert_eq!(segment.payload_len, whole.payload_len);
                prop_assert_eq!(segment.tcp.seq(), whole.tcp.seq());
                prop_assert!(payload.starts_with(segment.payload()));
                let mut options = whole.tcp.options();
                for option in segment.tcp.options() {
                    match option {
                        Ok(option) => prop_assert_eq!(Some(Ok(option)), options.next()),
                        Err(_) => break,
                    }
                }
            }
            Err(skip) => {
                prop_assert!(matches!(skip, plait_wire::Skip::Malformed(_)), "{:?}", skip);
                prop_assert!(snapped.len() < bytes.len() - payload.len());
            }
        }
    }

    /// A `Repr` parsed from arbitrary bytes can be emitted, and parses to the same again.
    #[test]
    fn arbitrary_options(bytes in vec(any::<u8>(), 0..=40)) {
        for option in Options::new(&bytes).flatten() {
            let repr = tcp::Repr { options: vec![option], ..Default::default() };
            let mut emitted = Vec::new();
            repr.emit(pseudo(), &[], &mut emitted).expect("an option that fitted before");
            let packet = tcp::Packet::parse(&emitted).expect("a whole header");
            prop_assert_eq!(tcp::Repr::parse(packet), Ok(repr));
        }
    }

    /// The same with a plausible kind, subtype and length, which arbitrary bytes rarely have.
    #[test]
    fn arbitrary_mptcp_options(body in vec(any::<u8>(), 0..=38)) {
        let mut bytes = vec![30, body.len() as u8 + 2];
        bytes.extend_from_slice(&body);
        prop_assert_eq!(
            Options::new(&bytes).next().map(|option| option.is_ok()),
            Some(MptcpOption::parse(&body).is_ok())
        );
    }

    #[test]
    fn arbitrary_frames_never_panic(bytes in vec(any::<u8>(), 0..200), wire_len in any::<usize>()) {
        for link_type in (0..300).filter_map(LinkType::from_number) {
            walk(link_type, &bytes, wire_len);
        }
    }

    #[test]
    fn damaged_frames_never_panic(
        (ethernet, ip, tcp, payload) in whole_frame(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = frame(&ethernet, &ip, &tcp, &payload);
        for (index, value) in damage {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        walk(LinkType::Ethernet, &bytes, bytes.len());
    }

    #[test]
    fn checksum_is_that_of_rfc_1071(parts in vec(vec(any::<u8>(), 0..50), 0..4)) {
        let (mut sum, mut expected) = (Checksum::new(), 0u32);
        let last = parts.len().saturating_sub(1);
        for (index, part) in parts.iter().enumerate() {
            // Only the last part may have an odd length.
            let part = if index == last { part.as_slice() } else { &part[..part.len() / 2 * 2] };
            sum = sum.with(part);
            for pair in part.chunks(2) {
                expected += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
                expected = (expected & 0xffff) + (expected >> 16);
            }
        }
        prop_assert_eq!(sum.finish(), !(expected as u16));
    }
}

/// Calls every accessor that iterates over the bytes.
fn walk(link_type: LinkType, bytes: &[u8], wire_len: usize) {
    if let Ok(segment) = Segment::parse(link_type, bytes, wire_len) {
        assert!(segment.payload().len() <= bytes.len());
        let options = segment.tcp.options().count();
        assert!(options <= 40);
    }
}

#[test]
fn rejects_what_does_not_fit() {
    let repr = tcp::Repr { options: vec![TcpOption::NoOperation; 41], ..Default::default() };
    let mut out = b"kept".to_vec();
    assert!(repr.emit(pseudo(), &[], &mut out).is_err());
    let v4 = ipv4::Repr::new([1, 2, 3, 4].into(), [5, 6, 7, 8].into(), protocol::TCP);
    assert!(v4.emit(65516, &mut out).is_err());
    let v6 = ipv6::Repr::new(1u128.into(), 2u128.into(), protocol::TCP);
    assert!(v6.emit(65536, &mut out).is_err());
    assert_eq!(out, b"kept");
}
