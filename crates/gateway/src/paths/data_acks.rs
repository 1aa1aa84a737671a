//! Finds the subflow to close when a connection's DATA_ACK stands still, although TCP delivers. No I/O.
//!
//! Of the first byte without a DATA_ACK, the subflow is unknown. It is none of those that have delivered all that they held when the
//! DATA_ACK stopped, which leaves two reasons:
//!
//! - One subflow has not: it blocks the head of the line. After a subflow was closed, the kernel sends all that lacks a DATA_ACK again, on a new subflow of
//!   the same path too. What arrives there first was already delivered on the others, and the byte waits behind it: on a path that
//!   loses much, for a second.
//! - All have: the peer has dropped data that its TCP has acknowledged.
//!
//! Linux takes the window of a subflow's last segments for that of the connection, also after a DATA_ACK on another subflow has used it up
//! (`ack_update_msk()`). So a sender may exceed the receive window when a gap closes while the peer's program reads slowly. The peer drops what
//! exceeds it (`MPTcpExtNoDSSInWindow`), after TCP has acknowledged it. The sender's kernel repeats that on a subflow that has
//! nothing outstanding, on a busy connection thus after all that the send buffer holds; or at once, after a subflow was closed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::mptcp::{FullInfo, Subflow, SubflowEnds};
use tracing::debug;

use super::liveness::{Health, rtt_margin_us};

/// A smaller window may be why the peer accepts nothing: its program does not read.
const MIN_PEER_WINDOW: u32 = 1 << 16;

/// How long a subflow may block the head of the line, or twice what a round trip takes at most: what it sends and retransmits meanwhile moves the DATA_ACK
/// otherwise.
const MIN_HEAD_OF_LINE_TIMEOUT: Duration = Duration::from_millis(300);

/// Between two subflows that are closed.
const MIN_CLOSE_INTERVAL: Duration = Duration::from_secs(1);

/// What a connection has sent since its last DATA_ACK.
#[derive(Default)]
pub(super) struct DataAcks {
    /// The first byte that lacks one.
    snd_una: u64,
    /// Since when.
    since: Option<Instant>,
    /// What was handed to each subflow by the second look at it, in bytes: that byte is among it.
    sent: HashMap<SubflowEnds, u64>,
    /// When a subflow was last to be closed.
    closed: Option<Instant>,
}

impl DataAcks {
    /// Marks the subflow dead that blocks the head of the line, or the one with the longest round trip if the peer has dropped
    /// data: once it is closed, the kernel sends again what lacks a DATA_ACK. `health` is that of the connection's subflows, as
    /// [`Liveness::judge`](super::liveness::Liveness) has just found.
    pub(super) fn mark_dead_if_data_ack_stalls(
        &mut self,
        now: Instant,
        connection: &FullInfo,
        health: &mut [Health],
    ) {
        if let Some((number, reason)) = self.subflow_to_close(now, connection, health) {
            let (local, remote) = connection.subflows[number].ends();
            debug!("{reason}: the subflow from {local} to {remote} is closed");
            health[number] = Health::Dead;
        }
    }

