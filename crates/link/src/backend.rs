//! A link that is up, whatever is behind it.

use std::fmt;

use plait_host::netns::NetNs;
use serde::{Deserialize, Serialize};

use crate::{Change, Error, LinkSpec, Statistics};

/// What makes frames late, lost and slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// plait's emulator in user space, between two TAP interfaces.
    Emu,
    /// The kernel's netem and tbf.
    Netem,
    /// A veth pair, which does nothing to frames.
    None,
}

/// Where a link ends: an interface that the link makes in a namespace.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The namespace.
    pub namespace: &'a NetNs,
    /// The interface's name, which must be free there: 1 to 15 bytes.
    pub interface: &'a str,
}

/// A link that is up. Its interfaces are up and without addresses; they vanish when this is dropped, or its process
/// dies.
#[derive(Debug)]
pub struct Link {}

impl Backend {
    /// Whether this backend works here, found out by really making a link of it in namespaces of its own.
    pub fn probe(self) -> Result<(), Error> {
        todo!()
    }

    /// The backend for a link of which no one is asked for: [`None`](Self::None) for a mere wire, else
    /// [`Emu`](Self::Emu), else [`Netem`](Self::Netem), the first that works here.
    pub fn for_link(_spec: &LinkSpec) -> Result<Self, Error> {
        todo!()
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emu => "emu",
            Self::Netem => "netem",
            Self::None => "none",
        })
    }
}

impl Link {
    /// Makes a link between two ends, `a` and `b`, by this backend. What it cannot give is an error.
    pub fn make(_spec: &LinkSpec, _backend: Backend, _a: End<'_>, _b: End<'_>) -> Result<Self, Error> {
        todo!()
    }

    /// What is behind it.
    pub fn backend(&self) -> Backend {
        todo!()
    }

    /// Changes it while frames cross.
    pub fn apply(&mut self, _change: &Change) -> Result<(), Error> {
        todo!()
    }

    /// What it did so far.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        todo!()
    }
}
