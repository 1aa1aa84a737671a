//! Authentication of joins and address announcements by the connection's keys.

use plait_trace::EventKind;
use plait_wire::mptcp::{AddAddress, AddAddressForm, AddressId, MptcpOption};

use crate::captures::{CaptureBuilder, MILLISECOND, Packet, join_with, joining, opening, read};

/// HMAC-SHA256 computed by Python's hmac, with key (server's key, client's key) and message (server's nonce, client's
/// nonce), and vice versa: the first 8 and 20 bytes (RFC 8684 3.2).
const OF_SERVER: [u8; 8] = [0xf1, 0xcb, 0xa1, 0x8e, 0x88, 0xf5, 0x98, 0xec];
const OF_CLIENT: [u8; 20] = [
    0x2a, 0x3b, 0x08, 0xbb, 0x14, 0xa9, 0x46, 0x7a, 0x65, 0xfb, 0x18, 0xdf, 0xb4, 0x6c, 0x20, 0xe5, 0x3e,
    0x15, 0x96, 0xf6,
];

/// The last 8 bytes of the HMAC of address 9, 192.0.2.9 and port 0, announced by the server (RFC 8684 3.4.1).
const OF_ADDRESS: [u8; 8] = [0x43, 0x67, 0x8d, 0x77, 0x71, 0xf6, 0x0b, 0xe8];

fn verdict(opened: bool, packets: impl IntoIterator<Item = Packet<'static>>) -> Option<bool> {
    let mut builder = CaptureBuilder::default();
    if opened {
        builder.all_at(0, 0, opening(0));
    }
    builder.all_at(0, MILLISECOND, packets);
    let connections = read(&builder.files()).connections;
    connections.last().and_then(|connection| connection.subflows.last()).expect("a subflow").authentic
}

#[test]
fn join_with_valid_hmacs_is_authentic() {
    assert_eq!(verdict(true, join_with(1, OF_SERVER, OF_CLIENT)), Some(true));
    assert_eq!(verdict(true, joining(1)), Some(true));
    let (mut server, mut client) = (OF_SERVER, OF_CLIENT);
    server[7] ^= 1;
    client[19] ^= 1;
    assert_eq!(verdict(true, join_with(1, server, OF_CLIENT)), Some(false));
    assert_eq!(verdict(true, join_with(1, OF_SERVER, client)), Some(false));
    assert_eq!(verdict(true, join_with(1, server, client)), Some(false));
}

#[test]
fn join_with_unverifiable_hmacs_has_no_verdict() {
    assert_eq!(verdict(false, joining(1)), None, "without keys");
    assert_eq!(verdict(true, joining(1).into_iter().take(1)), None, "without answer");
    assert_eq!(verdict(true, []), None, "the first subflow does not join");
    let [syn, syn_ack, ack, _] = joining(1);
    assert_eq!(verdict(true, [syn_ack.clone(), ack.clone()]), None, "without the client's nonce");
    let late = join_with(1, OF_SERVER, [0; 20]);
    assert_eq!(verdict(true, [syn, syn_ack]), Some(true), "as far as it was captured");
    assert_eq!(verdict(true, late), Some(false));
}

#[test]
fn retransmitted_ack_does_not_repair_invalid_hmac() {
    let [syn, syn_ack, wrong, _] = join_with(1, OF_SERVER, [0; 20]);
    let [.., right, _] = joining(1);
    assert_eq!(verdict(true, [syn, syn_ack, wrong, right]), Some(false));
}

#[test]
fn address_with_valid_hmac_is_authentic() {
    let announced = |opened: bool, side, hmac| {
        let mut builder = CaptureBuilder::default();
        if opened {
            builder.all_at(0, 0, opening(0));
        }
        let form = AddAddressForm::Announce { hmac };
        let add = AddAddress { id: AddressId(9), address: [192, 0, 2, 9].into(), port: None, form };
        builder.at(0, MILLISECOND, &Packet::new(0, side, 1, 1).mptcp(MptcpOption::AddAddress(add)));
        match read(&builder.files()).connections[0].events[0].kind {
            EventKind::AddAddress { authentic, .. } => authentic,
            ref other => panic!("{other:?}"),
        }
    };
    let mut wrong = OF_ADDRESS;
    wrong[0] ^= 0x80;
    assert_eq!(announced(true, 1, OF_ADDRESS), Some(true));
    assert_eq!(announced(true, 1, wrong), Some(false));
    assert_eq!(announced(true, 0, OF_ADDRESS), Some(false), "the other side's is another");
    assert_eq!(announced(false, 1, OF_ADDRESS), None, "without keys");
}
