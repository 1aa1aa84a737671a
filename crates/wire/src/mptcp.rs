//! The Multipath TCP option (kind 30) in all forms of RFC 6824 (version 0) and RFC 8684 (version 1), the types of its
//! fields, and the HMACs that authenticate a join or an announced address.
//!
//! If both versions share a subtype, its form distinguishes them: the version field of MP_CAPABLE, the length of
//! ADD_ADDR and MP_PRIO. [`MptcpOption::parse`] never panics; a length that fits no form is a [`ParseError`].

mod address;
mod capable;
mod close;
mod dss;
mod hmac;
mod join;
mod key;
mod sequence;

pub use address::{AddAddress, AddAddressForm, AddressId, AddressIds, Priority};
pub use capable::{Capable, CapableFlags, CapableKeys, FirstData, Version};
pub use close::{Reset, ResetFlags};
pub use dss::{Dss, Mapping, SeqField};
pub use hmac::JoinHmac;
pub use join::{Join, Nonce};
pub use key::{Key, Token};
pub use sequence::{DataSeq, SubflowSeq};

use crate::error::ParseError;
use crate::fields::Fields;

/// The TCP option kind of Multipath TCP (RFC 8684 3, IANA).
pub const KIND: u8 = 30;

/// The subtypes of RFC 8684 8.2, table 3.
mod subtype {
    pub(super) const CAPABLE: u8 = 0x0;
    pub(super) const JOIN: u8 = 0x1;
    pub(super) const DSS: u8 = 0x2;
    pub(super) const ADD_ADDR: u8 = 0x3;
    pub(super) const REMOVE_ADDR: u8 = 0x4;
    pub(super) const PRIO: u8 = 0x5;
    pub(super) const FAIL: u8 = 0x6;
    pub(super) const FASTCLOSE: u8 = 0x7;
    pub(super) const TCPRST: u8 = 0x8;
}

/// One MPTCP option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MptcpOption<'a> {
    /// MP_CAPABLE: opens a connection (RFC 8684 3.1, RFC 6824 3.1).
    Capable(Capable),
    /// MP_JOIN: adds a subflow to a connection (RFC 8684 3.2).
    Join(Join),
    /// DSS: acknowledges and maps data (RFC 8684 3.3).
    Dss(Dss),
    /// ADD_ADDR: announces an address, or echoes the announcement (RFC 8684 3.4.1).
    AddAddress(AddAddress),
    /// REMOVE_ADDR: withdraws addresses (RFC 8684 3.4.2).
    RemoveAddress(AddressIds<'a>),
    /// MP_PRIO: changes a subflow's priority (RFC 8684 3.3.8).
    Priority(Priority),
    /// MP_FAIL: a mapping's checksum was wrong; carries the data sequence number where that mapping starts
    /// (RFC 8684 3.7).
    Fail(DataSeq),
    /// MP_FASTCLOSE: closes the whole connection; carries the receiver's key (RFC 8684 3.5).
    FastClose(Key),
    /// MP_TCPRST: the reason for a reset of a subflow (RFC 8684 3.6, version 1 only).
    Reset(Reset),
    /// An unknown subtype, or an MP_CAPABLE of an unknown version, unparsed.
    Unknown(Raw<'a>),
}

/// The bytes of an option from the subtype on, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a> {
    /// The upper half is the subtype, the lower half belongs to it.
    pub first: u8,
    /// The bytes after it.
    pub rest: &'a [u8],
}

impl Raw<'_> {
    /// The subtype (0 to 15).
    pub fn subtype(self) -> u8 {
        self.first >> 4
    }
}

impl<'a> MptcpOption<'a> {
    /// Reads an option from `body`: its bytes after the kind and length octets.
    ///
    /// # Errors
    /// A length that no version allows for the subtype, or an empty body.
    #[inline]
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let mut fields = Fields::new("MPTCP option", body);
        let first = fields.u8()?;
        let rest = fields.remaining();
        Ok(match first >> 4 {
            subtype::CAPABLE => match Capable::parse(first, rest)? {
                Some(capable) => Self::Capable(capable),
                None => Self::Unknown(Raw { first, rest }),
            },
            subtype::JOIN => Self::Join(Join::parse(first, rest)?),
            subtype::DSS => Self::Dss(Dss::parse(rest)?),
            subtype::ADD_ADDR => Self::AddAddress(AddAddress::parse(first, rest)?),
            subtype::REMOVE_ADDR => Self::RemoveAddress(AddressIds::parse(rest)?),
            subtype::PRIO => Self::Priority(Priority::parse(first, rest)?),
            subtype::FAIL => Self::Fail(close::parse_fail(rest)?),
            subtype::FASTCLOSE => Self::FastClose(close::parse_fastclose(rest)?),
            subtype::TCPRST => Self::Reset(Reset::parse(first, rest)?),
            _ => Self::Unknown(Raw { first, rest }),
        })
    }

    /// Appends the option's bytes after the kind and length octets.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Capable(capable) => capable.emit(out),
            Self::Join(join) => join.emit(out),
            Self::Dss(dss) => dss.emit(out),
            Self::AddAddress(add) => add.emit(out),
            Self::RemoveAddress(ids) => {
                out.push(subtype::REMOVE_ADDR << 4);
                out.extend_from_slice(ids.as_bytes());
            }
            Self::Priority(priority) => priority.emit(out),
            Self::Fail(data_seq) => {
                out.extend_from_slice(&[subtype::FAIL << 4, 0]);
                out.extend_from_slice(&data_seq.0.to_be_bytes());
            }
            Self::FastClose(key) => {
                out.extend_from_slice(&[subtype::FASTCLOSE << 4, 0]);
                out.extend_from_slice(key.as_bytes());
            }
            Self::Reset(reset) => reset.emit(out),
            Self::Unknown(raw) => {
                out.push(raw.first);
                out.extend_from_slice(raw.rest);
            }
        }
    }
}

/// The length error of an option, counted as the RFCs do: with the kind, length and subtype octets.
fn wrong_length(what: &'static str, expected: &'static str, rest: &[u8]) -> ParseError {
    ParseError::Length { what, expected, got: rest.len() + 3 }
}
