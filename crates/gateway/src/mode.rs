//! How a connection's bytes are protected, and how strictly that is demanded.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bindings::{PLAIT_MODE_XOR64_HMAC, PLAIT_MODE_XOR64_KEY};

/// How a connection's bytes are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Not at all: plain MPTCP.
    Off,
    /// The byte scrambling of Kato et al. Obfuscation against casual listening, not secrecy.
    Xor64,
}

impl Mode {
    /// The modes of the handshake option that this mode offers and accepts.
    pub(crate) fn offer(self) -> u8 {
        match self {
            Mode::Off => 0,
            Mode::Xor64 => (PLAIT_MODE_XOR64_HMAC | PLAIT_MODE_XOR64_KEY) as u8,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Off => "off",
            Mode::Xor64 => "xor64",
        })
    }
}

/// A mode's name was expected and something else found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a mode (off, xor64), found '{0}'")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Mode, UnknownMode> {
        match name {
            "off" => Ok(Mode::Off),
            "xor64" => Ok(Mode::Xor64),
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
}

/// `--require` was given together with mode `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mode 'off' protects nothing, so it cannot be required: choose another mode or drop --require")]
pub struct NothingToRequire;

impl Policy {
    /// The policy of a mode, demanded (`require`) or preferred.
    pub fn new(mode: Mode, require: bool) -> Result<Policy, NothingToRequire> {
        match (mode, require) {
            (Mode::Off, false) => Ok(Policy::Off),
            (Mode::Off, true) => Err(NothingToRequire),
            (mode, false) => Ok(Policy::Prefer(mode)),
            (mode, true) => Ok(Policy::Require(mode)),
        }
    }

    /// The mode that is preferred or required.
    pub fn mode(self) -> Mode {
        match self {
            Policy::Off => Mode::Off,
            Policy::Prefer(mode) | Policy::Require(mode) => mode,
        }
    }

    /// Whether an unprotected connection is refused.
    pub fn requires(self) -> bool {
        matches!(self, Policy::Require(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in [Mode::Off, Mode::Xor64] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("XOR64".parse::<Mode>().is_err());
    }

    #[test]
    fn off_cannot_be_required() {
        assert_eq!(Policy::new(Mode::Off, true), Err(NothingToRequire));
        assert!(Policy::new(Mode::Xor64, true).is_ok_and(Policy::requires));
    }
}
