//! Why a session failed.

use plait_linux::{diag, netlink};

use crate::engine::EngineError;
use crate::model::InvalidPolicy;

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// The controller requested invalid chains.
    #[error("the controller requested an invalid policy: {0}")]
    Policy(#[from] InvalidPolicy),
    /// The policy could not be loaded or unloaded.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The connections of this host could not be listed.
    #[error(transparent)]
    View(#[from] diag::Error),
    /// The interfaces could not be listed.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(netlink::Error),
    /// Another process loaded a policy with the controller's name.
    #[error("the policy '{0}' of this controller was replaced by another process")]
    Replaced(String),
}
