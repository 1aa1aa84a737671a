//! Detection of silent paths, which become failovers.

use std::net::IpAddr;
use std::ops::Range;

use plait_wire::Segment;
use plait_wire::capture::Timestamp;

use super::flow::Flow;
use super::live::{LiveConnection, State};
use super::observation::data_length;
use super::sender::{Acknowledged, Sender};
use crate::connection::{Close, Protocol};
use crate::direction::Direction;
use crate::failover::Failover;
use crate::failover::liveness::LivenessId;
use crate::failover::silence::{MIN_SILENCE, MIN_SILENCE_RTTS};
use crate::stream::CarriedBytes;

impl State {
    /// Detects that a path was silent while it was needed, which becomes a [`Failover`]. The signs depend on where the
    /// capture was taken:
    ///
    /// - At the sender, data and its retransmissions are not answered.
    /// - At the receiver, nothing is captured until other subflows have filled the gap in the stream, and the path returns
    ///   with data that they have already carried.
    pub(super) fn detect_silence(
        &mut self,
        index: usize,
        flow: &mut Flow,
        segment: &Segment<'_>,
        acknowledged: Acknowledged,
        carried: CarriedBytes,
        time: Timestamp,
    ) {
        let direction = flow.direction(segment.source);
        let peer = flow.side(direction.reverse());
        let awaited = peer.sender.has_outstanding();
        if data_length(segment) > 0 {
            peer.responses.sent(time);
        }
        let before = flow.side(direction).responses.heard(time, awaited);
        let connection = &mut self.live[index].connection;
        if connection.protocol == Protocol::Tcp {
            return;
        }
        let subflow = flow.subflow;
        let peer = &flow.side(direction.reverse()).sender;
        let was_long = |since: &Timestamp| is_long(*since, time, peer);
        let heard = before.last_heard.filter(was_long);
        // At a receiver that misses other data, earlier segments may have been answered.
        let awaited_since = before.first_sent.filter(was_long).and(before.awaited_since);
        let ends = (segment.source.ip(), segment.destination.ip());
        if let Some(since) = awaited_since {
            self.record_silence(
                index,
                flow,
                ends,
                direction.reverse(),
                since..time,
                before.is_unresponsive(),
            );
        } else if data_length(segment) > 0 {
            if let Some(since) = heard {
                flow.back = Some(since..time);
            }
            if carried.new > 0 {
                flow.back = None;
            } else if carried.reinjected > 0
                && let Some(silence) = flow.back.take()
                && connection.stream(direction).gap_filled_by(&silence).is_some_and(|by| by != subflow)
            {
                self.record_silence(index, flow, ends, direction, silence, false);
            }
        }
        match &mut flow.recovering {
            Some(failover) => {
                let resumed = match failover.direction == direction {
                    true => {
                        failover.reinjected.add(carried.reinjected);
                        carried.new > 0
                    }
                    false => acknowledged.advanced,
                };
                if resumed {
                    self.end_recovery(index, flow, Some(time));
                }
            }
            None => self.live[index].connection.stream_mut(direction.reverse()).heard(subflow),
        }
    }

    /// Records that a path was silent: the first of the `ends` sent nothing, and data in the direction `delayed` did not
    /// arrive.
    fn record_silence(
        &mut self,
        index: usize,
        flow: &mut Flow,
        ends: (IpAddr, IpAddr),
        delayed: Direction,
        silence: Range<Timestamp>,
        unresponsive: bool,
    ) {
        let is_recorded =
            |before: &Failover| before.direction == delayed && before.to.is_none_or(|to| silence.start < to);
        if flow.recovering.as_deref().is_some_and(is_recorded) {
            return;
        }
        self.end_recovery(index, flow, None);
        // At the sender, the silence after its retransmissions is not a second one.
        flow.back = None;
        let Some((from, to)) = self.silence_of_path(flow.liveness, ends, &silence, unresponsive) else {
            return;
        };
        let to = to.unwrap_or(silence.end);
        flow.recovering = Some(Box::new(Failover::new(flow.subflow, delayed, from, Some(to))));
    }

