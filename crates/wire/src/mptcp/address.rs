//! ADD_ADDR, REMOVE_ADDR and MP_PRIO: the options about addresses and priorities.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{subtype, wrong_length};
use crate::error::ParseError;
use crate::fields::Fields;

/// Identifies an address of one side within a connection, so that it can be withdrawn even if a NAT changed it (RFC
/// 8684 2.3). 0 is the address of the initial subflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressId(pub u8);

/// ADD_ADDR (RFC 8684 3.4.1, figure 12; RFC 6824 3.4.1, figure 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddAddress {
    /// The address identifier.
    pub id: AddressId,
    /// The address announced.
    pub address: IpAddr,
    /// The port to connect to; without it, that of the initial subflow.
    pub port: Option<u16>,
    /// Version and purpose.
    pub form: AddAddressForm,
}

/// The forms of ADD_ADDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddAddressForm {
    /// An announcement in version 0, unauthenticated.
    V0,
    /// An announcement in version 1.
    Announce {
        /// The rightmost 64 bits of the HMAC-SHA256 over id, address and port.
        hmac: [u8; 8],
    },
    /// The receiver's confirmation in version 1 (the "E" flag).
    Echo,
}

/// The "E" flag of version 1, in the octet of the subtype.
const ECHO: u8 = 0x01;

impl AddAddress {
    pub(super) fn parse(first: u8, rest: &[u8]) -> Result<Self, ParseError> {
        // IP version, port and HMAC follow from the total length, because all ten lengths differ.
        let (v6, port, hmac) = match rest.len() + 3 {
            8 => (false, false, false),
            10 => (false, true, false),
            16 => (false, false, true),
            18 => (false, true, true),
            20 => (true, false, false),
            22 => (true, true, false),
            28 => (true, false, true),
            30 => (true, true, true),
            _ => return Err(wrong_length("ADD_ADDR", "8, 10, 16, 18, 20, 22, 28 or 30", rest)),
        };
        let low = first & 0x0f;
        let echo = low & ECHO != 0;
        if hmac && echo {
            return Err(wrong_length("ADD_ADDR echo", "8, 10, 20 or 22 (no HMAC)", rest));
        }
        let ip_version = if v6 { 6 } else { 4 };
        let mut fields = Fields::new("ADD_ADDR", rest);
        let id = AddressId(fields.u8()?);
        let address = if v6 {
            IpAddr::V6(Ipv6Addr::from(fields.array::<16>()?))
        } else {
            IpAddr::V4(Ipv4Addr::from(fields.array::<4>()?))
        };
        let port = if port { Some(fields.u16()?) } else { None };
        let form = if hmac {
            AddAddressForm::Announce { hmac: fields.array()? }
        } else if echo {
            AddAddressForm::Echo
        } else if low == ip_version {
            // In version 0 the flag bits are the IP version; the bit of "E" is clear in 4 and 6.
            AddAddressForm::V0
        } else {
            return Err(ParseError::Value {
                what: "ADD_ADDR without HMAC, flags or IP version",
                expected: "the echo flag, or the address's IP version",
                got: low.into(),
            });
        };
        Ok(Self { id, address, port, form })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let low = match (self.form, self.address) {
            (AddAddressForm::V0, IpAddr::V4(_)) => 4,
            (AddAddressForm::V0, IpAddr::V6(_)) => 6,
            (AddAddressForm::Announce { .. }, _) => 0,
            (AddAddressForm::Echo, _) => ECHO,
        };
        out.extend_from_slice(&[subtype::ADD_ADDR << 4 | low, self.id.0]);
        match self.address {
            IpAddr::V4(address) => out.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
        }
        out.extend(self.port.iter().flat_map(|port| port.to_be_bytes()));
        if let AddAddressForm::Announce { hmac } = self.form {
            out.extend_from_slice(&hmac);
        }
    }
}

/// The addresses that a REMOVE_ADDR withdraws, at least one (RFC 8684 3.4.2, figure 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressIds<'a>(&'a [u8]);

impl<'a> AddressIds<'a> {
    /// Identifiers from their octets; `None` if there are none.
    pub fn new(ids: &'a [u8]) -> Option<Self> {
        if ids.is_empty() { None } else { Some(Self(ids)) }
    }

    /// The ids in the option's order.
    pub fn iter(self) -> impl Iterator<Item = AddressId> + 'a {
        self.0.iter().copied().map(AddressId)
    }

    pub(super) fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn parse(rest: &'a [u8]) -> Result<Self, ParseError> {
        Self::new(rest).ok_or(wrong_length("REMOVE_ADDR", "4 or more", rest))
    }
}

/// MP_PRIO (RFC 8684 3.3.8, figure 11; RFC 6824 3.3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Whether the subflow is to be used only if others fail.
    pub backup: bool,
    /// Version 0 only: the option applies to the subflows of this address, not to the one that carries it.
    pub address_id: Option<AddressId>,
}

/// The "B" flag of MP_PRIO, in the octet of the subtype.
const BACKUP: u8 = 0x01;

impl Priority {
    pub(super) fn parse(first: u8, rest: &[u8]) -> Result<Self, ParseError> {
        let address_id = match rest {
            [] => None,
            [id] => Some(AddressId(*id)),
            _ => return Err(wrong_length("MP_PRIO", "3 or 4", rest)),
        };
        Ok(Self { backup: first & BACKUP != 0, address_id })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.push(subtype::PRIO << 4 | if self.backup { BACKUP } else { 0 });
        out.extend(self.address_id.iter().map(|id| id.0));
    }
}
