use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use plait_wire::Segment;
use plait_wire::capture::Timestamp;
use plait_wire::tcp::{Flags, Seq};

use crate::unwrap::Unwrap;
use crate::{ByteRanges, Tally};

/// One side of a subflow as a TCP sender: which sequence numbers it sent, and when they were acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    pub(crate) tally: Tally,
    numbers: Unwrap,
    sent: ByteRanges,
    /// Behind the last byte sent.
    end: u64,
    /// Everything before is acknowledged.
    acknowledged: u64,
    /// Acknowledgements of these would tell of a repair, not of a round trip.
    ambiguous: Range<u64>,
    outstanding: VecDeque<Outstanding>,
    stamps: VecDeque<(u32, Timestamp)>,
}

#[derive(Debug)]
struct Outstanding {
    end: u64,
    time: Timestamp,
}

/// TSval and TSecr.
pub(crate) type Stamps = (u32, u32);

/// How many segments and time stamps wait for an acknowledgement at most: more than a window holds. Only a capture of
/// one direction alone gets there.
const WAITING: usize = 1 << 14;

/// How many runs of numbers sent are kept before those that are acknowledged are forgotten.
const RUNS: usize = 1 << 10;

/// How much may be sent ahead of an acknowledgement (RFC 7323 2.3).
const GREATEST_WINDOW: u64 = 1 << 30;

/// What an acknowledgement told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledged {
    /// It acknowledged something new.
    pub(crate) advanced: bool,
    /// The round trip that it completed.
    pub(crate) round_trip: Option<Duration>,
}

/// Unwrapped sequence numbers start here, which leaves room for what comes before the first.
const BIAS: i64 = 1 << 62;

impl Sender {
    /// Takes note of a segment from this side, `payload` bytes long where it carries data, and tells how many of them
    /// were sent before.
    pub(crate) fn sent(
        &mut self,
        segment: &Segment<'_>,
        payload: u64,
        stamps: Option<Stamps>,
        time: Timestamp,
    ) -> u64 {
        self.tally.packets += 1;
        if payload == 0 {
            return 0;
        }
        self.tally.bytes += payload;
        let syn = segment.tcp.flags().contains(Flags::SYN);
        let start = position(self.numbers.advance(segment.tcp.seq().advance(u32::from(syn)).0));
        let range = start..start.saturating_add(payload);
        let again = if start < self.end { self.again(&range) } else { 0 };
        if range.end > self.end {
            self.end = range.end;
            push(&mut self.outstanding, Outstanding { end: range.end, time });
        }
        self.sent.insert(range);
        if self.sent.runs().len() > RUNS {
            self.sent.forget_before(self.acknowledged);
            // Without acknowledgements, what was sent first is the least likely to be sent again.
            let excess = self.sent.runs().len().saturating_sub(RUNS);
            self.sent.split_off_first(excess).for_each(drop);
        }
        if let Some((value, _)) = stamps
            && self.stamps.back().is_none_or(|(last, _)| (value.wrapping_sub(*last) as i32) > 0)
        {
            push(&mut self.stamps, (value, time));
        }
        again
    }

    /// Whether something that was sent is not acknowledged.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.acknowledged < self.end
    }

    /// Takes note of an acknowledgement from the other side.
    pub(crate) fn acknowledged(&mut self, ack: Seq, stamps: Option<Stamps>, time: Timestamp) -> Acknowledged {
        let mut found = Acknowledged::default();
        if self.end == 0 {
            return found;
        }
        let ack = position(self.numbers.near(ack.0));
        if ack <= self.acknowledged || ack > self.end.saturating_add(GREATEST_WINDOW) {
            return found;
        }
        self.acknowledged = ack;
        found.advanced = true;
        let mut covered = None;
        while let Some(next) = pop_if(&mut self.outstanding, |next| next.end <= ack) {
            covered = Some(next);
        }
        // A FIN takes a number too. Whatever else was acknowledged was not captured, and when it was sent is unknown.
        if ack > self.end.saturating_add(1) {
            return found;
        }
        if let Some(Outstanding { end, time: sent }) = covered
            && !(self.ambiguous.start < end && end <= self.ambiguous.end)
            && let Some(sample) = time.since(sent)
        {
            self.tally.round_trips.add(sample);
            found.round_trip = Some(sample);
        }
        let Some((_, echo)) = stamps else { return found };
        while let Some((value, sent)) =
            pop_if(&mut self.stamps, |(value, _)| (echo.wrapping_sub(*value) as i32) >= 0)
        {
            if value == echo
                && let Some(sample) = time.since(sent)
            {
                self.tally.round_trips_by_timestamps.add(sample);
            }
        }
        found
    }

    /// A segment that starts before the end of what was sent: how much of it was sent before.
    fn again(&mut self, range: &Range<u64>) -> u64 {
        let duplicate = range.end.min(self.acknowledged).saturating_sub(range.start);
        let not_acknowledged = range.start.max(self.acknowledged)..range.end;
        let in_flight = if not_acknowledged.is_empty() { 0 } else { self.sent.overlap(not_acknowledged) };
        let retransmitted = duplicate + in_flight;
        self.tally.duplicate += duplicate;
        self.tally.retransmitted.add(retransmitted);
        self.tally.out_of_order.add((range.end.min(self.end) - range.start).saturating_sub(retransmitted));
        let overlaps = range.start < self.ambiguous.end;
        let start = if overlaps { self.ambiguous.start.min(range.start) } else { range.start };
        self.ambiguous = start..self.end;
        retransmitted
    }
}

