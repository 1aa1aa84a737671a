//! Whether the peer answers on each subflow of a connection, decided from what TCP reports of them. No I/O.
//!
//! ```text
//!  Opening ── SYN-ACK ──▶ Answering ── no acknowledgment within silence_timeout ──▶ Silent
//!     │                       ▲                                                       │  │
//!     │ none within           └──────────────────── acknowledgment ───────────────────┘  │ another
//!     │ OPEN_TIMEOUT                                                                     │ answers
//!     └───────────────────────────────▶ Dead ◀───────────────────────────────────────────┘
//! ```
//!
//! A subflow counts as silent as well while a gap in what arrived is not filled within `gap_timeout`, although what follows is acknowledged: the
//! data of all subflows waits for it.
//!
//! The watch of a connection closes its dead subflows: the kernel then sends at once on the others what they had not
//! delivered, and the path gets a new subflow, which need not wait for the old one's retransmission timeout, doubled each time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use plait_linux::mptcp::{Subflow, SubflowEnds};
use plait_linux::{State, TcpInfo};

/// The time for a SYN-ACK: the kernel sends four SYNs in it, one a second; before Linux 6.5, three.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_millis(3500);

/// What a subflow does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// The SYN is not answered yet.
    Opening,
    /// What was sent is acknowledged, or is not due yet.
    Answering,
    /// The peer may not send on it ([`super::suspects`]), although it answers.
    Suspected,
    /// It answers again, and retransmits what it sent while it did not ([`super::suspects`]): a new one is faster.
    Recovering,
    /// What was sent is overdue, and no other subflow is known to work.
    Silent,
    /// It should be closed.
    Dead,
    /// It is closed, or is being closed in order.
    Closed,
}

/// The subflows of a connection that wait for an answer, and since when.
#[derive(Default)]
pub(super) struct Liveness {
    waiting: HashMap<SubflowEnds, Wait>,
}

/// A wait for an answer.
#[derive(Clone, Copy)]
struct Wait {
    since: Instant,
    timeout: Duration,
    /// What the peer had received when it began.
    delivered: Option<u32>,
    /// It follows a silence.
    previous_timeout: Option<PreviousTimeout>,
    /// Bytes that were acknowledged without a gap.
    acked: u64,
    acked_since: Instant,
    /// How long a gap may last; `None`: there is none.
    gap_timeout: Option<Duration>,
}

impl Wait {
    /// When an answer becomes overdue, and how long it will have been waited for.
    fn deadline(&self) -> (Instant, Duration) {
        let silence = (self.since + self.timeout, self.timeout);
        let gap = self.gap_timeout.map(|timeout| (self.acked_since + timeout, timeout));
        gap.map_or(silence, |gap| silence.min(gap))
    }
}

/// The first acknowledgment after a silence measures a round trip as long as that, so the timeout of before remains in force until
/// more has arrived. What was sent in the silence is still on its way for TCP, which may wait for it with a full window.
#[derive(Clone, Copy)]
struct PreviousTimeout {
    timeout: Duration,
    /// What the peer had received in the silence.
    delivered: Option<u32>,
}

impl PreviousTimeout {
    fn is_in_force(&self, delivered: Option<u32>) -> bool {
        let (Some(then), Some(now)) = (self.delivered, delivered) else { return false };
        now.wrapping_sub(then) < SEVERAL
    }
}

