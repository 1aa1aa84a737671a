//! Topology files: hosts, the links between them, events on the links, and services.
//!
//! ```toml
//! [hosts.client]
//! [hosts.server]
//!
//! [[links]]
//! name = "lte"
//! a = "client"
//! b = "server"
//! each_way = { rate = "2.74mbit", delay = "21.5ms" }
//! ```
//!
//! docs/guide/lab.md describes every key. A file is checked before anything is built; an error is a [`Diagnostic`]
//! that shows the line, what was expected and what was found.

mod address;
mod check;
mod document;
mod events;
mod model;
mod raw;
mod side;

use std::path::Path;

use plait_config::{Diagnostic, Source};

pub use address::Address;
pub(crate) use document::{Document, Parameters};
pub(crate) use events::State;
pub use model::{
    Action, End, EndpointFlag, Event, Host, Link, MptcpLimits, Program, Service, Setting, Topology,
};
pub use side::Side;

use crate::error::Error;

impl Topology {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid ([`Diagnostic`]).
    pub fn read(path: &Path) -> Result<Self, Error> {
        let source = Source::read(path)?;
        Ok(Self::parse(source.text(), source.file())?)
    }

    /// Parses a text. `name` is its file name: diagnostics show it, and relative paths are resolved against its
    /// directory.
    ///
    /// # Errors
    /// The text is invalid; the diagnostic shows the line.
    pub fn parse(text: &str, name: &str) -> Result<Self, Diagnostic> {
        Self::of(Document::parse(text, name)?.substitute(&Parameters::new())?)
    }

    /// Reads the topology from a document.
    pub(crate) fn of(document: Document) -> Result<Self, Diagnostic> {
        let source = document.source().clone();
        check::checked(document.read()?, source)
    }
}
