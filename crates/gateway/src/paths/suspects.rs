//! Subflows that answer, and yet are worth a further one beside them: the peer may not send on them, since it has stopped while it
//! sends on others, or has more to send, or has sent for long without a pause, or no path has answered for a while; or they
//! retransmit what they sent then. No I/O.
//!
//! The peer closes a subflow on which this end does not seem to answer, and its reset may be lost on that path, as at a NAT that has
//! forgotten the flow. This end, which has nothing to send, would notice by a keepalive probe, which is sent after a second. Before
//! that, such a subflow is suspected, and a further one beside it is worth its four packets.
//!
//! What the peer sends while no path works, it sends again after a time that doubles until that arrives, up to two minutes. So a subflow that
//! answers again after a silence is suspected as well: on a new one, the peer sends at once. What this end has sent in a silence, it
//! retransmits from a window of one segment on, with a queue full of what the peer sends for a round trip: a new subflow is faster.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use plait_linux::mptcp::{Subflow, SubflowEnds};
use plait_linux::{State, TcpInfo};

use super::liveness::Health;
use super::watched::BUSY_INTERVAL;

/// Without data for this long, a subflow is suspected: longer than it takes the peer to close one on a silent path.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(400);

/// Another subflow has received within this time.
const RECEIVING_TIME: Duration = BUSY_INTERVAL.saturating_mul(3);

/// A peer that has sent for this long without a pause rather has more to send than not. Most transfers are shorter.
const LONG_BUSY_PERIOD: Duration = Duration::from_secs(2);

/// Afterwards its keepalive probes have told, which begin after [`crate::keepalive::IN_USE`].
const SUSPECTED_TIME: Duration = Duration::from_secs(3);

/// From one time that a subflow is suspected to the next: a peer may well stop sending on a path from time to time.
const MIN_SUSPECT_INTERVAL: Duration = Duration::from_secs(60);

/// A silence after which the peer's retransmissions may be further apart than a path is to be missed.
const LONG_SILENCE: Duration = Duration::from_secs(1);

/// Segments to retransmit that take more round trips than a new subflow.
const MIN_LOST_SEGMENTS: u32 = 4;

/// In this time, half of what was only late has arrived. TCP may take what was lost for late.
const LATE_DELIVERY_TIMEOUT: Duration = Duration::from_millis(200);

/// What the subflows of a connection have received, and when.
#[derive(Default)]
pub(super) struct Suspects {
    received: HashMap<SubflowEnds, Received>,
    busy_period: Option<BusyPeriod>,
}

/// In which the peer has sent on any subflow, without a pause of [`RECEIVE_TIMEOUT`].
#[derive(Clone, Copy)]
struct BusyPeriod {
    start: Instant,
    end: Instant,
}

impl BusyPeriod {
    /// The one in which something arrives now: the last one, extended, or a new one.
    fn extended_or_new(last: Option<BusyPeriod>, now: Instant) -> BusyPeriod {
        match last {
            Some(last) if now.duration_since(last.end) < RECEIVE_TIMEOUT => BusyPeriod { end: now, ..last },
            _ => BusyPeriod { start: now, end: now },
        }
    }

    /// Whether it was long, and ended so lately that the peer may have more to send.
    fn may_continue(self, now: Instant) -> bool {
        self.end.duration_since(self.start) >= LONG_BUSY_PERIOD
            && now.duration_since(self.end) < SUSPECTED_TIME
    }
}

#[derive(Default)]
struct Received {
    bytes: u64,
    /// When that was last seen to change, unless the peer was asked to send on others since.
    last: Option<Instant>,
    /// Since when it is suspected, or was the last time.
    suspected: Option<Instant>,
    /// Since when it does not answer.
    silent: Option<Instant>,
    /// When it answered again after a long silence, if it has not received since.
    returned: Option<Instant>,
    /// When it answered again after a silence, if it has lost what it sent then.
    recovering: Option<Instant>,
    /// What was outstanding when it answered again after a silence.
    outstanding: Option<OutstandingSegments>,
}

#[derive(Clone, Copy)]
struct OutstandingSegments {
    since: Instant,
    /// Segments that were not acknowledged.
    unacked: u32,
    /// Segments that the peer had received.
    delivered: u32,
}

impl Received {
    fn record(&mut self, now: Instant, tcp: &TcpInfo, is_silent: bool) {
        let bytes = tcp.bytes_received;
        if std::mem::replace(&mut self.bytes, bytes) != bytes {
            self.last = Some(now);
            self.returned = None;
        }
        if is_silent {
            self.silent.get_or_insert(now);
        } else if let Some(since) = self.silent.take() {
            let was_long = now.duration_since(since) >= LONG_SILENCE;
            if was_long {
                self.returned = Some(now);
            }
            if tcp.lost >= MIN_LOST_SEGMENTS || (was_long && tcp.unacked > 0) {
                self.recovering = Some(now);
            } else {
                self.outstanding = tcp.delivered.map(|delivered| OutstandingSegments {
                    since: now,
                    unacked: tcp.unacked,
                    delivered,
                });
            }
        } else if let Some(before) = self.outstanding
            && now.duration_since(before.since) >= LATE_DELIVERY_TIMEOUT
        {
            self.outstanding = None;
            let delivered = tcp.delivered.unwrap_or(0).wrapping_sub(before.delivered);
            if delivered < before.unacked / 2 {
                self.recovering = Some(now);
            }
        }
    }

