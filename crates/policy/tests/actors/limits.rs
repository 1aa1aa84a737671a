//! rate_limit: does not modify SYNs, never increases a window, and needs the window scale.

use plait_policy::Hook::{Egress, Ingress};
use plait_policy::engine::DryRun;
use plait_wire::tcp::Seq;

use super::packet::{ACK, Packet, frame, handshake, parsed};
use super::{dry_run, outcomes};

const WINDOW: &str = "{ rate_limit = { window = '64kB' } }";
const RATE: &str = "{ rate_limit = { rate = '4mbit' } }";

fn run(dry_run: &DryRun, packet: &Packet) -> u16 {
    let ran = dry_run.run(&frame(packet.hook, &packet.bytes()), 1).expect("a run");
    let (before, after) = (packet.bytes(), ran.bytes);
    let segment = parsed(&after, packet.partial);
    let window = segment.tcp.window();
    // Only the window and the checksum changed.
    let tcp_at = if packet.ipv6 { 54 } else { 34 };
    for at in (0..before.len()).filter(|at| !(tcp_at + 14..tcp_at + 18).contains(at)) {
        assert_eq!(before[at], after[at], "byte {at}");
    }
    window
}

fn begin(dry_run: &DryRun, here: Option<u8>, there: Option<u8>, partial: bool, ipv6: bool) {
    for packet in handshake(here, there, partial, ipv6) {
        // A test run cannot mark a checksum as partial for TC; nothing is modified here in any case.
        assert_eq!(run(dry_run, &packet), packet.window, "a SYN's window");
    }
}

#[test]
fn windows_are_limited_with_the_negotiated_scale() {
    for (here, there, scales) in [
        (Some(7), Some(3), [3, 7]),
        (Some(15), Some(0), [0, 14]),
        (None, Some(3), [0, 0]),
        (Some(7), None, [0, 0]),
    ] {
        let Some(dry_run) = dry_run("windows_are_limited", WINDOW) else { return };
        for ipv6 in [false, true] {
            begin(&dry_run, here, there, false, ipv6);
            for (hook, scale) in [(Ingress, scales[0]), (Egress, scales[1])] {
                for payload in [0, 1000] {
                    let packet = Packet { ipv6, payload, window: 65_535, ..Packet::new(hook, ACK) };
                    let most = (64_000u32 >> scale).clamp(1, 65_535);
                    assert_eq!(u32::from(run(&dry_run, &packet)), most, "{hook} {here:?} {there:?}");
                    let small = Packet { window: most as u16 - 1, ..packet };
                    assert_eq!(run(&dry_run, &small), small.window, "a smaller window is not enlarged");
                }
            }
        }
        assert_eq!(outcomes(&dry_run).1, 0);
    }
}

#[test]
fn partial_checksums_stay_partial() {
    let Some(dry_run) = dry_run("checksums_that_are_to_be_completed", WINDOW) else { return };
    begin(&dry_run, Some(7), Some(7), true, false);
    for payload in [0, 1000] {
        let packet = Packet { partial: true, payload, ..Packet::new(Ingress, ACK) };
        assert_eq!(run(&dry_run, &packet), 500);
    }
}

#[test]
fn windows_are_unchanged_without_a_handshake() {
    for actor in [WINDOW, RATE] {
        let Some(dry_run) = dry_run("without_a_handshake", actor) else { return };
        for hook in [Ingress, Egress] {
            assert_eq!(run(&dry_run, &Packet::new(hook, ACK)), 60_000);
        }
        // Half a handshake is not enough either.
        let [syn, _] = handshake(Some(7), Some(7), false, false);
        run(&dry_run, &syn);
        assert_eq!(run(&dry_run, &Packet::new(Egress, ACK)), 60_000);
        assert_eq!(outcomes(&dry_run), (0, 0));
    }
}

#[test]
fn every_single_packet_is_modified() {
    let Some(dry_run) = dry_run("packets_that_run_each_by_itself", WINDOW) else { return };
    begin(&dry_run, Some(7), Some(7), false, false);
    let packets = [0, 1000].map(|payload| Packet { payload, ..Packet::new(Ingress, ACK) }.bytes());
    let frames = packets.each_ref().map(|bytes| frame(Ingress, bytes));
    assert_eq!(dry_run.durations(&frames, 50).expect("durations").len(), 100);
    assert_eq!(outcomes(&dry_run), (100, 0));
    // In one run with repetitions, only the first finds a window that is too large.
    dry_run.run(&frames[0], 50).expect("a run");
    assert_eq!(outcomes(&dry_run), (101, 0));
}

#[test]
fn a_repeated_acknowledgment_advertises_the_same_window() {
    let Some(dry_run) = dry_run("an_acknowledgment_that_comes_again", RATE) else { return };
    begin(&dry_run, Some(0), Some(0), false, false);
    let packet = Packet::new(Egress, ACK);
    let first = run(&dry_run, &packet);
    assert!(u32::from(first) >= 2 * 1460, "room for two segments, got {first}");
    for _ in 0..20 {
        assert_eq!(run(&dry_run, &packet), first);
    }
}

#[test]
fn the_right_window_edge_never_moves_back() {
    let Some(dry_run) = dry_run("the_end_of_what_may_be_sent", RATE) else { return };
    begin(&dry_run, Some(0), Some(0), false, false);
    let mut acknowledgment = 2001u32;
    let mut end = None;
    for number in 0..500u32 {
        // With no, less than one, and up to two segments.
        acknowledgment += number.wrapping_mul(2_654_435_761) % 3000;
        let packet = Packet { acknowledgment, window: 65_535, ..Packet::new(Egress, ACK) };
        let now = Seq(acknowledgment).advance(run(&dry_run, &packet).into());
        if let Some(end) = end.replace(now) {
            assert!(now.since(end) < 1 << 31, "from {end:?} to {now:?}");
        }
    }
    assert_eq!(outcomes(&dry_run).1, 0);
}
