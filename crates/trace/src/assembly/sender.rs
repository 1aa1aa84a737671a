//! One side of a subflow as a TCP sender: retransmissions and round-trip times.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use plait_wire::Segment;
use plait_wire::capture::Timestamp;
use plait_wire::tcp::{Flags, Seq};

use super::echo::EchoClock;
use super::seq_unwrap::SeqUnwrapper;
use crate::byte_ranges::ByteRanges;
use crate::sender_stats::SenderStats;

/// One side of a subflow as a TCP sender: which sequence numbers it sent, and when they were acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    pub(crate) stats: SenderStats,
    numbers: SeqUnwrapper,
    sent: ByteRanges,
    /// Sequence number after the last byte sent.
    end: u64,
    /// Everything before is acknowledged.
    acknowledged: u64,
    /// Retransmitted data: its acknowledgement does not measure a round trip.
    ambiguous: Range<u64>,
    outstanding: VecDeque<Outstanding>,
    timestamps: VecDeque<(u32, Timestamp)>,
    echoes: EchoClock,
}

#[derive(Debug)]
struct Outstanding {
    end: u64,
    time: Timestamp,
}

/// TSval and TSecr.
pub(crate) type EchoedTimestamps = (u32, u32);

/// Maximum number of segments and timestamps that wait for an acknowledgement: more than a window holds, and reached only
/// in a capture of one direction.
const MAX_OUTSTANDING: usize = 1 << 14;

/// Maximum number of runs of sent data, before those that are acknowledged are dropped.
const MAX_RUNS: usize = 1 << 10;

/// Maximum window (RFC 7323 2.3).
const MAX_WINDOW: u64 = 1 << 30;

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledged {
    /// Whether it acknowledged new data.
    pub(crate) advanced: bool,
    /// The round-trip time that it measured.
    pub(crate) rtt_sample: Option<Duration>,
}

/// The effect of a segment of data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// How many of its bytes were sent before.
    pub(crate) resent: u64,
    /// The time since the acknowledgement that allowed it to be sent, if one did.
    pub(crate) echo_sample: Option<Duration>,
}

/// Unwrapped sequence numbers start here, so that earlier ones are not negative.
const BIAS: i64 = 1 << 62;

impl Sender {
    /// Records a segment from this side with `payload` bytes of data.
    pub(crate) fn sent(
        &mut self,
        segment: &Segment<'_>,
        payload: u64,
        timestamps: Option<EchoedTimestamps>,
        time: Timestamp,
    ) -> Sent {
        self.stats.packets += 1;
        if payload == 0 {
            return Sent::default();
        }
        self.stats.bytes += payload;
        let syn = segment.tcp.flags().contains(Flags::SYN);
        let start = position(self.numbers.advance(segment.tcp.seq().advance(u32::from(syn)).0));
        let range = start..start.saturating_add(payload);
        let resent = if start < self.end { self.count_resent(&range) } else { 0 };
        if range.end > self.end {
            self.end = range.end;
            push(&mut self.outstanding, Outstanding { end: range.end, time });
        }
        self.sent.insert(range);
        if self.sent.runs().len() > MAX_RUNS {
            self.sent.forget_before(self.acknowledged);
            // Without acknowledgements, the oldest data is the least likely to be retransmitted.
            let excess = self.sent.runs().len().saturating_sub(MAX_RUNS);
            self.sent.split_off_first(excess).for_each(drop);
        }
        if let Some((value, _)) = timestamps
            && self.timestamps.back().is_none_or(|(last, _)| (value.wrapping_sub(*last) as i32) > 0)
        {
            push(&mut self.timestamps, (value, time));
        }
        let push = segment.tcp.flags().contains(Flags::PSH);
        let echo = timestamps.and_then(|(_, echo)| self.echoes.echoed(echo, push, time));
        let echo_sample = echo.filter(|echo| echo.is_clocked).map(|echo| echo.time);
        if let Some(echo) = echo {
            self.stats.echo_min = Some(self.stats.echo_min.map_or(echo.time, |min| min.min(echo.time)));
        }
        if let Some(sample) = echo_sample {
            self.stats.echo_rtt.add(sample);
        }
        Sent { resent, echo_sample }
    }

    /// Records a timestamp of the peer, which this side will echo.
    #[inline]
    pub(crate) fn peer_sent(&mut self, timestamps: Option<EchoedTimestamps>, time: Timestamp) {
        if let Some((value, _)) = timestamps {
            self.echoes.peer_sent(value, time);
        }
    }

