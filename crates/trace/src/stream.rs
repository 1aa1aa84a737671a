use std::ops::Range;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{DataSeq, SeqField};

use crate::{ByteRanges, Exposure, PathId, Payload};

/// One direction of a connection: the bytes that one side sent, numbered from 0, and where they were seen.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The number of the first byte (IDSN + 1), where the keys were seen.
    origin: Option<DataSeq>,
    anchor: Option<Anchor>,
    /// The position that half sequence numbers are extended from.
    latest: u64,
    /// The position behind the last byte that is known to exist.
    end: u64,
    crossings: Vec<Crossing>,
    carried: Carried,
    flight: Option<Flight>,
}

/// What was carried, by all subflows together and by each.
#[derive(Clone, Debug, Default)]
struct Carried {
    by_any: ByteRanges,
    by_subflow: Vec<ByteRanges>,
    nothing: ByteRanges,
}

/// Bytes by what they mean to the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Novelty {
    /// Carried by no subflow before.
    pub(crate) new: u64,
    /// Carried by others before, but not by this one.
    pub(crate) reinjected: u64,
    /// Carried by this subflow before.
    pub(crate) repeated: u64,
}

/// Ties data sequence numbers to positions: `seq` is at [`BIAS`]. Numbers wrap, positions do not, and the bias leaves
/// room for what comes before the first number that was seen.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    seq: DataSeq,
    /// Whether the upper half of `seq` is known, not assumed to be zero.
    full: bool,
}

const BIAS: u64 = 1 << 62;

/// How far from the anchor a number may lie to be believed: 2 EiB.
const REACH: u64 = 1 << 61;

/// What crossed one path.
#[derive(Clone, Debug, Default)]
struct Crossing {
    exposed: ByteRanges,
    payload: Payload,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    end: u64,
    first_acked: Timestamp,
    acked: Option<Timestamp>,
}

/// The bytes that a side sent before it knew that the peer had any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstFlight {
    /// How many bytes.
    pub length: u64,
    /// When a DATA_ACK first covered some of them.
    pub first_acked: Timestamp,
    /// When a DATA_ACK first covered all of them, if one was seen.
    pub acked: Option<Timestamp>,
}

impl Stream {
    /// The stream's length: up to the last byte seen, or seen to be mapped, on any path.
    pub fn length(&self) -> u64 {
        self.end
    }

    /// Whether position 0 is known to be the stream's first byte; otherwise it is the first that was seen.
    pub fn starts_at_its_first_byte(&self) -> bool {
        self.origin.is_some()
    }

    /// The bytes that crossed a path, whether or not the capture kept them.
    pub fn exposed(&self, path: PathId) -> &ByteRanges {
        &self.crossings[path.index()].exposed
    }

    /// How much of the stream crossed a path.
    pub fn exposure(&self, path: PathId) -> Exposure {
        Exposure::new(self.exposed(path), self.end)
    }

    /// The bytes that one of the connection's subflows, given by its index, carried at least once.
    pub fn carried(&self, subflow: usize) -> &ByteRanges {
        self.carried.by_subflow.get(subflow).unwrap_or(&self.carried.nothing)
    }

    /// What the capture of a path kept of the stream.
    pub fn payload(&self, path: PathId) -> &Payload {
        &self.crossings[path.index()].payload
    }

    /// The first flight and when it was acknowledged; `None` when no DATA_ACK beyond the start was seen, or the
    /// start is unknown.
    pub fn first_flight(&self) -> Option<FirstFlight> {
        self.flight.map(|Flight { end, first_acked, acked }| FirstFlight { length: end, first_acked, acked })
    }

    pub(crate) fn new(paths: usize) -> Self {
        Self {
            origin: None,
            anchor: None,
            latest: BIAS,
            end: 0,
            crossings: vec![Crossing::default(); paths],
            carried: Carried::default(),
            flight: None,
        }
    }

    /// Takes note of the number of the first byte.
    pub(crate) fn learn_origin(&mut self, origin: DataSeq) {
        if self.origin.is_some() {
            return;
        }
        self.origin = Some(origin);
        match self.anchor {
            None => self.anchor = Some(Anchor { seq: origin, full: true }),
            Some(Anchor { full: true, .. }) => {}
            Some(Anchor { seq, full: false }) => {
                // Only low halves were seen. The anchor was the first of them and is taken to lie less than 2^32
                // behind the origin.
                let distance = (seq.0 as u32).wrapping_sub(origin.0 as u32);
                self.anchor = Some(Anchor { seq: origin.advance(distance.into()), full: true });
            }
        }
    }

