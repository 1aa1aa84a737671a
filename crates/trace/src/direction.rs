//! The two directions of a connection.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A direction of a connection, which also identifies the side that sends in it.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the side that opened the connection.
    ClientToServer,
    /// From the side that accepted it.
    ServerToClient,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::ClientToServer, Self::ServerToClient];

    /// The opposite direction.
    #[must_use]
    pub fn reverse(self) -> Self {
        match self {
            Self::ClientToServer => Self::ServerToClient,
            Self::ServerToClient => Self::ClientToServer,
        }
    }

    /// Its name in documents and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClientToServer => "client_to_server",
            Self::ServerToClient => "server_to_client",
        }
    }
}
