//! Protected connections as values, for programs that use this crate as a library.
//!
//! A [`Stream`] is this program's end of a connection on loopback whose other end the gateway carries, as it carries the
//! connection of any program: so that a protected connection that cannot go on is a reset here, too, and never looks like
//! the end of the stream.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tracing::debug;

use crate::establish::Reached;
use crate::gateway::{Gateway, StartError, prepare};
use crate::outbound::{OpenError, Outbound};
use crate::serve::Service;
use crate::trust::PeerName;
use plait_proto::option::Mode;

/// Accepted connections that wait to be taken.
const WAITING: usize = 128;

/// A connection to a peer, protected as its gateway's policy says.
#[derive(Debug)]
pub struct Stream {
    near: TcpStream,
    peer: SocketAddr,
    mode: Mode,
    level: Option<String>,
    identity: Option<String>,
}

/// A connection was not made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The destination cannot be reached.
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    /// The gateway's policy refuses it, or the ends could not agree on keys.
    #[error("refused: {0}")]
    Refused(String),
}

impl From<OpenError> for ConnectError {
    fn from(error: OpenError) -> ConnectError {
        match error {
            OpenError::Connect(error) => ConnectError::Connect(error),
            OpenError::Refused(refusal) => ConnectError::Refused(refusal.to_string()),
            OpenError::Establish(error) => ConnectError::Refused(error.to_string()),
            OpenError::Stranger(stranger) => ConnectError::Refused(stranger.to_string()),
        }
    }
}

impl Stream {
    /// A stream of these properties, and the gateway's end of it.
    pub(crate) async fn pair(peer: SocketAddr, reached: Reached) -> io::Result<(Stream, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (near, theirs) = tokio::try_join!(TcpStream::connect(address), accept_from_here(&listener))?;
        if near.local_addr()? != theirs.peer_addr()? {
            return Err(io::Error::other("another program took the stream's place on loopback"));
        }
        near.set_nodelay(true)?;
        prepare(&theirs)?;
        let Reached { mode, level, identity } = reached;
        let (level, identity) = (level.map(|level| level.to_string()), identity.map(|by| by.to_string()));
        Ok((Stream { near, peer, mode, level, identity }, theirs))
    }

    /// The other end of the network.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// How its bytes are protected: [`Mode::Off`] if they are not.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Of mode `sealed`: the paths that witness it, of those configured, such as `2/3`.
    #[must_use]
    pub fn level(&self) -> Option<&str> {
        self.level.as_deref()
    }

    /// Of mode `sealed`: by which key the peer is known: `pinned`, or `first-use`; `None` if it could be anybody.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// The socket on loopback that this program reads and writes.
    #[must_use]
    pub fn into_socket(self) -> TcpStream {
        self.near
    }
}

async fn accept_from_here(listener: &TcpListener) -> io::Result<TcpStream> {
    Ok(listener.accept().await?.0)
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.near).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_shutdown(context)
    }
}

impl Outbound {
    /// Opens a connection to the first of a peer's addresses that answers. It is carried until both directions have ended,
    /// or the gateway stops. By the peer's name its key is found.
    ///
    /// # Errors
    /// No address answers, or the policy refuses what does.
    pub async fn connect(
        self: &Arc<Self>,
        peer: &PeerName,
        addresses: &[SocketAddr],
    ) -> Result<Stream, ConnectError> {
        let opened = self.open(peer, addresses).await?;
        let (stream, near) = Stream::pair(opened.peer()?, opened.reached()).await?;
        let outbound = Arc::clone(self);
        self.gateway().carry_in_background(async move {
            if let Err(error) = outbound.carry(&near, opened).await {
                debug!("{error}");
            }
        });
        Ok(stream)
    }
}

/// Where a gateway's connections are accepted by this program.
#[derive(Debug)]
pub struct Listener {
    accepted: mpsc::Receiver<Stream>,
    address: SocketAddr,
}

impl Listener {
    /// Where it listens.
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
        let listener = Gateway::listener(address)?;
        let address = listener.local_addr().unwrap_or(address);
        let (sender, accepted) = mpsc::channel(WAITING);
        let gateway = Arc::clone(self);
        // Not carried in the background: that is what a stop waits for, and this ends by the stop.
        tokio::spawn(async move { gateway.serve_on(listener, Service::Here(sender)).await });
        Ok(Listener { accepted, address })
    }
}
