//! How connections are protected: what a gateway prefers or requires, what the two ends agreed on, what was reached.
//!
//! Parse, don't validate: an [`Agreement`] is the only way to a connection's transforms ([`crate::handshake`]), so no byte
//! is carried before the policy has judged the connection's handshake.

use std::str::FromStr;
use std::sync::Arc;

use plait_config::TextError;
use plait_linux::mptcp::Key;
use plait_proto::option::Mode;
use plait_proto::sealed::{Level, MAX_PATHS, RequiredPaths};
use serde::Deserialize;

use crate::running_session::RunningSession;
use crate::trust::{AuthenticatedPeer, KeyMatch};

/// What to do with a connection whose peer does not negotiate protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionPolicy {
    /// Never protect.
    Off,
    /// Protect with this mode; if the peer does not negotiate, carry the connection unprotected, warn and count it.
    Prefer(Mode),
    /// Protect with this mode; refuse a connection whose peer does not negotiate.
    Require(Mode),
    /// Protect with mode `sealed`; refuse a connection whose peer does not negotiate, or in which too few paths take part.
    RequirePaths(RequiredPaths),
}

/// What negotiates the mode in the TCP handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NegotiationSignal {
    /// A TCP option of plait's own.
    #[default]
    Option,
    /// A flag of MP_CAPABLE. It negotiates mode `xor64` only.
    Flag,
}

impl FromStr for NegotiationSignal {
    type Err = TextError;

    fn from_str(text: &str) -> Result<NegotiationSignal, TextError> {
        match text {
            "option" => Ok(NegotiationSignal::Option),
            "flag" => Ok(NegotiationSignal::Flag),
            _ => Err(TextError::new("option or flag", text)),
        }
    }
}

/// What is required, and not only preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The mode.
    Mode,
    /// Mode `sealed`, and at least so many paths that take part: from 2 to [`MAX_PATHS`].
    Paths(u8),
    /// Mode `sealed`, and a witness on every named interface, of which there are at least two.
    AllPaths,
}

impl FromStr for Requirement {
    type Err = TextError;

    /// `all-paths`, or `paths:2`.
    fn from_str(text: &str) -> Result<Requirement, TextError> {
        if text == "all-paths" {
            return Ok(Requirement::AllPaths);
        }
        let number = text.strip_prefix("paths:").and_then(|number| number.parse().ok());
        let number = number.filter(|number| (2..=MAX_PATHS).contains(number));
        let expected = || format!("all-paths, or paths:N with N from 2 to {MAX_PATHS}");
        number.map(Requirement::Paths).ok_or_else(|| TextError::new(expected(), text))
    }
}

/// A requirement that the mode cannot fulfil.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequirement {
    /// Mode `off`.
    #[error(
        "expected a mode that can be required (xor64, stream, sealed), got 'off', which protects nothing"
    )]
    Off,
    /// Paths of another mode than `sealed`.
    #[error(
        "expected mode sealed with --require=all-paths or paths:N, got '{0}', which has no witnesses: use --mode sealed, or \
         --require"
    )]
    Witnesses(Mode),
}

impl ProtectionPolicy {
    /// The policy for a mode, required or, without a requirement, preferred.
    ///
    /// # Errors
    /// The mode cannot fulfil the requirement.
    pub fn new(mode: Mode, requirement: Option<Requirement>) -> Result<ProtectionPolicy, InvalidRequirement> {
        match (mode, requirement) {
            (Mode::Off, None) => Ok(ProtectionPolicy::Off),
            (Mode::Off, Some(_)) => Err(InvalidRequirement::Off),
            (mode, None) => Ok(ProtectionPolicy::Prefer(mode)),
            (mode, Some(Requirement::Mode)) => Ok(ProtectionPolicy::Require(mode)),
            (Mode::Sealed, Some(Requirement::Paths(number))) => {
                Ok(ProtectionPolicy::RequirePaths(RequiredPaths::AtLeast(number)))
            }
            (Mode::Sealed, Some(Requirement::AllPaths)) => {
                Ok(ProtectionPolicy::RequirePaths(RequiredPaths::All))
            }
            (mode, Some(Requirement::Paths(_) | Requirement::AllPaths)) => {
                Err(InvalidRequirement::Witnesses(mode))
            }
        }
    }

