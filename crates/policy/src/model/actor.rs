//! What a chain does with the packets it selects.

use std::net::IpAddr;

use plait_config::Rate;

use super::{Hook, Mark};

/// An action on a packet or its subflow; in TOML a name alone, or `{ NAME = VALUE }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// `drop`: drops the packet.
    Drop,
    /// `mark = 0x10`, `mark = "0x10/0xff"`: sets the packet mark. Egress only.
    Mark(Mark),
    /// `redirect = "eth1"`: sends the packet out of this interface.
    Redirect(String),
    /// `rate_limit = { rate = "4mbit" }`, `rate_limit = { window = "64kB" }`: limits how fast the receiver of the packet
    /// may send, by lowering the receive window that the packet advertises.
    RateLimit(Limit),
    /// `pace = "4mbit"`: paces the sending socket on this host. Egress only.
    Pace(Rate),
    /// `set_backup`, `set_backup = { address_id = 3 }`: adds MP_PRIO (RFC 8684, section 3.3.8), which asks the receiver
    /// to use the subflow as a backup.
    SetBackup {
        /// Uses the format of MPTCP version 0, which names an address (RFC 6824, section 3.3.8).
        address_id: Option<u8>,
    },
    /// `clear_backup`, `clear_backup = { address_id = 3 }`: adds MP_PRIO without the backup flag.
    ClearBackup {
        /// As in [`SetBackup`](Actor::SetBackup).
        address_id: Option<u8>,
    },
    /// `block_subflow`, `block_subflow = { echo = true }`: removes ADD_ADDR (RFC 8684, section 3.4.1) and stores it.
    BlockSubflow {
        /// Answers the sender with the echo, as if the option had been delivered.
        echo: bool,
    },
    /// `add_subflow`, `add_subflow = { address = "192.0.2.7", port = 443, id = 9 }`: adds ADD_ADDR; without parameters,
    /// the one that `block_subflow` stored.
    AddSubflow(Option<Announcement>),
    /// `deny_join`, `deny_join = "reset"`: rejects MP_JOIN on this path.
    DenyJoin(JoinRefusal),
    /// `fall_back`: removes MP_CAPABLE from a SYN, so that the connection is plain TCP.
    FallBack,
    /// `capable_flag`: sets a reserved bit of MP_CAPABLE at egress; records and clears it at ingress.
    CapableFlag,
    /// `get_connection`, `get_connection = { keys = true }`: emits an event for each MP_CAPABLE.
    GetConnection {
        /// Includes the keys.
        keys: bool,
    },
    /// `get_subflow`: emits an event for each MP_JOIN.
    GetSubflow,
    /// `record`: records bytes, round-trip time, retransmissions and reinjections of the subflow.
    Record,
    /// Any other name: the custom actor with this name.
    Custom(String),
}

/// What [`Actor::RateLimit`] limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The rate: the window is the rate times the round-trip time.
    Rate(Rate),
    /// The window in bytes, 1 to 2^30, which is the maximum of a scaled window (RFC 7323, section 2.2).
    Window(u32),
}

/// An address that [`Actor::AddSubflow`] announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// The address.
    pub address: IpAddr,
    /// The port, if it differs from the connection's.
    pub port: Option<u16>,
    /// The address identifier, 1 to 255; `None`: 128 plus the last seven bits of the address.
    pub id: Option<u8>,
}

/// What [`Actor::DenyJoin`] does with a SYN that carries MP_JOIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinRefusal {
    /// Drops it.
    #[default]
    Drop,
    /// Answers it with RST.
    Reset,
}

impl Limit {
    pub(crate) const MAX_WINDOW: u32 = 1 << 30;
}

impl Actor {
    /// The built-in actors.
    pub(crate) const NAMES: &[&str] = &[
        "drop",
        "mark",
        "redirect",
        "rate_limit",
        "pace",
        "set_backup",
        "clear_backup",
        "block_subflow",
        "add_subflow",
        "deny_join",
        "fall_back",
        "capable_flag",
        "get_connection",
        "get_subflow",
        "record",
    ];

    /// Its name in a policy.
    pub fn name(&self) -> &str {
        match self {
            Self::Drop => "drop",
            Self::Mark(_) => "mark",
            Self::Redirect(_) => "redirect",
            Self::RateLimit(_) => "rate_limit",
            Self::Pace(_) => "pace",
            Self::SetBackup { .. } => "set_backup",
            Self::ClearBackup { .. } => "clear_backup",
            Self::BlockSubflow { .. } => "block_subflow",
            Self::AddSubflow(_) => "add_subflow",
            Self::DenyJoin(_) => "deny_join",
            Self::FallBack => "fall_back",
            Self::CapableFlag => "capable_flag",
            Self::GetConnection { .. } => "get_connection",
            Self::GetSubflow => "get_subflow",
            Self::Record => "record",
            Self::Custom(name) => name,
        }
    }

    /// The hook this actor is restricted to, if any.
    pub(crate) fn required_hook(&self) -> Option<Hook> {
        match self {
            Self::Mark(_) | Self::Pace(_) => Some(Hook::Egress),
            _ => None,
        }
    }
}
