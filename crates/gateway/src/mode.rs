//! How a connection's bytes are protected, and how strictly that is demanded.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use plait_proto::stream::Cipher;

use crate::bindings::{
    PLAIT_MODE_SEALED_AESGCM, PLAIT_MODE_SEALED_CHACHAPOLY, PLAIT_MODE_STREAM_AES256,
    PLAIT_MODE_STREAM_CHACHA20, PLAIT_MODE_XOR64_HMAC, PLAIT_MODE_XOR64_KEY,
};
use crate::sealed::Demand;

/// How a connection's bytes are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Not at all: plain MPTCP.
    Off,
    /// The byte scrambling of Kato et al. Obfuscation against casual listening, not secrecy.
    Xor64,
    /// A keystream from secrets that crossed only the trusted path. Secrecy against whoever did not listen there; no
    /// integrity.
    Stream,
    /// Authenticated encryption, with keys that only somebody who is active on every path could know.
    Sealed,
}

impl Mode {
    /// The modes of the handshake option that this mode offers and accepts: forms of it, and no other mode, for an offer
    /// that was cut short on the way would look like an offer of what is left.
    pub(crate) fn offer(self) -> u8 {
        match self {
            Mode::Off => 0,
            Mode::Xor64 => (PLAIT_MODE_XOR64_HMAC | PLAIT_MODE_XOR64_KEY) as u8,
            // AES in software is slow, and its tables tell secrets to who measures: such a host offers the other alone.
            Mode::Stream if Cipher::aes_is_fast() => {
                (PLAIT_MODE_STREAM_AES256 | PLAIT_MODE_STREAM_CHACHA20) as u8
            }
            Mode::Stream => PLAIT_MODE_STREAM_CHACHA20 as u8,
            Mode::Sealed if Cipher::aes_is_fast() => {
                (PLAIT_MODE_SEALED_AESGCM | PLAIT_MODE_SEALED_CHACHAPOLY) as u8
            }
            Mode::Sealed => PLAIT_MODE_SEALED_CHACHAPOLY as u8,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Off => "off",
            Mode::Xor64 => "xor64",
            Mode::Stream => "stream",
            Mode::Sealed => "sealed",
        })
    }
}

/// A mode's name was expected and something else found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a mode (off, xor64, stream, sealed), found '{0}'")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Mode, UnknownMode> {
        match name {
            "off" => Ok(Mode::Off),
            "xor64" => Ok(Mode::Xor64),
            "stream" => Ok(Mode::Stream),
            "sealed" => Ok(Mode::Sealed),
            _ => Err(UnknownMode(name.to_owned())),
        }
    }
}

/// What to do with a connection whose peer does not negotiate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Never protect.
    Off,
    /// Protect with this mode; carry a connection plain when its peer does not negotiate, say so and count it.
    Prefer(Mode),
    /// Protect with this mode; refuse a connection whose peer does not negotiate.
    Require(Mode),
    /// As required, and refuse a connection of mode `sealed` that one of the configured paths does not witness.
    RequireAllPaths(Mode),
}

/// What of a mode is demanded, and not only preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// That the peer agrees on it.
    Mode,
    /// That every configured path witnesses the connection, too: of mode `sealed`.
    AllPaths,
}

/// A requirement was given together with a mode that does not give what it demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingToRequire {
    /// Of mode `off`.
    #[error("mode 'off' protects nothing, so it cannot be required: choose another mode, or require nothing")]
    Off,
    /// Of another mode than `sealed`.
    #[error(
        "mode '{0}' has no witnesses, so not all paths can be required: use mode sealed, or require the mode alone"
    )]
    Witnesses(Mode),
}

impl Policy {
    /// The policy of a mode, demanded or, without a requirement, preferred.
    pub fn new(mode: Mode, requirement: Option<Requirement>) -> Result<Policy, NothingToRequire> {
        match (mode, requirement) {
            (Mode::Off, None) => Ok(Policy::Off),
            (Mode::Off, Some(_)) => Err(NothingToRequire::Off),
            (mode, None) => Ok(Policy::Prefer(mode)),
            (mode, Some(Requirement::Mode)) => Ok(Policy::Require(mode)),
            (Mode::Sealed, Some(Requirement::AllPaths)) => Ok(Policy::RequireAllPaths(Mode::Sealed)),
            (mode, Some(Requirement::AllPaths)) => Err(NothingToRequire::Witnesses(mode)),
        }
    }

    /// The mode that is preferred or required.
    pub fn mode(self) -> Mode {
        match self {
            Policy::Off => Mode::Off,
            Policy::Prefer(mode) | Policy::Require(mode) | Policy::RequireAllPaths(mode) => mode,
        }
    }

    /// Whether an unprotected connection is refused.
    pub fn requires(self) -> bool {
        matches!(self, Policy::Require(_) | Policy::RequireAllPaths(_))
    }

    /// What a handshake of mode `sealed` must reach.
    pub(crate) fn demand(self) -> Demand {
        match self {
            Policy::RequireAllPaths(_) => Demand::AllPaths,
            Policy::Off | Policy::Prefer(_) | Policy::Require(_) => Demand::AnyLevel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in [Mode::Off, Mode::Xor64, Mode::Stream, Mode::Sealed] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("XOR64".parse::<Mode>().is_err());
    }

    #[test]
    fn off_cannot_be_required() {
        assert_eq!(Policy::new(Mode::Off, Some(Requirement::Mode)), Err(NothingToRequire::Off));
        assert!(Policy::new(Mode::Xor64, Some(Requirement::Mode)).is_ok_and(Policy::requires));
    }

    #[test]
    fn only_sealed_has_paths_to_require() {
        for mode in [Mode::Xor64, Mode::Stream] {
            let refused = Policy::new(mode, Some(Requirement::AllPaths));
            assert_eq!(refused, Err(NothingToRequire::Witnesses(mode)));
        }
        let policy = Policy::new(Mode::Sealed, Some(Requirement::AllPaths));
        assert!(policy.is_ok_and(|policy| policy.requires() && policy.demand() == Demand::AllPaths));
    }

    #[test]
    fn an_offer_has_forms_of_one_mode_only() {
        let offers = [Mode::Off, Mode::Xor64, Mode::Stream, Mode::Sealed].map(Mode::offer);
        let together: u32 = offers.iter().map(|offer| offer.count_ones()).sum();
        assert_eq!(offers.iter().fold(0, |all, offer| all | offer).count_ones(), together);
    }
}
