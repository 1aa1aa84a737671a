//! A sink receives everything once, in order and in bounded memory.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use plait_trace::{Connection, Direction, Interval, ReadError, ReadOptions, Sink, Totals, read};
use plait_wire::mptcp::{AddressId, Join, MptcpOption, Token};
use plait_wire::tcp::Flags;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::captures::{CaptureBuilder, MILLISECOND, NONCES, Packet, SECOND, captures, handshake, opening};

/// Checks and sums up the results that it receives.
#[derive(Default)]
struct Checked {
    /// Bytes, packets and new bytes of connections that have not been received yet, by connection, subflow and
    /// direction.
    open: BTreeMap<(u64, usize, bool), [u64; 3]>,
    connections: Vec<Connection>,
}

impl Sink for Checked {
    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        assert!(
            self.connections.iter().all(|connection| connection.id != interval.connection),
            "an interval after its connection"
        );
        let up = interval.direction == Direction::ClientToServer;
        let sums = self.open.entry((interval.connection, interval.subflow, up)).or_default();
        let counts = &interval.counts;
        assert!(counts.packets > 0 || counts.rtt.is_some(), "an interval without anything");
        for (sum, more) in sums.iter_mut().zip([counts.bytes, counts.packets, counts.new]) {
            *sum += more;
        }
        Ok(())
    }

    fn connection(&mut self, connection: Connection) -> io::Result<()> {
        for (index, subflow) in connection.subflows.iter().enumerate() {
            for direction in Direction::BOTH {
                let key = (connection.id, index, direction == Direction::ClientToServer);
                let stats = subflow.sent(direction);
                let series = self.open.remove(&key).unwrap_or_default();
                assert_eq!(series, [stats.bytes, stats.packets, stats.new], "{key:?}");
                assert_eq!(stats.bytes, stats.new + stats.reinjected.bytes + stats.repeated + stats.unmapped);
            }
        }
        self.connections.push(connection);
        Ok(())
    }
}

fn streamed(files: &[Vec<u8>], live_limit: usize) -> (Checked, Totals) {
    let interval = Some(Duration::from_millis(10));
    let options = ReadOptions { live_limit, interval, payload_limit: 0, stream_events: true };
    let mut sink = Checked::default();
    let totals = read(captures(files), options, &mut sink).expect("neither input nor sink fails");
    assert!(sink.open.is_empty(), "intervals without connection: {:?}", sink.open);
    (sink, totals)
}

fn bytes(connections: &[Connection]) -> u64 {
    let of = |connection: &Connection| -> u64 {
        let both = |subflow: &plait_trace::Subflow| {
            Direction::BOTH.map(|way| subflow.sent(way).bytes).iter().sum::<u64>()
        };
        connection.subflows.iter().map(both).sum()
    };
    connections.iter().map(of).sum()
}

/// A step of arbitrary traffic: the connection by its port, path and side, what is sent, and the delay in milliseconds.
#[derive(Clone, Debug)]
struct Step {
    port: u16,
    path: usize,
    side: usize,
    kind: u8,
    number: u32,
    len: usize,
    later: u64,
}

fn step() -> impl Strategy<Value = Step> {
    (0..6u16, 0..2usize, 0..2usize, 0..12u8, 0..4000u32, 0..500usize, 0..40u64).prop_map(
        |(port, path, side, kind, number, len, later)| Step { port, path, side, kind, number, len, later },
    )
}

