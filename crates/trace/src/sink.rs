//! The receiver of the results of an analysis.

use std::io;

use crate::connection::Connection;
use crate::interval::Interval;
use crate::stream_event::StreamEvent;

/// Receives the results of an analysis as soon as each is complete; the analysis does not keep what it has handed over.
///
/// An error ends the analysis, which returns it as [`ReadError::Sink`](crate::ReadError::Sink).
pub trait Sink {
    /// What one side sent in one subflow during one interval, if
    /// [`ReadOptions::interval`](crate::ReadOptions::interval) is set. Empty intervals are left out. Each subflow and
    /// direction comes in order of time; where the clock of a capture goes back, an interval may come twice, and both
    /// count.
    fn interval(&mut self, interval: &Interval) -> io::Result<()>;

    /// A step of a stream, if [`ReadOptions::stream_events`](crate::ReadOptions::stream_events) is set. Ignored unless
    /// implemented.
    fn stream(&mut self, _event: StreamEvent) -> io::Result<()> {
        Ok(())
    }

    /// A connection that has ended, or is cut off by the end of the captures. Its intervals came before; connections that
    /// end together come in the order in which they were first seen.
    fn connection(&mut self, connection: Connection) -> io::Result<()>;
}
