//! Connections to peers, opened by this program.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tracing::debug;

use super::open::{OpenError, Outbound};
use crate::stream::Stream;
use crate::trust::PeerName;

/// A connection was not opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The destination is unreachable.
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    /// The gateway's policy refuses it, or the handshake failed.
    #[error("refused: {0}")]
    Refused(String),
}

impl From<OpenError> for ConnectError {
    fn from(error: OpenError) -> ConnectError {
        match error {
            OpenError::Connect(error) => ConnectError::Connect(error),
            other => ConnectError::Refused(other.to_string()),
        }
    }
}

impl Outbound {
    /// Opens a connection to the first of a peer's addresses that answers. It is carried until both directions have ended,
    /// or the gateway stops. The peer's key is found by its name.
    ///
    /// # Errors
    /// No address answers, or the policy refuses the one that does.
    pub async fn connect(
        self: &Arc<Self>,
        peer: &PeerName,
        addresses: &[SocketAddr],
    ) -> Result<Stream, ConnectError> {
        let opened = self.open(peer, addresses, None).await?;
        let (stream, near) = Stream::pair(opened.peer(), opened.protection(), opened.exporter()).await?;
        let outbound = Arc::clone(self);
        self.gateway().carry_in_background(async move {
            if let Err(error) = outbound.carry(&near, opened).await {
                debug!("{error}");
            }
        });
        Ok(stream)
    }
}
