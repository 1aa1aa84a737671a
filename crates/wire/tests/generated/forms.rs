//! Every option in each of its forms, and frames that carry them.

use std::net::IpAddr;

use plait_wire::checksum::{Checksum, PseudoHeader};
use plait_wire::ethernet::{self, MacAddr, ether_type};
use plait_wire::mptcp::{
    AddAddress, AddAddressForm, AddressId, AddressIds, Capable, CapableFlags, CapableKeys, DataSeq, Dss,
    FirstData, Join, Key, Mapping, MptcpOption, Nonce, Priority, Reset, ResetFlags, SeqField, SubflowSeq,
    Token, Version,
};
use plait_wire::tcp::{
    Experimental, ExperimentalKind, Flags, SackBlock, SackBlocks, Seq, TcpOption, UnknownOption,
};
use plait_wire::{ipv4, ipv6, protocol, tcp};

/// An Ethernet frame with IPv4 or IPv6, of a separate connection for each index.
pub(crate) fn frame(index: u16, ip_version: u8, options: Vec<TcpOption<'_>>) -> Vec<u8> {
    let tcp = tcp::Repr {
        source_port: 20_000 + index * 2 + u16::from(ip_version / 6),
        destination_port: 40_000 + index,
        seq: Seq(0xfedc_ba98 + u32::from(index)),
        ack: Seq(0x1234_5678),
        flags: Flags::ACK,
        window: 1000 + index,
        urgent: 0,
        options,
    };
    let payload = vec![0xab; usize::from(index % 7)];
    let (source, destination, ether_type): (IpAddr, IpAddr, _) = if ip_version == 4 {
        ([192, 0, 2, 1].into(), [198, 51, 100, 2].into(), ether_type::SERVICE_VLAN)
    } else {
        let address = |last| [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into();
        (address(1), address(2), ether_type::IPV6)
    };
    let mut segment = Vec::new();
    let pseudo = PseudoHeader::new(source, destination).expect("one family");
    tcp.emit(pseudo, &payload, &mut segment).expect("it fits");
    let mut frame = Vec::new();
    let (to, from) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    ethernet::Repr { destination: to, source: from, ether_type }.emit(&mut frame);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let control = 0x2000 | index;
            for half in [control, ether_type::VLAN, control, ether_type::IPV4] {
                frame.extend_from_slice(&half.to_be_bytes());
            }
            let ip = frame.len();
            // A router alert option (RFC 2113), for which the header is one word longer.
            let alert = [148, 4, 0, 0];
            let repr = ipv4::Repr::new(source, destination, protocol::TCP);
            repr.emit(alert.len() + segment.len(), &mut frame).expect("it fits");
            frame[ip] += 1;
            frame.extend_from_slice(&alert);
            frame[ip + 10..ip + 12].fill(0);
            let checksum = Checksum::new().with(&frame[ip..]).finish();
            frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            // Destination options: PadN (RFC 8200 4.2).
            let extension = [protocol::TCP, 0, 1, 4, 0, 0, 0, 0];
            let repr = ipv6::Repr::new(source, destination, 60);
            repr.emit(extension.len() + segment.len(), &mut frame).expect("it fits");
            frame.extend_from_slice(&extension);
        }
        _ => unreachable!("both addresses are of one family"),
    }
    frame.extend_from_slice(&segment);
    frame
}

/// Each option in each of its forms.
pub(crate) fn options() -> Vec<TcpOption<'static>> {
    let sack = |count: usize| {
        // Above the acknowledgement number: a block below it reports a duplicate, for which tshark has another field.
        let block = |n: usize| {
            let left = Seq(0x1234_5678).advance(n as u32 * 1000);
            SackBlock { left, right: left.advance(500) }
        };
        let blocks: Vec<_> = (1..=count).map(block).collect();
        TcpOption::Sack(SackBlocks::new(&blocks).expect("one to four"))
    };
    let mut options = vec![
        TcpOption::NoOperation,
        TcpOption::MaxSegmentSize(1460),
        TcpOption::WindowScale(7),
        TcpOption::SackPermitted,
        TcpOption::Timestamps { value: 0xdead_beef, echo: 0x0102_0304 },
        TcpOption::Experimental(Experimental {
            kind: ExperimentalKind::Kind253,
            body: &[0x12, 0x34, 0x56, 0x78, 9],
        }),
        TcpOption::Experimental(Experimental {
            kind: ExperimentalKind::Kind254,
            body: &[0x12, 0x34, 0x56, 0x78, 9],
        }),
        TcpOption::Unknown(UnknownOption::new(77, &[1, 2, 3]).expect("a kind of no variant")),
    ];
    options.extend((1..=4).map(sack));
    options.extend(mptcp_options().into_iter().map(TcpOption::Mptcp));
    options
}

