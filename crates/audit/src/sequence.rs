//! Which bytes of a TCP connection a capture lacks, by sequence numbers: packets that crossed the path and were not captured.
//!
//! Every byte that a side sent lies between its SYN and its FIN. What no captured packet carries of that is missing, whether a
//! later packet or an acknowledgement of the peer reveals it.

use plait_trace::ByteRanges;
use plait_wire::tcp::{Flags, Seq};

/// Maximum number of contiguous runs that are remembered of one side.
pub(crate) const MAX_RUNS: usize = 1 << 12;

/// The position of the first sequence number; earlier ones, of reordered packets, are not negative.
const BIAS: u64 = 1 << 62;

/// The sequence numbers that one side of a TCP connection used, as far as a capture shows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceSpace {
    /// Whether any packet of this side was captured.
    seen: bool,
    /// The number of the SYN.
    isn: Option<Seq>,
    /// The highest sequence number, and its position.
    highest: Option<(Seq, u64)>,
    /// The position of the first byte, or the lowest seen as long as no SYN was captured.
    start: Option<u64>,
    captured: ByteRanges,
    /// Everything before this position was acknowledged.
    acknowledged: u64,
    /// The position of the FIN.
    fin: Option<u64>,
    reset: bool,
    /// Bytes missing of earlier connections between the same addresses and ports.
    missing_before: u64,
}

/// A number is too far from the others, or the packets have too many gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untracked;

impl SequenceSpace {
    /// Records a segment that this side sent, and remembers at most `max_runs` runs.
    pub(crate) fn sent(
        &mut self,
        seq: Seq,
        flags: Flags,
        payload_len: u32,
        max_runs: usize,
    ) -> Result<(), Untracked> {
        self.seen = true;
        if flags.contains(Flags::RST) {
            // Its sequence number may be any within the peer's window.
            self.reset = true;
            return Ok(());
        }
        let mut first = seq;
        if flags.contains(Flags::SYN) {
            self.open(seq);
            first = seq.advance(1);
        }
        let start = self.position(first);
        let end = start + u64::from(payload_len);
        self.position(first.advance(payload_len));
        if flags.contains(Flags::FIN) {
            self.fin = Some(end);
        }
        match (self.isn, self.start) {
            // Not of the stream, and the receiver discards it: a keepalive (RFC 9293 3.8.4), or what measures a path.
            (Some(_), Some(first)) if end <= first => return Ok(()),
            (Some(_), Some(first)) if start < first => return Err(Untracked),
            (Some(_), _) => {}
            (None, lowest) => self.start = Some(lowest.map_or(start, |lowest| lowest.min(start))),
        }
        self.captured.insert(start.max(self.start.unwrap_or(start))..end);
        if self.captured.runs().len() > max_runs {
            // What was missing so far remains so; what is captured of it later is not looked for.
            self.missing_before = self.missing();
            let (from, to) = self.known();
            self.captured.insert(from..to);
            return Err(Untracked);
        }
        Ok(())
    }

    /// Records that the peer acknowledged everything before `ack`.
    pub(crate) fn acknowledged(&mut self, ack: Seq) {
        let position = self.position(ack);
        self.start.get_or_insert(position);
        self.acknowledged = self.acknowledged.max(position);
    }

    /// Whether a packet of this side was captured.
    pub(crate) fn was_captured(&self) -> bool {
        self.seen
    }

    /// Whether the peer acknowledged anything, at least a SYN.
    pub(crate) fn was_acknowledged(&self) -> bool {
        self.acknowledged > 0
    }

    /// The number of contiguous runs that are remembered.
    pub(crate) fn runs(&self) -> usize {
        self.captured.runs().len()
    }

    /// Whether the SYN was captured.
    pub(crate) fn has_start(&self) -> bool {
        self.isn.is_some()
    }

    /// Whether the FIN was captured.
    pub(crate) fn has_end(&self) -> bool {
        self.fin.is_some()
    }

    /// Whether this side reset the connection.
    pub(crate) fn was_reset(&self) -> bool {
        self.reset
    }

    /// How many bytes are known to have been sent that no captured packet carries.
    pub(crate) fn missing(&self) -> u64 {
        let (from, to) = self.known();
        let captured: u64 = self.captured.within(from..to).map(|run| run.end - run.start).sum();
        self.missing_before + (to - from - captured)
    }

    /// The first and the last position known to be of data.
    fn known(&self) -> (u64, u64) {
        let from = self.start.unwrap_or(BIAS);
        let captured = self.captured.runs().last().map_or(from, |run| run.end);
        let to = match self.fin {
            Some(fin) => captured.max(fin),
            // A FIN that was not captured takes a number too.
            None if self.acknowledged == captured + 1 => captured,
            None => captured.max(self.acknowledged),
        };
        (from, to.max(from))
    }

