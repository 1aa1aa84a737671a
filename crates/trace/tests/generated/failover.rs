//! Paths that fail during a transfer between two simulated hosts, captured at either end.

use std::time::Duration;

use plait_trace::{Connection, Direction, Failover};

use crate::captures::{CaptureBuilder, MILLISECOND, Packet, SECOND, joining, opening, read, since_begin};
use crate::transfer::{Account, RECEIVER, SEGMENT, SENDER, Script, transfer};

/// The connection in a capture at one end.
fn seen_at(account: &Account, end: usize) -> Connection {
    let file = account.builder.files().swap_remove(end);
    let mut found = read(&[file]).connections;
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// The start and end of the longest gap between consecutive times.
fn longest_gap(times: &[u64]) -> (u64, u64) {
    let gaps = times.windows(2).map(|pair| (pair[0], pair[1]));
    gaps.max_by_key(|(from, to)| to - from).expect("more than one")
}

fn from_to(failover: &Failover) -> (u64, Option<u64>) {
    (since_begin(failover.from), failover.to.map(since_begin))
}

/// Compares a failover with what the simulated hosts did.
fn check(account: &Account, end: usize, failover: &Failover, path: usize, by: usize) {
    let (from, to) = longest_gap(&account.heard[&(end, path)]);
    assert_eq!(from_to(failover), (from, Some(to)), "end {end}, path {path}");
    assert_eq!(failover.subflow, path);
    assert_eq!(failover.direction, Direction::ClientToServer);
    assert_eq!(failover.taken_over_by, Some(by));
    let (from, to) = longest_gap(&account.progress[end]);
    assert_eq!(failover.stall, Some(Duration::from_nanos(to - from)), "end {end}");
    assert!(failover.resumed.is_some_and(|again| Some(again) >= failover.to));
}

#[test]
fn outage_is_one_failover_at_either_end() {
    for (path, ping) in [(0, None), (0, Some(20)), (1, None), (1, Some(20))] {
        let account = transfer(Script { outages: vec![(path, 1500..5500)], ping, ..Script::default() });
        for end in [SENDER, RECEIVER] {
            let connection = seen_at(&account, end);
            assert_eq!(connection.failovers.len(), 1, "{path} {ping:?} {end}: {:?}", connection.failovers);
            check(&account, end, &connection.failovers[0], path, 1 - path);
            let new = connection.subflows.iter().map(|subflow| subflow.sent(Direction::ClientToServer).new);
            assert_eq!(new.sum::<u64>(), 2000 * SEGMENT as u64);
        }
        let reinjected = seen_at(&account, SENDER).failovers[0].reinjected;
        let during = account.reinjected.iter().filter(|(_, from)| *from == path).count() as u64;
        assert!(during > 0);
        assert_eq!((reinjected.segments, reinjected.bytes), (during, during * SEGMENT as u64));
    }
}

#[test]
fn pings_show_when_a_path_works_again() {
    let outages = vec![(1, 1500..5500)];
    for (ping, at_once) in [(None, false), (Some(20), true)] {
        let account = transfer(Script { outages: outages.clone(), ping, ..Script::default() });
        let failover = &seen_at(&account, SENDER).failovers[0];
        let to = from_to(failover).1.expect("an end");
        assert_eq!(to < 5500 * MILLISECOND + 50 * MILLISECOND, at_once, "{to}");
        let again = since_begin(failover.resumed.expect("the path carries again"));
        assert!(again > 6 * SECOND, "the next retransmission is long after: {again}");
    }
}

#[test]
fn permanent_outage_has_no_end() {
    for ping in [None, Some(20)] {
        let account = transfer(Script { outages: vec![(1, 1500..90_000)], ping, ..Script::default() });
        let connection = seen_at(&account, SENDER);
        assert_eq!(connection.failovers.len(), 1, "{:?}", connection.failovers);
        let failover = &connection.failovers[0];
        let last = *account.heard[&(SENDER, 1)].last().expect("the path worked at first");
        assert_eq!(from_to(failover), (last, None));
        assert_eq!((failover.resumed, failover.taken_over_by), (None, Some(0)));
        let (from, to) = longest_gap(&account.progress[SENDER]);
        assert_eq!(failover.stall, Some(Duration::from_nanos(to - from)));
    }
}

#[test]
fn two_outages_are_two_failovers() {
    let outages = vec![(1, 1500..3000), (1, 7000..9000)];
    let account = transfer(Script { outages, segments: 8000, ..Script::default() });
    for end in [SENDER, RECEIVER] {
        let failovers = seen_at(&account, end).failovers;
        assert_eq!(failovers.len(), 2, "end {end}: {failovers:?}");
        for (failover, outage) in failovers.iter().zip([1500..3000, 7000..9000]) {
            assert_eq!((failover.subflow, failover.taken_over_by), (1, Some(0)));
            let (from, to) = from_to(failover);
            let last = 20 * MILLISECOND;
            assert!((outage.start * MILLISECOND).abs_diff(from) < last, "{from}");
            assert!(to.expect("it came back") >= outage.end * MILLISECOND);
        }
    }
}

#[test]
fn outage_of_both_paths_is_two_failovers() {
    let account = transfer(Script { outages: vec![(0, 1500..3500), (1, 1500..5500)], ..Script::default() });
    let mut failovers = seen_at(&account, SENDER).failovers;
    failovers.sort_by_key(|failover| failover.subflow);
    assert_eq!(
        failovers.iter().map(|failover| failover.subflow).collect::<Vec<_>>(),
        [0, 1],
        "{failovers:?}"
    );
    let (from, to) = longest_gap(&account.progress[SENDER]);
    for (path, failover) in failovers.iter().enumerate() {
        let silence = longest_gap(&account.heard[&(SENDER, path)]);
        assert_eq!(from_to(failover), (silence.0, Some(silence.1)));
        assert_eq!(failover.stall, Some(Duration::from_nanos(to - from)));
    }
    assert_eq!(failovers[1].taken_over_by, Some(0));
}

#[test]
fn losses_and_pauses_are_not_failovers() {
    let scripts = [
        ("nothing happens", Script::default()),
        ("single packets are lost", Script { lost: vec![(0, 100), (1, 200), (1, 300)], ..Script::default() }),
        ("the last packet is lost", Script { lost: vec![(1, 999)], ..Script::default() }),
        ("the application sleeps", Script { pause: 2000..9000, ..Script::default() }),
        ("a backup is not used", Script { backup: vec![1], every: 4, ..Script::default() }),
        (
            "an unused path fails",
            Script { backup: vec![1], every: 4, outages: vec![(1, 2000..4000)], ..Script::default() },
        ),
        (
            "a path fails while the application sleeps",
            Script { pause: 2000..9000, outages: vec![(1, 3000..6000)], ..Script::default() },
        ),
    ];
    for (name, script) in scripts {
        for ping in [None, Some(20)] {
            let account = transfer(Script { ping, ..script.clone() });
            for end in [SENDER, RECEIVER] {
                let failovers = seen_at(&account, end).failovers;
                assert!(failovers.is_empty(), "{name}, end {end}, {ping:?}: {failovers:?}");
            }
        }
    }
}

/// A connection with two subflows, the second of which has its data acknowledged, followed by the packets of a test.
fn quiet(more: impl IntoIterator<Item = (u64, Packet<'static>)>) -> Vec<Failover> {
    let mut builder = CaptureBuilder::default();
    builder.all_at(0, 0, opening(0));
    builder.all_at(0, MILLISECOND, joining(1));
    builder.at(0, 2 * MILLISECOND, &Packet::new(1, 0, 1, 1).carries(0, 100));
    builder.at(0, 3 * MILLISECOND, &Packet::new(1, 1, 1, 101).data_ack(100));
    for (time, packet) in more {
        builder.at(0, time, &packet);
    }
    read(&builder.files()).connections.remove(0).failovers
}

#[test]
fn closed_window_is_not_a_silence() {
    let closed = || {
        let mut ack = Packet::new(1, 1, 1, 101).data_ack(100);
        ack.window = 0;
        ack
    };
    // Probes carry a number that was acknowledged, and no data.
    let probes = (1..10).flat_map(|probe| {
        [(probe * SECOND, Packet::new(1, 0, 100, 1)), (probe * SECOND + MILLISECOND, closed())]
    });
    let after = [
        (20 * SECOND, Packet::new(1, 0, 101, 1).carries(100, 100)),
        (20 * SECOND + MILLISECOND, Packet::new(1, 1, 1, 201).data_ack(200)),
    ];
    assert_eq!(quiet([(4 * MILLISECOND, closed())].into_iter().chain(probes).chain(after)), []);
}

#[test]
fn packets_missing_in_the_capture_are_not_a_silence() {
    let more = [
        // The data up to 401 is missing from the capture.
        (4 * MILLISECOND, Packet::new(1, 0, 101, 1).carries(100, 100)),
        (5 * MILLISECOND, Packet::new(1, 1, 1, 401).data_ack(400)),
        (20 * SECOND, Packet::new(1, 0, 401, 1).carries(400, 100)),
        (20 * SECOND + MILLISECOND, Packet::new(1, 1, 1, 501).data_ack(500)),
    ];
    assert_eq!(quiet(more), []);
}

#[test]
fn reset_subflow_is_not_silent() {
    use plait_wire::tcp::Flags;
    let unanswered = |end: Flags| {
        [
            (4 * MILLISECOND, Packet::new(1, 0, 101, 1).carries(100, 100)),
            (10 * MILLISECOND, Packet::new(1, 0, 201, 1).flags(end)),
            (30 * SECOND, Packet::new(0, 0, 1, 1).carries(100, 100)),
            (30 * SECOND + MILLISECOND, Packet::new(0, 1, 1, 101).data_ack(200)),
        ]
    };
    assert_eq!(quiet(unanswered(Flags::RST)), []);
    assert_eq!(quiet(unanswered(Flags::ACK)).len(), 1, "without the reset, it is");
}

#[test]
fn one_directional_capture_shows_no_silence() {
    let mut builder = CaptureBuilder::default();
    for segment in 0..100 {
        let packet = Packet::new(0, 0, 1 + 100 * segment, 1).carries(100 * u64::from(segment), 100);
        builder.at(0, u64::from(segment) * SECOND, &packet);
    }
    assert_eq!(read(&builder.files()).connections[0].failovers, []);
}

/// The last data before the cut arrives, but its acknowledgement is not captured: both ends of the path appear silent.
#[test]
fn silence_of_both_ends_is_one_failover() {
    let failovers = quiet([
        (4 * MILLISECOND, Packet::new(1, 0, 101, 1).carries(100, 100)),
        // The data after it is lost, while the other path carries later data, and then the missing data.
        (100 * MILLISECOND, Packet::new(0, 0, 1, 1).carries(300, 100)),
        (400 * MILLISECOND, Packet::new(0, 0, 101, 1).carries(200, 100)),
        (401 * MILLISECOND, Packet::new(0, 1, 1, 201).data_ack(400)),
        (4 * SECOND, Packet::new(1, 0, 201, 1).carries(200, 100)),
        (4 * SECOND + MILLISECOND, Packet::new(1, 1, 1, 301).data_ack(400)),
        (5 * SECOND, Packet::new(1, 0, 301, 1).carries(400, 100)),
    ]);
    assert_eq!(failovers.len(), 1, "{failovers:?}");
    assert_eq!(from_to(&failovers[0]), (4 * MILLISECOND, Some(4 * SECOND)));
    assert_eq!(failovers[0].taken_over_by, Some(0));
    assert_eq!(failovers[0].stall, Some(Duration::from_millis(398)));
}

/// A subflow whose data is acknowledged after two seconds, on a path that pings cross all the time.
#[test]
fn retransmission_timer_on_a_live_path_is_not_a_failover() {
    let failovers = |retransmissions: &[u64]| {
        let mut builder = CaptureBuilder::default();
        builder.all_at(0, 0, opening(0));
        builder.all_at(0, MILLISECOND, joining(1));
        builder.at(0, 2 * MILLISECOND, &Packet::new(1, 0, 1, 1).carries(0, 100));
        builder.at(0, 3 * MILLISECOND, &Packet::new(1, 1, 1, 101).data_ack(100));
        for ping in 0..150 {
            builder.ping(0, (ping * 20 + 1) * MILLISECOND, 1, 1);
        }
        for time in [4].iter().chain(retransmissions) {
            builder.at(0, time * MILLISECOND, &Packet::new(1, 0, 101, 1).carries(100, 100));
        }
        builder.at(0, 2004 * MILLISECOND, &Packet::new(1, 1, 1, 201).data_ack(200));
        read(&builder.files()).connections.remove(0).failovers
    };
    assert_eq!(failovers(&[2000]), []);
    // A middlebox lets pings through, but not TCP.
    let cut_off = failovers(&[200, 600, 1400, 2000]);
    assert_eq!(
        cut_off.iter().map(from_to).collect::<Vec<_>>(),
        [(4 * MILLISECOND, Some(2004 * MILLISECOND))]
    );
}

/// In a capture at a receiver that misses a segment, a pause without traffic is not a silence.
#[test]
fn late_retransmission_is_not_a_failover() {
    let packets = [
        (4 * MILLISECOND, Packet::new(1, 0, 201, 1).carries(200, 100)),
        (5 * MILLISECOND, Packet::new(1, 1, 1, 101).data_ack(100)),
        (2000 * MILLISECOND, Packet::new(1, 0, 101, 1).carries(100, 100)),
        (2001 * MILLISECOND, Packet::new(1, 1, 1, 301).data_ack(300)),
    ];
    assert_eq!(quiet(packets), []);
}

/// Slow pings add many short silences after the long one before TCP tries again.
#[test]
fn slow_pings_do_not_hide_an_outage() {
    let account = transfer(Script { outages: vec![(1, 1500..5500)], ping: Some(120), ..Script::default() });
    let failovers = seen_at(&account, SENDER).failovers;
    assert_eq!(failovers.len(), 1);
    check(&account, SENDER, &failovers[0], 1, 0);
}

#[test]
fn application_pause_is_not_part_of_a_stall() {
    for (pause, stall) in [(400, 400 + 800), (600, 800)] {
        let begin = 3 + pause;
        let failovers = quiet([
            (begin * MILLISECOND, Packet::new(1, 0, 101, 1).carries(100, 100)),
            ((begin + 400) * MILLISECOND, Packet::new(1, 0, 101, 1).carries(100, 100)),
            ((begin + 800) * MILLISECOND, Packet::new(1, 1, 1, 201).data_ack(200)),
        ]);
        assert_eq!(failovers.len(), 1, "{failovers:?}");
        assert_eq!(failovers[0].stall, Some(Duration::from_millis(stall)));
    }
}

#[test]
fn long_stall_is_kept_among_many_short_ones() {
    // The first DATA_ACK after the cut arrives late, the others every 100 ms for 20 s.
    let mut more = vec![(4 * MILLISECOND, Packet::new(1, 0, 101, 1).carries(100, 100))];
    for step in 0..200u64 {
        let sent = 10 * MILLISECOND + step * 100 * MILLISECOND;
        let acknowledged =
            if step == 0 { sent + 90 * MILLISECOND + SECOND } else { sent + SECOND + 90 * MILLISECOND };
        let number = 1 + 100 * step as u32;
        more.push((sent, Packet::new(0, 0, number, 1).carries(200 + 100 * step, 100)));
        more.push((
            acknowledged,
            Packet::new(0, 1, 1, number + 100).data_ack(if step == 0 { 150 } else { 150 + step }),
        ));
    }
    more.push((21_050 * MILLISECOND, Packet::new(1, 1, 1, 201).data_ack(1000)));
    let failovers = quiet(more);
    assert_eq!(failovers.len(), 1, "{failovers:?}");
    // From the DATA_ACK at 3 ms to the next one.
    assert_eq!(failovers[0].stall, Some(Duration::from_millis(1097)));
}