impl Liveness {
    /// What each of a connection's subflows does. Waits are measured from one call to the next, so calls should be more frequent
    /// than answers are due. `is_gone`: a local address that cannot be used now.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        subflows: &[Subflow],
        is_gone: impl Fn(IpAddr) -> bool,
    ) -> Vec<Health> {
        let waits: Vec<Option<Wait>> = subflows.iter().map(|subflow| self.wait(now, subflow)).collect();
        self.waiting.retain(|known, _| subflows.iter().any(|subflow| subflow.ends() == *known));
        let is_overdue = |index: usize| {
            is_gone(subflows[index].local.ip().to_canonical())
                || waits[index].is_some_and(|wait| now >= wait.deadline().0)
        };
        let answers = |index: usize| subflows[index].tcp.state == State::Established && !is_overdue(index);
        // In the second half of the wait: the last answers of paths that are cut together come at different times.
        let takes_over = |index: usize, from: usize| {
            let mark = waits[from].map(|wait| {
                let (deadline, timeout) = wait.deadline();
                deadline - timeout / 2
            });
            let answered_since = |mark| acknowledged_at(now, &subflows[index].tcp) > mark;
            answers(index) && (waits[index].is_none() || mark.is_none_or(answered_since))
        };
        let health = |index: usize| match subflows[index].tcp.state {
            State::SynSent if is_overdue(index) => Health::Dead,
            State::SynSent => Health::Opening,
            State::Established if !is_overdue(index) => Health::Answering,
            State::Established => {
                let mut others = (0..subflows.len()).filter(|other| *other != index);
                if others.any(|other| takes_over(other, index)) { Health::Dead } else { Health::Silent }
            }
            _ => Health::Closed,
        };
        (0..subflows.len()).map(health).collect()
    }

    /// Whether a subflow waits for an answer.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When the next answer becomes overdue.
    pub(super) fn next_overdue(&self, now: Instant) -> Option<Instant> {
        self.waiting.values().map(|wait| wait.deadline().0).filter(|due| *due > now).min()
    }

    /// The wait of a subflow, if it waits for an answer.
    fn wait(&mut self, now: Instant, subflow: &Subflow) -> Option<Wait> {
        let (tcp, ends) = (&subflow.tcp, subflow.ends());
        let opening = tcp.state == State::SynSent;
        if !opening && tcp.unacked == 0 && tcp.unanswered_probes == 0 {
            self.waiting.remove(&ends);
            return None;
        }
        let (since, previous_timeout) = match self.waiting.get(&ends) {
            None => (now, None),
            // An acknowledgment of nothing new, as of a window, is no answer: larger packets may be lost.
            Some(wait) if opening || wait.delivered == tcp.delivered => (wait.since, wait.previous_timeout),
            Some(wait) => {
                let acknowledged = acknowledged_at(now, tcp);
                let was_silent = acknowledged.duration_since(wait.since) >= wait.timeout;
                let previous = PreviousTimeout { timeout: wait.timeout, delivered: wait.delivered };
                let previous_timeout = if was_silent { Some(previous) } else { wait.previous_timeout };
                (wait.since.max(acknowledged), previous_timeout)
            }
        };
        let previous_timeout = previous_timeout.filter(|previous| previous.is_in_force(tcp.delivered));
        let timeout = if opening { OPEN_TIMEOUT } else { silence_timeout(tcp) };
        let timeout = previous_timeout.map_or(timeout, |previous| timeout.min(previous.timeout));
        let unmoved = self.waiting.get(&ends).filter(|wait| wait.acked == tcp.bytes_acked);
        let wait = Wait {
            since,
            timeout,
            delivered: tcp.delivered,
            previous_timeout,
            acked: tcp.bytes_acked,
            acked_since: unmoved.map_or(now, |wait| wait.acked_since),
            // A SYN that is retransmitted counts as lost.
            gap_timeout: (!opening && tcp.lost > 0).then(|| gap_timeout(tcp)),
        };
        self.waiting.insert(ends, wait);
        Some(wait)
    }
}

fn acknowledged_at(now: Instant, tcp: &TcpInfo) -> Instant {
    now.checked_sub(Duration::from_millis(tcp.last_ack_ms.into())).unwrap_or(now)
}

/// The time within which something must have been acknowledged. With several segments on their way, each that arrives is, so that a
/// silence means that all were lost, or are late by more than the round-trip time ever varies: by twice its minimum, which has no
/// queue, since one that grows delays each segment only a little more than the one before. Of fewer, the last may just be
/// lost: then also its retransmission must have been acknowledged (RFC 6298), so the timeout is that of TCP, not doubled, and a
/// round trip.
fn silence_timeout(tcp: &TcpInfo) -> Duration {
    let (rtt, variance) = (u64::from(tcp.rtt_us), u64::from(tcp.rtt_variance_us));
    let timeout = if tcp.unacked >= SEVERAL {
        (rtt + rtt_margin_us(tcp).max(4 * variance)).max(MIN_SILENCE_US)
    } else {
        let rto = tcp.rto_us.checked_shr(tcp.backoff.into()).unwrap_or(0);
        u64::from(rto).max(MIN_RTO_US) + rtt
    };
    Duration::from_micros(timeout)
}

/// By how much more than the smoothed round-trip time one may take.
pub(super) fn rtt_margin_us(tcp: &TcpInfo) -> u64 {
    let rtt = u64::from(tcp.rtt_us);
    tcp.min_rtt_us.map_or(rtt, |least| rtt.min(2 * u64::from(least)))
}

/// The time within which a lost segment must have arrived. TCP retransmits it once per round trip, as long as later segments are
/// acknowledged (RFC 8985), so that three retransmissions may be lost.
fn gap_timeout(tcp: &TcpInfo) -> Duration {
    Duration::from_micros(4 * u64::from(tcp.rtt_us)).max(MIN_GAP_TIMEOUT)
}

const MIN_GAP_TIMEOUT: Duration = Duration::from_millis(200);

/// Segments on their way of which not all are lost by chance.
const SEVERAL: u32 = 4;

const MIN_SILENCE_US: u64 = 150_000;

