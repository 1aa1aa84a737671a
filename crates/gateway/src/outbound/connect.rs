//! Connections to peers, opened by this program.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plait_proto::exit::Destination;
use tokio::net::TcpStream;
use tracing::debug;

use super::exit_url::ExitUrl;
use super::open::{OpenError, Opened, Outbound};
use super::route::Route;
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
    /// or the gateway stops. The peer's key is found by its name. With an exit, the name is sent to it, and the addresses are ignored.
    ///
    /// # Errors
    /// No address answers, or the policy refuses the one that does.
    pub async fn connect(
        self: &Arc<Self>,
        peer: &PeerName,
        addresses: &[SocketAddr],
    ) -> Result<Stream, ConnectError> {
        let opened = match self.route() {
            Route::Direct => self.open(peer, addresses, None).await?,
            Route::Exit(_) => self.open_target(&peer.into(), None, true).await?,
        };
        self.carry_stream(opened).await
    }

    /// Carries an opened connection as a stream of this program.
    pub(super) async fn carry_stream(self: &Arc<Self>, opened: Opened) -> Result<Stream, ConnectError> {
        let (stream, near) = Stream::pair(opened.peer(), opened.protection(), opened.exporter()).await?;
        let outbound = Arc::clone(self);
        self.gateway().carry_in_background(async move {
            if let Err(error) = outbound.carry(&near, opened).await {
                debug!("{error}");
            }
        });
        Ok(stream)
    }

    /// Opens a connection to an exit's resolver, for this program.
    pub(super) async fn open_resolver(self: &Arc<Self>, exit: &ExitUrl) -> Result<TcpStream, ConnectError> {
        let opened = self.open_early(exit, &Destination::Resolver, None).await?;
        Ok(self.carry_stream(opened).await?.into_socket())
    }
}