    /// The mode that is preferred or required.
    pub fn mode(self) -> Mode {
        match self {
            ProtectionPolicy::Off => Mode::Off,
            ProtectionPolicy::Prefer(mode) | ProtectionPolicy::Require(mode) => mode,
            ProtectionPolicy::RequirePaths(_) => Mode::Sealed,
        }
    }

    /// Whether unprotected connections are refused.
    pub fn requires(self) -> bool {
        matches!(self, ProtectionPolicy::Require(_) | ProtectionPolicy::RequirePaths(_))
    }

    /// The same, with the mode required if it is preferred.
    pub(crate) fn required(self) -> ProtectionPolicy {
        match self {
            ProtectionPolicy::Prefer(mode) => ProtectionPolicy::Require(mode),
            ProtectionPolicy::Off | ProtectionPolicy::Require(_) | ProtectionPolicy::RequirePaths(_) => self,
        }
    }

    /// The paths that must take part in mode `sealed`.
    pub(crate) fn required_paths(self) -> RequiredPaths {
        match self {
            ProtectionPolicy::RequirePaths(paths) => paths,
            ProtectionPolicy::Off | ProtectionPolicy::Prefer(_) | ProtectionPolicy::Require(_) => {
                RequiredPaths::Any
            }
        }
    }

    /// The paths that must take part, as [`Requirement`] parses them; `None` if any suffice.
    pub(crate) fn required_paths_text(self) -> Option<String> {
        match self.required_paths() {
            RequiredPaths::Any => None,
            RequiredPaths::AtLeast(number) => Some(format!("paths:{number}")),
            RequiredPaths::All => Some("all-paths".to_owned()),
        }
    }

    /// Judges a connection whose ends did not agree on a mode.
    pub(crate) fn judge_plain(self, reason: PlainReason) -> Result<Agreement, Refusal> {
        if !self.requires() {
            return Ok(Agreement::Plain(reason));
        }
        Err(match reason {
            PlainReason::NotNegotiated | PlainReason::Off => Refusal::NotNegotiated,
            PlainReason::NoCommonMode(peer) => Refusal::NoCommonMode { own: self.mode(), peer },
            PlainReason::Fallback => Refusal::Fallback,
        })
    }
}

/// Why the ends of a connection did not agree on a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainReason {
    /// The peer sent no option of plait.
    NotNegotiated,
    /// The peer speaks plait, but shares no mode or version. Its mode, if it is known.
    NoCommonMode(Option<Mode>),
    /// The connection fell back to TCP, so there are no MPTCP keys.
    Fallback,
    /// This gateway's own mode is off.
    Off,
}

/// Why a connection is not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "protection is required, but the peer did not negotiate: run plait there, in another mode than off, or drop --require"
    )]
    NotNegotiated,
    #[error("protection is required, but {}: use the same --mode on both ends", different_modes(*own, *peer))]
    NoCommonMode { own: Mode, peer: Option<Mode> },
    #[error(
        "the peer requires protection, but {}: use the same --mode on both ends", different_modes(*own, *peer)
    )]
    PeerRequires { own: Mode, peer: Option<Mode> },
    #[error(
        "protection is required, but the connection fell back to TCP, which has no MPTCP keys: enable MPTCP at the peer, \
         or find the middlebox that strips its options"
    )]
    Fallback,
    #[error("the peer must authenticate, which takes a sealed connection: use --mode sealed on both ends")]
    Unauthenticated,
    #[error("the mode was chosen but not confirmed: a middlebox strips TCP options in one direction")]
    Unconfirmed,
    #[error("the peer opened a second subflow before its first flight arrived on the trusted path")]
    EarlySubflow,
    #[error("the kernel did not report the outcome of the handshake")]
    NoVerdict,
}

/// What the two ends do not share. `peer`: the mode that the peer's option names.
pub(crate) fn different_modes(own: Mode, peer: Option<Mode>) -> String {
    match peer {
        Some(peer) => format!("the peer's mode is '{peer}' and that of this gateway '{own}'"),
        None => format!("the peer offers no mode in common with '{own}', that of this gateway"),
    }
}

