mod coverage;
mod order;
mod payload;
mod progress;
mod stalls;

use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{DataSeq, SeqField};

use crate::{ByteRanges, Exposure, PathId, Times, Volume};
use coverage::Coverage;
use order::Order;
use progress::Progress;

pub use payload::Payload;

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
    /// By path, those that it crossed.
    crossings: Vec<(PathId, Crossing)>,
    not_crossed: Crossing,
    carried: Coverage,
    carriers: Vec<Carrier>,
    order: Order,
    progress: Progress,
    flight: Option<Flight>,
}

/// A subflow's part in a stream.
#[derive(Clone, Debug, Default)]
struct Carrier {
    carried: Coverage,
    head_of_line: Times,
    /// When it last carried something that none had carried before.
    last_new: Option<Timestamp>,
    replaced: Replaced,
}

/// What other subflows carried once more since a subflow was last heard of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replaced {
    pub(crate) reinjected: Volume,
    /// The subflow that did so first.
    pub(crate) by: Option<usize>,
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

impl std::ops::AddAssign for Novelty {
    fn add_assign(&mut self, other: Self) {
        self.new += other.new;
        self.reinjected += other.reinjected;
        self.repeated += other.repeated;
    }
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
    exposed: Coverage,
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

    /// The bytes that crossed a path, whether or not the capture kept them: of a stream that crossed it in very many
    /// runs only the last ones, 32,768 or more. [`exposure`](Self::exposure) tells of all.
    pub fn exposed(&self, path: PathId) -> &ByteRanges {
        self.crossing(path).exposed.latest()
    }

    /// How much of the stream crossed a path.
    pub fn exposure(&self, path: PathId) -> Exposure {
        self.crossing(path).exposed.exposure(self.end)
    }

    /// How much of the stream one of the connection's subflows, given by its index, carried at least once.
    pub fn carried_by(&self, subflow: usize) -> Exposure {
        match self.carriers.get(subflow) {
            Some(carrier) => carrier.carried.exposure(self.end),
            None => Exposure::new(&ByteRanges::new(), self.end),
        }
    }

    /// How long what a subflow, given by its index, carried ahead of its turn waited at the place of the capture for
    /// bytes before it, which other subflows carried, or which were lost: head-of-line waiting. A segment that was in
    /// its turn gives no sample.
    pub fn head_of_line(&self, subflow: usize) -> Option<&Times> {
        self.carriers.get(subflow).map(|carrier| &carrier.head_of_line)
    }

    /// When the receiver had acknowledged the whole stream, as far as it was captured, if it did.
    pub fn completed(&self) -> Option<Timestamp> {
        self.progress.completed(self.end)
    }

    /// What the capture of a path kept of the stream.
    pub fn payload(&self, path: PathId) -> &Payload {
        &self.crossing(path).payload
    }

    /// The first flight and when it was acknowledged; `None` when no DATA_ACK beyond the start was seen, or the
    /// start is unknown.
    pub fn first_flight(&self) -> Option<FirstFlight> {
        self.flight.map(|Flight { end, first_acked, acked }| FirstFlight { length: end, first_acked, acked })
    }

    fn crossing(&self, path: PathId) -> &Crossing {
        let found = self.crossings.iter().find(|(crossed, _)| *crossed == path);
        found.map_or(&self.not_crossed, |(_, crossing)| crossing)
    }

    pub(crate) fn new() -> Self {
        Self {
            origin: None,
            anchor: None,
            latest: BIAS,
            end: 0,
            crossings: Vec::new(),
            not_crossed: Crossing::default(),
            carried: Coverage::default(),
            carriers: Vec::new(),
            order: Order::default(),
            progress: Progress::default(),
            flight: None,
        }
    }

    /// Takes note of the number of the first byte.
    pub(crate) fn learn_origin(&mut self, origin: DataSeq) {
        if self.origin.is_some() {
            return;
        }
        self.origin = Some(origin);
        self.settle_anchor(origin);
        if let Some(start) = self.origin_position() {
            self.order.starts(start);
        }
    }