    fn subflow_to_close(
        &mut self,
        now: Instant,
        connection: &FullInfo,
        health: &[Health],
    ) -> Option<(usize, &'static str)> {
        let FullInfo { info, subflows } = connection;
        let moved = std::mem::replace(&mut self.snd_una, info.snd_una) != info.snd_una;
        if moved || info.snd_una == info.write_seq {
            self.since = None;
            self.sent.clear();
            return None;
        }
        let stalled = now.duration_since(*self.since.get_or_insert(now));
        let established: Vec<&Subflow> =
            subflows.iter().filter(|subflow| subflow.tcp.state == State::Established).collect();
        let is_known = |subflow: &&Subflow| self.sent.contains_key(&subflow.ends());
        if self.sent.len() != established.len() || !established.iter().all(is_known) {
            self.sent = established.iter().map(|subflow| (subflow.ends(), assigned_bytes(subflow))).collect();
            // What was acknowledged already is from before that byte.
            if established.iter().all(|subflow| subflow.tcp.bytes_acked >= assigned_bytes(subflow)) {
                self.sent.clear();
            }
            return None;
        }
        if self.closed.is_some_and(|closed| now.duration_since(closed) < MIN_CLOSE_INTERVAL) {
            return None;
        }
        let is_undelivered = |number: &usize| {
            let Subflow { tcp, .. } = &subflows[*number];
            tcp.state == State::Established && tcp.bytes_acked < self.sent[&subflows[*number].ends()]
        };
        let may_send =
            |subflow: &Subflow| subflow.tcp.peer_window.is_some_and(|window| window >= MIN_PEER_WINDOW);
        let mut answering: Vec<usize> =
            (0..subflows.len()).filter(|number| health[*number] == Health::Answering).collect();
        let undelivered: Vec<usize> = (0..subflows.len()).filter(is_undelivered).collect();
        let found = match undelivered[..] {
            [] if established.iter().all(|subflow| may_send(subflow)) => {
                answering.sort_by_key(|number| subflows[*number].tcp.rtt_us);
                // The others go on.
                let slowest = answering.pop().filter(|_| !answering.is_empty())?;
                (slowest, "the peer has dropped data that it acknowledged")
            }
            [blocking]
                if may_send(&subflows[blocking])
                    && stalled >= head_of_line_timeout(&subflows[blocking])
                    && answering.iter().any(|other| *other != blocking) =>
            {
                (blocking, "head-of-line blocking")
            }
            _ => return None,
        };
        self.closed = Some(now);
        Some(found)
    }
}

fn head_of_line_timeout(subflow: &Subflow) -> Duration {
    let longest_us = u64::from(subflow.tcp.rtt_us) + rtt_margin_us(&subflow.tcp);
    Duration::from_micros(2 * longest_us).max(MIN_HEAD_OF_LINE_TIMEOUT)
}

