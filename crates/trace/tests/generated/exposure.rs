//! Exposure of generated captures, compared with arrays that have one entry per byte.

use std::ops::Range;
use std::time::Duration;

use crate::generate::{CLIENT_KEY, Net, PLAIN_STYLE, SERVER_KEY, Side, Style, read};
use plait_trace::{ByteRanges, Connections, Direction, Fallback, PathId, Protocol, ReadOptions, SenderStats};
use plait_wire::mptcp::{Capable, CapableFlags, CapableKeys, FirstData, Key, MptcpOption, Token, Version};
use plait_wire::tcp::Flags;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// The byte at an offset of a side's stream.
fn byte(side: Side, offset: u64) -> u8 {
    (offset.wrapping_mul(31) >> 3) as u8 ^ side as u8
}

fn bytes(side: Side, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|offset| byte(side, offset)).collect()
}

fn path(connections: &Connections, index: usize) -> PathId {
    connections.path(&format!("path{index}")).expect("a path of that name")
}

fn run(range: Range<u64>) -> ByteRanges {
    std::iter::once(range).collect()
}

/// A piece of a stream in transit.
#[derive(Clone, Debug)]
struct Piece {
    path: usize,
    side: Side,
    offset: u64,
    len: usize,
    /// The mapped data is sent in segments of this length.
    segment_len: usize,
    /// Only the first segment carries the mapping.
    mapping_once: bool,
    /// All of it is retransmitted with the same subflow sequence numbers.
    again: bool,
}

fn piece(paths: usize) -> impl Strategy<Value = Piece> {
    (0..paths, 0..2usize, 0..5000u64, 1..1500usize, 1..1500usize, any::<(bool, bool)>()).prop_map(
        |(path, side, offset, len, segment_len, (mapping_once, again))| Piece {
            path,
            side,
            offset,
            len,
            segment_len,
            mapping_once,
            again,
        },
    )
}

fn transmit(net: &mut Net, piece: &Piece) {
    let relative = net.reserve(piece.path, piece.side, piece.len);
    let mapping = net.mapping(piece.side, piece.offset, relative, piece.len);
    let data = bytes(piece.side, piece.offset, piece.len);
    for _ in 0..1 + usize::from(piece.again) {
        for (index, part) in data.chunks(piece.segment_len).enumerate() {
            let mapping = (index == 0 || !piece.mapping_once).then_some(mapping);
            let relative = relative + (index * piece.segment_len) as u32;
            net.segment(piece.path, piece.side, relative, mapping, part);
        }
    }
}

