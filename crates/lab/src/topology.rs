//! What a topology file says: hosts, the links between them, what happens to the links, and the services that run.
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
//! docs/guide/lab.md describes every key. What is read is checked before anything is built: what cannot be is a [`Diagnostic`]
//! that shows the line, what was expected there, and what was found.

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
    /// It cannot be read, or holds a [`Diagnostic`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let source = Source::read(path)?;
        Ok(Self::parse(source.text(), source.file())?)
    }

    /// Reads a text; mistakes in it, and the files it names, are told and found as those of the file `name`.
    ///
    /// # Errors
    /// What cannot be, with its line.
    pub fn parse(text: &str, name: &str) -> Result<Self, Diagnostic> {
        Self::of(Document::parse(text, name)?.substitute(&Parameters::new())?)
    }

    /// Reads what of a file describes a topology.
    pub(crate) fn of(document: Document) -> Result<Self, Diagnostic> {
        let source = document.source().clone();
        check::checked(document.read()?, source)
    }
}
