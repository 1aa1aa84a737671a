//! Subflows on which the peer may not send, although they answer: it has stopped while it sends on others, or has more to send, or no
//! path has answered for a while. No I/O.
//!
//! The peer closes a subflow on which this end does not seem to answer, and its reset may be lost on that path, as at a NAT that has
//! forgotten the flow. This end, which has nothing to send, would notice by a keepalive probe, which is sent after a second. Before
//! that, such a subflow is suspected, and a further one beside it is worth its four packets.
//!
//! What the peer sends while no path works, it sends again after a time that doubles until that arrives, up to two minutes. So a subflow that
//! answers again after a silence is suspected as well: on a new one, the peer sends at once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::mptcp::{Subflow, SubflowEnds};

use super::liveness::Health;
use super::watched::BUSY_INTERVAL;

/// Without data for this long, a subflow is suspected: longer than it takes the peer to close one on a silent path.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(400);

/// Another subflow has received within this time.
const RECEIVING_TIME: Duration = BUSY_INTERVAL.saturating_mul(3);

/// Afterwards its keepalive probes have told, which begin after [`crate::keepalive::IN_USE`].
const SUSPECTED_TIME: Duration = Duration::from_secs(3);

/// From one time that a subflow is suspected to the next: a peer may well stop sending on a path from time to time.
const MIN_SUSPECT_INTERVAL: Duration = Duration::from_secs(60);

/// A silence after which the peer's retransmissions may be further apart than a path is to be missed.
const LONG_SILENCE: Duration = Duration::from_secs(1);

/// What the subflows of a connection have received, and when.
#[derive(Default)]
pub(super) struct Suspects {
    received: HashMap<SubflowEnds, Received>,
}

struct Received {
    bytes: u64,
    /// When that was last seen to change.
    last: Option<Instant>,
    /// Since when it is suspected, or was the last time.
    suspected: Option<Instant>,
    /// Since when it does not answer.
    silent: Option<Instant>,
    /// When it answered again after a long silence, if it has not received since.
    returned: Option<Instant>,
}

impl Received {
    fn record(&mut self, now: Instant, bytes: u64, is_silent: bool) {
        if std::mem::replace(&mut self.bytes, bytes) != bytes {
            self.last = Some(now);
            self.returned = None;
        }
        if is_silent {
            self.silent.get_or_insert(now);
        } else if self.silent.take().is_some_and(|since| now.duration_since(since) >= LONG_SILENCE) {
            self.returned = Some(now);
        }
    }
}

impl Suspects {
    /// Whether each of a connection's subflows, which [`Liveness::judge`](super::liveness::Liveness) has just judged, is suspected.
    /// `expects_more`: the peer has more to send.
    pub(super) fn find(
        &mut self,
        now: Instant,
        subflows: &[Subflow],
        health: &[Health],
        expects_more: bool,
    ) -> Vec<bool> {
        self.received.retain(|known, _| subflows.iter().any(|subflow| subflow.ends() == *known));
        for (subflow, health) in subflows.iter().zip(health) {
            let bytes = subflow.tcp.bytes_received;
            let first = Received { bytes, last: None, suspected: None, silent: None, returned: None };
            let received = self.received.entry(subflow.ends()).or_insert(first);
            received.record(now, bytes, *health == Health::Silent);
        }
        let age = |time: Option<Instant>| time.map(|time| now.duration_since(time));
        let is_receiving = |received: &Received| age(received.last).is_some_and(|age| age <= RECEIVING_TIME);
        let sends = expects_more || self.received.values().any(is_receiving);
        let is_suspect = |subflow: &Subflow| {
            let Some(received) = self.received.get_mut(&subflow.ends()) else { return false };
            if subflow.tcp.state != State::Established {
                return false;
            }
            if age(received.returned).is_some_and(|age| age < SUSPECTED_TIME) {
                return true;
            }
            if age(received.last).is_none_or(|age| age < RECEIVE_TIMEOUT) {
                return false;
            }
            if sends && age(received.suspected).is_none_or(|age| age >= MIN_SUSPECT_INTERVAL) {
                received.suspected = Some(now);
            }
            age(received.suspected).is_some_and(|age| age < SUSPECTED_TIME)
        };
        subflows.iter().map(is_suspect).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::subflow;
    use super::*;

    /// Looks at two subflows at intervals of 50 ms. Until these times, in milliseconds, each receives. Returns when the first was
    /// suspected, in milliseconds.
    fn suspected(until: [u32; 2], end: u32) -> Vec<u32> {
        suspected_while(false, until, end)
    }

    fn suspected_while(expects_more: bool, until: [u32; 2], end: u32) -> Vec<u32> {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let mut look = |ms: u32| {
            let subflows = [1, 2].map(|number: u8| {
                let mut subflow = subflow(number, State::Established);
                subflow.tcp.bytes_received = ms.min(until[usize::from(number) - 1]).into();
                subflow
            });
            let health = [Health::Answering; 2];
            suspects.find(start + Duration::from_millis(ms.into()), &subflows, &health, expects_more)[0]
        };
        (0..=end / 50).map(|n| 50 * n).filter(|ms| look(*ms)).collect()
    }

    /// Looks at a subflow that has received nothing lately, does not answer for a time in milliseconds, and receives from a time on.
    fn suspected_after_silence(silence: u32, receives: u32) -> Vec<u32> {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let mut look = |ms: u32| {
            let mut subflow = subflow(1, State::Established);
            subflow.tcp.bytes_received = ms.saturating_sub(receives).into();
            let health = if ms < silence { Health::Silent } else { Health::Answering };
            suspects.find(start + Duration::from_millis(ms.into()), &[subflow], &[health], false)[0]
        };
        (0..=200).map(|n| 50 * n).filter(|ms| look(*ms)).collect()
    }

    #[test]
    fn subflow_on_which_the_peer_has_stopped_sending_is_suspected_for_three_seconds() {
        let found = suspected([1000, 100_000], 10_000);
        assert_eq!((found.first(), found.last()), (Some(&1400), Some(&4350)));
    }

    #[test]
    fn peer_that_sends_nothing_is_not_suspected() {
        assert!(suspected([1000, 1000], 10_000).is_empty());
        assert!(suspected([0, 100_000], 10_000).is_empty(), "it never sent on the first");
    }

    #[test]
    fn peer_that_sends_nothing_is_suspected_in_the_middle_of_a_record() {
        let found = suspected_while(true, [1000, 1000], 10_000);
        assert_eq!((found.first(), found.last()), (Some(&1400), Some(&4350)));
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
    fn subflow_is_suspected_once_a_minute() {
        let found = suspected([1000, 100_000], 62_000);
        assert!(found.iter().all(|ms| *ms < 4400 || *ms >= 61_400), "{found:?}");
        assert!(found.contains(&61_400));
    }
}
