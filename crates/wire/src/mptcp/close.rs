//! MP_TCPRST, MP_FAIL and MP_FASTCLOSE: the options about failures and closing.

use super::{DataSeq, Key, subtype, wrong_length};
use crate::error::ParseError;
use crate::fields::Fields;

/// MP_TCPRST (RFC 8684 3.6, figure 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The flags that describe the failure.
    pub flags: ResetFlags,
    /// The reason code of RFC 8684 table 2 (0 unspecified, 1 MPTCP-specific error, 2 lack of resources, 3
    /// administratively prohibited, 4 too much outstanding data, 5 unacceptable performance, 6 middlebox interference).
    pub reason: u8,
}

/// The four flags of MP_TCPRST.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResetFlags(u8);

impl ResetFlags {
    /// "T": transient, a new attempt may succeed.
    pub const TRANSIENT: Self = Self(0x01);

    /// The flags U, V, W and T as the low four bits of `bits`; the others are dropped.
    pub fn new(bits: u8) -> Self {
        Self(bits & 0x0f)
    }

    /// Whether all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Reset {
    pub(super) fn parse(first: u8, rest: &[u8]) -> Result<Self, ParseError> {
        match rest {
            [reason] => Ok(Self { flags: ResetFlags::new(first), reason: *reason }),
            _ => Err(wrong_length("MP_TCPRST", "4", rest)),
        }
    }

    pub(super) fn emit(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[subtype::TCPRST << 4 | self.flags.0, self.reason]);
    }
}

/// MP_FAIL (RFC 8684 3.7, figure 16).
pub(super) fn parse_fail(rest: &[u8]) -> Result<DataSeq, ParseError> {
    octets(rest).map(|bytes| DataSeq(u64::from_be_bytes(bytes))).ok_or(wrong_length("MP_FAIL", "12", rest))
}

/// MP_FASTCLOSE (RFC 8684 3.5, figure 14).
pub(super) fn parse_fastclose(rest: &[u8]) -> Result<Key, ParseError> {
    octets(rest).map(Key::new).ok_or(wrong_length("MP_FASTCLOSE", "12", rest))
}

/// The eight octets after a reserved one, if there are no others.
fn octets(rest: &[u8]) -> Option<[u8; 8]> {
    if rest.len() != 9 {
        return None;
    }
    let mut fields = Fields::new("MPTCP option", rest);
    fields.u8().ok()?;
    fields.array().ok()
}