fn style() -> impl Strategy<Value = Style> {
    let snap_len = select(vec![262_144, 120]);
    (select(vec![Version::V0, Version::V1]), any::<bool>(), snap_len)
        .prop_map(|(version, full, snap_len)| Style { version, full, snap_len })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Segments of any size, with mappings repeated or not, retransmitted, reinjected on other paths, in any order,
    /// with 64-bit or 32-bit sequence numbers, truncated by the snap length or not.
    #[test]
    fn every_byte_is_exposed_where_it_crossed(style in style(), pieces in vec(piece(3), 1..40)) {
        let mut net = Net::new(3, style);
        net.open(0);
        net.join(1);
        net.join(2);
        pieces.iter().for_each(|piece| transmit(&mut net, piece));
        let found = read(&net.files(), ReadOptions::default());

        prop_assert_eq!(found.connections.len(), 1);
        prop_assert_eq!((found.totals.unmapped, found.totals.payload_dropped, found.totals.damaged.len()), (0, 0, 0));
        let connection = &found.connections[0];
        prop_assert_eq!(connection.protocol, Protocol::Mptcp(style.version));
        prop_assert_eq!(connection.subflows.len(), 3);
        prop_assert!(!connection.partial && connection.fallback.is_none());
        for (side, direction) in Direction::BOTH.into_iter().enumerate() {
            let stream = connection.stream(direction);
            let sent = || pieces.iter().filter(|piece| piece.side == side);
            let length = sent().map(|piece| piece.offset + piece.len as u64).max().unwrap_or(0);
            prop_assert_eq!(stream.length(), length);
            for index in 0..3 {
                let mut seen = vec![false; length as usize];
                for piece in sent().filter(|piece| piece.path == index) {
                    seen[piece.offset as usize..][..piece.len].fill(true);
                }
                check_exposure(&found, direction, index, &seen)?;
                check_payload(&found, side, index, &seen, style.snap_len > 1000)?;
            }
        }
    }

    /// Without keys, positions count from the first byte captured, and 64-bit numbers resolve the ambiguity of 32-bit
    /// ones.
    #[test]
    fn joined_subflow_alone_without_keys(
        pieces in vec(piece(1), 1..20),
        full in vec(any::<bool>(), 20),
    ) {
        let mut net = Net::new(1, PLAIN_STYLE);
        net.join(0);
        for (piece, full) in pieces.iter().zip(&full) {
            let relative = net.reserve(0, piece.side, piece.len);
            let mut mapping = net.mapping(piece.side, piece.offset, relative, piece.len);
            if !full {
                let low = net.data_seq(piece.side, piece.offset).0 as u32;
                mapping.data_seq = plait_wire::mptcp::SeqField::Low32(low);
            }
            net.segment(0, piece.side, relative, Some(mapping), &bytes(piece.side, piece.offset, piece.len));
        }
        let found = read(&net.files(), ReadOptions::default());
        prop_assert_eq!(found.connections.len(), 1);
        prop_assert!(found.connections[0].partial);
        for (side, direction) in Direction::BOTH.into_iter().enumerate() {
            let sent = || pieces.iter().filter(|piece| piece.side == side);
            let first = sent().map(|piece| piece.offset).min().unwrap_or(0);
            let expected: ByteRanges = sent()
                .map(|piece| piece.offset - first..piece.offset - first + piece.len as u64)
                .collect();
            prop_assert_eq!(found.connections[0].stream(direction).exposed(path(&found, 0)), &expected);
        }
    }

    /// Damaged captures cause no panic, and every byte is counted.
    #[test]
    fn damaged_captures_never_panic(
        style in style(),
        pieces in vec(piece(2), 1..10),
        damage in vec((0..2usize, any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut net = Net::new(2, style);
        net.open(0);
        net.join(1);
        pieces.iter().for_each(|piece| transmit(&mut net, piece));
        let mut files = net.files();
        for (file, index, value) in damage {
            // The file header stays unchanged.
            let index = 24 + index.index(files[file].len() - 24);
            files[file][index] = value;
        }
        let interval = Some(Duration::from_millis(1));
        let found = read(&files, ReadOptions { payload_limit: 1 << 20, interval, ..ReadOptions::default() });
        for connection in &found.connections {
            for direction in Direction::BOTH {
                let (mut total, mut total_in_series) = (0, 0);
                for SenderStats { bytes, new, reinjected, repeated, unmapped, .. } in
                    connection.subflows.iter().map(|subflow| subflow.sent(direction))
                {
                    prop_assert_eq!(*bytes, new + reinjected.bytes + repeated + unmapped);
                    total += bytes;
                }
                for interval in &found.intervals {
                    if (interval.connection, interval.direction) == (connection.id, direction) {
                        total_in_series += interval.counts.bytes;
                    }
                }
                prop_assert_eq!(total, total_in_series);
                for (path, _) in found.paths() {
                    let exposure = connection.stream(direction).exposure(path);
                    prop_assert!((0.0..=1.0).contains(&exposure.fraction), "{exposure:?}");
                }
            }
        }
    }
}

fn check_exposure(
    found: &Connections,
    direction: Direction,
    index: usize,
    seen: &[bool],
) -> Result<(), TestCaseError> {
    let exposure = found.connections[0].stream(direction).exposure(path(found, index));
    let count = seen.iter().filter(|seen| **seen).count();
    let runs: Vec<usize> = seen.split(|seen| !seen).map(<[bool]>::len).filter(|len| *len > 0).collect();
    prop_assert_eq!(exposure.bytes, count as u64);
    prop_assert_eq!(exposure.runs, runs.len());
    prop_assert_eq!(exposure.longest_run, runs.iter().max().copied().unwrap_or(0) as u64);
    let fraction = if seen.is_empty() { 0.0 } else { count as f64 / seen.len() as f64 };
    prop_assert_eq!(exposure.fraction, fraction);
    Ok(())
}

fn check_payload(
    found: &Connections,
    side: Side,
    index: usize,
    seen: &[bool],
    whole: bool,
) -> Result<(), TestCaseError> {
    let stream = found.connections[0].stream(Direction::BOTH[side]);
    let payload = stream.payload(path(found, index)).bytes(0..seen.len() as u64);
    for (offset, (captured, seen)) in payload.iter().zip(seen).enumerate() {
        match captured {
            Some(captured) => prop_assert!(*seen && *captured == byte(side, offset as u64)),
            None => prop_assert!(!whole || !seen),
        }
    }
    Ok(())
}

#[test]
fn first_data_in_mp_capable_is_mapped() {
    let mut net = Net::new(1, PLAIN_STYLE);
    let capable =
        |keys| vec![MptcpOption::Capable(Capable { version: Version::V1, flags: CapableFlags::HMAC, keys })];
    let both = |data| {
        capable(CapableKeys::Both { sender: Key::new(CLIENT_KEY), receiver: Key::new(SERVER_KEY), data })
    };
    let server = CapableKeys::Sender(Key::new(SERVER_KEY));
    net.handshake(0, [capable(CapableKeys::None), capable(server), both(None)]);
    let relative = net.reserve(0, 0, 300);
    let first = FirstData { length: 300, checksum: None };
    net.packet(0, 0, relative, Flags::ACK, both(Some(first)), &bytes(0, 0, 300));
    net.send(0, 0, 300, &bytes(0, 300, 50));
    let found = read(&net.files(), ReadOptions::default());
    let stream = found.connections[0].stream(Direction::ClientToServer);
    assert_eq!(stream.exposed(path(&found, 0)), &run(0..350));
    assert_eq!(
        stream.payload(path(&found, 0)).bytes(290..310),
        bytes(0, 290, 20).into_iter().map(Some).collect::<Vec<_>>()
    );
}

#[test]
fn infinite_mapping_covers_all_later_data() {
    let mut net = Net::new(1, PLAIN_STYLE);
    net.open(0);
    net.send(0, 1, 0, &bytes(1, 0, 100));
    let relative = net.reserve(0, 1, 500);
    let infinite = net.mapping(1, 100, relative, 0);
    net.segment(0, 1, relative, Some(infinite), &bytes(1, 100, 200));
    net.segment(0, 1, relative + 200, None, &bytes(1, 300, 300));
    let found = read(&net.files(), ReadOptions::default());
    let stream = found.connections[0].stream(Direction::ServerToClient);
    assert_eq!(stream.exposed(path(&found, 0)), &run(0..600));
    assert_eq!(found.totals.unmapped, 0);
}

#[test]
fn first_data_without_mapping_is_a_fallback() {
    let mut net = Net::new(1, PLAIN_STYLE);
    net.open(0);
    net.segment(0, 1, 1, None, &bytes(1, 0, 200));
    net.segment(0, 1, 301, None, &bytes(1, 300, 100));
    let found = read(&net.files(), ReadOptions::default());
    let stream = found.connections[0].stream(Direction::ServerToClient);
    assert_eq!(stream.exposed(path(&found, 0)).runs(), [0..200, 300..400]);
    assert_eq!(found.connections[0].fallback, Some(Fallback::NoMapping));
}

#[test]
fn peer_without_mptcp_falls_back_to_tcp() {
    for asked in [true, false] {
        let mut net = Net::new(2, PLAIN_STYLE);
        let capable = Capable { version: Version::V1, flags: CapableFlags::HMAC, keys: CapableKeys::None };
        let syn = if asked { vec![MptcpOption::Capable(capable)] } else { Vec::new() };
        net.handshake(1, [syn, Vec::new(), Vec::new()]);
        net.segment(1, 0, 1, None, &bytes(0, 0, 500));
        net.segment(1, 1, 1, None, &bytes(1, 0, 1000));
        net.segment(1, 1, 2001, None, &bytes(1, 2000, 1000));
        let found = read(&net.files(), ReadOptions::default());
        assert_eq!(found.connections.len(), 1);
        let connection = &found.connections[0];
        assert_eq!(
            (connection.protocol, connection.fallback),
            (Protocol::Tcp, asked.then_some(Fallback::NoCapable))
        );
        let stream = connection.stream(Direction::ServerToClient);
        assert_eq!(stream.length(), 3000);
        assert_eq!(stream.exposed(path(&found, 1)).runs(), [0..1000, 2000..3000]);
        assert_eq!(stream.exposure(path(&found, 0)).bytes, 0);
        assert_eq!(connection.stream(Direction::ClientToServer).exposure(path(&found, 1)).fraction, 1.0);
    }
}

#[test]
fn data_fin_is_not_payload() {
    let mut net = Net::new(1, PLAIN_STYLE);
    net.open(0);
    net.send(0, 1, 0, &bytes(1, 0, 100));
    net.data_fin(0, 1, 150);
    let found = read(&net.files(), ReadOptions::default());
    let stream = found.connections[0].stream(Direction::ServerToClient);
    assert_eq!(stream.length(), 150, "50 bytes were missed");
    assert_eq!(stream.exposed(path(&found, 0)), &run(0..100));
}

#[test]
fn first_flight_ends_at_first_data_ack() {
    let mut net = Net::new(2, PLAIN_STYLE);
    net.open(0);
    net.data_ack(0, 1, 0);
    net.send(0, 0, 0, &bytes(0, 0, 100));
    let first_payload = net.now();
    net.send(0, 0, 100, &bytes(0, 100, 100));
    net.data_ack(0, 1, 100);
    let first_acked = net.now();
    net.send(0, 0, 200, &bytes(0, 200, 100));
    net.data_ack(0, 1, 200);
    let acked = net.now();
    net.join(1);
    net.send(1, 0, 300, &bytes(0, 300, 100));
    let second_path = net.now();
    net.data_ack(1, 1, 400);
    let found = read(&net.files(), ReadOptions::default());
    let connection = &found.connections[0];
    let flight = connection.stream(Direction::ClientToServer).first_flight().expect("an acknowledgement");
    assert_eq!((flight.length, flight.first_acked, flight.acked), (200, first_acked, Some(acked)));
    assert_eq!(connection.first_payload(path(&found, 0)), Some(first_payload));
    assert_eq!(connection.first_payload(path(&found, 1)), Some(second_path));
    assert!(connection.stream(Direction::ServerToClient).first_flight().is_none());
}

#[test]
fn unaccepted_join_is_an_attempt() {
    let mut net = Net::new(2, PLAIN_STYLE);
    net.open(0);
    net.join_syn(1, Key::new(SERVER_KEY).token(Version::V1));
    let found = read(&net.files(), ReadOptions::default());
    assert_eq!(found.connections.len(), 1);
    let accepted: Vec<bool> = found.connections[0].subflows.iter().map(|subflow| subflow.accepted).collect();
    assert_eq!(accepted, [true, false]);
}

#[test]
fn joins_with_unknown_tokens_create_no_connections() {
    let mut net = Net::new(2, PLAIN_STYLE);
    net.open(0);
    (0..1000).for_each(|token| net.join_syn(1, Token(token)));
    let found = read(&net.files(), ReadOptions::default());
    assert_eq!((found.totals.packets, found.connections.len()), (1003, 1));
    assert_eq!(found.connections[0].subflows.len(), 1);
}

#[test]
fn unmapped_payload_is_counted() {
    let mut net = Net::new(2, PLAIN_STYLE);
    net.open(0);
    net.join_syn(1, Token(7));
    net.send(1, 0, 0, &bytes(0, 0, 100));
    let found = read(&net.files(), ReadOptions::default());
    assert_eq!(found.totals.unmapped, 100);
    assert_eq!(found.connections[0].stream(Direction::ClientToServer).length(), 0);
}

#[test]
fn payload_of_a_reset_is_not_data() {
    let mut net = Net::new(1, PLAIN_STYLE);
    net.handshake(0, [Vec::new(), Vec::new(), Vec::new()]);
    net.packet(0, 0, 1, Flags::RST, Vec::new(), b"no such service");
    let found = read(&net.files(), ReadOptions::default());
    assert_eq!(found.connections[0].stream(Direction::ClientToServer).length(), 0);
    assert_eq!(found.connections[0].first_payload(path(&found, 0)), None);
    assert_eq!(found.totals.unmapped, 0);
}

#[test]
fn truncated_capture_is_read_up_to_the_damage() {
    let mut net = Net::new(1, PLAIN_STYLE);
    net.open(0);
    net.send(0, 1, 0, &bytes(1, 0, 100));
    net.send(0, 1, 100, &bytes(1, 100, 100));
    let mut files = net.files();
    let len = files[0].len();
    files[0].truncate(len - 1);
    let found = read(&files, ReadOptions::default());
    assert_eq!(found.totals.damaged.len(), 1);
    let stream = found.connections[0].stream(Direction::ServerToClient);
    assert_eq!(stream.exposed(path(&found, 0)), &run(0..100));
}
