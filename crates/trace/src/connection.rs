use std::net::SocketAddr;
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{Token, Version};

use crate::{Event, Exposure, Failover, PathId, Stream, Tally};

/// A connection found in the captures: an MPTCP connection with all its subflows, or a plain TCP one.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its number among all that were seen, from 1 in the order in which they were first seen.
    pub id: u64,
    /// What it speaks.
    pub protocol: Protocol,
    /// Why plain TCP is spoken, at least from some point on, although MPTCP was asked for.
    pub fallback: Option<Fallback>,
    /// Whether its opening was not captured: the version and which side is the client may then be guesses, and streams
    /// may start later than the connection did.
    pub partial: bool,
    /// Whether it was given up before it ended, to bound memory, because too many others were alive
    /// ([`ReadOptions::live_limit`](crate::ReadOptions::live_limit)).
    pub evicted: bool,
    /// The subflows, and the attempts at some, in the order in which they were first seen; at least one, at most
    /// 10,000.
    pub subflows: Vec<Subflow>,
    /// Paths that fell silent, in the order in which that ended; the first 10,000.
    pub failovers: Vec<Failover>,
    /// What the sides signalled, in the order of time; the first 10,000.
    pub events: Vec<Event>,
    /// How many more events there were.
    pub events_dropped: u64,
    pub(crate) tokens: [Option<Token>; 2],
    pub(crate) streams: [Stream; 2],
    pub(crate) first_payload: Vec<(PathId, Timestamp)>,
}

const EVENTS_KEPT: usize = 10_000;
const FAILOVERS_KEPT: usize = 10_000;

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP alone: one subflow, which is the whole stream.
    Tcp,
    /// Multipath TCP.
    Mptcp(Version),
}

/// Why a connection speaks plain TCP although MPTCP was asked for (RFC 8684 3.1, 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The other side's SYN/ACK, as it arrived at the capture, had no MP_CAPABLE.
    NoCapable,
    /// The first data came without a mapping.
    NoMapping,
    /// A side sent the infinite mapping.
    InfiniteMapping,
    /// The same after MP_FAIL: a DSS checksum was wrong.
    ChecksumFailed,
}

impl Fallback {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoCapable => "no MP_CAPABLE in the SYN/ACK",
            Self::NoMapping => "first data without a mapping",
            Self::InfiniteMapping => "infinite mapping",
            Self::ChecksumFailed => "infinite mapping after MP_FAIL: a checksum was wrong",
        }
    }
}

/// A direction of a connection, and with it the side that sends in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the side that opened the connection.
    ClientToServer,
    /// From the side that accepted it.
    ServerToClient,
}

impl Direction {
    /// The other one.
    #[must_use]
    pub fn reverse(self) -> Self {
        match self {
            Self::ClientToServer => Self::ServerToClient,
            Self::ServerToClient => Self::ClientToServer,
        }
    }
}

/// A TCP connection that carries a connection, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Subflow {
    /// The connection's client in it.
    pub client: SocketAddr,
    /// The connection's server in it.
    pub server: SocketAddr,
    /// Whether it joined an existing connection.
    pub joined: bool,
    /// Whether the other side was seen to accept it; otherwise it is an attempt.
    pub accepted: bool,
    /// Whether the HMACs of its join, as far as they were captured, are those of who knows the connection's keys
    /// (RFC 8684 3.2); `None` where that cannot be told, or it did not join.
    pub authentic: Option<bool>,
    /// When its first packet was captured.
    pub first_seen: Timestamp,
    /// When its last packet was captured.
    pub last_seen: Timestamp,
    /// Whether a side asked, when it was opened or by the last MP_PRIO, to use it only when others fail.
    pub backup: bool,
    /// From the SYN to the acknowledgement of the SYN/ACK: a round trip wherever the capture was taken. `None` where
    /// one of them was repeated or is not in the capture.
    pub syn_rtt: Option<Duration>,
    /// How it ended.
    pub close: Close,
    pub(crate) sent: [Tally; 2],
}

/// How a subflow ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Close {
    /// Not within the capture.
    #[default]
    Open,
    /// The side that sends in this direction sent a FIN, the other one did not.
    HalfClosed(Direction),
    /// Both sides sent a FIN.
    Fin,
    /// The side that sends in this direction reset it.
    Reset {
        /// Who.
        by: Direction,
        /// The reason in MP_TCPRST (RFC 8684 table 2), where it is there.
        reason: Option<u8>,
    },
    /// The side that sends in this direction closed the whole connection here with MP_FASTCLOSE.
    FastClose(Direction),
}

