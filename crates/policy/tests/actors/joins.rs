//! deny_join and fall_back.

use plait_policy::Hook::{Egress, Ingress};
use plait_policy::engine::Verdict;
use plait_wire::mptcp::{
    AddressId, CapableKeys, Join, MptcpOption, Nonce, Reset, ResetFlags, Token, Version,
};
use plait_wire::tcp::{Flags, TcpOption};

use super::packet::{
    ACK, Packet, SYN, capable, frame, key, mptcp, options, parsed, syn_options, timestamps, tuple, via_tc,
};
use super::{dry_run, outcomes};

fn join_syn(hook: plait_policy::Hook) -> Packet {
    let join =
        Join::Syn { backup: false, address_id: AddressId(3), token: Token(0x1a2b_3c4d), nonce: Nonce(99) };
    Packet::new(hook, SYN).with(syn_options(Some(7), MptcpOption::Join(join)))
}

fn join_syn_ack(hook: plait_policy::Hook) -> Packet {
    let join = Join::SynAck { backup: false, address_id: AddressId(3), hmac: [7; 8], nonce: Nonce(99) };
    Packet::new(hook, SYN | ACK).with(syn_options(Some(7), MptcpOption::Join(join)))
}

fn join_ack(hook: plait_policy::Hook) -> Packet {
    let join = TcpOption::Mptcp(MptcpOption::Join(Join::Ack { hmac: [7; 20] }));
    Packet::new(hook, ACK).with(vec![TcpOption::NoOperation, TcpOption::NoOperation, timestamps(), join])
}

fn both_families(packet: Packet) -> [Packet; 2] {
    [packet.clone(), Packet { ipv6: true, ..packet }]
}

#[test]
fn deny_join_drops_all_packets_of_a_join_only() {
    let Some(dry_run) = dry_run("deny_join_drops_all_packets_of_a_join_only", "'deny_join'") else { return };
    for hook in [Ingress, Egress] {
        for packet in [join_syn(hook), join_syn_ack(hook), join_ack(hook)].into_iter().flat_map(both_families)
        {
            let ran = dry_run.run(&frame(hook, &packet.bytes()), 1).expect("a run");
            assert_eq!(ran.verdict, Verdict::Drop, "{packet:?}");
        }
        for packet in both_families(Packet::new(hook, ACK)) {
            let bytes = packet.bytes();
            let ran = dry_run.run(&frame(hook, &bytes), 1).expect("a run");
            assert_eq!((ran.verdict, ran.bytes), (Verdict::Pass, bytes));
        }
    }
    assert_eq!(outcomes(&dry_run), (12, 0));
}

#[test]
fn an_ingress_join_syn_loses_its_token() {
    let Some(dry_run) = dry_run("an_ingress_join_syn", "{ deny_join = 'reset' }") else { return };
    for packet in both_families(join_syn(Ingress)) {
        for partial in [false, true] {
            let packet = Packet { partial, ..packet.clone() };
            let bytes = packet.bytes();
            // A test run cannot mark a checksum as partial for TC.
            let frames = [frame(Ingress, &bytes), via_tc(Ingress, &bytes)];
            for frame in frames.into_iter().filter(|frame| !(partial && frame.via_tc)) {
                let ran = dry_run.run(&frame, 1).expect("a run");
                assert_eq!(ran.verdict, Verdict::Pass);
                let (before, after) = (parsed(&bytes, partial), parsed(&ran.bytes, partial));
                let [MptcpOption::Join(Join::Syn { token, nonce, address_id, .. })] = mptcp(&after)[..]
                else {
                    panic!("found {:?}", mptcp(&after));
                };
                assert_eq!((token, nonce, address_id), (Token(0), Nonce(99), AddressId(3)));
                assert_eq!(options(&after)[..5], options(&before)[..5]);
                assert_eq!(after.tcp.flags(), SYN);
            }
        }
    }
}

#[test]
fn ingress_answers_to_a_join_become_resets() {
    let Some(dry_run) = dry_run("ingress_answers_to_a_join", "{ deny_join = 'reset' }") else { return };
    for packet in [join_syn_ack(Ingress), join_ack(Ingress)].into_iter().flat_map(both_families) {
        let bytes = packet.bytes();
        for frame in [frame(Ingress, &bytes), via_tc(Ingress, &bytes)] {
            let ran = dry_run.run(&frame, 1).expect("a run");
            let after = parsed(&ran.bytes, false);
            assert_eq!((ran.verdict, ran.bytes.len()), (Verdict::Pass, bytes.len()));
            assert_eq!(after.tcp.flags(), Flags::RST | ACK);
            assert_eq!((after.tcp.seq().0, after.tcp.ack().0), (packet.sequence, packet.acknowledgment));
            assert_eq!((after.source, after.destination), (tuple(packet.ipv6).1, tuple(packet.ipv6).0));
            assert_eq!(mptcp(&after), [refused()]);
        }
    }
}

