//! One direction of a connection as a stream of bytes.

mod coverage;
mod delivery;
mod payload;
mod reassembly;
mod stalls;

use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{DataSeq, SeqField};

use crate::byte_ranges::ByteRanges;
use crate::duration_stats::DurationStats;
use crate::exposure::Exposure;
use crate::path::PathId;
use crate::sender_stats::Volume;
use coverage::Coverage;
use delivery::DeliveryProgress;
use reassembly::Reassembly;

pub use payload::Payload;

/// One direction of a connection: the bytes that one side sent, numbered from 0, and which paths and subflows carried them.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// The data sequence number of the first byte (IDSN + 1), if the keys were captured.
    origin: Option<DataSeq>,
    anchor: Option<Anchor>,
    /// The position from which 32-bit sequence numbers are extended.
    latest: u64,
    /// The position after the last known byte.
    end: u64,
    /// The paths that it crossed.
    paths: Vec<(PathId, PathRecord)>,
    unused_path: PathRecord,
    carried: Coverage,
    carriers: Vec<Carrier>,
    reassembly: Reassembly,
    delivery: DeliveryProgress,
    flight: Option<Flight>,
}

/// A subflow's part in a stream.
#[derive(Clone, Debug, Default)]
struct Carrier {
    carried: Coverage,
    head_of_line: DurationStats,
    /// When it last carried new data.
    last_new: Option<Timestamp>,
    reinjected_elsewhere: ReinjectedElsewhere,
}

/// Data of a subflow that others have sent again since it was last heard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReinjectedElsewhere {
    pub(crate) reinjected: Volume,
    /// The first of those subflows.
    pub(crate) by: Option<usize>,
}

/// How the bytes of a segment count for the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarriedBytes {
    /// Carried by no subflow before.
    pub(crate) new: u64,
    /// Carried by others before, but not by this one.
    pub(crate) reinjected: u64,
    /// Carried by this subflow before.
    pub(crate) repeated: u64,
}

impl std::ops::AddAssign for CarriedBytes {
    fn add_assign(&mut self, other: Self) {
        self.new += other.new;
        self.reinjected += other.reinjected;
        self.repeated += other.repeated;
    }
}

/// Maps data sequence numbers to positions: `seq` is at [`BIAS`]. Sequence numbers wrap, positions do not, and the bias
/// leaves room for data before the first sequence number seen.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    seq: DataSeq,
    /// Whether the upper half of `seq` is known, not assumed to be zero.
    full: bool,
}

const BIAS: u64 = 1 << 62;

/// Maximum distance of a valid sequence number from the anchor: 2 EiB.
const MAX_DISTANCE: u64 = 1 << 61;

/// What crossed one path.
#[derive(Clone, Debug, Default)]
struct PathRecord {
    exposed: Coverage,
    payload: Payload,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    end: u64,
    first_acked: Timestamp,
    acked: Option<Timestamp>,
}

/// The data that a side sent before any of it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstFlight {
    /// Its length in bytes.
    pub length: u64,
    /// The first DATA_ACK that covered a part of it.
    pub first_acked: Timestamp,
    /// The first DATA_ACK that covered all of it.
    pub acked: Option<Timestamp>,
}

impl Stream {
    /// The stream's length: up to the last byte that was captured or mapped on any path.
    pub fn length(&self) -> u64 {
        self.end
    }

    /// Whether position 0 is the stream's first byte; otherwise it is the first byte captured.
    pub fn has_known_start(&self) -> bool {
        self.origin.is_some()
    }

    /// The bytes that crossed a path, whether or not the capture contains them: at least the last 32,768 runs.
    /// [`exposure`](Self::exposure) counts all.
    pub fn exposed(&self, path: PathId) -> &ByteRanges {
        self.path_record(path).exposed.latest()
    }

    /// How much of the stream crossed a path.
    pub fn exposure(&self, path: PathId) -> Exposure {
        self.path_record(path).exposed.exposure(self.end)
    }

