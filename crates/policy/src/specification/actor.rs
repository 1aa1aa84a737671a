//! What a chain does with the packets it chose.

use std::net::IpAddr;

use plait_config::Rate;

use super::Hook;
use crate::selector::Mark;

/// What is done with a packet or its subflow; in a file a name alone, or `{ NAME = VALUE }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// `drop`: the packet ends here.
    Drop,
    /// `mark = 0x10`, `mark = "0x10/0xff"`: the packet gets this mark. Egress only.
    Mark(Mark),
    /// `redirect = "eth1"`: the packet leaves by the interface of this name.
    Redirect(String),
    /// `rate_limit = { rate = "4mbit" }`, `rate_limit = { window = "64kB" }`: the receiver of the packet may send no
    /// faster than this, by the window that the packet offers.
    RateLimit(Limit),
    /// `pace = "4mbit"`: the sender of the packet, on this host, sends no faster. Egress only.
    Pace(Rate),
    /// `set_backup`, `set_backup = { address_id = 3 }`: the receiver is asked to use the subflow as a backup, by MP_PRIO
    /// (RFC 8684, section 3.3.8).
    SetBackup {
        /// In the form of version 0, which names an address (RFC 6824, section 3.3.8), and not the subflow alone.
        address_id: Option<u8>,
    },
    /// `clear_backup`, `clear_backup = { address_id = 3 }`: it is asked to use it as any other.
    ClearBackup {
        /// As in [`SetBackup`](Actor::SetBackup).
        address_id: Option<u8>,
    },
    /// `block_subflow`, `block_subflow = { echo = true }`: ADD_ADDR (RFC 8684, section 3.4.1) is withheld and kept.
    BlockSubflow {
        /// Its sender gets the echo, as though it had arrived.
        echo: bool,
    },
    /// `add_subflow`, `add_subflow = { address = "192.0.2.7", port = 443, id = 9 }`: ADD_ADDR is added, the one that was
    /// withheld if none is given.
    AddSubflow(Option<Announcement>),
    /// `deny_join`, `deny_join = "reset"`: no subflow joins by this path.
    DenyJoin(Refusal),
    /// `fall_back`: MP_CAPABLE is taken from a SYN, so that the connection is plain TCP.
    FallBack,
    /// `capable_flag`: a reserved bit of MP_CAPABLE is set at egress; at ingress it is recorded and cleared.
    CapableFlag,
    /// `get_connection`, `get_connection = { keys = true }`: an event tells of each MP_CAPABLE.
    GetConnection {
        /// With the keys, for readers that may see them.
        keys: bool,
    },
    /// `get_subflow`: an event tells of each MP_JOIN.
    GetSubflow,
    /// `record`: bytes, round-trip times, retransmissions and reinjections of the subflow are recorded.
    Record,
    /// A name alone: the user's own actor of this name.
    Own(String),
}

/// What [`Actor::RateLimit`] limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The rate: a round trip's worth of it is offered.
    Rate(Rate),
    /// The bytes that are offered, 1 to 2^30: the most that a scaled window can say (RFC 7323, section 2.2).
    Window(u32),
}

/// An address that [`Actor::AddSubflow`] announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// The address.
    pub address: IpAddr,
    /// Its port, if another than the connection's.
    pub port: Option<u16>,
    /// Its address id, 1 to 255; if `None`, it is 128 and the address's last seven bits.
    pub id: Option<u8>,
}

/// What [`Actor::DenyJoin`] does with the SYN of MP_JOIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refusal {
    /// It vanishes.
    #[default]
    Drop,
    /// It is answered by RST.
    Reset,
}

impl Actor {
    /// The names that actors have in a policy.
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
            Self::Own(name) => name,
        }
    }

    /// The only hook at which it can be, if there is but one.
    pub(crate) fn only_at(&self) -> Option<Hook> {
        match self {
            Self::Mark(_) | Self::Pace(_) => Some(Hook::Egress),
            _ => None,
        }
    }
}