    fn open(&mut self, isn: Seq) {
        if self.isn != Some(isn) {
            *self = Self {
                seen: true,
                isn: Some(isn),
                highest: Some((isn.advance(1), BIAS)),
                start: Some(BIAS),
                missing_before: self.missing(),
                ..Self::default()
            };
        }
    }

    /// The position of a number: that which is closest to the highest one.
    fn position(&mut self, number: Seq) -> u64 {
        let (highest, at) = *self.highest.get_or_insert((number, BIAS));
        let position = at.wrapping_add_signed(i64::from(number.since(highest) as i32));
        if position > at {
            self.highest = Some((number, position));
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn send(space: &mut SequenceSpace, seq: Seq, flags: Flags, length: u32) -> Result<(), Untracked> {
        space.sent(seq, flags, length, MAX_RUNS)
    }

    proptest! {
        /// Compares with a bitmap of the bytes, near a wrap of the sequence numbers.
        #[test]
        fn missing_bytes_are_those_that_no_captured_segment_carries(
            isn in prop_oneof![any::<u32>(), (u32::MAX - 300)..=u32::MAX],
            segments in vec((0..400u32, 0..60u32), 0..30),
            acknowledged in 0..500u32,
            closes: bool,
        ) {
            let isn = Seq(isn);
            let (mut space, mut captured) = (SequenceSpace::default(), [false; 600]);
            prop_assert_eq!(send(&mut space, isn, Flags::SYN, 0), Ok(()));
            for (start, length) in &segments {
                prop_assert_eq!(send(&mut space, isn.advance(1 + start), Flags::ACK, *length), Ok(()));
                captured[*start as usize..(start + length) as usize].fill(true);
            }
            let last = captured.iter().rposition(|byte| *byte).map_or(0, |last| last as u32 + 1);
            let sent = last.max(acknowledged);
            space.acknowledged(isn.advance(1 + acknowledged));
            if closes {
                prop_assert_eq!(send(&mut space, isn.advance(1 + sent), Flags::FIN, 0), Ok(()));
            }
            // One number beyond the data may be that of a FIN.
            let sent = if !closes && acknowledged == last + 1 { last } else { sent };
            let missing = captured[..sent as usize].iter().filter(|byte| !**byte).count();
            prop_assert_eq!(space.missing(), missing as u64);
            prop_assert_eq!((space.has_start(), space.has_end()), (true, closes));
        }
    }

    #[test]
    fn counts_from_the_lowest_number_without_a_syn() {
        let mut space = SequenceSpace::default();
        space.acknowledged(Seq(1000));
        assert!(!space.was_captured());
        space.acknowledged(Seq(1500));
        assert_eq!(space.missing(), 500, "the peer acknowledged what was not captured");
        send(&mut space, Seq(900), Flags::ACK, 600).expect("few gaps");
        assert_eq!((space.missing(), space.has_start(), space.was_captured()), (0, false, true));
    }

    #[test]
    fn a_new_connection_between_the_same_ports_begins_anew() {
        let mut space = SequenceSpace::default();
        send(&mut space, Seq(10), Flags::SYN, 0).expect("few gaps");
        send(&mut space, Seq(111), Flags::FIN, 0).expect("few gaps");
        assert_eq!((space.missing(), space.has_end()), (100, true));
        send(&mut space, Seq(5_000_000), Flags::SYN, 0).expect("few gaps");
        assert_eq!((space.missing(), space.has_end()), (100, false));
        send(&mut space, Seq(5_000_000), Flags::SYN, 0).expect("few gaps");
        send(&mut space, Seq(5_000_001), Flags::ACK, 10).expect("few gaps");
        assert_eq!(space.missing(), 100);
    }

    #[test]
    fn bytes_before_the_first_are_not_of_the_stream() {
        let mut space = SequenceSpace::default();
        send(&mut space, Seq(10), Flags::SYN, 0).expect("few gaps");
        send(&mut space, Seq(11u32.wrapping_sub(1400)), Flags::ACK, 1400).expect("they are discarded");
        send(&mut space, Seq(11), Flags::ACK, 100).expect("few gaps");
        assert_eq!(space.missing(), 0);
        send(&mut space, Seq(5), Flags::ACK, 10).expect_err("part of it is");
    }

    #[test]
    fn too_many_gaps_are_reported_and_not_forgotten() {
        let mut space = SequenceSpace::default();
        send(&mut space, Seq(0), Flags::SYN, 0).expect("few gaps");
        let untracked =
            (0..10_000u32).filter(|number| send(&mut space, Seq(2 + 2 * number), Flags::ACK, 1).is_err());
        assert_eq!(untracked.count(), 2);
        assert_eq!(space.missing(), 10_000);
        assert!(space.captured.runs().len() <= MAX_RUNS);
    }
}
