use std::net::IpAddr;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{AddAddressForm, AddressId, DataSeq, MptcpOption};

use crate::Direction;

/// A signal of MPTCP's own, seen in a segment. Repetitions are separate events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub time: Timestamp,
    /// On which of [`Connection::subflows`](crate::Connection::subflows).
    pub subflow: usize,
    /// From the side that sends in this direction.
    pub sender: Direction,
    /// What was signalled.
    pub kind: EventKind,
}

/// What a side signalled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// ADD_ADDR: it has this address (RFC 8684 3.4.1).
    AddAddress {
        /// The address's name.
        id: AddressId,
        /// The address.
        address: IpAddr,
        /// Its port, unless it is the initial subflow's.
        port: Option<u16>,
        /// Whether this only confirms the other side's announcement.
        echo: bool,
        /// Whether its HMAC is that of who knows the connection's keys; `None` where that cannot be told.
        authentic: Option<bool>,
    },
    /// REMOVE_ADDR: it no longer has these addresses (RFC 8684 3.4.2).
    RemoveAddress(Vec<AddressId>),
    /// MP_PRIO (RFC 8684 3.3.8).
    Priority {
        /// Whether the subflow is to be used only when others fail.
        backup: bool,
        /// The address meant, where it is not this subflow's (version 0).
        id: Option<AddressId>,
    },
    /// MP_FAIL: the checksum of the mapping from this number on was wrong (RFC 8684 3.7).
    Fail(DataSeq),
    /// MP_FASTCLOSE: it closes the whole connection (RFC 8684 3.5).
    FastClose,
    /// MP_TCPRST with its reason (RFC 8684 3.6).
    Reset {
        /// RFC 8684 table 2.
        reason: u8,
    },
}

impl EventKind {
    /// What an option signals, if it is none of the handshake's and not DSS.
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
