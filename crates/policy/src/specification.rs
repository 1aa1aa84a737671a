//! What a policy says: chains of selectors and actors, read from a TOML file or built by hand.
//!
//! ```toml
//! name = "tenant"
//! interfaces = ["wlan0"]
//!
//! [[chains]]
//! name = "slow-wlan"
//! hook = "ingress"
//! select = "packet(data) and not src(10.0.0.0/8)"
//! actors = ["record", { rate_limit = { rate = "4mbit" } }]
//! ```
//!
//! Reading takes no privileges and asks nothing of the host. What cannot be is told with its file and line, what was
//! expected and what was found; all mistakes of a file at once, where one does not hide another. A policy's `Display`
//! is a TOML text that reads back as the same policy.

mod actor;
mod check;
mod interface;
mod read;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use plait_config::Mistake;
use serde::{Deserialize, Serialize};

pub use actor::{Actor, Announcement, Limit, Refusal};
pub(crate) use check::is_word_of_own;
pub use interface::Interface;

use crate::selector::Selector;

/// Chains that are loaded and removed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// 1 to 32 letters, digits, hyphens or underscores.
    pub name: String,
    /// The user's own selectors and actors: their names, and the files they are in, each a C source or a compiled
    /// object.
    pub own: BTreeMap<String, PathBuf>,
    /// The chains, in the file's order; at most 64 of one hook.
    pub chains: Vec<Chain>,
}

/// What is done with the packets that a selector chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// 1 to 32 letters, digits, hyphens or underscores; no other chain of the policy has it.
    pub name: String,
    /// Where in the packet path.
    pub hook: Hook,
    /// On which interfaces; one at least.
    pub interfaces: Vec<Interface>,
    /// Chains with a lower one come first; of equal ones, the first in the file.
    pub priority: i32,
    /// For which packets.
    pub select: Selector,
    /// What is done with them, in this order; at most 8. Without any, they are counted.
    pub actors: Vec<Actor>,
}

/// A place in the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// Packets that come in by an interface.
    Ingress,
    /// Packets that leave by an interface.
    Egress,
}

/// A policy that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum SpecificationError {
    /// The file could not be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// What is wrong in the file: one at least, by line.
    #[error("{}", lines(.0))]
    Mistakes(Vec<Mistake>),
    /// What is wrong with a policy that was built by hand: one at least.
    #[error("{}", lines(.0))]
    Impossible(Vec<String>),
}

/// The priority of chains that have none in the file.
pub const PRIORITY: i32 = 100;

impl Policy {
    /// Reads a file. Names of other files in it are relative to its directory; they become absolute.
    ///
    /// # Errors
    /// It cannot be read, or is no policy.
    pub fn read(path: &Path) -> Result<Self, SpecificationError> {
        let failed = |reason| SpecificationError::Read { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let mut policy = Self::parse(&text, &path.display().to_string())?;
        let directory = std::path::absolute(path).map_err(failed)?;
        let directory = directory.parent().unwrap_or(Path::new("/"));
        for file in policy.own.values_mut() {
            *file = directory.join(&*file);
        }
        Ok(policy)
    }

    /// Reads a text; mistakes are told as those of the file `name`, after which the policy is named if the text does
    /// not name it.
    ///
    /// # Errors
    /// It is no policy.
    pub fn parse(text: &str, name: &str) -> Result<Self, SpecificationError> {
        read::policy(text, name).map_err(SpecificationError::Mistakes)
    }

    /// Finds what cannot be in a policy that was built by hand; one that was read has been checked.
    ///
    /// # Errors
    /// What cannot be.
    pub fn check(&self) -> Result<(), SpecificationError> {
        let wrong: Vec<_> = check::faults(self).into_iter().map(|fault| fault.to_string()).collect();
        if wrong.is_empty() { Ok(()) } else { Err(SpecificationError::Impossible(wrong)) }
    }
}

impl Hook {
    /// Its word in a policy: `ingress` or `egress`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

fn lines(parts: &[impl fmt::Display]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
