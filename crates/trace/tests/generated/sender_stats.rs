//! Sender statistics of subflows, compared with maps that have one entry per byte.

use std::collections::HashSet;
use std::time::Duration;

use crate::generate::{Net, PLAIN_STYLE, Side, Style, read};
use plait_trace::{Close, Direction, EventKind, Interval, IntervalCounts, ReadOptions, SenderStats, Volume};
use plait_wire::mptcp::{
    AddAddress, AddAddressForm, AddressId, AddressIds, DataSeq, Key, MptcpOption, Priority, Reset, ResetFlags,
};
use plait_wire::tcp::Flags;
use proptest::collection::vec;
use proptest::prelude::*;

const INTERVAL: Duration = Duration::from_micros(3);

/// A segment: its position in its subflow and in the stream.
#[derive(Clone, Debug)]
struct Sent {
    path: usize,
    side: Side,
    relative: u32,
    offset: u64,
    len: usize,
}

/// New data, data of any subflow resent on any subflow, or a segment retransmitted unchanged.
fn sent(path: usize) -> impl Strategy<Value = Vec<Sent>> {
    let step = (0..path, 0..2usize, 0..3000u64, 1..900usize, 0..4u8, 0..20usize);
    vec(step, 1..60).prop_map(move |steps| {
        let mut next = vec![[1u32; 2]; path];
        let mut all: Vec<Sent> = Vec::new();
        for (path, side, offset, len, kind, back) in steps {
            let earlier = all.iter().rev().filter(|sent| (sent.path, sent.side) == (path, side)).nth(back);
            let sent = match (kind, earlier) {
                (0, Some(earlier)) => earlier.clone(),
                _ => {
                    // A gap that is filled later or never.
                    let relative = next[path][side] + if kind == 1 { 100 } else { 0 };
                    Sent { path, side, relative, offset, len }
                }
            };
            next[path][side] = next[path][side].max(sent.relative + sent.len as u32);
            all.push(sent);
        }
        all
    })
}

#[derive(Default)]
struct Naive {
    stats: SenderStats,
    carried: HashSet<u64>,
    numbers: HashSet<u32>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each byte counts as new, reinjected, repeated or retransmitted exactly as in a map, and the series add up to the
    /// totals.
    #[test]
    fn every_byte_counts_once(full in any::<bool>(), all in sent(3)) {
        let mut net = Net::new(3, Style { full, ..PLAIN_STYLE });
        net.open(0);
        net.join(1);
        net.join(2);
        let mut naive: [[Naive; 2]; 3] = Default::default();
        let mut carried: [HashSet<u64>; 2] = Default::default();
        for Sent { path, side, relative, offset, len } in &all {
            let mapping = net.mapping(*side, *offset, *relative, *len);
            net.segment(*path, *side, *relative, Some(mapping), &vec![0x61; *len]);

            let Naive { stats, carried: here, numbers } = &mut naive[*path][*side];
            stats.packets += 1;
            stats.bytes += *len as u64;
            let (mut reinjected, mut again, mut late) = (0, 0, 0);
            let end = numbers.iter().max().map_or(0, |last| last + 1);
            for index in 0..*len {
                let number = relative + index as u32;
                if !numbers.insert(number) {
                    again += 1;
                } else if number < end {
                    late += 1;
                }
                let offset = offset + index as u64;
                let first = carried[*side].insert(offset);
                match (first, here.insert(offset)) {
                    (true, _) => stats.new += 1,
                    (false, true) => reinjected += 1,
                    (false, false) => stats.repeated += 1,
                }
            }
            add(&mut stats.reinjected, reinjected);
            add(&mut stats.retransmitted, again);
            add(&mut stats.out_of_order, late);
        }
        let options = ReadOptions { interval: Some(INTERVAL), ..ReadOptions::default() };
        let all = read(&net.files(), options);
        let connection = &all.connections[0];
        for (side, direction) in Direction::BOTH.into_iter().enumerate() {
            for (path, subflow) in connection.subflows.iter().enumerate() {
                let (found, naive) = (subflow.sent(direction), &naive[path][side]);
                // The handshake consists of two packets of the client and one of the server.
                prop_assert_eq!(found.packets, naive.stats.packets + [2, 1][side]);
                prop_assert_eq!(found.bytes, naive.stats.bytes);
                prop_assert_eq!(found.new, naive.stats.new);
                prop_assert_eq!(found.reinjected, naive.stats.reinjected);
                prop_assert_eq!(found.repeated, naive.stats.repeated);
                prop_assert_eq!(found.retransmitted, naive.stats.retransmitted);
                prop_assert_eq!(found.out_of_order, naive.stats.out_of_order);
                prop_assert_eq!(found.bytes, found.new + found.reinjected.bytes + found.repeated + found.unmapped);
                let sum = |part: fn(&IntervalCounts) -> u64| {
                    let own = |interval: &&Interval| (interval.subflow, interval.direction) == (path, direction);
                    all.intervals.iter().filter(own).map(|interval| part(&interval.counts)).sum::<u64>()
                };
                prop_assert_eq!(sum(|counts| counts.packets), found.packets);
                prop_assert_eq!(sum(|counts| counts.bytes), found.bytes);
                prop_assert_eq!(sum(|counts| counts.new), found.new);
                prop_assert_eq!(sum(|counts| counts.reinjected), found.reinjected.bytes);
                prop_assert_eq!(sum(|counts| counts.retransmitted), found.retransmitted.bytes);
                let exposed = connection.exposure(direction, path).bytes;
                prop_assert_eq!(exposed, naive.carried.len() as u64);
            }
        }
    }
}

