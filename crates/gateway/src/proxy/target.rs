//! Where a proxy client wants to go, and why it may not get there.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::gateway::CarryError;
use crate::outbound::OpenError;
use crate::trust::PeerName;

/// How long a name may take to be found: as long as a resolver waits that asks one server twice.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a client wants to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Address(SocketAddr),
    Name(String, u16),
}

impl Target {
    /// By what its key is found.
    pub(crate) fn peer(&self) -> PeerName {
        match self {
            Target::Address(address) => (*address).into(),
            Target::Name(name, port) => PeerName::new(name, *port),
        }
    }

    /// The addresses to try, in order.
    pub(crate) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Target::Address(address) => Ok(vec![*address]),
            Target::Name(name, port) => {
                let found = timeout(LOOKUP_TIMEOUT, lookup_host((name.as_str(), *port))).await;
                Ok(found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.collect())
            }
        }
    }
}

/// Why a proxy connection ended badly.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("no request in time")]
    TooSlow,
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