/// Linux, TCP_RTO_MIN, microseconds.
const MIN_RTO_US: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use Health::{Answering, Closed, Dead, Opening, Silent};

    /// A subflow with a round-trip time of 50 ms, last acknowledged so many milliseconds ago.
    fn subflow(number: u8, state: State, unacked: u32, last_ack_ms: u32) -> Subflow {
        let mut subflow = testing::subflow(number, state);
        (subflow.tcp.unacked, subflow.tcp.last_ack_ms) = (unacked, last_ack_ms);
        subflow
    }

    fn established(number: u8, unacked: u32, last_ack_ms: u32) -> Subflow {
        subflow(number, State::Established, unacked, last_ack_ms)
    }

    /// Judges at intervals of 50 ms: what the subflows are at each time, in milliseconds. Something is delivered with each
    /// acknowledgment.
    fn judge_until(end: u32, subflows: impl Fn(u32) -> Vec<Subflow>) -> Vec<Vec<Health>> {
        judge_deliveries_until(end, |ms| {
            let delivered = |mut subflow: Subflow| {
                subflow.tcp.delivered = Some(100_000 + ms - subflow.tcp.last_ack_ms);
                subflow
            };
            subflows(ms).into_iter().map(delivered).collect()
        })
    }

    fn judge_deliveries_until(end: u32, subflows: impl Fn(u32) -> Vec<Subflow>) -> Vec<Vec<Health>> {
        let (mut liveness, start) = (Liveness::default(), Instant::now() + Duration::from_secs(10));
        let at = |ms: u32| start + Duration::from_millis(ms.into());
        (0..=end / 50).map(|n| liveness.judge(at(50 * n), &subflows(50 * n), |_| false)).collect()
    }

    #[test]
    fn subflow_that_misses_an_answer_dies_while_another_answers() {
        let found = judge_until(150, |ms| vec![established(1, 9, 1), established(2, 9, ms)]);
        assert!(found[..3].iter().all(|each| *each == [Answering, Answering]), "{found:?}");
        assert_eq!(found[3], [Answering, Dead]);
    }

    #[test]
    fn round_trip_that_contains_a_silence_does_not_extend_the_next_wait() {
        // It is silent until 1000 ms, when one segment is acknowledged.
        let found = |delivered_then: u32| {
            judge_deliveries_until(1500, |ms| {
                let (mut first, mut second) = (established(1, 9, 1), established(2, 9, ms));
                (first.tcp.delivered, second.tcp.delivered) = (Some(ms), Some(7));
                if ms >= 1000 {
                    second.tcp.delivered = Some(7 + delivered_then);
                    (second.tcp.last_ack_ms, second.tcp.rtt_us) = (ms - 1000, 200_000);
                    second.tcp.rtt_variance_us = 250_000;
                } else {
                    (first.tcp.delivered, first.tcp.last_ack_ms) = (Some(7), ms);
                }
                vec![first, second]
            })
        };
        let states = found(1);
        assert_eq!(states[19], [Silent, Silent]);
        assert_eq!((&states[21], &states[24]), (&vec![Answering, Answering], &vec![Answering, Dead]));
        let states = found(SEVERAL);
        assert!(states[21..].iter().all(|each| *each == [Answering, Answering]), "{states:?}");
    }

    #[test]
    fn acknowledgments_of_nothing_are_no_answers() {
        let found = judge_deliveries_until(150, |ms| {
            let (mut first, mut second) = (established(1, 9, 1), established(2, 9, 1));
            (first.tcp.delivered, second.tcp.delivered) = (Some(ms), Some(7));
            vec![first, second]
        });
        assert_eq!((&found[2], &found[3]), (&vec![Answering, Answering], &vec![Answering, Dead]));
    }

    /// One that loses segments, of which some arrive, and has got so many bytes without a gap.
    fn lossy(ms: u32, bytes_acked: u32) -> Subflow {
        let mut lossy = established(2, 9, 1);
        (lossy.tcp.lost, lossy.tcp.delivered) = (2, Some(ms));
        lossy.tcp.bytes_acked = bytes_acked.into();
        lossy
    }

    #[test]
    fn subflow_with_a_gap_that_is_not_filled_dies_while_another_answers() {
        let found = judge_deliveries_until(400, |ms| {
            let mut first = established(1, 9, 1);
            first.tcp.delivered = Some(ms);
            vec![first, lossy(ms, 100)]
        });
        assert!(found[..4].iter().all(|each| *each == [Answering, Answering]), "{found:?}");
        assert_eq!(found[4], [Answering, Dead], "after 200 ms");
        let found = judge_deliveries_until(1000, |ms| vec![lossy(ms, 100)]);
        assert_eq!(found[20], [Silent], "no other");
    }

    #[test]
    fn gaps_that_are_filled_in_time_are_none() {
        let of = |acked: fn(u32) -> u32, rtt_us| {
            judge_deliveries_until(500, |ms| {
                let (mut first, mut second) = (established(1, 9, 1), lossy(ms, acked(ms)));
                (first.tcp.delivered, second.tcp.rtt_us) = (Some(ms), rtt_us);
                vec![first, second]
            })
        };
        for found in [of(|ms| ms / 200, 50_000), of(|_| 100, 150_000)] {
            assert!(found.iter().all(|each| *each == [Answering, Answering]), "{found:?}");
        }
    }

    #[test]
    fn last_segment_may_be_lost_once() {
        let found = judge_until(300, |ms| vec![established(1, 9, 1), established(2, 1, ms)]);
        assert_eq!((found[5][1], found[6][1]), (Answering, Dead), "after 250 + 50 ms");
    }

    #[test]
    fn slow_and_varying_paths_have_more_time() {
        let found = judge_until(700, |ms| {
            let mut second = established(2, 9, ms);
            (second.tcp.rtt_us, second.tcp.rtt_variance_us) = (200_000, 100_000);
            vec![established(1, 9, 1), second]
        });
        assert_eq!((found[11][1], found[12][1]), (Answering, Dead), "after 200 + 4 * 100 ms");
    }

    #[test]
    fn silence_timeout_counts_queueing_delay_once() {
        let found = judge_until(400, |ms| {
            let mut second = established(2, 9, ms);
            (second.tcp.rtt_us, second.tcp.min_rtt_us) = (200_000, Some(50_000));
            vec![established(1, 9, 1), second]
        });
        assert_eq!((found[5][1], found[6][1]), (Answering, Dead), "after 200 + 2 * 50 ms");
    }

    #[test]
    fn wait_begins_when_data_is_sent_not_with_the_last_acknowledgment() {
        let found = judge_until(350, |ms| {
            vec![established(1, 0, 5000), established(2, u32::from(ms >= 50), 5000 + ms)]
        });
        assert_eq!(found[6], [Answering, Answering]);
        assert_eq!(found[7], [Answering, Dead], "an idle subflow can take over");
    }

    #[test]
    fn subflows_that_fall_silent_together_are_kept() {
        let found = judge_until(90_000, |ms| vec![established(1, 9, ms + 40), established(2, 9, ms)]);
        assert_eq!(found.last().expect("it is judged"), &[Silent, Silent]);
        assert!(found.iter().flatten().all(|health| *health != Dead));
    }

    #[test]
    fn new_subflow_takes_over_from_silent_ones() {
        let found = judge_until(2000, |ms| {
            let state = if ms < 2000 { State::SynSent } else { State::Established };
            vec![established(1, 9, ms), subflow(3, state, 0, ms)]
        });
        assert_eq!(found[39], [Silent, Opening]);
        assert_eq!(found[40], [Dead, Answering]);
    }

    #[test]
    fn unanswered_keepalive_is_a_wait_and_backoff_does_not_prolong_it() {
        let found = judge_until(300, |ms| {
            let mut second = established(2, 0, ms + 1000);
            second.tcp.unanswered_probes = 1;
            (second.tcp.rto_us, second.tcp.backoff) = (1_000_000, 2);
            vec![established(1, 9, 1), second]
        });
        assert_eq!((&found[5][1], &found[6][1]), (&Answering, &Dead));
    }

    #[test]
    fn answer_ends_the_silence() {
        let found = judge_until(600, |ms| {
            let last = if ms < 500 { ms } else { ms - 500 };
            vec![established(1, 9, ms), established(2, 9, last)]
        });
        assert_eq!(found[9], [Silent, Silent]);
        assert_eq!(found[10], [Dead, Answering]);
    }

    #[test]
    fn unanswered_syn_is_given_up_after_retransmissions() {
        let found = judge_until(3500, |ms| {
            let mut opening = subflow(1, State::SynSent, 1, 0);
            opening.tcp.lost = u32::from(ms >= 1000);
            vec![opening, established(2, 0, 0)]
        });
        assert!(found[..70].iter().all(|each| each[0] == Opening), "{found:?}");
        assert_eq!(found[70][0], Dead);
    }

    #[test]
    fn lost_address_is_silent_at_once() {
        let judge = |subflows: &[Subflow]| {
            let gone: IpAddr = [10, 0, 1, 1].into();
            Liveness::default().judge(Instant::now() + Duration::from_secs(10), subflows, |ip| ip == gone)
        };
        assert_eq!(judge(&[established(1, 0, 0), established(2, 0, 0)]), [Dead, Answering]);
        assert_eq!(judge(&[established(1, 0, 0)]), [Silent]);
        assert_eq!(judge(&[established(1, 0, 0), subflow(2, State::FinWait1, 0, 0)]), [Silent, Closed]);
    }
}
