//! Live connections: lookup by token, capture spans, and retirement.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{Key, Token};
use slab::Slab;

use super::flow::Flow;
use super::interval_counter::IntervalLength;
use super::observation::{AssemblyTotals, Finished, Observation};
use crate::connection::{Connection, Protocol};
use crate::direction::Direction;
use crate::failover::liveness::{LivenessId, LivenessTable};
use crate::interval::{Interval, IntervalCounts};
use crate::options::ReadOptions;
use crate::path::PathId;
use crate::stream::Stream;
use crate::stream_event::{StreamEvent, StreamEventKind};

/// The state of the assembly: live connections and the tables that find them.
#[derive(Default)]
pub(super) struct State {
    pub(super) live: Slab<LiveConnection>,
    /// The connection of each token, and the direction in which the token's owner sends.
    pub(super) tokens: HashMap<Token, (usize, Direction)>,
    pub(super) liveness: LivenessTable,
    pub(super) finished: VecDeque<Finished>,
    pub(super) totals: AssemblyTotals,
    pub(super) interval: Option<IntervalLength>,
    /// Whether steps of streams are handed out.
    pub(super) stream_events: bool,
    /// The latest timestamp so far.
    pub(super) now: Timestamp,
    /// The rest of [`ReadOptions::payload_limit`].
    pub(super) budget: u64,
    connections_seen: u64,
    spans: Vec<Span>,
}

/// A connection that has not ended.
pub(super) struct LiveConnection {
    pub(super) connection: Box<Connection>,
    /// By the direction in which the key's owner sends.
    pub(super) keys: [Option<Key>; 2],
    pub(super) last_seen: Timestamp,
    /// Number of subflows that have not ended.
    flows: usize,
}

fn finished_interval(
    live: &LiveConnection,
    subflow: usize,
    direction: Direction,
    start: Timestamp,
    counts: IntervalCounts,
) -> Finished {
    let connection = live.connection.id;
    Finished::Interval(Interval { connection, subflow, direction, start, counts })
}

/// The span of time of a capture, as far as it was read.
#[derive(Clone, Copy, Default)]
struct Span {
    first: Option<Timestamp>,
    last: Timestamp,
    ended: bool,
}

/// How far records may be out of order if a capture tool merges those of several processors.
const REORDERING_TOLERANCE: Duration = Duration::from_millis(10);

impl Span {
    /// Whether this capture begins where another one ended.
    fn continues(self, other: Self) -> bool {
        other.ended
            && self.first.is_some_and(|first| {
                other.last.since(first).is_none_or(|overlap| overlap < REORDERING_TOLERANCE)
            })
    }
}

impl State {
    pub(super) fn new(captures: usize, options: ReadOptions) -> Self {
        Self {
            interval: options.interval.map(IntervalLength::new),
            stream_events: options.stream_events,
            budget: options.payload_limit,
            spans: vec![Span::default(); captures],
            ..Self::default()
        }
    }

    /// Records that a packet was read.
    #[inline]
    pub(super) fn observe(&mut self, Observation { path, time }: Observation) {
        self.now = self.now.max(time);
        let span = &mut self.spans[path.0];
        span.first.get_or_insert(time);
        span.last = time;
    }

    /// Marks the end of a capture.
    pub(super) fn ended(&mut self, path: PathId) {
        self.spans[path.0].ended = true;
    }

    /// Whether a flow is observed in another capture than that of `path`.
    #[inline]
    pub(super) fn is_observed_elsewhere(&self, flow: &mut Flow, source: SocketAddr, path: PathId) -> bool {
        self.spans.len() > 1
            && flow.is_observed_elsewhere(flow.direction(source), path, |other| {
                self.spans[path.0].continues(self.spans[other.0])
            })
    }

    /// The liveness entry of two addresses in the capture of `path`, or in one that it continues.
    pub(super) fn liveness(&mut self, path: PathId, one: IpAddr, other: IpAddr) -> Option<LivenessId> {
        let span = self.spans[path.0];
        let continued = self.spans.iter().enumerate().filter(|(_, earlier)| span.continues(**earlier));
        self.liveness.id_of(path, one, other, continued.map(|(index, _)| PathId(index)))
    }