    fn settle_anchor(&mut self, origin: DataSeq) {
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

    /// A position as counted from the first byte, or, as long as its number is not known, from the first that was
    /// seen.
    pub(crate) fn relative(&self, position: u64) -> i64 {
        position.wrapping_sub(self.origin_position().unwrap_or(BIAS)) as i64
    }

    /// The number of the byte at a position.
    pub(crate) fn number(&self, position: u64) -> Option<DataSeq> {
        self.anchor.filter(|anchor| anchor.full).map(|anchor| anchor.seq.advance(position.wrapping_sub(BIAS)))
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
        let place = self.crossings.iter().position(|(crossed, _)| *crossed == path).unwrap_or_else(|| {
            self.crossings.reserve_exact(1);
            self.crossings.push((path, Crossing::default()));
            self.crossings.len() - 1
        });
        let (_, crossing) = &mut self.crossings[place];
        self.end = self.end.max(range.end);
        let kept = crossing.payload.write(range.start, captured, budget);
        crossing.exposed.insert(range);
        (captured.len() - kept) as u64
    }

    /// A subflow carried the bytes of `range`.
    pub(crate) fn carry(&mut self, subflow: usize, range: Range<u64>, time: Timestamp) -> Novelty {
        if self.carriers.len() <= subflow {
            // Most streams have one, and a vector that grows takes room for four.
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
            self.replaces(subflow, &range);
        }
        self.carried.insert(range.clone());
        let carrier = &mut self.carriers[subflow];
        carrier.carried.insert(range.clone());
        if new > 0 {
            carrier.last_new = Some(time);
        }
        self.progress.sent(&range, time);
        let carriers = &mut self.carriers;
        self.order.arrived(&range, subflow, time, |(subflow, waited)| {
            carriers[subflow].head_of_line.add(waited);
        });
        Novelty { new, reinjected, repeated: before - reinjected }
    }

    /// A subflow carries bytes of which others carried some.
    fn replaces(&mut self, subflow: usize, range: &Range<u64>) {
        for (_, carrier) in self.carriers.iter_mut().enumerate().filter(|(index, _)| *index != subflow) {
            let overlap = carrier.carried.overlap(range.clone());
            if overlap > 0 {
                carrier.replaced.reinjected.add(overlap);
                carrier.replaced.by.get_or_insert(subflow);
            }
        }
    }

    /// The receiver was heard on a subflow: what others carried once more so far has nothing to do with a silence.
    #[inline]
    pub(crate) fn heard(&mut self, subflow: usize) {
        if let Some(carrier) = self.carriers.get_mut(subflow) {
            carrier.replaced = Replaced::default();
        }
    }

    /// What others carried once more since the receiver was [`heard`](Self::heard) on a subflow.
    pub(crate) fn replaced(&self, subflow: usize) -> Replaced {
        self.carriers.get(subflow).map_or(Replaced::default(), |carrier| carrier.replaced)
    }

    /// Which subflow carried on while another was silent: the one that ended the longest wait, or else the one that
    /// carried new data last.
    pub(crate) fn carried_on(&self, silent: usize, span: &Range<Timestamp>) -> Option<usize> {
        self.gap_filled_by(span).filter(|subflow| *subflow != silent).or_else(|| {
            let others = self.carriers.iter().enumerate().filter(|(subflow, _)| *subflow != silent);
            let times = others.filter_map(|(subflow, carrier)| Some((carrier.last_new?, subflow)));
            times.filter(|(time, _)| *time > span.start).max().map(|(_, subflow)| subflow)
        })
    }

    /// The subflow that filled the gap in the stream that was open longest during a span of time.
    pub(crate) fn gap_filled_by(&self, span: &Range<Timestamp>) -> Option<usize> {
        self.order.stalls.longest_in(span).map(|(_, subflow)| *subflow)
    }

    /// The longest time without delivery that has a part in `span`, whose end may be the present.
    pub(crate) fn longest_stall(&self, span: &Range<Timestamp>) -> Option<Duration> {
        self.progress.longest_stall(span)
    }

    /// The peer has everything before `position`.
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

    /// The receiver got everything before `position`, whichever kind of acknowledgement says so.
    pub(crate) fn delivered(&mut self, position: u64, time: Timestamp) {
        self.progress.acknowledged(position, self.end, time);
        let carriers = &mut self.carriers;
        self.order.delivered(position, time, |(subflow, waited)| carriers[subflow].head_of_line.add(waited));
    }

    /// Counts all positions from the first byte on, when nothing more comes.
    pub(crate) fn seal(&mut self) {
        let first_seen = self.crossings.iter().filter_map(|(_, crossing)| crossing.exposed.start());
        let origin = self.origin_position().or(first_seen.min()).unwrap_or(self.end);
        self.end = self.end.saturating_sub(origin);
        for (_, crossing) in &mut self.crossings {
            crossing.exposed.rebase(origin);
            crossing.payload.rebase(origin);
        }
        for carrier in &mut self.carriers {
            carrier.carried.rebase(origin);
        }
        self.progress.rebase(origin);
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
        let mut stream = Stream::new();
        stream.learn_origin(ORIGIN);
        let origin = stream.origin_position().expect("it was learnt");
        for step in 0..10 {
            let offset = step * 0x6000_0000;
            assert_eq!(stream.position(low(offset)), Some(origin + offset));
        }
    }

    #[test]
    fn an_origin_learnt_late_settles_half_numbers() {
        let mut stream = Stream::new();
        let position = stream.position(low(5000)).expect("a first number is a position");
        stream.learn_origin(ORIGIN);
        assert_eq!(stream.origin_position(), Some(position - 5000));
        assert_eq!(stream.position(SeqField::Full(ORIGIN.advance(6000))), Some(position + 1000));
    }

    #[test]
    fn numbers_out_of_reach_are_refused() {
        let mut stream = Stream::new();
        stream.learn_origin(ORIGIN);
        assert_eq!(stream.position(SeqField::Full(ORIGIN.advance(1 << 62))), None);
    }
}
