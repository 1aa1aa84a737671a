//! Subflows on which the peer has stopped sending while it sends on others, or has more to send. No I/O.
//!
//! The peer closes a subflow on which this end does not seem to answer, and its reset may be lost on that path, as at a NAT that has
//! forgotten the flow. This end, which has nothing to send, would notice by a keepalive probe, which is sent after a second. Before
//! that, such a subflow is suspected, and a further one beside it is worth its four packets.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::mptcp::{Subflow, SubflowEnds};

use super::watched::BUSY_INTERVAL;

/// Without data for this long, a subflow is suspected: longer than it takes the peer to close one on a silent path.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(400);

/// Another subflow has received within this time.
const RECEIVING_TIME: Duration = BUSY_INTERVAL.saturating_mul(3);

/// Afterwards its keepalive probes have told, which begin after [`crate::keepalive::IN_USE`].
const SUSPECTED_TIME: Duration = Duration::from_secs(3);

/// From one time that a subflow is suspected to the next: a peer may well stop sending on a path from time to time.
const MIN_SUSPECT_INTERVAL: Duration = Duration::from_secs(60);

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
}

impl Suspects {
    /// Whether each of a connection's subflows is suspected. To be called as often as [`Liveness::judge`](super::liveness::Liveness).
    /// `expects_more`: the peer has more to send.
    pub(super) fn find(&mut self, now: Instant, subflows: &[Subflow], expects_more: bool) -> Vec<bool> {
        self.received.retain(|known, _| subflows.iter().any(|subflow| subflow.ends() == *known));
        for subflow in subflows {
            let bytes = subflow.tcp.bytes_received;
            let first = Received { bytes, last: None, suspected: None };
            let received = self.received.entry(subflow.ends()).or_insert(first);
            if std::mem::replace(&mut received.bytes, bytes) != bytes {
                received.last = Some(now);
            }
        }
        let age = |time: Option<Instant>| time.map(|time| now.duration_since(time));
        let is_receiving = |received: &Received| age(received.last).is_some_and(|age| age <= RECEIVING_TIME);
        let sends = expects_more || self.received.values().any(is_receiving);
        let is_suspect = |subflow: &Subflow| {
            let Some(received) = self.received.get_mut(&subflow.ends()) else { return false };
            let has_stopped = age(received.last).is_some_and(|age| age >= RECEIVE_TIMEOUT);
            if subflow.tcp.state != State::Established || !has_stopped {
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
            suspects.find(start + Duration::from_millis(ms.into()), &subflows, expects_more)[0]
        };
        (0..=end / 50).map(|n| 50 * n).filter(|ms| look(*ms)).collect()
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
    fn subflow_is_suspected_once_a_minute() {
        let found = suspected([1000, 100_000], 62_000);
        assert!(found.iter().all(|ms| *ms < 4400 || *ms >= 61_400), "{found:?}");
        assert!(found.contains(&61_400));
    }
}
