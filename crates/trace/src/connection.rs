use std::net::SocketAddr;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{Token, Version};

use crate::{PathId, Stream};

/// A connection found in the captures: an MPTCP connection with all its subflows, or a plain TCP one.
#[derive(Clone, Debug)]
pub struct Connection {
    /// What it speaks.
    pub protocol: Protocol,
    /// Whether MPTCP was asked for and plain TCP is spoken (RFC 8684 3.7).
    pub fell_back: bool,
    /// Whether its opening was not captured: the version and which side is the client may then be guesses, and streams
    /// may start later than the connection did.
    pub partial: bool,
    /// The subflows, and the attempts at some, in the order in which they were first seen; at least one.
    pub subflows: Vec<Subflow>,
    pub(crate) tokens: [Option<Token>; 2],
    pub(crate) streams: [Stream; 2],
    pub(crate) first_payload: Vec<Option<Timestamp>>,
}

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP alone: one subflow, which is the whole stream.
    Tcp,
    /// Multipath TCP.
    Mptcp(Version),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subflow {
    /// The connection's client in it.
    pub client: SocketAddr,
    /// The connection's server in it.
    pub server: SocketAddr,
    /// Whether it joined an existing connection.
    pub joined: bool,
    /// Whether the other side was seen to accept it; otherwise it is an attempt.
    pub accepted: bool,
    /// When its first packet was captured.
    pub first_seen: Timestamp,
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

    /// When the connection's first packet with TCP payload, in either direction, crossed a path.
    pub fn first_payload(&self, path: PathId) -> Option<Timestamp> {
        self.first_payload[path.index()]
    }

    pub(crate) fn new(protocol: Protocol, paths: usize) -> Self {
        Self {
            protocol,
            fell_back: false,
            partial: false,
            subflows: Vec::new(),
            tokens: [None; 2],
            streams: [Stream::new(paths), Stream::new(paths)],
            first_payload: vec![None; paths],
        }
    }

    pub(crate) fn stream_mut(&mut self, direction: Direction) -> &mut Stream {
        &mut self.streams[direction as usize]
    }
}