/// Proof that the policy has judged a connection's handshake, and permits to carry it.
pub(crate) enum Agreement {
    /// Unprotected, for this reason.
    Plain(PlainReason),
    /// Protected as both ends agreed.
    Protected(Negotiated),
}

/// What both ends agreed on, and the secrets that MPTCP gives them.
pub(crate) struct Negotiated {
    /// The chosen variant, as a bit of the handshake option.
    pub(crate) chosen: u8,
    /// All variants that the initiator offered, as such bits.
    pub(crate) offered: u8,
    pub(crate) local: Key,
    pub(crate) remote: Key,
}

/// How well an established connection is protected.
#[derive(Clone, Debug)]
pub(crate) struct ProtectionStatus {
    pub(crate) mode: Mode,
    /// Mode `sealed`: the session, whose level late witnesses raise.
    pub(crate) session: Option<Arc<RunningSession>>,
    /// Mode `sealed`: the peer's key and how it is known, if it authenticated and not everybody may connect.
    pub(crate) peer: Option<AuthenticatedPeer>,
}

impl ProtectionStatus {
    /// Of a mode other than `sealed`.
    pub(crate) fn of_mode(mode: Mode) -> ProtectionStatus {
        ProtectionStatus { mode, session: None, peer: None }
    }

    /// Mode `sealed`: how the peer's key is known, if it authenticated.
    pub(crate) fn identity(&self) -> Option<KeyMatch> {
        self.peer.map(|peer| peer.known)
    }

    /// Mode `sealed`: on how many of the configured paths an attacker would have to be active, now.
    pub(crate) fn level(&self) -> Option<Level> {
        self.session.as_ref().map(|session| session.level())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_off_cannot_be_required() {
        let required = |mode| ProtectionPolicy::new(mode, Some(Requirement::Mode));
        assert_eq!(required(Mode::Off), Err(InvalidRequirement::Off));
        assert!(required(Mode::Xor64).is_ok_and(ProtectionPolicy::requires));
    }

    #[test]
    fn paths_can_be_required_only_with_mode_sealed() {
        for (requirement, paths) in
            [(Requirement::AllPaths, RequiredPaths::All), (Requirement::Paths(3), RequiredPaths::AtLeast(3))]
        {
            for mode in [Mode::Xor64, Mode::Stream] {
                let invalid = ProtectionPolicy::new(mode, Some(requirement));
                assert_eq!(invalid, Err(InvalidRequirement::Witnesses(mode)));
            }
            let policy = ProtectionPolicy::new(Mode::Sealed, Some(requirement));
            let policy = policy.expect("sealed has witnesses");
            assert!(policy.requires() && policy.mode() == Mode::Sealed);
            assert_eq!(policy.required_paths(), paths);
            assert_eq!(policy.required_paths_text().map(|text| text.parse()), Some(Ok(requirement)));
        }
    }

    #[test]
    fn requirements_are_all_paths_or_at_least_two() {
        let parse = |text: &str| text.parse::<Requirement>();
        assert_eq!(parse("all-paths"), Ok(Requirement::AllPaths));
        assert_eq!(parse("paths:2"), Ok(Requirement::Paths(2)));
        assert_eq!(parse("paths:16"), Ok(Requirement::Paths(16)));
        for wrong in ["", "paths", "paths:", "paths:0", "paths:1", "paths:17", "paths:258", "paths:-2", "2"] {
            let error = parse(wrong).expect_err("out of range");
            assert!(error.to_string().contains("N from 2 to 16"), "{error}");
        }
    }

    #[test]
    fn prefer_carries_plain_and_require_refuses() {
        let prefer = ProtectionPolicy::Prefer(Mode::Xor64);
        let require = ProtectionPolicy::Require(Mode::Xor64);
        for reason in [PlainReason::NotNegotiated, PlainReason::NoCommonMode(None), PlainReason::Fallback] {
            let judged = prefer.judge_plain(reason);
            assert!(judged.is_ok_and(|agreed| matches!(agreed, Agreement::Plain(got) if got == reason)));
            assert!(require.judge_plain(reason).is_err());
        }
    }
}
