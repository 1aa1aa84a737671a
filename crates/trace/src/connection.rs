//! Connections and their subflows, the result of an analysis.

use std::net::SocketAddr;
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{Token, Version};
use schemars::JsonSchema;
use serde::Serialize;

use crate::direction::Direction;
use crate::duration_stats::DurationStats;
use crate::event::Event;
use crate::exposure::Exposure;
use crate::failover::Failover;
use crate::path::PathId;
use crate::sender_stats::SenderStats;
use crate::stream::Stream;
use crate::vantage::{Vantage, reach};

/// An MPTCP connection with all of its subflows, or a plain TCP connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Counts from 1 in the order in which connections were first seen.
    pub id: u64,
    /// MPTCP with its version, or plain TCP.
    pub protocol: Protocol,
    /// Why it uses plain TCP, at least from some point on, although MPTCP was requested.
    pub fallback: Option<Fallback>,
    /// Whether its opening was not captured: version, client and server may then be guesses, and streams may start later
    /// than the connection did.
    pub partial: bool,
    /// Whether it was dropped before it ended, because too many others were alive
    /// ([`ReadOptions::live_limit`](crate::ReadOptions::live_limit)).
    pub evicted: bool,
    /// Subflows and attempted joins, in the order in which they were first seen; at least one, at most 10,000.
    pub subflows: Vec<Subflow>,
    /// Paths that fell silent, in the order in which the silences ended; the first 10,000.
    pub failovers: Vec<Failover>,
    /// MPTCP signals, in order of time; the first 10,000.
    pub events: Vec<Event>,
    /// Number of events beyond those.
    pub events_dropped: u64,
    pub(crate) tokens: [Option<Token>; 2],
    pub(crate) streams: [Stream; 2],
    pub(crate) first_payload: Vec<(PathId, Timestamp)>,
}

const MAX_EVENTS: usize = 10_000;
const MAX_FAILOVERS: usize = 10_000;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Plain TCP: one subflow that carries the whole stream.
    Tcp,
    /// Multipath TCP.
    Mptcp(Version),
}

/// Why a connection uses plain TCP although MPTCP was requested (RFC 8684 3.1, 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The captured SYN/ACK has no MP_CAPABLE.
    NoCapable,
    /// The first data has no mapping.
    NoMapping,
    /// A side sent the infinite mapping.
    InfiniteMapping,
    /// A side sent the infinite mapping after MP_FAIL: a DSS checksum was invalid.
    ChecksumFailed,
}

impl Fallback {
    /// A description.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoCapable => "no MP_CAPABLE in the SYN/ACK",
            Self::NoMapping => "first data without a mapping",
            Self::InfiniteMapping => "infinite mapping",
            Self::ChecksumFailed => "infinite mapping after MP_FAIL: invalid checksum",
        }
    }
}

/// A TCP connection that carries a connection or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Subflow {
    /// The address of the connection's client in this subflow.
    pub client: SocketAddr,
    /// The address of the connection's server in this subflow.
    pub server: SocketAddr,
    /// Whether it was opened with MP_JOIN.
    pub joined: bool,
    /// Whether the peer accepted it; otherwise it is an attempt.
    pub accepted: bool,
    /// Whether the captured HMACs of its join are valid (RFC 8684 3.2); `None` if unknown, or if it is not a join.
    pub authentic: Option<bool>,
    /// Time of its first captured packet.
    pub first_seen: Timestamp,
    /// Time of its last captured packet.
    pub last_seen: Timestamp,
    /// Whether a side requested backup priority, at its opening or with the last MP_PRIO.
    pub backup: bool,
    /// From the SYN to the acknowledgement of the SYN/ACK: a round trip wherever the capture was taken. `None` if one of
    /// them was retransmitted or not captured.
    pub syn_rtt: Option<Duration>,
    /// How it ended.
    pub close: Close,
    pub(crate) sent: [SenderStats; 2],
    /// By direction: the round trip between the capture and the receiver during the three-way handshake.
    pub(crate) handshake_reach: [Option<Duration>; 2],
}

/// Round-trip times of a subflow's path, and how they were measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rtt<'a> {
    /// The samples.
    pub times: &'a DurationStats,
    /// How they were measured.
    pub source: RttSource,
}

/// How round-trip times of a path were measured. Either way, the part of the path on the other side of the capture is left
/// out; it takes at most a tenth of the round trip, or 0.1 ms.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RttSource {
    /// At the sender, from data to the acknowledgement that covers it.
    Acks,
    /// At the receiver, from an acknowledgement to the data that it allowed to be sent, by TCP timestamps.
    Timestamps,
}

impl RttSource {
    /// Its name in documents and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acks => "acks",
            Self::Timestamps => "timestamps",
        }
    }
}