fn assigned_bytes(subflow: &Subflow) -> u64 {
    subflow.tcp.assigned_bytes().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    /// A connection with two subflows: each has sent and had acknowledged so many bytes.
    fn connection(snd_una: u64, sent: [u64; 2], acked: [u64; 2]) -> FullInfo {
        let subflow = |index: usize| {
            let mut subflow = testing::subflow(index as u8 + 1, State::Established);
            let tcp = &mut subflow.tcp;
            (tcp.bytes_sent, tcp.bytes_retransmitted, tcp.bytes_not_sent) =
                (Some(sent[index] + 100), Some(100), Some(0));
            (tcp.bytes_acked, tcp.peer_window) = (acked[index], Some(1 << 20));
            tcp.rtt_us = [50_000, 30_000][index];
            subflow
        };
        FullInfo {
            info: testing::connection_info(snd_una, 1_000_000),
            subflows: vec![subflow(0), subflow(1)],
        }
    }

    /// Each subflow sends, and has all of the look before acknowledged; the connection's DATA_ACK does not move.
    fn connection_with_dropped_data(number: u64) -> FullInfo {
        connection(500, [1000 * number; 2], [(1000 * number).saturating_sub(500); 2])
    }

    /// Looks at a connection every 50 ms. Returns which subflow was to be closed at each look.
    fn dead_subflows(states: impl IntoIterator<Item = FullInfo>) -> Vec<Option<usize>> {
        let (mut data_acks, start) = (DataAcks::default(), Instant::now());
        let look = |(number, state): (u32, FullInfo)| {
            let mut health = [Health::Answering; 2];
            data_acks.mark_dead_if_data_ack_stalls(
                start + number * Duration::from_millis(50),
                &state,
                &mut health,
            );
            health.iter().position(|health| *health == Health::Dead)
        };
        (0..).zip(states).map(look).collect()
    }

    #[test]
    fn data_that_tcp_has_acknowledged_without_a_data_ack_was_dropped() {
        let found = dead_subflows([
            connection(500, [1000, 1000], [0, 0]),
            connection(500, [1400, 1000], [400, 300]),
            connection(500, [2000, 1400], [1399, 1400]),
            connection(500, [2400, 1900], [1400, 1500]),
        ]);
        assert_eq!(found, [None, None, None, Some(0)], "the one with the longest round trip");
    }

    /// The first subflow has an older byte to deliver, in so many looks; the second goes on.
    fn head_of_line_blocked(number: u64, looks: u64) -> FullInfo {
        connection(500, [2000, 1000 * number], [20 * number.min(looks), (1000 * number).saturating_sub(500)])
    }

    #[test]
    fn subflow_that_blocks_the_head_of_line_dies() {
        let found = dead_subflows((0..100).map(|number| head_of_line_blocked(number, 99)));
        let closed: Vec<usize> = (0..100).filter(|number| found[*number].is_some()).collect();
        assert_eq!((&closed[..3], found[7]), (&[7, 27, 47][..], Some(0)), "after 300 ms, and once a second");
        let slow = |number: u64| {
            let mut state = head_of_line_blocked(number, 99);
            state.subflows[0].tcp.rtt_us = 200_000;
            state
        };
        let found = dead_subflows((0..100).map(slow));
        assert_eq!(found.iter().position(Option::is_some), Some(17), "after four round trips");
        let queued = |number: u64| {
            let mut state = slow(number);
            state.subflows[0].tcp.min_rtt_us = Some(25_000);
            state
        };
        let found = dead_subflows((0..100).map(queued));
        assert_eq!(found.iter().position(Option::is_some), Some(11), "after 2 * (200 + 50) ms");
    }

    #[test]
    fn head_of_line_that_several_subflows_may_block_is_waited_for() {
        let silent = |number: u64| connection(500, [1000 + 100 * number, 1000], [10 * number, 999]);
        assert!(dead_subflows((0..90).map(silent)).iter().all(Option::is_none));
    }

    #[test]
    fn connection_that_progresses_or_is_idle_has_lost_nothing() {
        let busy = |number: u64| {
            connection(500 + number, [1000 * number; 2], [(1000 * number).saturating_sub(500); 2])
        };
        assert!(dead_subflows((0..100).map(busy)).iter().all(Option::is_none));
        let idle = |_| connection(500, [1000; 2], [1000; 2]);
        assert!(dead_subflows((0..100).map(idle)).iter().all(Option::is_none));
        let acknowledged =
            |number: u64| connection(1_000_000, [1000 * number; 2], [(1000 * number).saturating_sub(500); 2]);
        assert!(dead_subflows((0..100).map(acknowledged)).iter().all(Option::is_none));
    }

    #[test]
    fn peer_that_does_not_read_has_dropped_nothing() {
        let closed_window = |number: u64| {
            let mut state = connection_with_dropped_data(number);
            state.subflows[1].tcp.peer_window = Some(MIN_PEER_WINDOW - 1);
            state
        };
        assert!(dead_subflows((0..100).map(closed_window)).iter().all(Option::is_none));
        let full = |number: u64| {
            let mut state = head_of_line_blocked(number, 0);
            state.subflows[0].tcp.peer_window = Some(0);
            state
        };
        assert!(dead_subflows((0..100).map(full)).iter().all(Option::is_none));
    }

    #[test]
    fn one_subflow_is_closed_per_second() {
        let found = dead_subflows((0..60).map(connection_with_dropped_data));
        let closed: Vec<usize> = (0..60).filter(|number| found[*number].is_some()).collect();
        assert_eq!(closed, [2, 22, 42]);
    }

    #[test]
    fn only_subflow_is_kept() {
        let alone = |number: u64| {
            let mut state = connection_with_dropped_data(number);
            state.subflows.truncate(1);
            state
        };
        assert!(dead_subflows((0..100).map(alone)).iter().all(Option::is_none));
    }
}