/// The packet of a step, and how many bytes of data it carries.
fn packet(step: &Step) -> (Packet<'static>, u64) {
    let Step { port, path, side, kind, number, len, .. } = *step;
    let at = Packet::new(path, side, 1 + number, 1 + number);
    let unknown = Join::Syn { backup: false, address_id: AddressId(3), token: Token(77), nonce: NONCES[0] };
    let packet = match kind {
        0 => opening(path)[0].clone(),
        1 => opening(path)[1].clone(),
        2 => opening(path)[2].clone(),
        3 => handshake(path)[0].clone().mptcp(MptcpOption::Join(unknown)).data(&vec![1; len]),
        4 => at.flags(Flags::FIN | Flags::ACK),
        5 => at.flags(Flags::RST).data(&vec![1; len]),
        6 => at.data(&vec![1; len]),
        _ => at.carries(u64::from(number), len),
    };
    let carries = if packet.flags.contains(Flags::RST) { 0 } else { packet.data.len() as u64 };
    (packet.with_port(50_000 + port), carries)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is sent, and however small the limit of live connections, each payload byte is counted exactly once: in
    /// the series and the totals of one connection, or as unmapped.
    #[test]
    fn no_byte_is_lost_or_counted_twice(
        steps in vec(step(), 1..120),
        live_limit in prop_oneof![Just(1usize), 1..8usize, Just(10_000)],
        cuts in vec(0..100usize, 0..3),
    ) {
        let (mut builder, mut time, mut sent) = (CaptureBuilder::default(), 0, 0);
        for step in &steps {
            time += step.later * MILLISECOND;
            let (packet, carries) = packet(step);
            builder.at(0, time, &packet);
            sent += carries;
        }
        let (sink, totals) = streamed(&builder.files(), live_limit);
        prop_assert_eq!(totals.packets, steps.len() as u64);
        // Joins that were not accepted are not connections; their bytes count only as unmapped.
        let mapped = |connection: &Connection| -> u64 {
            let both = |subflow: &plait_trace::Subflow| {
                Direction::BOTH.map(|way| subflow.sent(way)).iter().map(|sent| sent.bytes - sent.unmapped).sum::<u64>()
            };
            connection.subflows.iter().map(both).sum()
        };
        prop_assert_eq!(sink.connections.iter().map(mapped).sum::<u64>() + totals.unmapped, sent);
        prop_assert!(bytes(&sink.connections) <= sent);
        let mut ids: Vec<_> = sink.connections.iter().map(|connection| connection.id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (1..=sink.connections.len() as u64).collect::<Vec<_>>());

        // The same traffic in several consecutive captures.
        let mut times: Vec<u64> = cuts.iter().map(|cut| time * *cut as u64 / 100).collect();
        times.sort_unstable();
        times.dedup();
        times.retain(|time| *time > 0);
        let files: Vec<_> = builder.rotated(0, &times);
        let (rotated, split) = streamed(&files, live_limit);
        prop_assert_eq!(split.skipped.duplicate, 0);
        prop_assert_eq!(split.unmapped, totals.unmapped);
        prop_assert_eq!(bytes(&rotated.connections), bytes(&sink.connections));
    }
}

#[test]
fn series_includes_data_before_join_is_accepted() {
    let mut builder = CaptureBuilder::default();
    let join = Join::Syn { backup: false, address_id: AddressId(3), token: Token(77), nonce: NONCES[0] };
    let [syn, syn_ack, _] = handshake(1);
    let accept = Join::SynAck { backup: false, address_id: AddressId(3), hmac: [0; 8], nonce: NONCES[1] };
    let syn = syn.mptcp(MptcpOption::Join(join)).data(&[1; 50]);
    builder.at(0, 0, &syn);
    builder.at(0, SECOND, &syn);
    builder.at(0, SECOND + MILLISECOND, &syn_ack.mptcp(MptcpOption::Join(accept)));
    let (sink, totals) = streamed(&builder.files(), 10);
    assert_eq!((sink.connections.len(), bytes(&sink.connections), totals.unmapped), (1, 100, 100));
}

/// A connection that sends data every second, among half-open ones.
fn among_half_open(count: u64) -> CaptureBuilder {
    let mut builder = CaptureBuilder::default();
    builder.all_at(0, 0, opening(0));
    for index in 0..count {
        let [syn, ..] = handshake(1 + (index / 60_000) as usize);
        builder.at(0, MILLISECOND * (1 + index), &syn.with_port(1 + (index % 60_000) as u16));
        if index.is_multiple_of(1000) {
            let second = (index / 1000) as u32;
            let data = Packet::new(0, 0, 1 + 10 * second, 1).carries(10 * u64::from(second), 10);
            builder.at(0, MILLISECOND * (1 + index) + 1, &data);
        }
    }
    builder
}

