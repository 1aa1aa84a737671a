//! What a policy is: named chains, each with a selector and a list of actors.
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
//! The types here do no I/O and need no privileges. [`Policy::check`] validates a policy however it was built;
//! [`Policy::parse`](crate::parse) reads one from TOML, and its `Display` writes TOML that parses to the same policy.

mod actor;
mod display;
mod interface;
mod names;
mod packet_kind;
mod prefix;
mod selector;
#[cfg(test)]
pub(crate) mod strategies;
mod validate;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use actor::{Actor, Announcement, JoinRefusal, Limit};
pub use interface::Interface;
pub(crate) use names::{SELECTOR_NAMES, is_custom_name, is_delimiter};
pub use packet_kind::PacketKind;
pub use prefix::{Prefix, PrefixError};
pub(crate) use selector::MAX_SELECTOR_DEPTH;
pub use selector::{Mark, Ports, Selector, SubflowPattern};
pub use validate::InvalidPolicy;
pub(crate) use validate::{PolicyPart, violations};

/// Chains that are loaded and unloaded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// 1 to 32 letters, digits, hyphens or underscores.
    pub name: String,
    /// Custom selectors and actors by name.
    pub custom: BTreeMap<String, CustomProgram>,
    /// The chains in file order; at most 64 per hook.
    pub chains: Vec<Chain>,
}

/// A custom selector or actor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomProgram {
    /// A C source or a compiled object.
    pub file: PathBuf,
    /// Its name in the file; `None`: its name in the policy.
    pub function: Option<String>,
    /// Numbers that it reads with `plait_parameter()`: at most 4, each less than 2^63.
    pub parameters: Vec<u64>,
}

/// A selector and the actors that are applied to the packets it matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// 1 to 32 letters, digits, hyphens or underscores; unique within the policy.
    pub name: String,
    /// The position in the packet path.
    pub hook: Hook,
    /// The interfaces the chain applies to; at least one.
    pub interfaces: Vec<Interface>,
    /// Lower priorities run first; equal ones in file order.
    pub priority: i32,
    /// Which packets match.
    pub select: Selector,
    /// Applied to matching packets in this order; at most 8. An empty list only counts packets.
    pub actors: Vec<Actor>,
}

/// A position in the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// Packets received on an interface.
    Ingress,
    /// Packets sent on an interface.
    Egress,
}

/// The priority of chains that do not specify one.
pub const DEFAULT_PRIORITY: i32 = 100;

impl CustomProgram {
    /// A program that has the name of its function, and no parameters.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into(), function: None, parameters: Vec::new() }
    }
}

impl Hook {
    /// The keyword in a policy: `ingress` or `egress`.
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
