//! What an analysis leaves behind: documents, tables, series and a report, written while captures are still read.
//!
//! Everything here is an [`Output`]: it takes what was found piece by piece, as documents (docs/reference/json.md) say it, and
//! keeps none of it, so that the memory of an analysis does not grow with its captures. [`Json`] is the document
//! itself; [`Directory`] is all files that `plait analyze -o` writes. A [`WholeFile`] appears under its name only when it
//! is complete, whatever ends the process before.

mod directory;
mod json;
#[cfg(test)]
pub(crate) mod sample;
mod series;
mod tables;
mod whole_file;

use std::io;

use crate::{Interval, document};

pub use directory::Directory;
pub use json::Json;
pub use whole_file::WholeFile;

/// Takes what was found, as documents say it. Each connection's intervals come before it; an error of any call ends
/// the analysis.
pub trait Output {
    /// Whether it shows [intervals](Self::interval): they are counted only for somebody.
    fn intervals(&self) -> bool {
        false
    }

    /// What one side sent in one subflow during one interval.
    fn interval(&mut self, _interval: &Interval) -> io::Result<()> {
        Ok(())
    }

    /// A connection that has ended.
    fn connection(&mut self, connection: &document::Connection) -> io::Result<()>;

    /// The end of all captures. Without it, what was written is not complete.
    fn finish(self, totals: &document::Totals) -> io::Result<()>;
}

/// Nothing is shown.
impl Output for () {
    fn connection(&mut self, _connection: &document::Connection) -> io::Result<()> {
        Ok(())
    }

    fn finish(self, _totals: &document::Totals) -> io::Result<()> {
        Ok(())
    }
}