#[test]
fn egress_joins_are_answered_with_a_reset() {
    let Some(dry_run) = dry_run("egress_joins", "{ deny_join = 'reset' }") else { return };
    let all = [join_syn(Egress), join_syn_ack(Egress), join_ack(Egress)];
    for packet in all.into_iter().flat_map(both_families) {
        for partial in [false, true] {
            let packet = Packet { partial, ..packet.clone() };
            let bytes = packet.bytes();
            let ran = dry_run.run(&frame(Egress, &bytes), 1).expect("a run");
            let after = parsed(&ran.bytes, partial);
            assert_eq!(ran.verdict, Verdict::Answer);
            assert_eq!(after.tcp.flags(), Flags::RST | ACK);
            let follows = packet.sequence + u32::from(packet.flags.contains(SYN));
            // RFC 9293, section 3.10.7.1.
            assert_eq!((after.tcp.seq().0, after.tcp.ack().0), (packet.acknowledgment, follows));
            assert_eq!((after.source, after.destination), (tuple(packet.ipv6).1, tuple(packet.ipv6).0));
            assert_eq!(mptcp(&after), [refused()]);
            assert_eq!((&ran.bytes[..6], &ran.bytes[6..12]), (&bytes[6..12], &bytes[..6]));
        }
    }
}

#[test]
fn joins_with_a_wrong_checksum_are_not_modified() {
    let Some(dry_run) = dry_run("joins_with_a_wrong_checksum", "{ deny_join = 'reset' }") else { return };
    for packet in [join_syn(Ingress), join_syn_ack(Ingress)] {
        let mut bytes = packet.bytes();
        bytes[14 + 20 + 17] ^= 0x40;
        let ran = dry_run.run(&frame(Ingress, &bytes), 1).expect("a run");
        assert_eq!((ran.verdict, ran.bytes), (Verdict::Pass, bytes));
    }
    assert_eq!(outcomes(&dry_run), (0, 2));
    assert_eq!(dry_run.statistics().expect("statistics").skipped.wrong_checksum, 2);
}

#[test]
fn fall_back_removes_mp_capable_from_the_handshake() {
    let Some(dry_run) = dry_run("fall_back_removes_mp_capable", "'fall_back'") else { return };
    let version_0 = MptcpOption::Capable(plait_wire::mptcp::Capable {
        version: Version::V0,
        flags: plait_wire::mptcp::CapableFlags::HMAC,
        keys: CapableKeys::Sender(key(1)),
    });
    for (flags, option) in [
        (SYN, capable(CapableKeys::None)),
        (SYN | ACK, capable(CapableKeys::Sender(key(1)))),
        (SYN, version_0),
    ] {
        // With the option at an even and at an odd offset.
        for scale in [None, Some(7)] {
            for hook in [Ingress, Egress] {
                for packet in both_families(Packet::new(hook, flags).with(syn_options(scale, option.clone())))
                {
                    let bytes = packet.bytes();
                    let ran = dry_run.run(&frame(hook, &bytes), 1).expect("a run");
                    let (before, after) = (parsed(&bytes, false), parsed(&ran.bytes, false));
                    let is_other =
                        |option: &TcpOption| !matches!(option, TcpOption::Mptcp(_) | TcpOption::NoOperation);
                    let others =
                        |segment: &_| -> Vec<_> { options(segment).into_iter().filter(is_other).collect() };
                    assert_eq!((ran.verdict, mptcp(&after)), (Verdict::Pass, vec![]));
                    assert_eq!(others(&after), others(&before));
                    assert_eq!(after.tcp.flags(), flags);
                }
            }
        }
    }
    let keys = CapableKeys::Both { sender: key(1), receiver: key(2), data: None };
    let third = Packet::new(Egress, ACK).with(vec![timestamps(), TcpOption::Mptcp(capable(keys))]);
    let bytes = third.bytes();
    assert_eq!(dry_run.run(&frame(Egress, &bytes), 1).expect("a run").bytes, bytes);
    assert_eq!(outcomes(&dry_run), (24, 0));
}

fn refused() -> MptcpOption<'static> {
    MptcpOption::Reset(Reset { flags: ResetFlags::default(), reason: 3 })
}
