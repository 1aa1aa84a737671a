//! A sample connection for tests.

use std::ops::Range;

use plait_wire::capture::Timestamp;

use crate::direction::Direction;
use crate::export::document::{
    Close, Connection, DirectionStats, DurationStats, Exposure, PerDirection, RttSource, Subflow, Time,
    Volume,
};
use crate::interval::{Interval, IntervalCounts};

/// Text that a CSV table has to quote.
pub(crate) const QUOTED: &str = "he said \"no, never\",\nand left";

const START: Time = Time(Timestamp(1_795_226_246_500_000_000));

/// A connection of two subflows.
pub(crate) fn connection(id: u64) -> Connection {
    Connection {
        id,
        version: Some(1),
        partial: false,
        evicted: false,
        fallback: Some(QUOTED),
        token_client: Some("5f0c21aa".into()),
        token_server: None,
        start: START,
        duration_s: 2.0,
        bytes: PerDirection::from_fn(|_| 1000 * id),
        new_bytes: PerDirection::from_fn(|_| 900 * id),
        completion_s: PerDirection::from_fn(|_| Some(1.5)),
        aggregation_benefit: PerDirection::from_fn(|_| None),
        reinjected: Volume::default(),
        subflows: (0..2).map(|index| subflow(id, index)).collect(),
        failovers: Vec::new(),
        events: Vec::new(),
        events_dropped: 0,
    }
}

fn subflow(id: u64, index: u16) -> Subflow {
    Subflow {
        src: ([192, 0, 2, 1], 40_000 + index).into(),
        dst: ([192, 0, 2, 9], 443).into(),
        joined: index > 0,
        accepted: true,
        authentic: None,
        backup: false,
        start: START,
        duration_s: 2.0,
        syn_rtt_ms: Some(0.25),
        close: Close { kind: "fin", by: None, reason: None },
        bytes: PerDirection::from_fn(|_| 500 * id),
        retransmitted: Volume::default(),
        reinjected: Volume::default(),
        rtt_ms: None,
        directions: PerDirection::from_fn(|direction| sent(id, direction)),
    }
}

fn sent(id: u64, direction: Direction) -> DirectionStats {
    let times = DurationStats { samples: 2, mean: 1.5, stddev: 0.5, min: 1.0, p50: 1.0, p95: 2.0, max: 2.0 };
    DirectionStats {
        packets: id,
        bytes: 500 * id,
        share: Some(0.5),
        new_bytes: 450 * id,
        repeated_bytes: 0,
        unmapped_bytes: 0,
        reinjected: Volume::default(),
        retransmitted: Volume { segments: 1, bytes: 50 * id },
        duplicate_bytes: 0,
        out_of_order: Volume::default(),
        rtt_ms: (direction == Direction::ServerToClient).then_some(times),
        rtt_source: (direction == Direction::ServerToClient).then_some(RttSource::Acks),
        ack_rtt_ms: None,
        ack_rtt_timestamps_ms: None,
        jitter_ms: None,
        interarrival_ms: None,
        head_of_line_ms: None,
        window: None,
        checksums: None,
        exposure: Exposure { bytes: 450 * id, fraction: 0.5, longest_run: 10, runs: 3 },
    }
}

/// An interval of the connection with this id; every third carried nothing.
pub(crate) fn interval(connection: u64, number: u64) -> Interval {
    let bytes = if number.is_multiple_of(3) { 0 } else { number };
    let positions: Range<i64> = number as i64..(number + bytes) as i64;
    Interval {
        connection,
        subflow: number as usize % 2,
        direction: Direction::ClientToServer,
        start: Timestamp(1_795_226_246_500_000_000 + number * 100_000_000),
        counts: IntervalCounts {
            packets: 1,
            bytes,
            new: bytes,
            positions: (bytes > 0).then_some(positions),
            ..IntervalCounts::default()
        },
    }
}
