//! What happens to the streams of connections, segment by segment.

use std::net::SocketAddr;

use plait_wire::capture::Timestamp;

use crate::direction::Direction;

/// A step of a stream, in the order of the captures.
#[derive(Clone, Debug)]
pub struct StreamEvent {
    /// The [connection's id](crate::Connection::id).
    pub connection: u64,
    /// Its client's address in the first subflow.
    pub client: SocketAddr,
    /// Its server's address in the first subflow.
    pub server: SocketAddr,
    /// The direction of the stream.
    pub direction: Direction,
    /// When the segment was captured.
    pub time: Timestamp,
    /// What it did.
    pub kind: StreamEventKind,
}

/// What a segment did to a stream. Positions count bytes of the stream; only their differences have a meaning.
#[derive(Clone, Debug)]
pub enum StreamEventKind {
    /// It carried a part of it, perhaps not for the first time.
    Data {
        /// The position of the first byte.
        position: u64,
        /// The position of the first byte of the stream, if that is known.
        origin: Option<u64>,
        /// Number of bytes.
        length: u64,
        /// Those that were captured: the first.
        captured: Vec<u8>,
    },
    /// It acknowledged all of it before this position.
    Delivered {
        /// The position; one more if it acknowledges the end of the stream.
        position: u64,
    },
}