    /// Whether data is not acknowledged yet.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.acknowledged < self.end
    }

    /// Records an acknowledgement from the peer.
    pub(crate) fn acknowledged(
        &mut self,
        ack: Seq,
        timestamps: Option<EchoedTimestamps>,
        time: Timestamp,
    ) -> Acknowledged {
        let mut found = Acknowledged::default();
        if self.end == 0 {
            return found;
        }
        let ack = position(self.numbers.near(ack.0));
        if ack <= self.acknowledged || ack > self.end.saturating_add(MAX_WINDOW) {
            return found;
        }
        self.acknowledged = ack;
        found.advanced = true;
        let mut covered = None;
        while let Some(next) = pop_if(&mut self.outstanding, |next| next.end <= ack) {
            covered = Some(next);
        }
        // A FIN takes a sequence number. Other acknowledged data beyond the end was not captured.
        if ack > self.end.saturating_add(1) {
            return found;
        }
        if let Some(Outstanding { end, time: sent }) = covered
            && !(self.ambiguous.start < end && end <= self.ambiguous.end)
            && let Some(sample) = time.since(sent)
        {
            self.stats.ack_rtt.add(sample);
            found.rtt_sample = Some(sample);
        }
        let Some((_, echo)) = timestamps else { return found };
        while let Some((value, sent)) =
            pop_if(&mut self.timestamps, |(value, _)| (echo.wrapping_sub(*value) as i32) >= 0)
        {
            if value == echo
                && let Some(sample) = time.since(sent)
            {
                self.stats.ack_rtt_timestamps.add(sample);
            }
        }
        found
    }

    /// Counts a segment that starts before the end of the sent data, and returns how many bytes were sent before.
    fn count_resent(&mut self, range: &Range<u64>) -> u64 {
        let duplicate = range.end.min(self.acknowledged).saturating_sub(range.start);
        let not_acknowledged = range.start.max(self.acknowledged)..range.end;
        let in_flight = if not_acknowledged.is_empty() { 0 } else { self.sent.overlap(not_acknowledged) };
        let retransmitted = duplicate + in_flight;
        self.stats.duplicate += duplicate;
        self.stats.retransmitted.add(retransmitted);
        self.stats.out_of_order.add((range.end.min(self.end) - range.start).saturating_sub(retransmitted));
        let overlaps = range.start < self.ambiguous.end;
        let start = if overlaps { self.ambiguous.start.min(range.start) } else { range.start };
        self.ambiguous = start..self.end;
        retransmitted
    }
}

fn position(number: i64) -> u64 {
    // Only more than 2^31 packets with jumping sequence numbers exceed this range; wrapping is then harmless.
    BIAS.wrapping_add(number) as u64
}

fn pop_if<T>(waiting: &mut VecDeque<T>, condition: impl Fn(&T) -> bool) -> Option<T> {
    if condition(waiting.front()?) { waiting.pop_front() } else { None }
}

fn push<T>(waiting: &mut VecDeque<T>, item: T) {
    if waiting.len() == MAX_OUTSTANDING {
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

    fn rtt_from_acks(sender: &Sender) -> (u64, Option<Duration>) {
        (sender.stats.ack_rtt.count(), sender.stats.ack_rtt.max())
    }

    fn rtt_from_timestamps(sender: &Sender) -> (u64, Option<Duration>) {
        (sender.stats.ack_rtt_timestamps.count(), sender.stats.ack_rtt_timestamps.max())
    }

    fn microseconds(count: u64) -> Option<Duration> {
        Some(Duration::from_micros(count))
    }

    #[test]
    fn ack_of_several_segments_measures_last() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 100, u32::MAX, 0);
        send(&mut sender, 100, 100, 1, 10);
        acknowledge(&mut sender, 200, 1, 30);
        acknowledge(&mut sender, 200, 1, 40);
        assert_eq!(rtt_from_acks(&sender), (1, microseconds(20)));
        assert_eq!(rtt_from_timestamps(&sender), (1, microseconds(20)));
    }

    #[test]
    fn retransmission_is_measured_only_by_timestamps() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 100, 1, 0);
        send(&mut sender, 100, 100, 2, 1);
        send(&mut sender, 0, 100, 3, 500);
        acknowledge(&mut sender, 200, 3, 530);
        assert_eq!(rtt_from_acks(&sender).0, 0);
        assert_eq!(rtt_from_timestamps(&sender), (1, microseconds(30)));
        assert_eq!(sender.stats.retransmitted.bytes, 100);
        send(&mut sender, 200, 100, 4, 600);
        acknowledge(&mut sender, 300, 4, 640);
        assert_eq!(rtt_from_acks(&sender), (1, microseconds(40)));
    }

    #[test]
    fn data_behind_a_late_segment_gives_no_sample() {
        let mut sender = Sender::default();
        send(&mut sender, 100, 100, 2, 0);
        send(&mut sender, 0, 100, 1, 5);
        acknowledge(&mut sender, 200, 1, 50);
        assert_eq!(rtt_from_acks(&sender).0, 0);
        assert_eq!((sender.stats.retransmitted.bytes, sender.stats.out_of_order.bytes), (0, 100));
    }

    #[test]
    fn retransmission_of_acknowledged_data_is_a_duplicate() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 300, 1, 0);
        acknowledge(&mut sender, 200, 1, 10);
        send(&mut sender, 100, 200, 2, 20);
        assert_eq!((sender.stats.retransmitted.bytes, sender.stats.duplicate), (200, 100));
    }

    #[test]
    fn ack_of_uncaptured_data_gives_no_sample() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 100, 1, 0);
        acknowledge(&mut sender, 5000, 1, 10);
        assert_eq!((rtt_from_acks(&sender).0, rtt_from_timestamps(&sender).0), (0, 0));
        assert!(!sender.has_outstanding(), "the captured data is acknowledged, too");
    }

    #[test]
    fn ignores_ack_beyond_any_window() {
        let mut sender = Sender::default();
        send(&mut sender, 0, 100, 1, 0);
        acknowledge(&mut sender, 0x7000_0000, 1, 10);
        assert!(sender.has_outstanding());
    }
}