fn position(number: i64) -> u64 {
    // Beyond that room only in a capture of more than 2^31 packets that all jump; wrapping does no harm there.
    BIAS.wrapping_add(number) as u64
}

fn pop_if<T>(waiting: &mut VecDeque<T>, condition: impl Fn(&T) -> bool) -> Option<T> {
    if condition(waiting.front()?) { waiting.pop_front() } else { None }
}

fn push<T>(waiting: &mut VecDeque<T>, item: T) {
    if waiting.len() == WAITING {
        waiting.pop_front();
    }
    waiting.push_back(item);
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use plait_wire::checksum::PseudoHeader;
    use plait_wire::tcp;

    use super::*;

    const END: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

    /// The first sequence number, shortly before the wrap.
    const FIRST: u32 = 0xffff_ff80;

    fn send(sender: &mut Sender, offset: u32, payload: u64, stamp: u32, microseconds: u64) {
        let header = tcp::Repr {
            source_port: 1,
            destination_port: 1,
            seq: Seq(FIRST).advance(offset),
            ack: Seq(0),
            flags: Flags::ACK,
            window: 0,
            urgent: 0,
            options: Vec::new(),
        };
        let pseudo = PseudoHeader::V4 { source: Ipv4Addr::LOCALHOST, destination: Ipv4Addr::LOCALHOST };
        let mut bytes = Vec::new();
        header.emit(pseudo, &[], &mut bytes).expect("no options");
        let tcp = tcp::Packet::parse(&bytes).expect("a whole header");
        let segment =
            Segment { source: END, destination: END, tcp, payload_len: payload as u32, fragmented: false };
        sender.sent(&segment, payload, Some((stamp, 0)), Timestamp(microseconds * 1000));
    }

    fn acknowledge(sender: &mut Sender, offset: u32, echo: u32, microseconds: u64) {
        sender.acknowledged(Seq(FIRST).advance(offset), Some((0, echo)), Timestamp(microseconds * 1000));
    }

    fn of_acks(sender: &Sender) -> (u64, Option<Duration>) {
        (sender.tally.round_trips.count(), sender.tally.round_trips.max())
    }

    fn of_stamps(sender: &Sender) -> (u64, Option<Duration>) {
        (sender.tally.round_trips_by_timestamps.count(), sender.tally.round_trips_by_timestamps.max())
    }

    fn microseconds(count: u64) -> Option<Duration> {
        Some(Duration::from_micros(count))
    }

    #[test]
    fn an_acknowledgement_of_several_segments_measures_the_last() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 100, u32::MAX, 0);
        send(&mut sender, 100, 100, 1, 10);
        acknowledge(&mut sender, 200, 1, 30);
        acknowledge(&mut sender, 200, 1, 40);
        assert_eq!(of_acks(&sender), (1, microseconds(20)));
        assert_eq!(of_stamps(&sender), (1, microseconds(20)));
    }

    #[test]
    fn a_retransmission_gives_no_sample_but_by_time_stamps() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 100, 1, 0);
        send(&mut sender, 100, 100, 2, 1);
        send(&mut sender, 0, 100, 3, 500);
        acknowledge(&mut sender, 200, 3, 530);
        assert_eq!(of_acks(&sender).0, 0);
        assert_eq!(of_stamps(&sender), (1, microseconds(30)));
        assert_eq!(sender.tally.retransmitted.bytes, 100);
        send(&mut sender, 200, 100, 4, 600);
        acknowledge(&mut sender, 300, 4, 640);
        assert_eq!(of_acks(&sender), (1, microseconds(40)));
    }

    #[test]
    fn what_waits_for_a_late_segment_gives_no_sample() {
        let mut sender = Sender::default();
        send(&mut sender, 100, 100, 2, 0);
        send(&mut sender, 0, 100, 1, 5);
        acknowledge(&mut sender, 200, 1, 50);
        assert_eq!(of_acks(&sender).0, 0);
        assert_eq!((sender.tally.retransmitted.bytes, sender.tally.out_of_order.bytes), (0, 100));
    }

    #[test]
    fn acknowledged_data_sent_again_is_a_duplicate() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 300, 1, 0);
        acknowledge(&mut sender, 200, 1, 10);
        send(&mut sender, 100, 200, 2, 20);
        assert_eq!((sender.tally.retransmitted.bytes, sender.tally.duplicate), (200, 100));
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_captured_measures_nothing() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 100, 1, 0);
        acknowledge(&mut sender, 5000, 1, 10);
        assert_eq!((of_acks(&sender).0, of_stamps(&sender).0), (0, 0));
        assert!(!sender.has_outstanding(), "the receiver has what was captured, too");
    }

    #[test]
    fn an_acknowledgement_beyond_any_window_is_none() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 100, 1, 0);
        acknowledge(&mut sender, 0x7000_0000, 1, 10);
        assert!(sender.has_outstanding());
    }
}
