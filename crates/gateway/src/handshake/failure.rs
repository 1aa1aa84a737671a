//! Why handshakes fail, as counted in status and metrics, and what that may mean, as logged.

use std::fmt;

use plait_proto::sealed::{HandshakeError, MessageError, RendezvousError};
use serde::{Deserialize, Serialize};

use super::establish::EstablishError;
use super::message_io::SealedError;
use crate::protection::Refusal;

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureReason {
    /// The peer did not negotiate.
    NotNegotiated,
    /// The peer offers no common mode.
    NoCommonMode,
    /// The connection fell back to TCP.
    Fallback,
    /// It would be plain, but the peer was reached in mode `sealed` before.
    Downgrade,
    /// This gateway's own mode is weaker than the one in which the peer was reached before.
    WeakerMode,
    /// The mode was chosen but not confirmed.
    Unconfirmed,
    /// Fewer paths took part than required.
    TooFewPaths,
    /// A message failed authentication, or its confirmation on another path did.
    Authentication,
    /// An end's identity is missing or was rejected.
    Identity,
    /// A message was malformed, or belongs to another session or path.
    Message,
    /// A further subflow was opened before the handshake was complete.
    EarlySubflow,
    /// It did not complete in time.
    Timeout,
    /// The peer closed or reset a connection.
    Closed,
    /// A message of a session that is complete, or in excess of one.
    Replay,
    /// Too many sessions are half open.
    Limit,
    /// This host failed: the kernel reported no outcome, or there are no random bytes.
    Internal,
}

impl FailureReason {
    /// Every reason.
    pub const ALL: [FailureReason; 16] = [
        FailureReason::NotNegotiated,
        FailureReason::NoCommonMode,
        FailureReason::Fallback,
        FailureReason::Downgrade,
        FailureReason::WeakerMode,
        FailureReason::Unconfirmed,
        FailureReason::TooFewPaths,
        FailureReason::Authentication,
        FailureReason::Identity,
        FailureReason::Message,
        FailureReason::EarlySubflow,
        FailureReason::Timeout,
        FailureReason::Closed,
        FailureReason::Replay,
        FailureReason::Limit,
        FailureReason::Internal,
    ];

    /// What it may mean, beyond a fault, for the path of the main connection, such as `the path through eth0`.
    pub(crate) fn meaning(self, path: &str) -> String {
        match self {
            FailureReason::NotNegotiated
            | FailureReason::NoCommonMode
            | FailureReason::Fallback
            | FailureReason::Downgrade
            | FailureReason::Unconfirmed => format!("somebody on {path} may be stripping TCP options"),
            FailureReason::TooFewPaths => {
                format!("an interface is down, or somebody blocks the others to intercept {path}")
            }
            FailureReason::Authentication | FailureReason::Message => {
                format!("somebody on {path} may be intercepting")
            }
            FailureReason::Identity => {
                format!("a key is missing or was replaced, or somebody on {path} may be intercepting")
            }
            FailureReason::EarlySubflow | FailureReason::Replay => {
                format!("somebody on {path} may be injecting")
            }
            FailureReason::Timeout | FailureReason::Closed => {
                format!(
                    "the peer may have refused, as its log tells, or somebody on {path} may be interrupting"
                )
            }
            FailureReason::Limit => "somebody may be flooding this gateway".to_owned(),
            FailureReason::WeakerMode => {
                "the configuration of this gateway, or what its host lacks".to_owned()
            }
            FailureReason::Internal => "a fault of this host".to_owned(),
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FailureReason::NotNegotiated => "not_negotiated",
            FailureReason::NoCommonMode => "no_common_mode",
            FailureReason::Fallback => "fallback",
            FailureReason::Downgrade => "downgrade",
            FailureReason::WeakerMode => "weaker_mode",
            FailureReason::Unconfirmed => "unconfirmed",
            FailureReason::TooFewPaths => "too_few_paths",
            FailureReason::Authentication => "authentication",
            FailureReason::Identity => "identity",
            FailureReason::Message => "message",
            FailureReason::EarlySubflow => "early_subflow",
            FailureReason::Timeout => "timeout",
            FailureReason::Closed => "closed",
            FailureReason::Replay => "replay",
            FailureReason::Limit => "limit",
            FailureReason::Internal => "internal",
        })
    }
}

