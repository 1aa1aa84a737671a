//! The destination of a proxy client's request, and why a request failed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::carry_error::CarryError;
use crate::outbound::open::OpenError;
use crate::trust::PeerName;

/// How long a name may take to resolve: as long as a resolver that asks one server twice.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The destination of a client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Address(SocketAddr),
    Name(String, u16),
}

impl Target {
    /// The peer's name, by which its key is found.
    pub(super) fn peer(&self) -> PeerName {
        match self {
            Target::Address(address) => (*address).into(),
            Target::Name(name, port) => PeerName::new(name, *port),
        }
    }

    /// The addresses to try, in order.
    pub(super) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Target::Address(address) => Ok(vec![*address]),
            Target::Name(name, port) => {
                let found = timeout(LOOKUP_TIMEOUT, lookup_host((name.as_str(), *port))).await;
                Ok(found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.collect())
            }
        }
    }
}

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
