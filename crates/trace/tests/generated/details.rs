//! Fallbacks, checksums, windows, wrapping sequence numbers, overlapping data, and reused ports.

use plait_trace::{Checksums, Connection, Direction, Fallback, Protocol, Subflow, Window};
use plait_wire::checksum;
use plait_wire::mptcp::{DataSeq, Dss, Mapping, MptcpOption, SeqField, SubflowSeq};
use plait_wire::tcp::{Flags, TcpOption};
use proptest::prelude::*;

use crate::captures::{
    CaptureBuilder, MILLISECOND, Packet, SECOND, data_seq, handshake, joining, opening, read,
};

const UP: Direction = Direction::ClientToServer;

fn one(packets: impl IntoIterator<Item = Packet<'static>>) -> Connection {
    let mut builder = CaptureBuilder::default();
    builder.all_at(0, 0, packets);
    let mut connections = read(&builder.files()).connections;
    assert_eq!(connections.len(), 1);
    connections.remove(0)
}

/// A connection that opens over path 0 and continues with these packets.
fn opened(packets: impl IntoIterator<Item = Packet<'static>>) -> Connection {
    one(opening(0).into_iter().chain(packets))
}

fn mapped(
    packet: Packet<'static>,
    offset: u64,
    length: u16,
    checksum: Option<u16>,
    fin: bool,
) -> Packet<'static> {
    let subflow_seq = SubflowSeq(packet.seq);
    let data_seq = SeqField::Full(data_seq(packet.side, offset));
    let mapping = Some(Mapping { data_seq, subflow_seq, length, checksum });
    packet.mptcp(MptcpOption::Dss(Dss { data_ack: None, mapping, data_fin: fin }))
}

#[test]
fn reports_cause_of_fallback() {
    let infinite = || mapped(Packet::new(0, 0, 101, 1), 100, 0, None, false).data(&[1; 50]);
    let first = || Packet::new(0, 0, 1, 1).carries(0, 100);
    let fail = || Packet::new(0, 1, 1, 101).mptcp(MptcpOption::Fail(DataSeq(7)));
    let [syn, ..] = opening(0);
    let [_, syn_ack, ack] = handshake(0);
    let plain = one([syn, syn_ack, ack]);
    assert_eq!((plain.protocol, plain.fallback), (Protocol::Tcp, Some(Fallback::NoCapable)));
    let cases = [
        (vec![first()], None),
        (vec![Packet::new(0, 0, 1, 1).data(&[1; 100])], Some(Fallback::NoMapping)),
        (vec![first(), infinite()], Some(Fallback::InfiniteMapping)),
        (vec![first(), fail(), infinite()], Some(Fallback::ChecksumFailed)),
        (vec![first(), fail()], None),
        // The first cause is reported.
        (vec![Packet::new(0, 0, 1, 1).data(&[1; 100]), infinite()], Some(Fallback::NoMapping)),
    ];
    for (packets, cause) in cases {
        let connection = opened(packets.clone());
        assert_eq!(connection.fallback, cause);
        let sent: u64 =
            packets.iter().filter(|packet| packet.side == 0).map(|packet| packet.data.len() as u64).sum();
        assert_eq!(connection.subflows[0].sent(UP).new, sent, "nothing is lost by a fallback");
        assert!(matches!(connection.protocol, Protocol::Mptcp(_)));
    }
    let tcp = one(handshake(0));
    assert_eq!((tcp.protocol, tcp.fallback), (Protocol::Tcp, None), "it was never asked for");
}

#[test]
fn counts_valid_and_invalid_checksums() {
    let data = b"seven b";
    let valid_sum = |length: u16| checksum::dss(data_seq(0, 0), SubflowSeq(1), length, data);
    let sent =
        |length, checksum, fin| mapped(Packet::new(0, 0, 1, 1), 0, length, Some(checksum), fin).data(data);
    let verified = |packets: Vec<Packet<'static>>| opened(packets).subflows[0].sent(UP).checksums;
    let sums = |valid, invalid| Checksums { valid, invalid };
    assert_eq!(verified(vec![sent(7, valid_sum(7), false)]), sums(1, 0));
    assert_eq!(verified(vec![sent(7, valid_sum(7) ^ 1, false)]), sums(0, 1));
    assert_eq!(verified(vec![sent(8, valid_sum(8), true)]), sums(1, 0), "a DATA_FIN is in the length");
    assert_eq!(verified(vec![Packet::new(0, 0, 1, 1).carries(0, 7)]), sums(0, 0), "there is none");
    // Data in two packets, of which the first has the mapping.
    let half = |place: usize, more: &[u8]| Packet::new(0, 0, 1 + place as u32, 1).data(more);
    let begun = || mapped(Packet::new(0, 0, 1, 1), 0, 7, Some(valid_sum(7)), false).data(&data[..3]);
    assert_eq!(verified(vec![begun(), half(3, &data[3..])]), sums(1, 0));
    assert_eq!(verified(vec![begun(), half(3, b"x b!")]), sums(0, 1));
    assert_eq!(verified(vec![begun()]), sums(0, 0), "it is cut");
    assert_eq!(verified(vec![begun(), half(4, &data[4..])]), sums(0, 0), "a byte is missing");
}

