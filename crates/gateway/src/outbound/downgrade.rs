//! Refuses connections in a weaker mode to peers that were reached `sealed` before ([`SealedPeers`]).
//!
//! A client offers one mode, so what the path can make of `sealed` is a plain connection: for a remembered peer, a preferred
//! mode is judged as a required one. A gateway whose own mode is weaker does not connect to such a peer at all.

use chrono::NaiveDate;
use plait_proto::option::Mode;

use crate::handshake::FailureReason;
use crate::protection::{ProtectionPolicy, Refusal, different_modes};
use crate::trust::{PeerName, SealedPeer, SealedPeers, SealedPeersError};

/// A connection would be carried in a weaker mode than one to the same peer before.
#[derive(Debug, thiserror::Error)]
pub(super) enum DowngradeError {
    #[error(
        "{peer} was reached sealed before (last on {last}) and is never carried plain again, but {reason}: if you \
         know that no plait answers there any more, run `plait peers forget {peer}`"
    )]
    Plain { peer: PeerName, last: NaiveDate, reason: String },
    #[error(
        "{peer} was reached sealed before (last on {last}) and is never carried in a weaker mode again, but the mode of this \
         gateway is '{mode}': use --mode sealed, on a host where `plait doctor` finds nothing missing, or run `plait peers \
         forget {peer}`"
    )]
    WeakerMode { peer: PeerName, last: NaiveDate, mode: Mode },
    #[error("{peer} is carried sealed only, because whether it was reached so before is unknown: {reason}")]
    Unknown { peer: PeerName, reason: SealedPeersError },
}

impl DowngradeError {
    /// Why the connection failed, as counted.
    pub(super) fn reason(&self) -> FailureReason {
        match self {
            DowngradeError::Plain { .. } => FailureReason::Downgrade,
            DowngradeError::WeakerMode { .. } => FailureReason::WeakerMode,
            DowngradeError::Unknown { .. } => FailureReason::Internal,
        }
    }
}

/// What the memory says about a peer, while a connection to it is opened.
pub(super) struct DowngradeCheck {
    policy: ProtectionPolicy,
    peer: PeerName,
    found: Result<Option<SealedPeer>, SealedPeersError>,
}

impl DowngradeCheck {
    /// Looks up a peer for a gateway with this policy.
    ///
    /// # Errors
    /// The policy's mode is weaker than the one in which the peer was reached.
    pub(super) fn new(
        peer: &PeerName,
        policy: ProtectionPolicy,
        memory: &SealedPeers,
    ) -> Result<DowngradeCheck, DowngradeError> {
        let mode = policy.mode();
        // A required `sealed` cannot become weaker.
        let is_strongest = mode == Mode::Sealed && policy.requires();
        let found = if is_strongest { Ok(None) } else { memory.find(peer) };
        match (mode, found) {
            (Mode::Sealed, found) => Ok(DowngradeCheck { policy, peer: peer.clone(), found }),
            (_, Ok(None)) => Ok(DowngradeCheck { policy, peer: peer.clone(), found: Ok(None) }),
            (mode, Ok(Some(SealedPeer { last, .. }))) => {
                Err(DowngradeError::WeakerMode { peer: peer.clone(), last, mode })
            }
            (_, Err(reason)) => Err(DowngradeError::Unknown { peer: peer.clone(), reason }),
        }
    }

    /// What the connection's handshake is judged by.
    pub(super) fn policy(&self) -> ProtectionPolicy {
        match self.found {
            Ok(None) => self.policy,
            Ok(Some(_)) | Err(_) => self.policy.required(),
        }
    }

    /// Why a refused connection is a downgrade, if it is.
    pub(super) fn explain(self, refusal: Refusal) -> Result<DowngradeError, Refusal> {
        let reason = match refusal {
            Refusal::NotNegotiated => "the peer did not negotiate".to_owned(),
            Refusal::NoCommonMode { own, peer } => different_modes(own, peer),
            Refusal::Fallback => "the connection fell back to TCP".to_owned(),
            _ => return Err(refusal),
        };
        match (self.peer, self.found) {
            (peer, Ok(Some(SealedPeer { last, .. }))) => Ok(DowngradeError::Plain { peer, last, reason }),
            (peer, Err(reason)) => Ok(DowngradeError::Unknown { peer, reason }),
            (_, Ok(None)) => Err(refusal),
        }
    }
}
