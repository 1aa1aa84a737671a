//! Why handshakes fail, as counted in status and metrics, and what that may mean, as logged.

use std::fmt;

use plait_proto::close_reason::CloseReason;
use plait_proto::sealed::{HandshakeError, MessageError, RendezvousError};
use serde::{Deserialize, Serialize};

use super::establish::EstablishError;
use super::message_io::SealedError;
use crate::protection::Refusal;
use crate::relay::ExitRecordError;

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident $name:literal),+ $(,)?) => {
        /// Why a handshake failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum FailureReason {
            $($(#[$doc])* #[serde(rename = $name)] $reason),+
        }

        impl FailureReason {
            /// Every reason, in the order of its number.
            pub const ALL: &[FailureReason] = &[$(FailureReason::$reason),+];
        }

        impl fmt::Display for FailureReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $(FailureReason::$reason => $name),+
                })
            }
        }
    };
}

reasons! {
    /// The peer did not negotiate.
    NotNegotiated "not_negotiated",
    /// The peer offers no common mode.
    NoCommonMode "no_common_mode",
    /// The connection fell back to TCP.
    Fallback "fallback",
    /// It would be plain, but the peer was reached in mode `sealed` before.
    Downgrade "downgrade",
    /// This gateway's own mode is weaker than the one in which the peer was reached before.
    WeakerMode "weaker_mode",
    /// The mode was chosen but not confirmed.
    Unconfirmed "unconfirmed",
    /// Fewer paths took part than required.
    TooFewPaths "too_few_paths",
    /// A message failed authentication, or its confirmation on another path did.
    Authentication "authentication",
    /// An end's identity is missing or was rejected.
    Identity "identity",
    /// The initiator asked for another service.
    OtherService "other_service",
    /// The peer speaks another version of the protocol.
    OtherVersion "other_version",
    /// A message was malformed, or belongs to another session or path.
    Message "message",
    /// A further subflow was opened before the handshake was complete.
    EarlySubflow "early_subflow",
    /// It did not complete in time.
    Timeout "timeout",
    /// The peer closed or reset a connection.
    Closed "closed",
    /// The peer's gateway ended a connection, and told why.
    RefusedByPeer "refused_by_peer",
    /// A message of a session that is complete, or in excess of one.
    Replay "replay",
    /// Too many sessions are half open, or the peer has too many connections.
    Limit "limit",
    /// This host failed: the kernel reported no outcome, or there are no random bytes.
    Internal "internal",
}

impl FailureReason {
    /// What it may mean, beyond a fault, for the path of the main connection, such as `the path through eth0`.
    pub(crate) fn meaning(self, path: &str) -> String {
        match self {
            FailureReason::NoCommonMode => format!("or somebody on {path} may be changing TCP options"),
            FailureReason::NotNegotiated
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
            FailureReason::OtherService => {
                format!(
                    "somebody on {path} may be redirecting connections, or a port forwarding needs `--service`"
                )
            }
            FailureReason::OtherVersion => "the two ends run different versions of plait".to_owned(),
            FailureReason::EarlySubflow | FailureReason::Replay => {
                format!("somebody on {path} may be injecting")
            }
            FailureReason::Timeout | FailureReason::Closed => {
                format!(
                    "the peer may have refused, as its log tells, or somebody on {path} may be interrupting"
                )
            }
            FailureReason::RefusedByPeer => {
                format!("nothing authenticates this: somebody on {path} may have said it in its name")
            }
            FailureReason::Limit => "somebody may be flooding this gateway".to_owned(),
            FailureReason::WeakerMode => {
                "the configuration of this gateway, or what its host lacks".to_owned()
            }
            FailureReason::Internal => "a fault of this host".to_owned(),
        }
    }
}

impl FailureReason {
    /// What the peer is told; `None` if it ended the connection itself.
    pub(crate) fn close_reason(self) -> Option<CloseReason> {
        Some(match self {
            FailureReason::Closed | FailureReason::RefusedByPeer => return None,
            FailureReason::NotNegotiated
            | FailureReason::NoCommonMode
            | FailureReason::Downgrade
            | FailureReason::WeakerMode => CloseReason::Mode,
            FailureReason::Fallback | FailureReason::Unconfirmed => CloseReason::StrippedOptions,
            FailureReason::TooFewPaths => CloseReason::Paths,
            FailureReason::Authentication => CloseReason::Authentication,
            FailureReason::Identity => CloseReason::Identity,
            FailureReason::OtherService => CloseReason::OtherService,
            FailureReason::OtherVersion => CloseReason::Version,
            FailureReason::Message | FailureReason::Replay => CloseReason::Message,
            FailureReason::EarlySubflow => CloseReason::EarlySubflow,
            FailureReason::Timeout => CloseReason::Timeout,
            FailureReason::Limit => CloseReason::Limit,
            FailureReason::Internal => CloseReason::Internal,
        })
    }
}

impl From<&Refusal> for FailureReason {
    fn from(refusal: &Refusal) -> FailureReason {
        match refusal {
            Refusal::NotNegotiated => FailureReason::NotNegotiated,
            Refusal::NoCommonMode { .. } | Refusal::PeerRequires { .. } => FailureReason::NoCommonMode,
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
            EstablishError::Ended(_) => FailureReason::RefusedByPeer,
            EstablishError::Timeout => FailureReason::Timeout,
            EstablishError::Random => FailureReason::Internal,
            EstablishError::UnknownMode => FailureReason::NoCommonMode,
            EstablishError::Exit(ExitRecordError::Network(_)) => FailureReason::Closed,
            EstablishError::Exit(ExitRecordError::Record(_) | ExitRecordError::Message(_)) => {
                FailureReason::Message
            }
            EstablishError::Sealed(error) => error.into(),
        }
    }
}

impl From<&SealedError> for FailureReason {
    fn from(error: &SealedError) -> FailureReason {
        match error {
            SealedError::Handshake(error) => of_handshake(error),
            SealedError::Message(MessageError::Ended { .. }) => FailureReason::Closed,
            SealedError::Message(MessageError::Version { .. }) => FailureReason::OtherVersion,
            SealedError::Message(_) => FailureReason::Message,
            SealedError::Paths(_) => FailureReason::Internal,
            SealedError::Rendezvous(
                RendezvousError::Replayed(_)
                | RendezvousError::Late(..)
                | RendezvousError::Unlisted(..)
                | RendezvousError::Repeated(..),
            ) => FailureReason::Replay,
            SealedError::Displaced => FailureReason::Limit,
            SealedError::Network(_) | SealedError::SessionEnded => FailureReason::Closed,
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
        HandshakeError::NoIdentity | HandshakeError::Anonymous | HandshakeError::PeerRejected { .. } => {
            FailureReason::Identity
        }
        HandshakeError::Service { .. } => FailureReason::OtherService,
        HandshakeError::EncapsulationKey
        | HandshakeError::WrongPath { .. }
        | HandshakeError::WrongSession { .. }
        | HandshakeError::Unlisted(..)
        | HandshakeError::Repeated(..)
        | HandshakeError::Missing(..) => FailureReason::Message,
        HandshakeError::Random(_) | HandshakeError::Library(_) => FailureReason::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed_in_order_and_named_as_in_json() {
        for (index, reason) in FailureReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert_eq!(serde_json::to_string(reason).expect("text"), format!("\"{reason}\""));
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