    /// The span in which the path was silent together with a flow; without an end if it still is. `None` if other packets
    /// passed meanwhile: the flow merely waited for its retransmission timer, unless the peer is `unresponsive`.
    fn silence_of_path(
        &self,
        liveness: Option<LivenessId>,
        ends: (IpAddr, IpAddr),
        flow: &Range<Timestamp>,
        unresponsive: bool,
    ) -> Option<(Timestamp, Option<Timestamp>)> {
        let path = liveness.and_then(|liveness| self.liveness.silence(liveness, ends, flow));
        let is_long = |(from, to): &(Timestamp, Option<Timestamp>)| {
            to.unwrap_or(flow.end).since(*from).is_some_and(|silence| silence >= MIN_SILENCE)
        };
        match path.filter(is_long) {
            Some((from, to)) => Some((from.max(flow.start), to)),
            None => (unresponsive || liveness.is_none()).then_some((flow.start, None)),
        }
    }

    /// Records silences that last until the end of a flow.
    pub(super) fn end_silence(&mut self, index: usize, flow: &mut Flow) {
        self.end_recovery(index, flow, None);
        let LiveConnection { connection, last_seen, .. } = &self.live[index];
        if flow.close == Close::Fin || connection.protocol == Protocol::Tcp {
            return;
        }
        // A side that has closed the subflow no longer waits.
        let last_seen = if flow.close.is_final() { flow.last_seen } else { *last_seen };
        let subflow = &self.live[index].connection.subflows[flow.subflow];
        let (client, server) = (subflow.client.ip(), subflow.server.ip());
        for (delayed, ends) in
            [(Direction::ClientToServer, (server, client)), (Direction::ServerToClient, (client, server))]
        {
            let silence = flow.side(delayed.reverse()).responses;
            // If a side was never heard, the capture may not contain its direction.
            let Some(since) = silence.last_heard.and(silence.awaited_since) else { continue };
            let is_long = |asked| is_long(asked, last_seen, &flow.side(delayed).sender);
            if !silence.first_sent.is_some_and(is_long) {
                continue;
            }
            let span = since..last_seen;
            let unresponsive = silence.is_unresponsive();
            let Some((from, to)) = self.silence_of_path(flow.liveness, ends, &span, unresponsive) else {
                continue;
            };
            flow.recovering = Some(Box::new(Failover::new(flow.subflow, delayed, from, to)));
            self.end_recovery(index, flow, None);
        }
    }

    /// Completes the record of a silence: data has crossed the path again, or never will.
    fn end_recovery(&mut self, index: usize, flow: &mut Flow, resumed: Option<Timestamp>) {
        let Some(mut failover) = flow.recovering.take() else { return };
        let live = &mut self.live[index];
        let stream = live.connection.stream_mut(failover.direction);
        let span = failover.from..resumed.unwrap_or(live.last_seen);
        let reinjected_elsewhere = stream.reinjected_elsewhere(failover.subflow);
        failover.resumed = resumed;
        failover.stall = stream.longest_stall(&span);
        failover.taken_over_by =
            reinjected_elsewhere.by.or_else(|| stream.carried_on(failover.subflow, &span));
        failover.reinjected = [failover.reinjected, reinjected_elsewhere.reinjected].into_iter().sum();
        stream.heard(failover.subflow);
        live.connection.push_failover(*failover);
    }
}

/// Whether a silence is longer than round trips and losses explain.
fn is_long(since: Timestamp, until: Timestamp, sender: &Sender) -> bool {
    until.since(since).is_some_and(|silence| {
        // The median, because the end of the silence may itself be a sample of that length.
        silence >= MIN_SILENCE
            && silence >= sender.stats.ack_rtt.quantile(0.5).unwrap_or_default() * MIN_SILENCE_RTTS
    })
}