#[test]
fn evicts_half_open_connections_first() {
    let (sink, _) = streamed(&among_half_open(20_000).files(), 100);
    assert_eq!(sink.connections.len(), 20_001);
    let live: Vec<_> =
        sink.connections.iter().filter(|connection| bytes(&[(*connection).clone()]) > 0).collect();
    assert_eq!(live.len(), 1);
    assert!(!live[0].evicted);
    assert_eq!(live[0].subflows[0].sent(Direction::ClientToServer).new, 200);
    let evicted = sink.connections.iter().filter(|connection| connection.evicted).count();
    assert!(evicted >= 19_900 - 100, "{evicted}");
}

#[test]
fn idle_connection_outlives_later_half_open_ones() {
    let mut builder = CaptureBuilder::default();
    builder.all_at(0, 0, opening(0));
    for port in 1..50 {
        let [syn, ..] = handshake(1);
        builder.at(0, SECOND + MILLISECOND * u64::from(port), &syn.with_port(port));
    }
    builder.at(0, 10 * SECOND, &Packet::new(0, 0, 1, 1).carries(0, 10));
    let (sink, _) = streamed(&builder.files(), 8);
    let quiet = sink.connections.iter().find(|connection| connection.id == 1).expect("the first");
    assert!(!quiet.evicted);
    assert_eq!(bytes(std::slice::from_ref(quiet)), 10);
}

#[test]
fn counts_joins_with_unknown_tokens() {
    let mut builder = CaptureBuilder::default();
    builder.all_at(0, 0, opening(0));
    for index in 0..10_000u32 {
        let join =
            Join::Syn { backup: false, address_id: AddressId(1), token: Token(index), nonce: NONCES[0] };
        let [syn, ..] = handshake(1);
        let syn = syn.mptcp(MptcpOption::Join(join)).with_port(1 + index as u16);
        builder.at(0, MILLISECOND * u64::from(1 + index), &syn);
        if index % 2 == 0 {
            let reset = Packet::new(1, 1, 0, 1).flags(Flags::RST | Flags::ACK).with_port(1 + index as u16);
            builder.at(0, MILLISECOND * u64::from(1 + index) + 1000, &reset);
        }
    }
    for live_limit in [50, 100_000] {
        let (sink, totals) = streamed(&builder.files(), live_limit);
        assert_eq!(totals.unanswered_joins, 10_000);
        assert_eq!(sink.connections.len(), 1);
        assert!(!sink.connections[0].evicted);
    }
}

/// Fails at the first result of a kind.
struct Fails {
    at_interval: bool,
    calls: u32,
}

impl Sink for Fails {
    fn interval(&mut self, _: &Interval) -> io::Result<()> {
        self.calls += 1;
        if self.at_interval { Err(io::Error::other("full")) } else { Ok(()) }
    }

    fn connection(&mut self, _: Connection) -> io::Result<()> {
        self.calls += 1;
        Err(io::Error::other("full"))
    }
}

#[test]
fn sink_error_ends_reading() {
    let files = among_half_open(2000).files();
    for at_interval in [true, false] {
        let options = ReadOptions {
            live_limit: 10,
            interval: at_interval.then_some(Duration::from_millis(1)),
            ..ReadOptions::default()
        };
        let mut sink = Fails { at_interval, calls: 0 };
        let error = read(captures(&files), options, &mut sink).expect_err("the sink fails");
        assert!(matches!(&error, ReadError::Sink(source) if source.to_string() == "full"), "{error:?}");
        assert_eq!(sink.calls, 1, "nothing comes after it");
    }
}
