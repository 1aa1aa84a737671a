//! Which side connection need not carry a copy: that of the path on which the main connection has just sent the record.
//!
//! The kernel's scheduler chooses that path, so it is known only afterwards, by which subflow has more to send. As long as all
//! that was sent before is acknowledged in time, a record on one path and a copy on each other path are enough. If something is
//! overdue, records behind it wait in the same connection, and copies take every path.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::mptcp::{Info, Subflow, SubflowEnds};

/// Which end of a session opened its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedBy {
    /// This one.
    Us,
    /// The peer.
    Peer,
}

impl OpenedBy {
    /// What tells the paths of a session apart: the address of the end that opened it.
    pub(super) fn path_address(self, local: SocketAddr, remote: SocketAddr) -> IpAddr {
        match self {
            OpenedBy::Us => local.ip().to_canonical(),
            OpenedBy::Peer => remote.ip().to_canonical(),
        }
    }
}

/// Whether what was sent on a connection is acknowledged in time, as far as it is looked at: at each write.
#[derive(Debug, Default)]
pub(super) struct Acknowledgments {
    /// The data sequence number of the next byte, at the last look.
    end: u64,
    acknowledged: u64,
    /// Since when something waits, without progress.
    waiting_since: Option<Instant>,
}

impl Acknowledgments {
    /// Takes note of a connection's state, on which something was last written at `written`; whether what was sent before is
    /// overdue: not acknowledged after a round trip and a quarter. In exchanges of requests and answers acknowledgments come with
    /// the answers on other paths, after a round trip.
    pub(super) fn is_overdue(
        &mut self,
        now: Instant,
        written: Instant,
        info: &Info,
        round_trip: Duration,
    ) -> bool {
        let earlier_end = std::mem::replace(&mut self.end, info.write_seq);
        let progress = std::mem::replace(&mut self.acknowledged, info.snd_una) != info.snd_una;
        if info.snd_una >= info.write_seq {
            self.waiting_since = None;
            return false;
        }
        if progress || info.snd_una >= earlier_end {
            self.waiting_since = Some(written);
        }
        let since = *self.waiting_since.get_or_insert(written);
        now.duration_since(since) >= round_trip * 5 / 4
    }
}

/// The shortest round-trip time of these subflows.
pub(super) fn round_trip<'a>(subflows: impl Iterator<Item = &'a Subflow>) -> Option<Duration> {
    let shortest = subflows.map(|subflow| subflow.tcp.rtt_us).min()?;
    Some(Duration::from_micros(shortest.into()))
}

/// How much each subflow of a connection was given to send.
#[derive(Debug, Default)]
pub(super) struct AssignedBytes(HashMap<SubflowEnds, u64>);

impl AssignedBytes {
    /// The only subflow that was given something since the last call; `None` if several were, or none.
    pub(super) fn only_subflow<'a>(&mut self, subflows: &'a [Subflow]) -> Option<&'a Subflow> {
        let mut changed = None;
        let mut count = 0;
        let mut now = HashMap::with_capacity(subflows.len());
        for subflow in subflows.iter().filter(|subflow| subflow.tcp.state == State::Established) {
            let given = subflow.tcp.assigned_bytes()?;
            let ends = subflow.ends();
            if self.0.get(&ends) != Some(&given) {
                (changed, count) = (Some(subflow), count + 1);
            }
            now.insert(ends, given);
        }
        self.0 = now;
        changed.filter(|_| count == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::testing::{self, connection_info};

    fn subflow(number: u8, given: u64) -> Subflow {
        let mut subflow = testing::subflow(number, State::Established);
        let tcp = &mut subflow.tcp;
        tcp.rtt_us = 40_000;
        (tcp.bytes_sent, tcp.bytes_retransmitted, tcp.bytes_not_sent) = (Some(given + 7), Some(10), Some(3));
        subflow
    }

    #[test]
    fn subflow_that_was_given_data_is_found_if_it_is_the_only_one() {
        let mut given = AssignedBytes::default();
        let ip = |subflow: &Subflow| subflow.local.ip();
        assert!(given.only_subflow(&[subflow(1, 10), subflow(2, 10)]).is_none(), "both are new");
        let found = [subflow(1, 10), subflow(2, 30)];
        assert_eq!(given.only_subflow(&found).map(ip), Some(IpAddr::from([10, 0, 2, 1])));
        assert!(given.only_subflow(&found).is_none(), "nothing was given");
        assert!(given.only_subflow(&[subflow(1, 20), subflow(2, 40)]).is_none(), "both were given some");
        assert_eq!(given.only_subflow(&[subflow(1, 30)]).map(ip), Some(IpAddr::from([10, 0, 1, 1])));
    }

    #[test]
    fn exchange_without_an_acknowledgment_becomes_overdue() {
        let start = Instant::now();
        let mut acknowledgments = Acknowledgments::default();
        // After a write at this time.
        let mut is_overdue = |ms, snd_una, write_seq| {
            let now = start + Duration::from_millis(ms);
            acknowledgments.is_overdue(
                now,
                now,
                &connection_info(snd_una, write_seq),
                Duration::from_millis(40),
            )
        };
        assert!(!is_overdue(0, 0, 100));
        assert!(!is_overdue(40, 100, 200), "the first is acknowledged");
        assert!(!is_overdue(80, 100, 300), "a round trip");
        assert!(is_overdue(120, 100, 400));
        assert!(!is_overdue(130, 200, 500), "there was progress");
        assert!(is_overdue(180, 200, 600));
        assert!(!is_overdue(190, 600, 600));
        assert!(!is_overdue(300, 600, 700));
    }

    #[test]
    fn copy_that_was_sent_after_the_last_look_may_be_overdue_too() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut acknowledgments = Acknowledgments::default();
        let mut is_overdue = |now, written, snd_una, write_seq| {
            acknowledgments.is_overdue(
                now,
                written,
                &connection_info(snd_una, write_seq),
                Duration::from_millis(40),
            )
        };
        assert!(!is_overdue(at(0), at(0), 0, 0));
        assert!(!is_overdue(at(40), at(0), 100, 100));
        assert!(
            !is_overdue(at(80), at(40), 100, 200),
            "its acknowledgment may come together with the answer"
        );
        assert!(is_overdue(at(120), at(80), 100, 300));
        assert!(!is_overdue(at(140), at(120), 300, 400), "there was progress");
    }

    #[test]
    fn round_trip_is_the_shortest() {
        let mut slow = subflow(2, 0);
        slow.tcp.rtt_us = 90_000;
        assert_eq!(round_trip([slow, subflow(1, 0)].iter()), Some(Duration::from_millis(40)));
        assert_eq!(round_trip([].iter()), None);
    }

    #[test]
    fn path_is_that_of_the_end_that_opened_the_session() {
        let (local, remote) = (SocketAddr::from(([1; 4], 1)), SocketAddr::from(([2; 4], 2)));
        assert_eq!(OpenedBy::Us.path_address(local, remote), IpAddr::from([1; 4]));
        assert_eq!(OpenedBy::Peer.path_address(local, remote), IpAddr::from([2; 4]));
    }
}