impl From<&Refusal> for FailureReason {
    fn from(refusal: &Refusal) -> FailureReason {
        match refusal {
            Refusal::NotNegotiated => FailureReason::NotNegotiated,
            Refusal::NoCommonMode => FailureReason::NoCommonMode,
            Refusal::Fallback => FailureReason::Fallback,
            Refusal::Unauthenticated => FailureReason::Identity,
            Refusal::Unconfirmed => FailureReason::Unconfirmed,
            Refusal::EarlySubflow => FailureReason::EarlySubflow,
            Refusal::NoVerdict => FailureReason::Internal,
        }
    }
}

impl From<&EstablishError> for FailureReason {
    fn from(error: &EstablishError) -> FailureReason {
        match error {
            EstablishError::Closed | EstablishError::Network(_) => FailureReason::Closed,
            EstablishError::Timeout => FailureReason::Timeout,
            EstablishError::Random => FailureReason::Internal,
            EstablishError::UnknownMode => FailureReason::NoCommonMode,
            EstablishError::Sealed(error) => error.into(),
        }
    }
}

impl From<&SealedError> for FailureReason {
    fn from(error: &SealedError) -> FailureReason {
        match error {
            SealedError::Handshake(error) => of_handshake(error),
            SealedError::Message(MessageError::Ended { .. }) => FailureReason::Closed,
            SealedError::Message(_) => FailureReason::Message,
            SealedError::Paths(_) => FailureReason::Internal,
            SealedError::Rendezvous(error) => of_rendezvous(error),
            SealedError::Network(_) => FailureReason::Closed,
            SealedError::Timeout => FailureReason::Timeout,
            SealedError::EarlySubflow => FailureReason::EarlySubflow,
            SealedError::NotAuthenticated(error) => FailureReason::from(&**error),
        }
    }
}

fn of_handshake(error: &HandshakeError) -> FailureReason {
    match error {
        HandshakeError::Level(_) | HandshakeError::TooFewPaths { .. } => FailureReason::TooFewPaths,
        HandshakeError::Hello
        | HandshakeError::Reply
        | HandshakeError::Identity
        | HandshakeError::Confirmation(_) => FailureReason::Authentication,
        HandshakeError::NoIdentity | HandshakeError::Anonymous | HandshakeError::PeerRejected(_) => {
            FailureReason::Identity
        }
        HandshakeError::WrongPath { .. }
        | HandshakeError::WrongSession { .. }
        | HandshakeError::Unlisted(..)
        | HandshakeError::Repeated(..)
        | HandshakeError::Missing(..) => FailureReason::Message,
        HandshakeError::Random(_) | HandshakeError::Library(_) => FailureReason::Internal,
    }
}

fn of_rendezvous(error: &RendezvousError) -> FailureReason {
    match error {
        RendezvousError::Replayed(_)
        | RendezvousError::Late(..)
        | RendezvousError::Unlisted(..)
        | RendezvousError::Repeated(..) => FailureReason::Replay,
        _ => FailureReason::Limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed_in_order_and_named_as_in_json() {
        for (index, reason) in FailureReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            assert_eq!(serde_json::to_string(&reason).expect("text"), format!("\"{reason}\""));
        }
    }

    #[test]
    fn a_failed_authentication_names_the_path_that_may_be_intercepted() {
        let error = EstablishError::from(SealedError::from(HandshakeError::Reply));
        let reason = FailureReason::from(&error);
        assert_eq!(reason, FailureReason::Authentication);
        assert_eq!(
            reason.meaning("the path through eth0"),
            "somebody on the path through eth0 may be intercepting"
        );
    }
}
