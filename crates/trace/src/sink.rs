use std::io;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use crate::{Connection, Direction};

/// Takes what captures say, in pieces, as soon as each is known: an analysis keeps nothing that it has handed over.
///
/// An error ends the analysis, which gives it back as [`ReadError::Sink`](crate::ReadError::Sink).
pub trait Sink {
    /// What one side sent in one subflow during one interval. Comes where
    /// [`ReadOptions::interval`](crate::ReadOptions::interval) asks for it, for intervals in which there was anything,
    /// by subflow and direction in the order of time. Where the clock of a capture goes back, an interval may come
    /// twice; both count.
    fn interval(&mut self, interval: &Interval) -> io::Result<()>;

    /// A connection, when it has ended or the captures have. Its intervals came before; connections that end
    /// together come in the order in which they were first seen.
    fn connection(&mut self, connection: Connection) -> io::Result<()>;
}

/// What one side sent in one subflow during one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Which [connection](Connection::id).
    pub connection: u64,
    /// Which of its subflows, counted from 0.
    pub subflow: usize,
    /// Which side sent.
    pub direction: Direction,
    /// When the interval starts: a multiple of its length since 1970-01-01 00:00:00 UTC, so that the intervals of
    /// different captures fit together.
    pub start: Timestamp,
    /// What was counted in it.
    pub counts: Counts,
}

/// What was counted in an [`Interval`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Packets, with and without payload.
    pub packets: u64,
    /// Payload bytes, all copies.
    pub bytes: u64,
    /// Those of them that no subflow had carried before: the goodput.
    pub new: u64,
    /// Those of them that another subflow had carried before.
    pub reinjected: u64,
    /// Those of them that this subflow had sent before, by TCP sequence number.
    pub retransmitted: u64,
    /// Round-trip times that acknowledgements within the interval completed.
    pub round_trips: Option<Spread>,
    /// Which part of the stream the payload came from: from the first of its bytes to behind the last, counted from
    /// the first byte of the stream, or the first that was seen.
    pub positions: Option<Range<i64>>,
    /// The receive window that this side announced last, in bytes, where the scale is known.
    pub window: Option<u64>,
}

/// Samples of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: Duration,
    /// The least.
    pub min: Duration,
    /// The greatest.
    pub max: Duration,
}

impl Spread {
    /// Their mean.
    pub fn mean(&self) -> Duration {
        // A spread has at least one sample.
        self.sum.div_f64(self.count as f64)
    }
}