    /// The position of a data sequence number; `None` when it cannot belong to this stream.
    pub(crate) fn position(&mut self, field: SeqField) -> Option<u64> {
        let anchor = match (self.anchor, field) {
            (Some(anchor @ Anchor { full: true, .. }), _) => anchor,
            (Some(anchor), SeqField::Low32(_)) => anchor,
            (Some(Anchor { seq, .. }), SeqField::Full(full)) => {
                // The low halves agree on the distance; the upper half is now known.
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
        if position.abs_diff(BIAS) > REACH {
            return None;
        }
        self.latest = position;
        Some(position)
    }

    /// The position of the first byte, where its number is known.
    pub(crate) fn origin_position(&self) -> Option<u64> {
        let anchor = self.anchor?;
        Some(BIAS.wrapping_add(self.origin?.since(anchor.seq)))
    }

    /// Bytes up to `end` exist.
    pub(crate) fn reaches(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// The bytes of `range` crossed a path, and `captured` are the first of them. Gives how many captured bytes the
    /// budget left no room for.
    pub(crate) fn crossed(
        &mut self,
        path: PathId,
        range: Range<u64>,
        captured: &[u8],
        budget: &mut u64,
    ) -> u64 {
        let crossing = &mut self.crossings[path.index()];
        self.end = self.end.max(range.end);
        let kept = crossing.payload.write(range.start, captured, budget);
        crossing.exposed.insert(range);
        (captured.len() - kept) as u64
    }

    /// A subflow carried the bytes of `range`.
    pub(crate) fn carry(&mut self, subflow: usize, range: Range<u64>) -> Novelty {
        let Carried { by_any, by_subflow, .. } = &mut self.carried;
        if by_subflow.len() <= subflow {
            by_subflow.resize_with(subflow + 1, ByteRanges::new);
        }
        let by_this = &mut by_subflow[subflow];
        let before = by_any.overlap(range.clone());
        let repeated = by_this.overlap(range.clone());
        by_any.insert(range.clone());
        by_this.insert(range.clone());
        Novelty { new: range.end - range.start - before, reinjected: before - repeated, repeated }
    }

    /// The peer has everything before `position`.
    pub(crate) fn acknowledged(&mut self, position: u64, time: Timestamp) {
        if self.origin_position().is_none_or(|origin| position <= origin) {
            return;
        }
        let end = self.end;
        let flight = self.flight.get_or_insert(Flight { end, first_acked: time, acked: None });
        if position >= flight.end && flight.acked.is_none() {
            flight.acked = Some(time);
        }
    }

    /// Counts all positions from the first byte on, when all captures are read.
    pub(crate) fn seal(&mut self) {
        let first_seen =
            self.crossings.iter().filter_map(|crossing| crossing.exposed.runs().first()).map(|run| run.start);
        let origin = self.origin_position().or(first_seen.min()).unwrap_or(self.end);
        self.end = self.end.saturating_sub(origin);
        for crossing in &mut self.crossings {
            crossing.exposed = crossing.exposed.rebased(origin);
            crossing.payload.rebase(origin);
        }
        for carried in &mut self.carried.by_subflow {
            *carried = carried.rebased(origin);
        }
        if let Some(flight) = &mut self.flight {
            flight.end = flight.end.saturating_sub(origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a stream whose low half is about to wrap, and half numbers of what comes later.
    const ORIGIN: DataSeq = DataSeq(0x7_ffff_ff00);

    fn low(offset: u64) -> SeqField {
        SeqField::Low32(ORIGIN.advance(offset).0 as u32)
    }

    #[test]
    fn half_numbers_follow_a_stream_beyond_their_range() {
        let mut stream = Stream::new(1);
        stream.learn_origin(ORIGIN);
        let origin = stream.origin_position().expect("it was learnt");
        for step in 0..10 {
            let offset = step * 0x6000_0000;
            assert_eq!(stream.position(low(offset)), Some(origin + offset));
        }
    }

    #[test]
    fn an_origin_learnt_late_settles_half_numbers() {
        let mut stream = Stream::new(1);
        let position = stream.position(low(5000)).expect("a first number is a position");
        stream.learn_origin(ORIGIN);
        assert_eq!(stream.origin_position(), Some(position - 5000));
        assert_eq!(stream.position(SeqField::Full(ORIGIN.advance(6000))), Some(position + 1000));
    }

    #[test]
    fn numbers_out_of_reach_are_refused() {
        let mut stream = Stream::new(1);
        stream.learn_origin(ORIGIN);
        assert_eq!(stream.position(SeqField::Full(ORIGIN.advance(1 << 62))), None);
    }
}
