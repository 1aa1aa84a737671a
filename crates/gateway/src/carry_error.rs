//! Why a connection that a gateway carries failed.

use std::io;

use plait_proto::close_reason::CloseReason;
use plait_proto::codec::records::Error;

use crate::handshake::{EstablishError, FailureReason};
use crate::meter::Exhausted;
use crate::protection::Refusal;
use crate::relay::RelayError;

/// Why one connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarryError {
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Establish(#[from] EstablishError),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

impl CarryError {
    /// Why the handshake failed, if it did.
    pub(crate) fn failure_reason(&self) -> Option<FailureReason> {
        match self {
            CarryError::Relay(_) | CarryError::Exhausted(_) => None,
            CarryError::Refused(refusal) => Some(refusal.into()),
            CarryError::Establish(error) => Some(error.into()),
        }
    }

    /// What the peer is told; `None` if it ended the connection itself, or the application did.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        match self {
            CarryError::Relay(
                RelayError::Record(Error::Failure(_)) | RelayError::Near(_) | RelayError::Exit(_),
            ) => None,
            CarryError::Relay(RelayError::Record(_) | RelayError::KeyUpdate(_)) => {
                Some(CloseReason::Authentication)
            }
            CarryError::Relay(RelayError::Far(error)) => {
                (error.kind() == io::ErrorKind::TimedOut).then_some(CloseReason::NoPath)
            }
            CarryError::Refused(_) | CarryError::Establish(_) => self.failure_reason()?.close_reason(),
            CarryError::Exhausted(_) => Some(CloseReason::Limit),
        }
    }
}
