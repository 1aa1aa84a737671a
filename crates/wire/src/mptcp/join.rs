//! MP_JOIN: the option that adds a subflow.

use super::{AddressId, Token, subtype, wrong_length};
use crate::error::ParseError;
use crate::fields::Fields;

/// A random number that one side contributes to the HMACs of a join (RFC 8684 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub u32);

/// MP_JOIN, whose form depends on the segment that carries it (RFC 8684 3.2, figures 5 to 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// On the SYN (length 12).
    Syn {
        /// The sender requests that this subflow be used only if others fail.
        backup: bool,
        /// Identifies the sender's address of this subflow.
        address_id: AddressId,
        /// The receiver's token, which identifies the connection to join.
        token: Token,
        /// The sender's random number.
        nonce: Nonce,
    },
    /// On the SYN/ACK (length 16).
    SynAck {
        /// The sender requests that this subflow be used only if others fail.
        backup: bool,
        /// Identifies the sender's address of this subflow.
        address_id: AddressId,
        /// The leftmost 64 bits of the sender's HMAC.
        hmac: [u8; 8],
        /// The sender's random number.
        nonce: Nonce,
    },
    /// On the third ACK (length 24).
    Ack {
        /// The leftmost 160 bits of the sender's HMAC.
        hmac: [u8; 20],
    },
}

/// The "B" flag, in the octet of the subtype.
const BACKUP: u8 = 0x01;

impl Join {
    pub(super) fn parse(first: u8, rest: &[u8]) -> Result<Self, ParseError> {
        let mut fields = Fields::new("MP_JOIN", rest);
        let backup = first & BACKUP != 0;
        Ok(match rest.len() + 3 {
            12 => Self::Syn {
                backup,
                address_id: AddressId(fields.u8()?),
                token: Token(fields.u32()?),
                nonce: Nonce(fields.u32()?),
            },
            16 => Self::SynAck {
                backup,
                address_id: AddressId(fields.u8()?),
                hmac: fields.array()?,
                nonce: Nonce(fields.u32()?),
            },
            24 => {
                let _reserved = fields.u8()?;
                Self::Ack { hmac: fields.array()? }
            }
            _ => return Err(wrong_length("MP_JOIN", "12, 16 or 24", rest)),
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let first = |backup: bool| subtype::JOIN << 4 | if backup { BACKUP } else { 0 };
        match *self {
            Self::Syn { backup, address_id, token, nonce } => {
                out.extend_from_slice(&[first(backup), address_id.0]);
                out.extend_from_slice(&token.0.to_be_bytes());
                out.extend_from_slice(&nonce.0.to_be_bytes());
            }
            Self::SynAck { backup, address_id, hmac, nonce } => {
                out.extend_from_slice(&[first(backup), address_id.0]);
                out.extend_from_slice(&hmac);
                out.extend_from_slice(&nonce.0.to_be_bytes());
            }
            Self::Ack { hmac } => {
                out.extend_from_slice(&[first(false), 0]);
                out.extend_from_slice(&hmac);
            }
        }
    }
}
