//! Places the payload of segments in the streams of their connections.

use plait_wire::Segment;
use plait_wire::mptcp::{Capable, CapableKeys, DataSeq, Dss, Mapping, SubflowSeq};
use plait_wire::tcp::Flags;

use super::arrival_meters::CaptureOfFlow;
use super::flow::{Flow, FlowKind, FlowSide, Signals};
use super::live::State;
use super::mappings::StreamMapping;
use super::observation::{Observation, data_length};
use crate::connection::{Connection, Fallback, Protocol};
use crate::direction::Direction;
use crate::event::EventKind;
use crate::stream::CarriedBytes;
use crate::stream_event::StreamEventKind;

/// The offset of the first byte of a flow's data: the SYN's is 0.
const FIRST_BYTE: i64 = 1;

impl State {
    /// Processes the acknowledgement, mapping and payload of a segment.
    pub(super) fn data(
        &mut self,
        index: usize,
        flow: &mut Flow,
        direction: Direction,
        segment: &Segment<'_>,
        signals: &Signals,
        at: Observation,
    ) -> CarriedBytes {
        let Observation { path, time } = at;
        let connection = &mut self.live[index].connection;
        let bytes = data_length(segment);
        let carries = bytes > 0;
        if carries {
            connection.record_payload(path, time);
        }
        if flow.kind == FlowKind::MidStream && connection.protocol == Protocol::Tcp && carries && !signals.cut
        {
            // Data without any sign of MPTCP.
            flow.kind = FlowKind::Plain;
        }
        let acknowledged = connection.stream_mut(direction.reverse());
        let mut delivered = None;
        if let Some(Dss { data_ack: Some(data_ack), .. }) = signals.dss {
            delivered = acknowledged.position(data_ack);
            if let Some(position) = delivered {
                acknowledged.acknowledged(position, time);
            }
        } else if flow.kind == FlowKind::Plain {
            delivered = acknowledged_position(flow, direction, segment);
            if let Some(position) = delivered {
                acknowledged.delivered(position, time);
            }
        }
        if let Some(position) = delivered {
            self.stream_event(index, direction.reverse(), time, StreamEventKind::Delivered { position });
        }
        let connection = &mut self.live[index].connection;
        let kind = flow.kind;
        let side = flow.side(direction);
        match offset(side, kind, segment, signals) {
            // The receiver discards it: a keepalive, or what measures a path.
            Some(offset) if carries && is_before_first(kind, offset, bytes) => {
                side.sender.stats.unmapped += bytes;
                side.sender.stats.discarded += bytes;
            }
            Some(offset) => {
                map(side, connection, direction, kind, signals, carries);
                if carries {
                    return self.carry(index, direction, flow, offset, segment, at);
                }
            }
            None => {
                self.totals.unmapped += bytes;
                side.sender.stats.unmapped += bytes;
            }
        }
        CarriedBytes::default()
    }

    /// Processes a copy of a segment, captured on a path other than the one on which its flow is observed.
    pub(super) fn record_duplicate(
        &mut self,
        flow: &mut Flow,
        segment: &Segment<'_>,
        signals: &Signals,
        at: Observation,
    ) {
        self.totals.duplicate += 1;
        let Some(index) = flow.connection.filter(|_| data_length(segment) > 0) else { return };
        let (kind, direction) = (flow.kind, flow.direction(segment.source));
        let (path, vantage) = (at.path, flow.vantage(direction));
        let copy = CaptureOfFlow::Copy(path);
        flow.side(direction).arrivals.add(copy, at.time, signals.timestamps);
        flow.side(direction).count_jitter(copy, vantage);
        let stream = self.live[index].connection.stream_mut(direction);
        let side = flow.side(direction);
        let Some(offset) = offset(side, kind, segment, signals) else { return };
        if let Some((mapping, data_fin)) = mapping(signals)
            && let (_, None) = side.mappings.next_part(offset, offset + 1)
            && let Some(position) = stream.position(mapping.data_seq)
        {
            // The mapping is older than those kept.
            let start = side.offset_of(mapping.subflow_seq.0);
            let length = i64::from(mapping.length) - i64::from(data_fin);
            side.mappings.insert(StreamMapping { start, end: start + length, position });
        }
        for (range, captured) in parts(side, offset, segment) {
            if let Some(position) = range.position {
                let positions = position..position + range.length;
                self.totals.payload_dropped +=
                    stream.record_crossing(path, positions, captured, &mut self.budget);
            }
        }
    }

