use std::net::IpAddr;
use std::ops::Range;

use plait_wire::Segment;
use plait_wire::capture::Timestamp;

use super::carries;
use super::live::{Live, State};
use crate::flow::Flow;
use crate::life::LifeId;
use crate::sender::{Acknowledged, Sender};
use crate::silence;
use crate::stream::Novelty;
use crate::{Close, Direction, Failover, Protocol};

impl State {
    /// Takes a segment as a sign of life: of its sender, and of the path. A path that had been silent while it was
    /// needed gives a [`Failover`], in two ways, by where the capture was taken:
    ///
    /// - Beside the sender of data, that data and its retransmissions are seen to go without an answer.
    /// - Beside its receiver, nothing is seen, until others have filled the gap that the path left in the stream, and
    ///   the path itself comes back with what they had carried already.
    pub(super) fn listen(
        &mut self,
        index: usize,
        flow: &mut Flow,
        segment: &Segment<'_>,
        acknowledged: Acknowledged,
        novelty: Novelty,
        time: Timestamp,
    ) {
        let direction = flow.direction(segment.source);
        let listener = flow.half(direction.reverse());
        let awaited = listener.sender.has_outstanding();
        if carries(segment) > 0 {
            listener.silence.asked(time);
        }
        let before = flow.half(direction).silence.spoke(time, awaited);
        let connection = &mut self.live[index].connection;
        if connection.protocol == Protocol::Tcp {
            return;
        }
        let subflow = flow.subflow;
        let listener = &flow.half(direction.reverse()).sender;
        let was_long = |since: &Timestamp| is_long(*since, time, listener);
        let heard = before.heard.filter(was_long);
        // What it was asked before, it may have answered, beside a receiver that misses something else.
        let awaited_since = before.first_asked.filter(was_long).and(before.awaited_since);
        let ends = (segment.source.ip(), segment.destination.ip());
        if let Some(since) = awaited_since {
            self.silent(index, flow, ends, direction.reverse(), since..time, before.asked_in_vain());
        } else if carries(segment) > 0 {
            if let Some(since) = heard {
                flow.back = Some(since..time);
            }
            if novelty.new > 0 {
                flow.back = None;
            } else if novelty.reinjected > 0
                && let Some(silence) = flow.back.take()
                && connection.stream(direction).gap_filled_by(&silence).is_some_and(|by| by != subflow)
            {
                self.silent(index, flow, ends, direction, silence, false);
            }
        }
        match &mut flow.recovering {
            Some(failover) => {
                let carried = match failover.direction == direction {
                    true => {
                        failover.reinjected.add(novelty.reinjected);
                        novelty.new > 0
                    }
                    false => acknowledged.advanced,
                };
                if carried {
                    self.end_recovery(index, flow, Some(time));
                }
            }
            None => self.live[index].connection.stream_mut(direction.reverse()).heard(subflow),
        }
    }

    /// The path of a flow was silent: nothing came from the first of the `ends`, and data in the direction `held_up`
    /// did not get through.
    fn silent(
        &mut self,
        index: usize,
        flow: &mut Flow,
        ends: (IpAddr, IpAddr),
        held_up: Direction,
        silence: Range<Timestamp>,
        in_vain: bool,
    ) {
        let is_told =
            |before: &Failover| before.direction == held_up && before.to.is_none_or(|to| silence.start < to);
        if flow.recovering.as_deref().is_some_and(is_told) {
            return;
        }
        self.end_recovery(index, flow, None);
        // Beside the sender, what comes after its retransmissions is no second sign of the same silence.
        flow.back = None;
        let Some((from, to)) = self.silence_of_path(flow.life, ends, &silence, in_vain) else { return };
        let to = to.unwrap_or(silence.end);
        flow.recovering = Some(Box::new(Failover::new(flow.subflow, held_up, from, Some(to))));
    }

    /// From when to when the path was silent while a flow was; without an end if it still is. `None` if something else
    /// was heard on it meanwhile: the flow only waited for its timer, unless it asked `in_vain`.
    fn silence_of_path(
        &self,
        life: Option<LifeId>,
        ends: (IpAddr, IpAddr),
        flow: &Range<Timestamp>,
        in_vain: bool,
    ) -> Option<(Timestamp, Option<Timestamp>)> {
        let path = life.and_then(|life| self.lives.silence(life, ends, flow));
        let is_long = |(from, to): &(Timestamp, Option<Timestamp>)| {
            to.unwrap_or(flow.end).since(*from).is_some_and(|silence| silence >= silence::LEAST)
        };
        match path.filter(is_long) {
            Some((from, to)) => Some((from.max(flow.start), to)),
            None => (in_vain || life.is_none()).then_some((flow.start, None)),
        }
    }

    /// What is to be said of silences when a flow is over.
    pub(super) fn end_silence(&mut self, index: usize, flow: &mut Flow) {
        self.end_recovery(index, flow, None);
        let Live { connection, last_seen, .. } = &self.live[index];
        if flow.close == Close::Fin || connection.protocol == Protocol::Tcp {
            return;
        }
        // Who has closed a subflow waits for nothing any more.
        let last_seen = if flow.close.is_final() { flow.last_seen } else { *last_seen };
        let subflow = &self.live[index].connection.subflows[flow.subflow];
        let (client, server) = (subflow.client.ip(), subflow.server.ip());
        for (held_up, ends) in
            [(Direction::ClientToServer, (server, client)), (Direction::ServerToClient, (client, server))]
        {
            let silence = flow.half(held_up.reverse()).silence;
            // Of a side that was never heard, the capture shows nothing.
            let Some(since) = silence.heard.and(silence.awaited_since) else { continue };
            let is_long = |asked| is_long(asked, last_seen, &flow.half(held_up).sender);
            if !silence.first_asked.is_some_and(is_long) {
                continue;
            }
            let span = since..last_seen;
            let in_vain = silence.asked_in_vain();
            let Some((from, to)) = self.silence_of_path(flow.life, ends, &span, in_vain) else { continue };
            flow.recovering = Some(Box::new(Failover::new(flow.subflow, held_up, from, to)));
            self.end_recovery(index, flow, None);
        }
    }

    /// Completes the account of a silence: data crossed the path again, or will not any more.
    fn end_recovery(&mut self, index: usize, flow: &mut Flow, carried_again: Option<Timestamp>) {
        let Some(mut failover) = flow.recovering.take() else { return };
        let live = &mut self.live[index];
        let stream = live.connection.stream_mut(failover.direction);
        let span = failover.from..carried_again.unwrap_or(live.last_seen);
        let replaced = stream.replaced(failover.subflow);
        failover.carried_again = carried_again;
        failover.stall = stream.longest_stall(&span);
        failover.taken_over_by = replaced.by.or_else(|| stream.carried_on(failover.subflow, &span));
        failover.reinjected += replaced.reinjected;
        stream.heard(failover.subflow);
        live.connection.failed_over(*failover);
    }
}

/// Whether nothing came for longer than round trips of what `sender` sends, and losses, explain.
fn is_long(since: Timestamp, until: Timestamp, sender: &Sender) -> bool {
    until.since(since).is_some_and(|silence| {
        // The median, because what ends a silence may itself give a sample as long as that.
        silence >= silence::LEAST
            && silence >= sender.tally.round_trips.quantile(0.5).unwrap_or_default() * silence::ROUND_TRIPS
    })
}