impl Close {
    /// Whether no data comes any more.
    pub(crate) fn is_final(self) -> bool {
        !matches!(self, Self::Open | Self::HalfClosed(_))
    }

    /// After a segment from the side that sends in `by`.
    pub(crate) fn after(self, by: Direction, fin: bool, reset: bool) -> Self {
        match self {
            Self::Open if fin => Self::HalfClosed(by),
            Self::HalfClosed(first) if fin && first != by => Self::Fin,
            Self::Open | Self::HalfClosed(_) if reset => Self::Reset { by, reason: None },
            other => other,
        }
    }
}

impl Subflow {
    /// What was sent in a direction.
    pub fn sent(&self, direction: Direction) -> &Tally {
        &self.sent[direction as usize]
    }

    pub(crate) fn new(client: SocketAddr, server: SocketAddr, joined: bool, time: Timestamp) -> Self {
        Self {
            client,
            server,
            joined,
            accepted: false,
            authentic: None,
            first_seen: time,
            last_seen: time,
            backup: false,
            syn_rtt: None,
            close: Close::Open,
            sent: Default::default(),
        }
    }
}

impl Connection {
    /// The client's address in the first subflow.
    pub fn client(&self) -> SocketAddr {
        self.subflows[0].client
    }

    /// The server's address in the first subflow.
    pub fn server(&self) -> SocketAddr {
        self.subflows[0].server
    }

    /// What one direction carried.
    pub fn stream(&self, direction: Direction) -> &Stream {
        &self.streams[direction as usize]
    }

    /// The token that names the connection towards the side that sends in `direction`, where it is known.
    pub fn token(&self, direction: Direction) -> Option<Token> {
        self.tokens[direction as usize]
    }

    /// How much of what was sent in a direction crossed one of [`subflows`](Self::subflows), given by its index.
    pub fn exposure(&self, direction: Direction, subflow: usize) -> Exposure {
        self.stream(direction).carried_by(subflow)
    }

    /// From the connection's first packet to when the receiver had all that was sent in a direction, as its
    /// acknowledgements say; `None` where they do not, or nothing was sent.
    pub fn completion(&self, direction: Direction) -> Option<Duration> {
        let start = self.subflows.iter().map(|subflow| subflow.first_seen).min()?;
        self.stream(direction).completed()?.since(start)
    }

    /// How many times as much of a direction's stream was carried by all subflows than by the best of them; `None` if
    /// nothing was.
    pub fn aggregation_benefit(&self, direction: Direction) -> Option<f64> {
        let new = || self.subflows.iter().map(|subflow| subflow.sent(direction).new);
        let best = new().max().filter(|best| *best > 0)?;
        Some(new().sum::<u64>() as f64 / best as f64)
    }

    /// When the connection's first packet with TCP payload, in either direction, crossed a path.
    pub fn first_payload(&self, path: PathId) -> Option<Timestamp> {
        self.first_payload.iter().find(|(carried, _)| *carried == path).map(|(_, time)| *time)
    }

    pub(crate) fn carries_payload(&mut self, path: PathId, time: Timestamp) {
        if self.first_payload(path).is_none() {
            self.first_payload.push((path, time));
        }
    }

    pub(crate) fn new(protocol: Protocol) -> Self {
        Self {
            // Given with the first subflow.
            id: 0,
            protocol,
            fallback: None,
            partial: false,
            evicted: false,
            // Most have one, and a vector that grows takes room for four.
            subflows: Vec::with_capacity(1),
            failovers: Vec::new(),
            events: Vec::new(),
            events_dropped: 0,
            tokens: [None; 2],
            streams: [Stream::new(), Stream::new()],
            first_payload: Vec::new(),
        }
    }

    pub(crate) fn happened(&mut self, event: Event) {
        if self.events.len() < EVENTS_KEPT {
            self.events.push(event);
        } else {
            self.events_dropped += 1;
        }
    }

    pub(crate) fn failed_over(&mut self, failover: Failover) {
        if self.failovers.len() < FAILOVERS_KEPT {
            self.failovers.push(failover);
        }
    }

    pub(crate) fn stream_mut(&mut self, direction: Direction) -> &mut Stream {
        &mut self.streams[direction as usize]
    }
}
