//! How strictly protection is demanded.

use plait_proto::option::Mode;
use plait_proto::sealed::RequiredPaths;

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
    pub(crate) fn demand(self) -> RequiredPaths {
        match self {
            Policy::RequireAllPaths(_) => RequiredPaths::All,
            Policy::Off | Policy::Prefer(_) | Policy::Require(_) => RequiredPaths::Any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(policy.is_ok_and(|policy| policy.requires() && policy.demand() == RequiredPaths::All));
    }

    /// `enum plait_mode` of `intf.h`, which the kernel's programs use, against the protocol's list.
    #[test]
    fn option_bits_are_those_of_the_kernel_programs() {
        use plait_proto::option::Variant;

        use crate::bindings as c;
        for (variant, bit) in [
            (Variant::Xor64Key, c::PLAIT_MODE_XOR64_KEY),
            (Variant::Xor64Hmac, c::PLAIT_MODE_XOR64_HMAC),
            (Variant::StreamChaCha20, c::PLAIT_MODE_STREAM_CHACHA20),
            (Variant::StreamAes256, c::PLAIT_MODE_STREAM_AES256),
            (Variant::SealedChaChaPoly, c::PLAIT_MODE_SEALED_CHACHAPOLY),
            (Variant::SealedAesGcm, c::PLAIT_MODE_SEALED_AESGCM),
        ] {
            assert_eq!(u32::from(variant.bit()), bit);
        }
    }
}
