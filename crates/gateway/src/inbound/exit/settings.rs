//! Who may use an exit, and for what.

use std::collections::BTreeMap;

use ipnet::IpNet;
use plait_config::Rate;
use plait_proto::identity::PublicKey;

/// The configuration of an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitSettings {
    /// Who may use it.
    pub clients: ExitClients,
    /// What each client may do.
    pub each: ClientSettings,
    /// What these clients may do instead.
    pub by_client: BTreeMap<PublicKey, ClientSettings>,
}

/// What a client of an exit may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// The networks that it may reach beside public addresses.
    pub allow: Vec<IpNet>,
    /// What it may take of the exit.
    pub limits: ClientLimits,
}

/// Who may use an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitClients {
    /// Everybody.
    Any,
    /// Clients with these keys.
    Listed(Vec<PublicKey>),
}

/// What one client may take of an exit. A client is a key, or where everybody may use it, an IPv4 address or /64 of IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// Connections at once.
    pub max_connections: Option<u32>,
    /// The rate of all its connections in both directions together.
    pub max_rate: Option<Rate>,
    /// Bytes of all its connections in both directions together, within 24 hours from the first one on.
    pub max_bytes_per_day: Option<u64>,
}

impl ExitSettings {
    /// What the client with this key may do; `None`: anybody.
    pub(super) fn of(&self, client: Option<&PublicKey>) -> &ClientSettings {
        client.and_then(|key| self.by_client.get(key)).unwrap_or(&self.each)
    }
}
