use plait_wire::Segment;
use plait_wire::mptcp::{Capable, CapableKeys, DataSeq, Dss, Mapping, SubflowSeq};
use plait_wire::tcp::Flags;

use super::live::State;
use super::{Seen, carries};
use crate::flow::{Flow, FlowKind, Half, Mapped, Signals};
use crate::stream::Novelty;
use crate::{Connection, Direction, EventKind, Fallback, PathId, Protocol};

impl State {
    /// What a segment acknowledges, maps and carries. Tells what its data means to the connection.
    pub(super) fn data(
        &mut self,
        index: usize,
        flow: &mut Flow,
        direction: Direction,
        segment: &Segment<'_>,
        signals: &Signals,
        seen: Seen,
    ) -> Novelty {
        let Seen { path, time } = seen;
        let connection = &mut self.live[index].connection;
        let (bytes, carries) = (carries(segment), carries(segment) > 0);
        if carries {
            connection.carries_payload(path, time);
        }
        if flow.kind == FlowKind::MidStream && connection.protocol == Protocol::Tcp && carries {
            // Data without any sign of MPTCP.
            flow.kind = FlowKind::Plain;
        }
        let acknowledged = connection.stream_mut(direction.reverse());
        if let Some(Dss { data_ack: Some(data_ack), .. }) = signals.dss {
            if let Some(position) = acknowledged.position(data_ack) {
                acknowledged.acknowledged(position, time);
            }
        } else if flow.kind == FlowKind::Plain
            && let Some(position) = acknowledged_position(flow, direction, segment)
        {
            acknowledged.delivered(position, time);
        }
        let kind = flow.kind;
        let half = flow.half(direction);
        match place(half, kind, segment, signals) {
            Some(place) => {
                map(half, connection, direction, kind, signals, carries);
                if carries {
                    return self.carry(index, direction, flow, place, segment, seen);
                }
            }
            None => {
                self.beside.unmapped += bytes;
                half.sender.tally.unmapped += bytes;
            }
        }
        Novelty::default()
    }

    /// A segment that was seen where its flow is observed, and crossed another path too.
    pub(super) fn crossed_again(
        &mut self,
        flow: &mut Flow,
        segment: &Segment<'_>,
        signals: &Signals,
        path: PathId,
    ) {
        self.beside.other_side += 1;
        let Some(index) = flow.connection.filter(|_| carries(segment) > 0) else { return };
        let (kind, direction) = (flow.kind, flow.direction(segment.source));
        let stream = self.live[index].connection.stream_mut(direction);
        let half = flow.half(direction);
        let Some(place) = place(half, kind, segment, signals) else { return };
        if let Some((mapping, data_fin)) = mapping(signals)
            && let (_, None) = half.next_part(place, place + 1)
            && let Some(position) = stream.position(mapping.data_seq)
        {
            // It was seen longer ago than mappings are kept.
            let start = half.place_of(mapping.subflow_seq.0);
            let length = i64::from(mapping.length) - i64::from(data_fin);
            half.map(Mapped { start, end: start + length, position });
        }
        for (range, captured) in parts(half, place, segment) {
            if let Some(position) = range.position {
                let positions = position..position + range.length;
                self.beside.payload_dropped += stream.crossed(path, positions, captured, &mut self.budget);
            }
        }
    }

    /// Moves the payload of a segment, which starts at `place` of its half, to where it belongs in the stream.
    fn carry(
        &mut self,
        index: usize,
        direction: Direction,
        flow: &mut Flow,
        place: i64,
        segment: &Segment<'_>,
        Seen { path, time }: Seen,
    ) -> Novelty {
        let subflow = flow.subflow;
        let half = flow.half(direction);
        let stream = self.live[index].connection.stream_mut(direction);
        let (mut sum, mut unmapped, mut carried) = (Novelty::default(), 0, None);
        for (Part { position, length }, captured) in parts(half, place, segment) {
            let Some(position) = position else {
                unmapped += length;
                continue;
            };
            let positions = position..position + length;
            sum += stream.carry(subflow, positions.clone(), time);
            self.beside.payload_dropped += stream.crossed(path, positions, captured, &mut self.budget);
            let start = stream.relative(position);
            let (first, end) = carried.unwrap_or((start, start));
            carried = Some((first.min(start), end.max(start.saturating_add_unsigned(length))));
        }
        self.beside.unmapped += unmapped;
        let Half { sender, checksum, interval, .. } = half;
        let tally = &mut sender.tally;
        tally.unmapped += unmapped;
        tally.new += sum.new;
        tally.reinjected.add(sum.reinjected);
        tally.repeated += sum.repeated;
        checksum.data(place, segment.payload(), segment.payload_len as usize, &mut tally.checksums);
        if let Some(counts) = interval.counts() {
            counts.new += sum.new;
            counts.reinjected += sum.reinjected;
            if let Some((start, end)) = carried {
                counts.carried(start..end);
            }
        }
        sum
    }
}