    /// How much of the stream a subflow, given by its index, carried at least once.
    pub fn carried_by(&self, subflow: usize) -> Exposure {
        match self.carriers.get(subflow) {
            Some(carrier) => carrier.carried.exposure(self.end),
            None => Exposure::new(&ByteRanges::new(), self.end),
        }
    }

    /// Head-of-line blocking: how long out-of-order data of a subflow, given by its index, waited at the place of the
    /// capture for earlier data of other subflows, or for lost data. Segments in order give no sample.
    pub fn head_of_line(&self, subflow: usize) -> Option<&DurationStats> {
        self.carriers.get(subflow).map(|carrier| &carrier.head_of_line)
    }

    /// When the whole stream was acknowledged, if it was.
    pub fn completed(&self) -> Option<Timestamp> {
        self.delivery.completed(self.end)
    }

    /// The part of the stream that the capture of a path contains.
    pub fn payload(&self, path: PathId) -> &Payload {
        &self.path_record(path).payload
    }

    /// The first flight; `None` without a DATA_ACK beyond the start, or if the start is unknown.
    pub fn first_flight(&self) -> Option<FirstFlight> {
        self.flight.map(|Flight { end, first_acked, acked }| FirstFlight { length: end, first_acked, acked })
    }

    fn path_record(&self, path: PathId) -> &PathRecord {
        let found = self.paths.iter().find(|(on, _)| *on == path);
        found.map_or(&self.unused_path, |(_, path_record)| path_record)
    }

    pub(crate) fn new() -> Self {
        Self { latest: BIAS, ..Self::default() }
    }

    /// Sets the data sequence number of the first byte.
    pub(crate) fn learn_origin(&mut self, origin: DataSeq) {
        if self.origin.is_some() {
            return;
        }
        self.origin = Some(origin);
        self.resolve_anchor(origin);
        if let Some(start) = self.origin_position() {
            self.reassembly.starts(start);
        }
    }

    fn resolve_anchor(&mut self, origin: DataSeq) {
        match self.anchor {
            None => self.anchor = Some(Anchor { seq: origin, full: true }),
            Some(Anchor { full: true, .. }) => {}
            Some(Anchor { seq, full: false }) => {
                // Only 32-bit sequence numbers were seen. The anchor, the first of them, is taken to lie less than 2^32
                // after the origin.
                let distance = (seq.0 as u32).wrapping_sub(origin.0 as u32);
                self.anchor = Some(Anchor { seq: origin.advance(distance.into()), full: true });
            }
        }
    }

    /// The position of a data sequence number; `None` if it cannot belong to this stream.
    pub(crate) fn position(&mut self, field: SeqField) -> Option<u64> {
        let anchor = match (self.anchor, field) {
            (Some(anchor @ Anchor { full: true, .. }), _) => anchor,
            (Some(anchor), SeqField::Low32(_)) => anchor,
            (Some(Anchor { seq, .. }), SeqField::Full(full)) => {
                // The lower halves give the distance; the upper half is now known.
                let near = seq.advance(self.latest.wrapping_sub(BIAS));
                let distance = SeqField::Low32(full.0 as u32).extend(near).since(seq);
                Anchor { seq: DataSeq(full.0.wrapping_sub(distance)), full: true }
            }
            (None, SeqField::Full(seq)) => Anchor { seq, full: true },
            (None, SeqField::Low32(low)) => Anchor { seq: DataSeq(low.into()), full: false },
        };
        self.anchor = Some(anchor);
        let near = anchor.seq.advance(self.latest.wrapping_sub(BIAS));
        let position = BIAS.wrapping_add(field.extend(near).since(anchor.seq));
        if position.abs_diff(BIAS) > MAX_DISTANCE {
            return None;
        }
        self.latest = position;
        Some(position)
    }

    /// A position relative to the first byte, or to the first captured byte as long as that is unknown.
    pub(crate) fn relative(&self, position: u64) -> i64 {
        position.wrapping_sub(self.origin_position().unwrap_or(BIAS)) as i64
    }