pub(crate) fn mptcp_options() -> Vec<MptcpOption<'static>> {
    let sender = || Key::new([0xa1, 2, 3, 4, 5, 6, 7, 8]);
    let receiver = || Key::new([0x91, 12, 13, 14, 15, 16, 17, 18]);
    let both = |data| CapableKeys::Both { sender: sender(), receiver: receiver(), data };
    let mut options = Vec::new();
    for (version, flags, keys) in [
        (Version::V0, CapableFlags::HMAC, CapableKeys::Sender(sender())),
        (Version::V0, CapableFlags::HMAC | CapableFlags::CHECKSUM, both(None)),
        (Version::V1, CapableFlags::HMAC, CapableKeys::None),
        (Version::V1, CapableFlags::HMAC | CapableFlags::NO_MORE_SUBFLOWS, CapableKeys::Sender(sender())),
        (Version::V1, CapableFlags::HMAC | CapableFlags::EXTENSIBILITY, both(None)),
        (Version::V1, CapableFlags::HMAC, both(Some(FirstData { length: 1400, checksum: None }))),
        (
            Version::V1,
            CapableFlags::HMAC | CapableFlags::CHECKSUM,
            both(Some(FirstData { length: 1400, checksum: Some(0xbeef) })),
        ),
    ] {
        options.push(MptcpOption::Capable(Capable { version, flags, keys }));
    }
    let (token, nonce) = (Token(0x8765_4321), Nonce(0xf000_0001));
    for (backup, address_id) in [(false, AddressId(3)), (true, AddressId(200))] {
        options.push(MptcpOption::Join(Join::Syn { backup, address_id, token, nonce }));
        let hmac = [0xc1, 2, 3, 4, 5, 6, 7, 8];
        options.push(MptcpOption::Join(Join::SynAck { backup, address_id, hmac, nonce }));
    }
    options.push(MptcpOption::Join(Join::Ack { hmac: std::array::from_fn(|i| 0xe0 + i as u8) }));
    let fields =
        [None, Some(SeqField::Low32(0xfeed_f00d)), Some(SeqField::Full(DataSeq(0xfeed_f00d_0102_0304)))];
    for data_ack in fields {
        for data_seq in fields {
            for checksum in [None, Some(0x1234)] {
                let mapping = data_seq.map(|data_seq| Mapping {
                    data_seq,
                    subflow_seq: SubflowSeq(0x9000_0001),
                    length: 1200,
                    checksum,
                });
                if mapping.is_some() || checksum.is_none() {
                    options.push(MptcpOption::Dss(Dss { data_ack, mapping, data_fin: data_seq.is_some() }));
                }
                if let Some(mapping) = mapping {
                    let mapping = Some(Mapping { length: 0, ..mapping });
                    options.push(MptcpOption::Dss(Dss { data_ack, mapping, data_fin: false }));
                }
            }
        }
    }
    let addresses: [IpAddr; 2] = [[192, 0, 2, 77].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77].into()];
    for address in addresses {
        for port in [None, Some(8443)] {
            for form in [
                AddAddressForm::V0,
                AddAddressForm::Echo,
                AddAddressForm::Announce { hmac: [0xd1, 2, 3, 4, 5, 6, 7, 8] },
            ] {
                options.push(MptcpOption::AddAddress(AddAddress { id: AddressId(9), address, port, form }));
            }
        }
    }
    for ids in [&[5][..], &[5, 6, 250][..]] {
        options.push(MptcpOption::RemoveAddress(AddressIds::new(ids).expect("one or more")));
    }
    for backup in [false, true] {
        for address_id in [None, Some(AddressId(4))] {
            options.push(MptcpOption::Priority(Priority { backup, address_id }));
        }
    }
    options.push(MptcpOption::Fail(DataSeq(0x8899_aabb_ccdd_eeff)));
    options.push(MptcpOption::FastClose(receiver()));
    for flags in 0..16 {
        options.push(MptcpOption::Reset(Reset { flags: ResetFlags::new(flags), reason: flags + 1 }));
    }
    options
}