    /// Whether it is suspected. `sends`: the peer sends on other subflows, or has more to send.
    fn update_suspected(&mut self, now: Instant, sends: bool) -> bool {
        let age = |time: Option<Instant>| time.map(|time| now.duration_since(time));
        if age(self.returned).is_some_and(|age| age < SUSPECTED_TIME) {
            return true;
        }
        if age(self.last).is_none_or(|age| age < RECEIVE_TIMEOUT) {
            return false;
        }
        if sends && age(self.suspected).is_none_or(|age| age >= MIN_SUSPECT_INTERVAL) {
            self.suspected = Some(now);
        }
        age(self.suspected).is_some_and(|age| age < SUSPECTED_TIME)
    }
}

impl Suspects {
    /// Changes the health of those of a connection's subflows that answer, as [`Liveness::judge`](super::liveness::Liveness) has just
    /// found, but are suspected or recovering. `backups`: those that the peer was asked not to send on. `expects_more`: the peer has
    /// more to send.
    pub(super) fn mark_suspects(
        &mut self,
        now: Instant,
        subflows: &[Subflow],
        backups: &HashSet<SubflowEnds>,
        health: &mut [Health],
        expects_more: bool,
    ) {
        self.received.retain(|known, _| subflows.iter().any(|subflow| subflow.ends() == *known));
        for (subflow, health) in subflows.iter().zip(health.iter()) {
            let first = Received { bytes: subflow.tcp.bytes_received, ..Received::default() };
            let received = self.received.entry(subflow.ends()).or_insert(first);
            received.record(now, &subflow.tcp, *health == Health::Silent);
            if backups.contains(&subflow.ends()) {
                received.last = None;
            }
        }
        if self.received.values().any(|received| received.last == Some(now)) {
            self.busy_period = Some(BusyPeriod::extended_or_new(self.busy_period, now));
        }
        let age = |time: Option<Instant>| time.map(|time| now.duration_since(time));
        let is_receiving = |received: &Received| age(received.last).is_some_and(|age| age <= RECEIVING_TIME);
        let may_continue = self.busy_period.is_some_and(|period| period.may_continue(now));
        let sends = expects_more || may_continue || self.received.values().any(is_receiving);
        for (subflow, health) in subflows.iter().zip(health) {
            let Some(received) = self.received.get_mut(&subflow.ends()) else { continue };
            let is_suspect = subflow.tcp.state == State::Established && received.update_suspected(now, sends);
            match health {
                Health::Answering if age(received.recovering).is_some_and(|age| age < SUSPECTED_TIME) => {
                    *health = Health::Recovering;
                }
                Health::Answering if is_suspect => *health = Health::Suspected,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::subflow;
    use super::*;

    /// Looks at two subflows at intervals of 50 ms. Until these times, in milliseconds, each receives. Returns when the first was
    /// suspected, in milliseconds.
    fn suspected(until: [u32; 2], end: u32) -> Vec<u32> {
        suspicion_times(false, 0, until, end)
    }

    /// The same. The peer was asked not to send on the first until `backup_until`, in milliseconds.
    fn suspicion_times(expects_more: bool, backup_until: u32, until: [u32; 2], end: u32) -> Vec<u32> {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let mut look = |ms: u32| {
            let subflows = [1, 2].map(|number: u8| {
                let mut subflow = subflow(number, State::Established);
                subflow.tcp.bytes_received = ms.min(until[usize::from(number) - 1]).into();
                subflow
            });
            let mut health = [Health::Answering; 2];
            let backups = subflows[..1].iter().filter(|_| ms < backup_until).map(Subflow::ends).collect();
            let now = start + Duration::from_millis(ms.into());
            suspects.mark_suspects(now, &subflows, &backups, &mut health, expects_more);
            health[0] == Health::Suspected
        };
        (0..=end / 50).map(|n| 50 * n).filter(|ms| look(*ms)).collect()
    }

    /// Looks at a subflow that has received nothing lately, does not answer for a time in milliseconds, and receives from a time on.
    fn suspected_after_silence(silence: u32, receives: u32) -> Vec<u32> {
        times_of_health_after_silence(Health::Suspected, 0, silence, receives)
    }

    /// The same, when its health is this, with so many segments on their way.
    fn times_of_health_after_silence(wanted: Health, unacked: u32, silence: u32, receives: u32) -> Vec<u32> {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let mut look = |ms: u32| {
            let mut subflow = subflow(1, State::Established);
            subflow.tcp.bytes_received = ms.saturating_sub(receives).into();
            subflow.tcp.unacked = unacked;
            let mut health = [if ms < silence { Health::Silent } else { Health::Answering }];
            let now = start + Duration::from_millis(ms.into());
            suspects.mark_suspects(now, &[subflow], &HashSet::new(), &mut health, false);
            health[0] == wanted
        };
        (0..=200).map(|n| 50 * n).filter(|ms| look(*ms)).collect()
    }

    #[test]
    fn subflow_that_has_lost_a_window_in_a_short_silence_is_recovering() {
        let recovers = |lost: u32| {
            let (mut suspects, start) = (Suspects::default(), Instant::now());
            let mut subflow = subflow(1, State::Established);
            (subflow.tcp.unacked, subflow.tcp.lost) = (9, lost);
            let mut health = [Health::Silent];
            suspects.mark_suspects(start, &[subflow.clone()], &HashSet::new(), &mut health, false);
            health = [Health::Answering];
            let now = start + Duration::from_millis(50);
            suspects.mark_suspects(now, &[subflow], &HashSet::new(), &mut health, false);
            health[0] == Health::Recovering
        };
        assert!(recovers(8) && !recovers(3));
    }

    #[test]
    fn subflow_that_takes_what_it_has_lost_for_late_is_recovering() {
        // Looks every 50 ms after a silence, when so many segments arrive each time.
        let found = |arrive: u32| {
            let (mut suspects, start) = (Suspects::default(), Instant::now());
            let mut subflow = subflow(1, State::Established);
            let look = |number: u32| {
                (subflow.tcp.unacked, subflow.tcp.delivered) = (100, Some(500 + number * arrive));
                let mut health = [if number == 0 { Health::Silent } else { Health::Answering }];
                let now = start + number * Duration::from_millis(50);
                suspects.mark_suspects(now, &[subflow.clone()], &HashSet::new(), &mut health, false);
                health[0]
            };
            (0..8).map(look).collect::<Vec<_>>()
        };
        let slow = found(10);
        assert_eq!((slow[4], slow[5]), (Health::Answering, Health::Recovering));
        assert!(found(20)[1..].iter().all(|health| *health == Health::Answering));
    }

    #[test]
    fn subflow_on_which_the_peer_has_stopped_sending_is_suspected_for_three_seconds() {
        let found = suspected([1000, 100_000], 10_000);
        assert_eq!((found.first(), found.last()), (Some(&1400), Some(&4350)));
    }

    #[test]
    fn peer_that_sends_nothing_is_not_suspected() {
        assert!(suspected([1000, 1000], 10_000).is_empty());
        assert!(suspected([2000, 2000], 10_000).is_empty(), "it has sent for less than two seconds");
        assert!(suspected([0, 100_000], 10_000).is_empty(), "it never sent on the first");
    }

    #[test]
    fn peer_that_sends_nothing_is_suspected_in_the_middle_of_a_record() {
        let found = suspicion_times(true, 0, [1000, 1000], 10_000);
        assert_eq!((found.first(), found.last()), (Some(&1400), Some(&4350)));
    }

    #[test]
    fn peer_that_stops_after_it_has_sent_for_long_is_suspected_once() {
        let found = suspected([2050, 2050], 200_000);
        assert_eq!((found.first(), found.last()), (Some(&2450), Some(&5400)));
    }

    #[test]
    fn backup_subflow_is_not_suspected() {
        assert!(suspicion_times(false, 5000, [4000, 100_000], 10_000).is_empty());
        assert_eq!(suspicion_times(false, 5000, [6000, 100_000], 10_000).first(), Some(&6400));
    }

    #[test]
    fn subflow_that_answers_again_is_suspected_until_it_receives() {
        let found = suspected_after_silence(5000, 20_000);
        assert_eq!((found.first(), found.last()), (Some(&5000), Some(&7950)));
        let found = suspected_after_silence(5000, 6000);
        assert_eq!((found.first(), found.last()), (Some(&5000), Some(&6000)));
        assert!(suspected_after_silence(950, 20_000).is_empty(), "the peer sends again soon");
    }

    #[test]
    fn subflow_with_data_outstanding_in_a_silence_is_recovering_though_it_receives() {
        let found = times_of_health_after_silence(Health::Recovering, 9, 5000, 5100);
        assert_eq!((found.first(), found.last()), (Some(&5000), Some(&7950)));
        assert!(
            times_of_health_after_silence(Health::Recovering, 0, 5000, 5100).is_empty(),
            "it has sent nothing"
        );
        assert!(
            times_of_health_after_silence(Health::Recovering, 9, 950, 5100).is_empty(),
            "it was silent for a short time"
        );
    }

    #[test]
    fn subflow_is_suspected_once_a_minute() {
        let found = suspected([1000, 100_000], 62_000);
        assert!(found.iter().all(|ms| *ms < 4400 || *ms >= 61_400), "{found:?}");
        assert!(found.contains(&61_400));
    }
}