    /// The data sequence number of a position.
    pub(crate) fn number(&self, position: u64) -> Option<DataSeq> {
        self.anchor.filter(|anchor| anchor.full).map(|anchor| anchor.seq.advance(position.wrapping_sub(BIAS)))
    }

    /// The position of the first byte, if known.
    pub(crate) fn origin_position(&self) -> Option<u64> {
        let anchor = self.anchor?;
        Some(BIAS.wrapping_add(self.origin?.since(anchor.seq)))
    }

    /// Records that the stream has bytes up to `end`.
    pub(crate) fn reaches(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Records that the bytes of `range`, of which `captured` are the first, crossed a path. Returns the number of captured
    /// bytes that exceed the budget.
    pub(crate) fn record_crossing(
        &mut self,
        path: PathId,
        range: Range<u64>,
        captured: &[u8],
        budget: &mut u64,
    ) -> u64 {
        let index = self.paths.iter().position(|(on, _)| *on == path).unwrap_or_else(|| {
            self.paths.reserve_exact(1);
            self.paths.push((path, PathRecord::default()));
            self.paths.len() - 1
        });
        let (_, path_record) = &mut self.paths[index];
        self.end = self.end.max(range.end);
        let kept = path_record.payload.write(range.start, captured, budget);
        path_record.exposed.insert(range);
        (captured.len() - kept) as u64
    }

    /// Records that a subflow carried the bytes of `range`.
    pub(crate) fn carry(&mut self, subflow: usize, range: Range<u64>, time: Timestamp) -> CarriedBytes {
        if self.carriers.len() <= subflow {
            // Most streams have one carrier, and a growing vector allocates four.
            if self.carriers.is_empty() {
                self.carriers.reserve_exact(subflow + 1);
            }
            self.carriers.resize_with(subflow + 1, Carrier::default);
        }
        let before = self.carried.overlap(range.clone());
        let repeated = self.carriers[subflow].carried.overlap(range.clone());
        let new = range.end - range.start - before;
        let reinjected = before.saturating_sub(repeated);
        if reinjected > 0 {
            self.record_reinjection(subflow, &range);
        }
        self.carried.insert(range.clone());
        let carrier = &mut self.carriers[subflow];
        carrier.carried.insert(range.clone());
        if new > 0 {
            carrier.last_new = Some(time);
        }
        self.delivery.sent(&range, time);
        let carriers = &mut self.carriers;
        self.reassembly.arrived(&range, subflow, time, |(subflow, waited)| {
            carriers[subflow].head_of_line.add(waited);
        });
        CarriedBytes { new, reinjected, repeated: before - reinjected }
    }

    /// Counts bytes that other subflows have carried before.
    fn record_reinjection(&mut self, subflow: usize, range: &Range<u64>) {
        for (_, carrier) in self.carriers.iter_mut().enumerate().filter(|(index, _)| *index != subflow) {
            let overlap = carrier.carried.overlap(range.clone());
            if overlap > 0 {
                carrier.reinjected_elsewhere.reinjected.add(overlap);
                carrier.reinjected_elsewhere.by.get_or_insert(subflow);
            }
        }
    }

    /// Records that the receiver was heard on a subflow: earlier reinjections were not caused by silence.
    #[inline]
    pub(crate) fn heard(&mut self, subflow: usize) {
        if let Some(carrier) = self.carriers.get_mut(subflow) {
            carrier.reinjected_elsewhere = ReinjectedElsewhere::default();
        }
    }

    /// Data of a subflow that others have sent again since the receiver was [`heard`](Self::heard) on it.
    pub(crate) fn reinjected_elsewhere(&self, subflow: usize) -> ReinjectedElsewhere {
        self.carriers
            .get(subflow)
            .map_or(ReinjectedElsewhere::default(), |carrier| carrier.reinjected_elsewhere)
    }

    /// The subflow that took over while another was silent: the one that ended the longest stall, or else the last one that
    /// carried new data.
    pub(crate) fn carried_on(&self, silent: usize, span: &Range<Timestamp>) -> Option<usize> {
        self.gap_filled_by(span).filter(|subflow| *subflow != silent).or_else(|| {
            let others = self.carriers.iter().enumerate().filter(|(subflow, _)| *subflow != silent);
            let times = others.filter_map(|(subflow, carrier)| Some((carrier.last_new?, subflow)));
            times.filter(|(time, _)| *time > span.start).max().map(|(_, subflow)| subflow)
        })
    }

    /// The subflow that filled the longest gap in the stream during a span of time.
    pub(crate) fn gap_filled_by(&self, span: &Range<Timestamp>) -> Option<usize> {
        self.reassembly.stalls.longest_in(span).map(|(_, subflow)| *subflow)
    }

    /// The longest time without delivery that overlaps with `span`; its end may be the present.
    pub(crate) fn longest_stall(&self, span: &Range<Timestamp>) -> Option<Duration> {
        self.delivery.longest_stall(span)
    }

    /// Records a DATA_ACK of everything before `position`.
    pub(crate) fn acknowledged(&mut self, position: u64, time: Timestamp) {
        self.delivered(position, time);
        if self.origin_position().is_none_or(|origin| position <= origin) {
            return;
        }
        let end = self.end;
        let flight = self.flight.get_or_insert(Flight { end, first_acked: time, acked: None });
        if position >= flight.end && flight.acked.is_none() {
            flight.acked = Some(time);
        }
    }

    /// Records any kind of acknowledgement of everything before `position`.
    pub(crate) fn delivered(&mut self, position: u64, time: Timestamp) {
        self.delivery.acknowledged(position, self.end, time);
        let carriers = &mut self.carriers;
        self.reassembly
            .delivered(position, time, |(subflow, waited)| carriers[subflow].head_of_line.add(waited));
    }

    /// Makes all positions relative to the first byte, at the end of the connection.
    pub(crate) fn finalize(&mut self) {
        let first_seen = self.paths.iter().filter_map(|(_, path_record)| path_record.exposed.start());
        let origin = self.origin_position().or(first_seen.min()).unwrap_or(self.end);
        self.end = self.end.saturating_sub(origin);
        for (_, path_record) in &mut self.paths {
            path_record.exposed.rebase(origin);
            path_record.payload.rebase(origin);
        }
        for carrier in &mut self.carriers {
            carrier.carried.rebase(origin);
        }
        self.delivery.rebase(origin);
        if let Some(flight) = &mut self.flight {
            flight.end = flight.end.saturating_sub(origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a stream whose lower half is about to wrap.
    const ORIGIN: DataSeq = DataSeq(0x7_ffff_ff00);

    fn low(offset: u64) -> SeqField {
        SeqField::Low32(ORIGIN.advance(offset).0 as u32)
    }

    #[test]
    fn extends_32_bit_numbers_beyond_their_range() {
        let mut stream = Stream::new();
        stream.learn_origin(ORIGIN);
        let origin = stream.origin_position().expect("the origin is set");
        for step in 0..10 {
            let offset = step * 0x6000_0000;
            assert_eq!(stream.position(low(offset)), Some(origin + offset));
        }
    }

    #[test]
    fn late_origin_resolves_32_bit_numbers() {
        let mut stream = Stream::new();
        let position = stream.position(low(5000)).expect("a first number is a position");
        stream.learn_origin(ORIGIN);
        assert_eq!(stream.origin_position(), Some(position - 5000));
        assert_eq!(stream.position(SeqField::Full(ORIGIN.advance(6000))), Some(position + 1000));
    }

    #[test]
    fn rejects_numbers_too_far_away() {
        let mut stream = Stream::new();
        stream.learn_origin(ORIGIN);
        assert_eq!(stream.position(SeqField::Full(ORIGIN.advance(1 << 62))), None);
    }
}