    /// Adds the payload of a segment, which starts at `offset` in its flow, to the stream.
    fn carry(
        &mut self,
        index: usize,
        direction: Direction,
        flow: &mut Flow,
        offset: i64,
        segment: &Segment<'_>,
        Observation { path, time }: Observation,
    ) -> CarriedBytes {
        let subflow = flow.subflow;
        let side = flow.side(direction);
        if self.stream_events {
            for (Part { position, length }, captured) in parts(side, offset, segment) {
                let Some(position) = position else { continue };
                let origin = self.live[index].connection.stream(direction).origin_position();
                let captured = captured.to_vec();
                let kind = StreamEventKind::Data { position, origin, length, captured };
                self.stream_event(index, direction, time, kind);
            }
        }
        let stream = self.live[index].connection.stream_mut(direction);
        let (mut sum, mut unmapped, mut carried) = (CarriedBytes::default(), 0, None);
        for (Part { position, length }, captured) in parts(side, offset, segment) {
            let Some(position) = position else {
                unmapped += length;
                continue;
            };
            let positions = position..position + length;
            sum += stream.carry(subflow, positions.clone(), time);
            self.totals.payload_dropped +=
                stream.record_crossing(path, positions, captured, &mut self.budget);
            let start = stream.relative(position);
            let (first, end) = carried.unwrap_or((start, start));
            carried = Some((first.min(start), end.max(start.saturating_add_unsigned(length))));
        }
        self.totals.unmapped += unmapped;
        let FlowSide { sender, checksum, interval, .. } = side;
        let stats = &mut sender.stats;
        stats.unmapped += unmapped;
        stats.new += sum.new;
        stats.reinjected.add(sum.reinjected);
        stats.repeated += sum.repeated;
        checksum.data(offset, segment.payload(), segment.payload_len as usize, &mut stats.checksums);
        if let Some(counts) = interval.counts() {
            counts.new += sum.new;
            counts.reinjected += sum.reinjected;
            if let Some((start, end)) = carried {
                counts.extend_positions(start..end);
            }
        }
        sum
    }
}

/// Whether bytes at an offset of a flow precede all that it carries, as far as its beginning is known.
fn is_before_first(kind: FlowKind, offset: i64, bytes: u64) -> bool {
    matches!(kind, FlowKind::Initial | FlowKind::Join(_))
        && offset.saturating_add_unsigned(bytes) <= FIRST_BYTE
}

/// Consecutive bytes of a segment with the same mapping.
struct Part {
    /// Their start in the stream; `None` if unmapped.
    position: Option<u64>,
    length: u64,
}

/// Splits the payload of a segment, which starts at `offset` in its flow, where mappings end; each part with its captured
/// bytes.
fn parts<'a>(side: &FlowSide, offset: i64, segment: &Segment<'a>) -> impl Iterator<Item = (Part, &'a [u8])> {
    let captured = segment.payload();
    let (mut at, end) = (offset, offset + i64::from(segment.payload_len));
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (part_end, position) = side.mappings.next_part(at, end);
        let from = captured.len().min((at - offset) as usize);
        let to = captured.len().min((part_end - offset) as usize);
        let length = (part_end - at) as u64;
        at = part_end;
        Some((Part { position, length }, &captured[from..to]))
    })
}

