//! Subflows on which the peer has stopped sending while it sends on others. No I/O.
//!
//! The peer closes a subflow on which this end does not seem to answer, and its reset may be lost on that path, as at a NAT that has
//! forgotten the flow. This end, which has nothing to send, would notice by a keepalive probe, which is sent after a second. Before
//! that, such a subflow is in doubt, and a further one beside it is worth its four packets.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::mptcp::Subflow;

use super::watched::BUSY_INTERVAL;

/// Without data for this long, a subflow is in doubt: longer than it takes the peer to close one on a silent path.
const QUIET: Duration = Duration::from_millis(400);

/// Another subflow has received within this time.
const RECENT: Duration = BUSY_INTERVAL.saturating_mul(3);

/// Afterwards its keepalive probes have told, which begin after [`crate::keepalive::IN_USE`].
const DOUBT_TIME: Duration = Duration::from_secs(3);

/// From one doubt to the next: a peer may well stop sending on a path from time to time.
const DOUBT_INTERVAL: Duration = Duration::from_secs(60);

/// What the subflows of a connection have received, and when.
#[derive(Default)]
pub(super) struct Quiet {
    seen: HashMap<Ends, Seen>,
}

type Ends = (SocketAddr, SocketAddr);

struct Seen {
    bytes: u64,
    /// When that was last seen to change.
    received: Option<Instant>,
    /// When it last fell in doubt.
    doubted: Option<Instant>,
}

impl Quiet {
    /// Whether each of a connection's subflows is in doubt. To be called as often as [`Liveness::judge`](super::liveness::Liveness).
    pub(super) fn in_doubt(&mut self, now: Instant, subflows: &[Subflow]) -> Vec<bool> {
        self.seen.retain(|known, _| subflows.iter().any(|subflow| ends(subflow) == *known));
        for subflow in subflows {
            let bytes = subflow.tcp.bytes_received;
            let seen =
                self.seen.entry(ends(subflow)).or_insert(Seen { bytes, received: None, doubted: None });
            if std::mem::replace(&mut seen.bytes, bytes) != bytes {
                seen.received = Some(now);
            }
        }
        let since = |received: Option<Instant>| received.map(|at| now.duration_since(at));
        let receives = self.seen.values().any(|seen| since(seen.received).is_some_and(|age| age <= RECENT));
        let is_in_doubt = |subflow: &Subflow| {
            let Some(seen) = self.seen.get_mut(&ends(subflow)) else { return false };
            if subflow.tcp.state != State::Established || since(seen.received).is_none_or(|age| age < QUIET) {
                return false;
            }
            if receives && since(seen.doubted).is_none_or(|age| age >= DOUBT_INTERVAL) {
                seen.doubted = Some(now);
            }
            since(seen.doubted).is_some_and(|age| age < DOUBT_TIME)
        };
        subflows.iter().map(is_in_doubt).collect()
    }
}

fn ends(subflow: &Subflow) -> Ends {
    (subflow.local, subflow.remote)
}

#[cfg(test)]
mod tests {
    use super::super::testing::subflow;
    use super::*;

    /// Looks at two subflows at intervals of 50 ms. Until these times, in milliseconds, each receives. Returns when the first was in
    /// doubt, in milliseconds.
    fn doubts(until: [u32; 2], end: u32) -> Vec<u32> {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        let mut look = |ms: u32| {
            let subflows = [1, 2].map(|number: u8| {
                let mut subflow = subflow(number, State::Established);
                subflow.tcp.bytes_received = ms.min(until[usize::from(number) - 1]).into();
                subflow
            });
            quiet.in_doubt(start + Duration::from_millis(ms.into()), &subflows)[0]
        };
        (0..=end / 50).map(|n| 50 * n).filter(|ms| look(*ms)).collect()
    }

    #[test]
    fn subflow_that_the_peer_has_left_is_in_doubt_for_a_while() {
        let found = doubts([1000, 100_000], 10_000);
        assert_eq!((found.first(), found.last()), (Some(&1400), Some(&4350)));
    }

    #[test]
    fn peer_that_sends_nothing_is_not_in_doubt() {
        assert!(doubts([1000, 1000], 10_000).is_empty());
        assert!(doubts([0, 100_000], 10_000).is_empty(), "it never sent on the first");
    }

    #[test]
    fn doubts_are_rare() {
        let found = doubts([1000, 100_000], 62_000);
        assert!(found.iter().all(|ms| *ms < 4400 || *ms >= 61_400), "{found:?}");
        assert!(found.contains(&61_400));
    }
}
