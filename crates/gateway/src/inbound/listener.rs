//! A gateway's connections, accepted by this program.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::serve::local_port;
use super::service::Service;
use super::services::InboundServices;
use crate::error::StartError;
use crate::gateway::Gateway;
use crate::stream::Stream;

/// Connections that may wait to be accepted by the program.
const MAX_PENDING: usize = 128;

/// Accepts a gateway's connections.
#[derive(Debug)]
pub struct Listener {
    accepted: mpsc::Receiver<Stream>,
    address: SocketAddr,
}

impl Listener {
    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next connection; `None` once the gateway has stopped.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.accepted.recv().await
    }
}

impl Gateway {
    /// Accepts connections for this program.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn listen(self: &Arc<Self>, address: SocketAddr) -> Result<Listener, StartError> {
        let listener = self.bind(address)?;
        let address = listener.local_addr().unwrap_or(address);
        let (sender, accepted) = mpsc::channel(MAX_PENDING);
        // Not one of the gateway's own tasks: a stop waits for these, and ends this one.
        let services = InboundServices::single(self.names(local_port(&listener)), Service::Local(sender));
        tokio::spawn(Arc::clone(self).serve_on(listener, services));
        Ok(Listener { accepted, address })
    }
}