/// The position in the peer's stream that a TCP acknowledgement refers to.
fn acknowledged_position(flow: &mut Flow, direction: Direction, segment: &Segment<'_>) -> Option<u64> {
    if !segment.tcp.flags().contains(Flags::ACK) {
        return None;
    }
    let side = flow.side(direction.reverse());
    let offset = side.offset_of(segment.tcp.ack().since(side.isn()?));
    let (_, position) = side.mappings.next_part(offset - 1, offset);
    position.map(|last| last + 1)
}

/// The mapping in a segment, and whether it includes a DATA_FIN.
fn mapping(signals: &Signals) -> Option<(Mapping, bool)> {
    signals.dss.and_then(|dss| dss.mapping.map(|mapping| (mapping, dss.data_fin)))
}

/// The offset of a segment's data in its flow; `None` if unknown.
fn offset(side: &mut FlowSide, kind: FlowKind, segment: &Segment<'_>, signals: &Signals) -> Option<i64> {
    let syn = segment.tcp.flags().contains(Flags::SYN);
    let seq = segment.tcp.seq().advance(u32::from(syn));
    if side.isn().is_none() {
        match (kind, mapping(signals)) {
            // The first byte that was seen counts as the first of the stream.
            (FlowKind::Plain, _) => side.learn_isn(seq.advance(u32::MAX)),
            // Correct unless the segment is a later part of the mapping.
            (_, Some((Mapping { subflow_seq, .. }, _))) if subflow_seq.0 != 0 => {
                side.learn_isn(seq.advance(subflow_seq.0.wrapping_neg()));
            }
            _ => {}
        }
    }
    side.offset(seq)
}

/// Records the mapping in a segment.
fn map(
    side: &mut FlowSide,
    connection: &mut Connection,
    direction: Direction,
    kind: FlowKind,
    signals: &Signals,
    has_payload: bool,
) {
    let stream = connection.stream_mut(direction);
    if let Some(Capable { keys: CapableKeys::Both { data: Some(data), .. }, .. }) = &signals.capable
        && let Some(position) = stream.origin_position()
    {
        let mapped = StreamMapping { start: 1, end: 1 + i64::from(data.length), position };
        if let (Some(checksum), Some(number)) = (data.checksum, stream.number(position)) {
            side.checksum.begin(mapped.start..mapped.end, number, SubflowSeq(1), data.length, checksum);
        }
        side.mappings.insert(mapped);
        stream.reaches(position + u64::from(data.length));
    } else if let Some((mapping, data_fin)) = mapping(signals) {
        let Some(position) = stream.position(mapping.data_seq) else { return };
        let length = i64::from(mapping.length) - i64::from(data_fin);
        let start = side.offset_of(mapping.subflow_seq.0);
        stream.reaches(position.saturating_add_signed(length.max(0)));
        if mapping.is_infinite() {
            side.mappings.insert(StreamMapping { start, end: i64::MAX, position });
            let failed = connection.events.iter().any(|event| matches!(event.kind, EventKind::Fail(_)));
            let cause = if failed { Fallback::ChecksumFailed } else { Fallback::InfiniteMapping };
            connection.fallback.get_or_insert(cause);
        } else if length > 0 {
            let mapped = StreamMapping { start, end: start + length, position };
            if let (Some(checksum), Some(number)) = (mapping.checksum, stream.number(position))
                && side.mappings.newest() != Some(&mapped)
            {
                let Mapping { subflow_seq, length, .. } = mapping;
                side.checksum.begin(start..mapped.end, number, subflow_seq, length, checksum);
            }
            side.mappings.insert(mapped);
        }
    } else if has_payload && side.mappings.is_empty() {
        let origin = match kind {
            FlowKind::Plain => {
                stream.learn_origin(DataSeq(1));
                stream.origin_position()
            }
            // RFC 8684 3.7: data without a mapping at the start of a connection is plain TCP from there on.
            FlowKind::Initial if !signals.cut => stream.origin_position(),
            _ => None,
        };
        if let Some(position) = origin {
            side.mappings.insert(StreamMapping { start: 1, end: i64::MAX, position });
            if kind == FlowKind::Initial {
                connection.fallback.get_or_insert(Fallback::NoMapping);
            }
        }
    }
}