    pub(super) fn add_connection(&mut self, protocol: Protocol) -> usize {
        self.live.insert(LiveConnection {
            connection: Box::new(Connection::new(protocol)),
            keys: [None, None],
            last_seen: self.now,
            flows: 0,
        })
    }

    /// Records that a flow became a subflow of a connection.
    pub(super) fn added_flow(&mut self, index: usize) {
        let LiveConnection { connection, flows, .. } = &mut self.live[index];
        *flows += 1;
        if connection.id == 0 {
            self.connections_seen += 1;
            connection.id = self.connections_seen;
        }
    }

    /// Sorts flows in the order in which they were first seen.
    pub(super) fn rank(&self, flow: &Flow) -> (u64, usize) {
        (flow.connection.map_or(0, |index| self.live[index].connection.id), flow.subflow)
    }

    /// The counts of a direction in the interval of `time`.
    #[inline]
    pub(super) fn counts<'a>(
        &mut self,
        flow: &'a mut Flow,
        index: usize,
        direction: Direction,
        length: IntervalLength,
        time: Timestamp,
    ) -> &'a mut IntervalCounts {
        let subflow = flow.subflow;
        let (live, finished) = (&self.live, &mut self.finished);
        flow.side(direction).interval.at(length, time, |start, counts| {
            finished.push_back(finished_interval(&live[index], subflow, direction, start, counts));
        })
    }

    /// Hands out a step of a stream, if that is asked for.
    #[inline]
    pub(super) fn stream_event(
        &mut self,
        index: usize,
        direction: Direction,
        time: Timestamp,
        kind: StreamEventKind,
    ) {
        if self.stream_events {
            let connection = &self.live[index].connection;
            let (client, server) = (connection.client(), connection.server());
            let connection = connection.id;
            let event = StreamEvent { connection, client, server, direction, time, kind };
            self.finished.push_back(Finished::Stream(event));
        }
    }

    /// Ends a flow; a connection ends with its last flow.
    pub(super) fn retire(&mut self, mut flow: Flow, evicted: bool) {
        let Some(index) = flow.connection else {
            self.totals.unanswered_joins += 1;
            return;
        };
        self.end_silence(index, &mut flow);
        let live = &mut self.live[index];
        let subflow = flow.subflow;
        for direction in Direction::BOTH {
            let vantage = flow.vantage(direction);
            let arrivals = flow.side(direction).arrivals.finish(vantage);
            flow.side(direction).sender.stats.arrivals = arrivals;
        }
        for direction in Direction::BOTH {
            let side = flow.side(direction);
            live.connection.subflows[subflow].sent[direction as usize] = mem::take(&mut side.sender.stats);
            if let Some(length) = self.interval {
                let finished = &mut self.finished;
                side.interval.finish(length, |start, counts| {
                    finished.push_back(finished_interval(live, subflow, direction, start, counts));
                });
            }
        }
        let subflow = &mut live.connection.subflows[flow.subflow];
        subflow.last_seen = flow.last_seen;
        subflow.syn_rtt = flow.handshake.rtt();
        subflow.handshake_reach = Direction::BOTH.map(|direction| flow.handshake_reach(direction));
        subflow.close = flow.close;
        live.connection.evicted |= evicted;
        live.flows -= 1;
        if live.flows == 0 {
            self.end(index);
        }
    }

    /// Hands out a connection and forgets it.
    fn end(&mut self, index: usize) {
        let LiveConnection { mut connection, .. } = self.live.remove(index);
        for token in connection.tokens.iter().flatten() {
            if self.tokens.get(token).is_some_and(|(owner, _)| *owner == index) {
                self.tokens.remove(token);
            }
        }
        self.totals.evicted_connections += u64::from(connection.evicted);
        self.totals.partial_connections += u64::from(connection.partial);
        connection.streams.iter_mut().for_each(Stream::finalize);
        self.finished.push_back(Finished::Connection(connection));
    }

    /// Hands out all connections that are left.
    pub(super) fn end_all(&mut self) {
        let left: Vec<usize> = self.live.iter().map(|(index, _)| index).collect();
        for index in left {
            self.end(index);
        }
    }
}