#[test]
fn window_uses_negotiated_scale() {
    let window = |scales: [Option<u8>; 2], announced: u16| {
        let [mut syn, mut syn_ack, mut ack] = opening(0);
        (syn.window, syn_ack.window, ack.window) = (60_000, 50_000, announced);
        let with = |packet: Packet<'static>, scale: Option<u8>| match scale {
            Some(shift) => packet.option(TcpOption::WindowScale(shift)),
            None => packet,
        };
        one([with(syn, scales[0]), with(syn_ack, scales[1]), ack]).subflows[0].sent(UP).window
    };
    // The window of a SYN is not scaled.
    let window_of = |min, max, last| Some(Window { min, max, last });
    assert_eq!(window([Some(7), Some(2)], 1000), window_of(60_000, 128_000, 128_000));
    assert_eq!(window([Some(7), None], 1000), window_of(1000, 60_000, 1000), "only one side offered");
    assert_eq!(window([None, Some(7)], 1000), window_of(1000, 60_000, 1000));
    assert_eq!(window([None, None], 1000), window_of(1000, 60_000, 1000));
    assert_eq!(window([Some(0), Some(0)], 1000), window_of(1000, 60_000, 1000));
    // RFC 7323 2.3: larger shifts count as 14.
    assert_eq!(window([Some(200), Some(2)], 1), window_of(1 << 14, 60_000, 1 << 14));
    let midway = one([Packet::new(0, 0, 1, 1).carries(0, 10)]);
    assert_eq!(midway.subflows[0].sent(UP).window, None, "the scale was not captured");
}

/// 32-bit data sequence numbers and subflow sequence numbers wrap more than once: steps of 1 GiB, with the packets in
/// between missing from the capture.
#[test]
fn distinguishes_positions_beyond_4_gib() {
    let step = 1u64 << 30;
    let packet = |index: u64| {
        let number = 1u32.wrapping_add((index * step) as u32);
        let data_seq = SeqField::Low32(data_seq(0, index * step).0 as u32);
        let mapping =
            Some(Mapping { data_seq, subflow_seq: SubflowSeq(number), length: 100, checksum: None });
        Packet::new(0, 0, number, 1)
            .mptcp(MptcpOption::Dss(Dss { data_ack: None, mapping, data_fin: false }))
            .data(&[7; 100])
    };
    let connection = opened((0..20).map(packet));
    let sent = connection.subflows[0].sent(UP);
    assert_eq!((sent.new, sent.retransmitted.bytes, sent.repeated), (2000, 0, 0));
    assert_eq!(connection.stream(UP).length(), 19 * step + 100);
    let exposure = connection.exposure(UP, 0);
    assert_eq!((exposure.bytes, exposure.runs, exposure.longest_run), (2000, 20, 100));
    // The last one is sent again at the end: repeated, not new.
    let again = opened((0..20).chain([19]).map(packet));
    let sent = again.subflows[0].sent(UP);
    assert_eq!((sent.new, sent.repeated, sent.retransmitted.bytes), (2000, 100, 100));
}

proptest! {
    /// Segments of one subflow that overlap in any way, each with a mapping consistent with the others, compared with a
    /// map of bytes.
    #[test]
    fn overlapping_segments_count_each_byte_once(
        segments in proptest::collection::vec((0..500u32, 1..200usize), 1..30),
    ) {
        let mut sent = std::collections::HashSet::new();
        let (mut new, mut all) = (0, 0);
        let packets: Vec<_> = segments.iter().map(|(start, len)| {
            all += *len as u64;
            new += (*start..*start + *len as u32).filter(|byte| sent.insert(*byte)).count() as u64;
            Packet::new(0, 0, 1 + start, 1).carries(u64::from(*start), *len)
        }).collect();
        let connection = opened(packets);
        let stats = connection.subflows[0].sent(UP);
        prop_assert_eq!((stats.bytes, stats.new, stats.repeated), (all, new, all - new));
        prop_assert_eq!(stats.retransmitted.bytes, all - new);
        prop_assert_eq!(connection.exposure(UP, 0).bytes, new);
    }
}

