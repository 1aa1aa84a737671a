//! capable_flag, get_connection and get_subflow.

use plait_policy::Hook::{Egress, Ingress};
use plait_policy::engine::{DryRun, Verdict};
use plait_wire::mptcp::{
    AddressId, Capable, CapableFlags, CapableKeys, Join, MptcpOption, Nonce, Token, Version,
};
use plait_wire::tcp::TcpOption;

use super::packet::{ACK, Packet, SYN, capable, frame, handshake, key, mptcp, parsed, syn_options};
use super::{dry_run, outcomes};

/// Flag D of MP_CAPABLE (RFC 8684, section 3.1).
const D: u8 = 0x10;

/// The flags of MP_CAPABLE after a run.
fn flags_after(dry_run: &DryRun, packet: &Packet) -> u8 {
    let ran = dry_run.run(&frame(packet.hook, &packet.bytes()), 1).expect("a run");
    assert_eq!(ran.verdict, Verdict::Pass);
    let after = parsed(&ran.bytes, packet.partial);
    let [MptcpOption::Capable(Capable { flags, .. })] = mptcp(&after)[..] else { panic!("found {after:?}") };
    flags.0
}

fn with_flag(packet: Packet, keys: CapableKeys) -> Packet {
    let flags = CapableFlags(CapableFlags::HMAC.0 | D);
    let option = MptcpOption::Capable(Capable { version: Version::V1, flags, keys });
    packet.with(syn_options(Some(7), option))
}

#[test]
fn capable_flag_is_set_at_egress_and_cleared_at_ingress() {
    let Some(dry_run) = dry_run("capable_flag_is_set", "'capable_flag'") else { return };
    for (ipv6, partial) in [(false, false), (true, false), (false, true)] {
        let [syn, answer] = handshake(Some(7), Some(7), partial, ipv6);
        // A test run cannot mark a checksum as partial for TC.
        if !partial {
            assert_eq!(flags_after(&dry_run, &syn), CapableFlags::HMAC.0 | D);
        }
        let answer = with_flag(answer, CapableKeys::Sender(key(2)));
        assert_eq!(flags_after(&dry_run, &answer), CapableFlags::HMAC.0);
        let (_, errors) = outcomes(&dry_run);
        assert_eq!(errors, 0);
    }
}

#[test]
fn syn_ack_has_the_capable_flag_only_if_the_syn_had_it() {
    let Some(dry_run) = dry_run("syn_ack_has_the_capable_flag", "'capable_flag'") else { return };
    for (port_is_other, asked) in [(false, false), (true, true)] {
        let syn = Packet::new(Ingress, SYN).with(syn_options(Some(7), capable(CapableKeys::None)));
        let syn = if asked { with_flag(syn, CapableKeys::None) } else { syn };
        let answer = Packet::new(Egress, SYN | ACK);
        let answer = answer.with(syn_options(Some(7), capable(CapableKeys::Sender(key(1)))));
        let of_connection = |packet| Packet { ipv6: port_is_other, ..packet };
        assert_eq!(flags_after(&dry_run, &of_connection(syn)), CapableFlags::HMAC.0);
        let expected = if asked { CapableFlags::HMAC.0 | D } else { CapableFlags::HMAC.0 };
        assert_eq!(flags_after(&dry_run, &of_connection(answer)), expected);
    }
}

#[test]
fn get_connection_emits_one_event_on_the_third_packet() {
    let Some(dry_run) = dry_run("get_connection_emits_one_event", "{ get_connection = { keys = true } }")
    else {
        return;
    };
    let [syn, answer] = handshake(Some(7), Some(7), false, false);
    let keys = CapableKeys::Both { sender: key(1), receiver: key(2), data: None };
    let third = Packet::new(Egress, ACK).with(vec![TcpOption::Mptcp(capable(keys))]);
    for (packet, hits) in [(&syn, 0), (&answer, 0), (&third, 1), (&third, 1)] {
        let bytes = packet.bytes();
        let ran = dry_run.run(&frame(packet.hook, &bytes), 1).expect("a run");
        assert_eq!((ran.verdict, ran.bytes), (Verdict::Pass, bytes));
        assert_eq!(outcomes(&dry_run), (hits, 0));
    }
}

#[test]
fn get_subflow_emits_events_for_syn_and_syn_ack() {
    let Some(dry_run) = dry_run("get_subflow_emits_events", "'get_subflow'") else { return };
    let syn = Join::Syn { backup: true, address_id: AddressId(3), token: Token(7), nonce: Nonce(99) };
    let answer = Join::SynAck { backup: false, address_id: AddressId(0), hmac: [7; 8], nonce: Nonce(98) };
    let ack = Join::Ack { hmac: [7; 20] };
    let packets = [(SYN, syn, Ingress, 1), (SYN | ACK, answer, Egress, 2), (ACK, ack, Ingress, 2)];
    for (flags, join, hook, hits) in packets {
        let packet = Packet::new(hook, flags).with(vec![TcpOption::Mptcp(MptcpOption::Join(join))]);
        dry_run.run(&frame(hook, &packet.bytes()), 1).expect("a run");
        assert_eq!(outcomes(&dry_run), (hits, 0));
    }
}
