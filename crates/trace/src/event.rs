//! MPTCP signals as events of a connection.

use std::net::IpAddr;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{AddAddressForm, AddressId, DataSeq, MptcpOption};

use crate::direction::Direction;

/// An MPTCP signal in a segment. Repetitions are separate events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it was captured.
    pub time: Timestamp,
    /// Index of its subflow in [`Connection::subflows`](crate::Connection::subflows).
    pub subflow: usize,
    /// The direction in which it was sent.
    pub sender: Direction,
    /// The signal.
    pub kind: EventKind,
}

/// The kinds of MPTCP signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// ADD_ADDR (RFC 8684 3.4.1).
    AddAddress {
        /// The address identifier.
        id: AddressId,
        /// The address.
        address: IpAddr,
        /// Its port, unless it is the initial subflow's.
        port: Option<u16>,
        /// Whether it echoes the peer's announcement.
        echo: bool,
        /// Whether its HMAC is valid; `None` if the keys are unknown.
        authentic: Option<bool>,
    },
    /// REMOVE_ADDR (RFC 8684 3.4.2).
    RemoveAddress(Vec<AddressId>),
    /// MP_PRIO (RFC 8684 3.3.8).
    Priority {
        /// Whether the subflow becomes a backup.
        backup: bool,
        /// The address identifier, if not this subflow's (version 0).
        id: Option<AddressId>,
    },
    /// MP_FAIL: the checksum of the mapping from this data sequence number on was invalid (RFC 8684 3.7).
    Fail(DataSeq),
    /// MP_FASTCLOSE (RFC 8684 3.5).
    FastClose,
    /// MP_TCPRST (RFC 8684 3.6).
    Reset {
        /// The reason code (RFC 8684 table 2).
        reason: u8,
    },
}

impl EventKind {
    /// The signal of an option; `None` for handshake options and DSS.
    pub(crate) fn of(option: &MptcpOption<'_>) -> Option<Self> {
        Some(match option {
            MptcpOption::AddAddress(add) => Self::AddAddress {
                id: add.id,
                address: add.address,
                port: add.port,
                echo: add.form == AddAddressForm::Echo,
                authentic: None,
            },
            MptcpOption::RemoveAddress(ids) => Self::RemoveAddress(ids.iter().collect()),
            MptcpOption::Priority(priority) => {
                Self::Priority { backup: priority.backup, id: priority.address_id }
            }
            MptcpOption::Fail(data_seq) => Self::Fail(*data_seq),
            MptcpOption::FastClose(_) => Self::FastClose,
            MptcpOption::Reset(reset) => Self::Reset { reason: reset.reason },
            MptcpOption::Capable(_)
            | MptcpOption::Join(_)
            | MptcpOption::Dss(_)
            | MptcpOption::Unknown(_) => return None,
        })
    }
}
