//! What a path is held to be: the one word that captures, gateways and labs share about it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether somebody may listen on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Nobody who must not read the traffic listens here: a connection's first flight may cross it.
    Trusted,
    /// Somebody may listen here.
    Untrusted,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Role::Trusted => "trusted",
            Role::Untrusted => "untrusted",
        })
    }
}