#[test]
fn reused_port_is_another_connection() {
    let mut builder = CaptureBuilder::default();
    let isns = [[100, 200], [5000, 6000], [9000, 1]];
    for (index, isn) in isns.into_iter().enumerate() {
        let begin = index as u64 * SECOND;
        let with = |mut packet: Packet<'static>| {
            packet.isn = isn;
            packet
        };
        builder.all_at(0, begin, handshake(0).map(with));
        let data = vec![1; 10 + index];
        builder.at(0, begin + MILLISECOND, &with(Packet::new(0, 0, 1, 1).data(&data)));
        // A retransmitted SYN is not a new connection.
        if index == 1 {
            let [syn, ..] = handshake(0).map(with);
            builder.at(0, begin + 500, &syn);
        }
        if index == 0 {
            let fins = [0, 1].map(|side| with(Packet::new(0, side, 11, 12)).flags(Flags::FIN | Flags::ACK));
            builder.all_at(0, begin + 2 * MILLISECOND, fins);
        }
    }
    let found = read(&builder.files()).connections;
    let bytes: Vec<_> = found.iter().map(|found| found.subflows[0].sent(UP).new).collect();
    assert_eq!(bytes, [10, 11, 12]);
    assert_eq!(found.iter().map(|found| found.id).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn syn_ends_connection_without_captured_opening() {
    let mut builder = CaptureBuilder::default();
    let old = |mut packet: Packet<'static>| {
        packet.isn = [70, 80];
        packet
    };
    builder.at(0, 0, &old(Packet::new(0, 0, 50, 60)));
    builder.all_at(0, SECOND, handshake(0));
    builder.at(0, SECOND + MILLISECOND, &Packet::new(0, 0, 1, 1).data(&[1; 10]));
    let found = read(&builder.files()).connections;
    assert_eq!(found.iter().map(|found| found.partial).collect::<Vec<_>>(), [true, false]);
    assert_eq!(found[1].subflows[0].sent(UP).new, 10);
}

/// How long each segment waited for earlier ones, computed by hand, by the subflow that carried it.
#[test]
fn measures_head_of_line_blocking() {
    let mut builder = CaptureBuilder::default();
    builder.all_at(0, 0, opening(0));
    builder.all_at(0, MILLISECOND, joining(1));
    let segments = [
        // Milliseconds, path, number, offset.
        (10, 0, 1, 0),
        (11, 1, 1, 200),   // waits for 100..200
        (13, 1, 101, 300), // the same
        (20, 0, 101, 100), // fills the gap: 9 and 7 ms
        (21, 0, 201, 500), // waits for 400..500
        (30, 1, 201, 400), // fills: 9 ms
    ];
    for (time, path, number, offset) in segments {
        builder.at(0, time * MILLISECOND, &Packet::new(path, 0, number, 1).carries(offset, 100));
    }
    let connection = read(&builder.files()).connections.remove(0);
    let waits = |subflow: usize| {
        let times = connection.stream(UP).head_of_line(subflow).expect("it carried something");
        let milliseconds = |time: Option<std::time::Duration>| time.map_or(0, |time| time.as_millis());
        (times.count(), milliseconds(times.min()), milliseconds(times.max()))
    };
    assert_eq!(waits(0), (1, 9, 9));
    assert_eq!(waits(1), (2, 7, 9));
    assert_eq!(connection.aggregation_benefit(UP), Some(2.0), "three segments each");
}

#[test]
fn stream_is_complete_when_last_byte_is_acknowledged() {
    let mut builder = CaptureBuilder::default();
    builder.all_at(0, 0, opening(0));
    builder.at(0, 10 * MILLISECOND, &Packet::new(0, 0, 1, 1).carries(0, 100));
    builder.at(0, 20 * MILLISECOND, &Packet::new(0, 0, 101, 1).carries(100, 100));
    builder.at(0, 30 * MILLISECOND, &Packet::new(0, 1, 1, 101).data_ack(100));
    let completion = |builder: &CaptureBuilder| read(&builder.files()).connections[0].completion(UP);
    assert_eq!(completion(&builder), None);
    builder.at(0, 40 * MILLISECOND, &Packet::new(0, 1, 1, 201).data_ack(200));
    let forty = Some(std::time::Duration::from_millis(40));
    assert_eq!(completion(&builder), forty);
    // A DATA_FIN, its acknowledgement, and a repeated acknowledgement change nothing.
    builder.at(0, 50 * MILLISECOND, &mapped(Packet::new(0, 0, 0, 1), 200, 1, None, true));
    builder.at(0, 60 * MILLISECOND, &Packet::new(0, 1, 1, 201).data_ack(201));
    builder.at(0, 70 * MILLISECOND, &Packet::new(0, 1, 1, 201).data_ack(201));
    assert_eq!(completion(&builder), forty);
    let accepted = |subflow: &Subflow| subflow.accepted;
    assert!(read(&builder.files()).connections[0].subflows.iter().all(accepted));
}