fn add(volume: &mut Volume, bytes: u64) {
    volume.segments += u64::from(bytes > 0);
    volume.bytes += bytes;
}

#[test]
fn signals_become_events_in_order() {
    let mut net = Net::new(2, PLAIN_STYLE);
    net.open(0);
    net.join(1);
    let address = [192, 0, 2, 9].into();
    let add = |form| MptcpOption::AddAddress(AddAddress { id: AddressId(9), address, port: None, form });
    let ids = AddressIds::new(&[9, 10]).expect("two ids");
    for (side, option) in [
        (1, add(AddAddressForm::Announce { hmac: [3; 8] })),
        (0, add(AddAddressForm::Echo)),
        (1, MptcpOption::RemoveAddress(ids)),
        (0, MptcpOption::Priority(Priority { backup: true, address_id: None })),
        (1, MptcpOption::Fail(DataSeq(77))),
    ] {
        net.packet(1, side, 1, Flags::ACK, vec![option], &[]);
    }
    let at = net.now();
    let connection = read(&net.files(), ReadOptions::default()).connections.remove(0);
    let kinds: Vec<_> = connection.events.iter().map(|event| (event.sender, event.kind.clone())).collect();
    // An echo has no HMAC; the HMAC of the announcement is invalid.
    let announced = |echo: bool| {
        let authentic = (!echo).then_some(false);
        EventKind::AddAddress { id: AddressId(9), address, port: None, echo, authentic }
    };
    assert_eq!(
        kinds,
        [
            (Direction::BOTH[1], announced(false)),
            (Direction::BOTH[0], announced(true)),
            (Direction::BOTH[1], EventKind::RemoveAddress(vec![AddressId(9), AddressId(10)])),
            (Direction::BOTH[0], EventKind::Priority { backup: true, id: None }),
            (Direction::BOTH[1], EventKind::Fail(DataSeq(77))),
        ]
    );
    assert!(connection.events.iter().all(|event| event.subflow == 1));
    assert_eq!(connection.events[4].time, at);
    assert_eq!(connection.subflows.iter().map(|subflow| subflow.backup).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn reports_how_subflows_end() {
    let [client, server] = Direction::BOTH;
    let fast_close = || vec![MptcpOption::FastClose(Key::new([1; 8]))];
    let reset = || vec![MptcpOption::Reset(Reset { flags: ResetFlags::TRANSIENT, reason: 6 })];
    let cases = [
        (vec![], Close::Open),
        (vec![(0, Flags::FIN, vec![])], Close::HalfClosed(client)),
        (vec![(0, Flags::FIN, vec![]), (0, Flags::FIN, vec![])], Close::HalfClosed(client)),
        (vec![(0, Flags::FIN, vec![]), (1, Flags::FIN, vec![]), (0, Flags::RST, vec![])], Close::Fin),
        (vec![(1, Flags::RST, vec![])], Close::Reset { by: server, reason: None }),
        (vec![(1, Flags::RST, reset())], Close::Reset { by: server, reason: Some(6) }),
        (vec![(0, Flags::ACK, fast_close()), (1, Flags::RST, vec![])], Close::FastClose(client)),
        (vec![(0, Flags::RST, fast_close())], Close::FastClose(client)),
    ];
    for (packets, close) in cases {
        let mut net = Net::new(1, PLAIN_STYLE);
        net.open(0);
        for (side, flags, options) in packets {
            net.packet(0, side, 1, flags, options, &[]);
        }
        let subflow = read(&net.files(), ReadOptions::default()).connections.remove(0).subflows.remove(0);
        assert_eq!(subflow.close, close);
        // The packets of a handshake are a microsecond apart.
        assert_eq!(subflow.syn_rtt, Some(Duration::from_micros(2)));
    }
}
