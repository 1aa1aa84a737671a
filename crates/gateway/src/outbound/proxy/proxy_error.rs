//! Why a proxy client's request failed.

use std::io;

use crate::carry_error::CarryError;
use crate::outbound::open::OpenError;

/// Why a proxy connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    #[error("no complete request in time")]
    Timeout,
    #[error("malformed request: {0}")]
    Request(String),
    #[error("wrong or missing user name and password")]
    Credentials,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Carry(#[from] CarryError),
}
