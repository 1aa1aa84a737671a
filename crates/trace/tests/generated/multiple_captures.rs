//! Several captures of one transfer: taken at both ends, on several interfaces, or one after the other.

use plait_trace::{Connections, Direction, document};
use serde_json::Value;

use crate::captures::{CaptureBuilder, MILLISECOND, read};
use crate::transfer::{RECEIVER, SEGMENT, SENDER, Script, transfer};

/// The documents of all connections.
fn documents(found: &Connections) -> Vec<Value> {
    let document = |connection| serde_json::to_value(document::Connection::from(connection)).expect("JSON");
    found.connections.iter().map(document).collect()
}

/// The documents without what is measured where data arrives.
fn without_arrivals(mut documents: Vec<Value>) -> Vec<Value> {
    for subflow in documents.iter_mut().filter_map(|found| found["subflows"].as_array_mut()).flatten() {
        for direction in subflow["directions"].as_object_mut().expect("an object").values_mut() {
            direction["interarrival_ms"].take();
            direction["jitter_ms"].take();
        }
    }
    documents
}

/// A transfer with losses, a failover and pings.
fn builder() -> CaptureBuilder {
    let script = Script {
        lost: vec![(0, 50), (1, 70)],
        outages: vec![(1, 1500..4000)],
        ping: Some(20),
        end: 9000,
        ..Script::default()
    };
    transfer(script).builder
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(count - 1);
    let insert = |order: &Vec<usize>, place| [&order[..place], &[count - 1], &order[place..]].concat();
    shorter.iter().flat_map(|order| (0..count).map(move |place| insert(order, place))).collect()
}

fn in_order(files: &[Vec<u8>], order: &[usize]) -> Vec<Vec<u8>> {
    order.iter().map(|index| files[*index].clone()).collect()
}

#[test]
fn captures_of_both_ends_equal_the_first() {
    let builder = builder();
    let files = builder.files();
    let alone = read(&files[..1]);
    assert_eq!(alone.connections[0].failovers.len(), 1);
    for order in permutations(2) {
        let both = read(&in_order(&files, &order));
        assert_eq!(without_arrivals(documents(&both)), without_arrivals(documents(&alone)));
        assert_eq!(both.totals.skipped.duplicate, builder.segments(RECEIVER));
        assert_eq!(both.totals.unmapped, 0);
        // A capture at the other end contains all that arrived, which counts for exposure.
        let stream = both.connections[0].stream(Direction::ClientToServer);
        for (path, _) in both.paths() {
            assert_eq!(stream.exposure(path).bytes, 2000 * SEGMENT as u64);
        }
    }
}

#[test]
fn captures_of_both_ends_without_opening_count_once() {
    let builder = builder();
    let late = |capture| builder.rotated(capture, &[1000 * MILLISECOND]).swap_remove(1);
    let files = [late(SENDER), late(RECEIVER)];
    let data = |found: &Connections| {
        let sent = |subflow: &plait_trace::Subflow| {
            let stats = subflow.sent(Direction::ClientToServer);
            (stats.bytes, stats.new, stats.retransmitted, stats.reinjected)
        };
        let mut all: Vec<_> = found.connections.iter().flat_map(|found| &found.subflows).map(sent).collect();
        all.sort_unstable_by_key(|(bytes, ..)| *bytes);
        all
    };
    let alone = read(&files[..1]);
    assert!(alone.connections.iter().all(|connection| connection.partial));
    assert_eq!(data(&read(&files)), data(&alone));
}

#[test]
fn rotated_captures_equal_the_whole() {
    let builder = builder();
    let whole = read(&builder.files()[..1]);
    let files = builder.rotated(SENDER, &[1000 * MILLISECOND, 2500 * MILLISECOND]);
    for order in permutations(3) {
        let found = read(&in_order(&files, &order));
        assert_eq!(documents(&found), documents(&whole), "{order:?}");
        assert_eq!(found.totals.skipped.duplicate, 0);
    }
}

#[test]
fn captures_may_be_rotated_between_equal_times() {
    let builder = builder().in_steps_of(10 * MILLISECOND);
    let whole = read(&builder.files()[..1]);
    for count in [101, 500, 1003] {
        let files = builder.rotated_after(SENDER, count);
        for order in permutations(2) {
            assert_eq!(documents(&read(&in_order(&files, &order))), documents(&whole), "{count} {order:?}");
        }
    }
}

#[test]
fn captures_may_be_rotated_between_reordered_packets() {
    let mut builder = builder();
    builder.swap(SENDER, 1000);
    let files = builder.rotated_after(SENDER, 1001);
    let found = read(&files);
    let bytes: u64 =
        found.connections[0].subflows.iter().map(|subflow| subflow.sent(Direction::ClientToServer).new).sum();
    assert!(found.totals.skipped.duplicate <= 1, "{:?}", found.totals.skipped);
    assert!(bytes >= 1999 * SEGMENT as u64, "{bytes}");
}

#[test]
fn rotated_captures_of_several_interfaces_equal_the_whole() {
    let builder = builder().by_path(SENDER);
    let whole = read(&builder.files());
    let [eth, wlan] = [(0, [1200]), (1, [2500])]
        .map(|(interface, times)| builder.rotated(interface, &times.map(|time| time * MILLISECOND)));
    let files = [eth, wlan].concat();
    for order in permutations(4) {
        assert_eq!(documents(&read(&in_order(&files, &order))), documents(&whole), "{order:?}");
    }
}

#[test]
fn captures_of_one_direction_each_equal_the_whole() {
    let script =
        Script { lost: vec![(0, 50)], outages: vec![(1, 1500..4000)], end: 9000, ..Script::default() };
    let builder = transfer(script).builder;
    let whole = read(&builder.files()[..1]);
    let files = builder.by_side(SENDER).files();
    for order in permutations(2) {
        let found = read(&in_order(&files, &order));
        assert_eq!(documents(&found), documents(&whole), "{order:?}");
        assert_eq!(found.totals.skipped.duplicate, 0);
    }
}

#[test]
fn no_byte_is_lost_when_the_clock_goes_back() {
    let mut builder = builder();
    builder.set_back(SENDER, 1000 * MILLISECOND, 400 * MILLISECOND);
    let found = read(&builder.files_as_written()[..1]);
    let new = |subflow: &plait_trace::Subflow| subflow.sent(Direction::ClientToServer).new;
    assert_eq!(found.connections[0].subflows.iter().map(new).sum::<u64>(), 2000 * SEGMENT as u64);
    assert_eq!(found.connections[0].failovers.len(), 1, "only the one that there was");
}