/// How a subflow ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Close {
    /// Not within the capture.
    #[default]
    Open,
    /// Only the side that sends in this direction sent a FIN.
    HalfClosed(Direction),
    /// Both sides sent a FIN.
    Fin,
    /// One side sent a RST.
    Reset {
        /// The side that sends in this direction.
        by: Direction,
        /// The reason code of MP_TCPRST (RFC 8684 table 2), if present.
        reason: Option<u8>,
    },
    /// The side that sends in this direction closed the whole connection here with MP_FASTCLOSE.
    FastClose(Direction),
}

impl Close {
    /// Whether no more data can follow.
    pub(crate) fn is_final(self) -> bool {
        !matches!(self, Self::Open | Self::HalfClosed(_))
    }

    /// The state after a segment from the side that sends in `by`.
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
    pub fn sent(&self, direction: Direction) -> &SenderStats {
        &self.sent[direction as usize]
    }

    /// The addresses of the sender and the receiver in a direction.
    pub fn ends(&self, direction: Direction) -> (SocketAddr, SocketAddr) {
        match direction {
            Direction::ClientToServer => (self.client, self.server),
            Direction::ServerToClient => (self.server, self.client),
        }
    }

    /// Round-trip times of the path, measured with the data of a direction; `None` if the capture does not show them: it was
    /// taken between the ends, or where is unknown, or there are no samples.
    pub fn rtt(&self, direction: Direction) -> Option<Rtt<'_>> {
        let back = direction.reverse();
        let reach = |there: Direction| {
            let by_handshake = self.handshake_reach[there as usize];
            reach(by_handshake, self.sent(there), self.sent(there.reverse()))
        };
        let stats = self.sent(direction);
        let (times, source) = match Vantage::of(reach(back), reach(direction))? {
            Vantage::Sender => (&stats.ack_rtt, RttSource::Acks),
            Vantage::Receiver => (&stats.echo_rtt, RttSource::Timestamps),
            Vantage::Between => return None,
        };
        (times.count() > 0).then_some(Rtt { times, source })
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
            handshake_reach: [None; 2],
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

    /// The stream of a direction.
    pub fn stream(&self, direction: Direction) -> &Stream {
        &self.streams[direction as usize]
    }

    /// The token of the side that sends in `direction`, if known.
    pub fn token(&self, direction: Direction) -> Option<Token> {
        self.tokens[direction as usize]
    }

    /// How much of the stream of a direction crossed a subflow, given by its index.
    pub fn exposure(&self, direction: Direction, subflow: usize) -> Exposure {
        self.stream(direction).carried_by(subflow)
    }

    /// From the connection's first packet until everything sent in a direction was acknowledged; `None` if it was not, if
    /// nothing was sent, or if the first packet was not captured.
    pub fn completion(&self, direction: Direction) -> Option<Duration> {
        let start = self.subflows.iter().map(|subflow| subflow.first_seen).min().filter(|_| !self.partial)?;
        self.stream(direction).completed()?.since(start)
    }

    /// New bytes carried by all subflows as a multiple of those of the best one; `None` if there are none.
    pub fn aggregation_benefit(&self, direction: Direction) -> Option<f64> {
        let new = || self.subflows.iter().map(|subflow| subflow.sent(direction).new);
        let best = new().max().filter(|best| *best > 0)?;
        Some(new().sum::<u64>() as f64 / best as f64)
    }

    /// When the first packet with payload, in either direction, crossed a path.
    pub fn first_payload(&self, path: PathId) -> Option<Timestamp> {
        self.first_payload.iter().find(|(carried, _)| *carried == path).map(|(_, time)| *time)
    }

    /// Whether a path carried no payload before the client's first flight was acknowledged at the data level.
    pub fn first_flight_precedes(&self, path: PathId) -> bool {
        let acked = self.stream(Direction::ClientToServer).first_flight().and_then(|flight| flight.acked);
        self.first_payload(path).is_none_or(|payload| acked.is_some_and(|acked| acked < payload))
    }

    pub(crate) fn record_payload(&mut self, path: PathId, time: Timestamp) {
        if self.first_payload(path).is_none() {
            self.first_payload.push((path, time));
        }
    }

    pub(crate) fn new(protocol: Protocol) -> Self {
        Self {
            // Assigned with the first subflow.
            id: 0,
            protocol,
            fallback: None,
            partial: false,
            evicted: false,
            // Most connections have one, and a growing vector allocates four.
            subflows: Vec::with_capacity(1),
            failovers: Vec::new(),
            events: Vec::new(),
            events_dropped: 0,
            tokens: [None; 2],
            streams: [Stream::new(), Stream::new()],
            first_payload: Vec::new(),
        }
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        } else {
            self.events_dropped += 1;
        }
    }

    pub(crate) fn push_failover(&mut self, failover: Failover) {
        if self.failovers.len() < MAX_FAILOVERS {
            self.failovers.push(failover);
        }
    }

    pub(crate) fn stream_mut(&mut self, direction: Direction) -> &mut Stream {
        &mut self.streams[direction as usize]
    }
}
