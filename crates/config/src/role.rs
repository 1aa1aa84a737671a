//! The role of a path, as captures, gateways and labs declare it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether an eavesdropper is assumed on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// No eavesdropper is assumed: the first flight of a connection may cross this path.
    Trusted,
    /// An eavesdropper is assumed.
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
