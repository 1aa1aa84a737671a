use std::collections::{HashMap, VecDeque};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{Key, Token};
use slab::Slab;

use super::{Beside, Seen};
use crate::flow::Flow;
use crate::life::{LifeId, Lives};
use crate::series::Length;
use crate::sink::{Counts, Interval};
use crate::{Connection, Direction, KnownKeys, PathId, Protocol, ReadOptions, Stream};

/// The connections that are alive, and what is known of them.
pub(super) struct State {
    pub(super) live: Slab<Live>,
    /// The connection that a token names, and the side it names it towards, as the direction in which that side
    /// sends.
    pub(super) tokens: HashMap<Token, (usize, Direction)>,
    pub(super) lives: Lives,
    pub(super) found: VecDeque<Found>,
    pub(super) beside: Beside,
    pub(super) interval: Option<Length>,
    /// The latest time seen.
    pub(super) now: Timestamp,
    /// What is left of [`ReadOptions::payload_limit`].
    pub(super) budget: u64,
    seen: u64,
    spans: Vec<Span>,
}

/// A connection that has not ended.
pub(super) struct Live {
    pub(super) connection: Box<Connection>,
    /// Of the side that sends in a direction, where they were seen.
    pub(super) keys: [Option<Key>; 2],
    pub(super) last_seen: Timestamp,
    /// How many of its subflows have not ended.
    flows: usize,
    /// Kept without subflows, because its keys are known from elsewhere.
    known: bool,
}

/// Something that is known for good.
pub(crate) enum Found {
    Interval(Interval),
    Connection(Box<Connection>),
}

impl Found {
    fn interval(live: &Live, subflow: usize, direction: Direction, start: Timestamp, counts: Counts) -> Self {
        let connection = live.connection.id;
        Self::Interval(Interval { connection, subflow, direction, start, counts })
    }
}

/// What of a capture was read so far.
#[derive(Clone, Copy, Default)]
struct Span {
    first: Option<Timestamp>,
    last: Timestamp,
    ended: bool,
}

/// How far the times of records are out of order, where a capture tool writes those of several processors.
const DISORDER: Duration = Duration::from_millis(10);

impl Span {
    /// Whether a capture only begins where another ended.
    fn continues(self, other: Self) -> bool {
        other.ended
            && self
                .first
                .is_some_and(|first| other.last.since(first).is_none_or(|overlap| overlap < DISORDER))
    }
}

impl State {
    pub(super) fn new(captures: usize, options: ReadOptions) -> Self {
        let mut state = Self {
            live: Slab::new(),
            tokens: HashMap::new(),
            lives: Lives::default(),
            found: VecDeque::new(),
            beside: Beside::default(),
            interval: options.interval.map(Length::new),
            now: Timestamp::default(),
            budget: options.payload_limit,
            seen: 0,
            spans: vec![Span::default(); captures],
        };
        for KnownKeys { version, client, server } in options.known {
            let index = state.add_connection(Protocol::Mptcp(version));
            state.live[index].known = true;
            state.learn_key(index, Direction::ClientToServer, &client);
            state.learn_key(index, Direction::ServerToClient, &server);
        }
        state
    }

    /// A packet was read.
    #[inline]
    pub(super) fn saw(&mut self, Seen { path, time }: Seen) {
        self.now = self.now.max(time);
        let span = &mut self.spans[path.0];
        span.first.get_or_insert(time);
        span.last = time;
    }

    /// A capture is at its end.
    pub(super) fn ended(&mut self, path: PathId) {
        self.spans[path.0].ended = true;
    }

    /// Whether a segment is in another capture too, at whose place its flow is observed.
    #[inline]
    pub(super) fn is_observed_elsewhere(&self, flow: &mut Flow, source: SocketAddr, path: PathId) -> bool {
        self.spans.len() > 1
            && flow.is_observed_elsewhere(flow.direction(source), path, |other| {
                self.spans[path.0].continues(self.spans[other.0])
            })
    }

    /// The sides with two addresses, as far as they are heard of in the capture of `path`, or in one that it continues.
    pub(super) fn life(&mut self, path: PathId, one: IpAddr, other: IpAddr) -> Option<LifeId> {
        let span = self.spans[path.0];
        let continued = self.spans.iter().enumerate().filter(|(_, earlier)| span.continues(**earlier));
        self.lives.of(path, one, other, continued.map(|(index, _)| PathId(index)))
    }

    pub(super) fn add_connection(&mut self, protocol: Protocol) -> usize {
        self.live.insert(Live {
            connection: Box::new(Connection::new(protocol)),
            keys: [None, None],
            last_seen: self.now,
            flows: 0,
            known: false,
        })
    }

    /// A flow became a subflow of a connection.
    pub(super) fn added_flow(&mut self, index: usize) {
        let Live { connection, flows, .. } = &mut self.live[index];
        *flows += 1;
        if connection.id == 0 {
            self.seen += 1;
            connection.id = self.seen;
        }
    }

    /// The order in which connections and their subflows were first seen.
    pub(super) fn rank(&self, flow: &Flow) -> (u64, usize) {
        (flow.connection.map_or(0, |index| self.live[index].connection.id), flow.subflow)
    }

    /// The counts of the present interval of what is sent in a direction.
    #[inline]
    pub(super) fn counts<'a>(
        &mut self,
        flow: &'a mut Flow,
        index: usize,
        direction: Direction,
        length: Length,
        time: Timestamp,
    ) -> &'a mut Counts {
        let subflow = flow.subflow;
        let (live, found) = (&self.live, &mut self.found);
        flow.half(direction).interval.at(length, time, |start, counts| {
            found.push_back(Found::interval(&live[index], subflow, direction, start, counts));
        })
    }

    /// A flow of which no more segments come. The connection ends with its last.
    pub(super) fn retire(&mut self, mut flow: Flow, evicted: bool) {
        let Some(index) = flow.connection else {
            self.beside.unanswered_joins += 1;
            return;
        };
        self.end_silence(index, &mut flow);
        let live = &mut self.live[index];
        let subflow = flow.subflow;
        for direction in [Direction::ClientToServer, Direction::ServerToClient] {
            let half = flow.half(direction);
            live.connection.subflows[subflow].sent[direction as usize] = mem::take(&mut half.sender.tally);
            if let Some(length) = self.interval {
                let found = &mut self.found;
                half.interval.end(length, |start, counts| {
                    found.push_back(Found::interval(live, subflow, direction, start, counts));
                });
            }
        }
        let subflow = &mut live.connection.subflows[flow.subflow];
        subflow.last_seen = flow.last_seen;
        subflow.syn_rtt = flow.handshake.rtt();
        subflow.close = flow.close;
        live.connection.evicted |= evicted;
        live.flows -= 1;
        if live.flows == 0 && !live.known {
            self.end(index);
        }
    }

    /// Hands a connection out and forgets it.
    fn end(&mut self, index: usize) {
        let Live { mut connection, .. } = self.live.remove(index);
        for token in connection.tokens.iter().flatten() {
            if self.tokens.get(token).is_some_and(|(owner, _)| *owner == index) {
                self.tokens.remove(token);
            }
        }
        connection.streams.iter_mut().for_each(Stream::seal);
        self.found.push_back(Found::Connection(connection));
    }

    /// Hands out what is left.
    pub(super) fn end_all(&mut self) {
        let left: Vec<usize> = self.live.iter().map(|(index, _)| index).collect();
        for index in left {
            // Of known keys that no capture has to do with, there is nothing to say.
            if self.live[index].connection.subflows.is_empty() {
                self.live.remove(index);
            } else {
                self.end(index);
            }
        }
    }
}
