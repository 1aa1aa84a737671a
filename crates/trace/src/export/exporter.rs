//! The interface of all output formats.

use std::io;

use super::document::{Connection, Totals};
use crate::interval::Interval;

/// Writes the results of an analysis in some format. Each connection's intervals come before it; an error of any call ends
/// the analysis.
pub trait Exporter {
    /// Whether it uses [intervals](Self::interval); they are counted only on request.
    fn wants_intervals(&self) -> bool {
        false
    }

    /// What one side sent in one subflow during one interval.
    fn interval(&mut self, _interval: &Interval) -> io::Result<()> {
        Ok(())
    }

    /// A connection that has ended.
    fn connection(&mut self, connection: &Connection) -> io::Result<()>;

    /// The end of all captures. Without it, the output is incomplete.
    fn finish(self, totals: &Totals) -> io::Result<()>;
}

/// Writes nothing.
impl Exporter for () {
    fn connection(&mut self, _connection: &Connection) -> io::Result<()> {
        Ok(())
    }

    fn finish(self, _totals: &Totals) -> io::Result<()> {
        Ok(())
    }
}