/// Consecutive bytes of a segment that are mapped alike.
struct Part {
    /// Where they start in the stream, if anything tells.
    position: Option<u64>,
    length: u64,
}

/// The payload of a segment, which starts at `place` of its half, cut where mappings end, each with what was captured
/// of it.
fn parts<'a>(half: &Half, place: i64, segment: &Segment<'a>) -> impl Iterator<Item = (Part, &'a [u8])> {
    let captured = segment.payload();
    let (mut at, end) = (place, place + i64::from(segment.payload_len));
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (part_end, position) = half.next_part(at, end);
        let from = captured.len().min((at - place) as usize);
        let to = captured.len().min((part_end - place) as usize);
        let length = (part_end - at) as u64;
        at = part_end;
        Some((Part { position, length }, &captured[from..to]))
    })
}

/// The position in the stream of the other side that an acknowledgement of TCP names.
fn acknowledged_position(flow: &mut Flow, direction: Direction, segment: &Segment<'_>) -> Option<u64> {
    if !segment.tcp.flags().contains(Flags::ACK) {
        return None;
    }
    let half = flow.half(direction.reverse());
    let place = half.place_of(segment.tcp.ack().since(half.isn()?));
    let (_, position) = half.next_part(place - 1, place);
    position.map(|last| last + 1)
}

/// The mapping in a segment, and whether its last number stands for a DATA_FIN.
fn mapping(signals: &Signals) -> Option<(Mapping, bool)> {
    signals.dss.and_then(|dss| dss.mapping.map(|mapping| (mapping, dss.data_fin)))
}

/// The place in its half at which a segment's data starts; `None` when nothing tells.
fn place(half: &mut Half, kind: FlowKind, segment: &Segment<'_>, signals: &Signals) -> Option<i64> {
    let syn = segment.tcp.flags().contains(Flags::SYN);
    let seq = segment.tcp.seq().advance(u32::from(syn));
    if half.isn().is_none() {
        match (kind, mapping(signals)) {
            // The first byte seen becomes the first of the stream.
            (FlowKind::Plain, _) => half.learn_isn(seq.advance(u32::MAX)),
            // Right unless the segment is a later part of what the mapping covers.
            (_, Some((Mapping { subflow_seq, .. }, _))) if subflow_seq.0 != 0 => {
                half.learn_isn(seq.advance(subflow_seq.0.wrapping_neg()));
            }
            _ => {}
        }
    }
    half.place(seq)
}

/// Takes note of what a segment says about where the data of its half belongs.
fn map(
    half: &mut Half,
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
        let mapped = Mapped { start: 1, end: 1 + i64::from(data.length), position };
        if let (Some(checksum), Some(number)) = (data.checksum, stream.number(position)) {
            half.checksum.begin(mapped.start..mapped.end, number, SubflowSeq(1), data.length, checksum);
        }
        half.map(mapped);
        stream.reaches(position + u64::from(data.length));
    } else if let Some((mapping, data_fin)) = mapping(signals) {
        let Some(position) = stream.position(mapping.data_seq) else { return };
        let length = i64::from(mapping.length) - i64::from(data_fin);
        let start = half.place_of(mapping.subflow_seq.0);
        stream.reaches(position.saturating_add_signed(length.max(0)));
        if mapping.is_infinite() {
            half.map(Mapped { start, end: i64::MAX, position });
            let failed = connection.events.iter().any(|event| matches!(event.kind, EventKind::Fail(_)));
            let cause = if failed { Fallback::ChecksumFailed } else { Fallback::InfiniteMapping };
            connection.fallback.get_or_insert(cause);
        } else if length > 0 {
            let mapped = Mapped { start, end: start + length, position };
            if let (Some(checksum), Some(number)) = (mapping.checksum, stream.number(position))
                && !half.is_mapped(&mapped)
            {
                let Mapping { subflow_seq, length, .. } = mapping;
                half.checksum.begin(start..mapped.end, number, subflow_seq, length, checksum);
            }
            half.map(mapped);
        }
    } else if has_payload && !half.mapped_ever() {
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
            half.map(Mapped { start: 1, end: i64::MAX, position });
            if kind == FlowKind::Initial {
                connection.fallback.get_or_insert(Fallback::NoMapping);
            }
        }
    }
}
