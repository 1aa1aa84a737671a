//! Protected connections as values, for programs that use this crate as a library.
//!
//! A [`Stream`] is this program's end of a loopback connection whose other end the gateway carries, like the connection of
//! any program: so a protected connection that fails is a reset here, too, and never looks like the end of the stream.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use plait_proto::option::Mode;
use plait_proto::sealed::Exporter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use crate::keepalive;
use crate::protection::ProtectionStatus;
use crate::socket::configure;

/// A connection to a peer, protected by its gateway.
#[derive(Debug)]
pub struct Stream {
    near: TcpStream,
    peer: SocketAddr,
    protection: ProtectionStatus,
    exporter: Option<Exporter>,
}

impl Stream {
    /// A stream, and the gateway's end of it.
    pub(crate) async fn pair(
        peer: SocketAddr,
        protection: ProtectionStatus,
        exporter: Option<Exporter>,
    ) -> io::Result<(Stream, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accept = async { Ok(listener.accept().await?.0) };
        let (near, gateways_end) = tokio::try_join!(TcpStream::connect(address), accept)?;
        if near.local_addr()? != gateways_end.peer_addr()? {
            return Err(io::Error::other("another program connected to the stream's listener on loopback"));
        }
        near.set_nodelay(true)?;
        configure(&gateways_end, keepalive::IDLE)?;
        Ok((Stream { near, peer, protection, exporter }, gateways_end))
    }

    /// The peer's address on the network.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// How its bytes are protected: [`Mode::Off`] if they are not.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.protection.mode
    }

    /// Mode `sealed`: witnessed and configured paths, such as `2/3`. Late witnesses raise it.
    #[must_use]
    pub fn level(&self) -> Option<String> {
        self.protection.level().map(|level| level.to_string())
    }

    /// Mode `sealed`: how the peer's key is known, `pinned` or `first-use`; `None` if the peer is anonymous.
    #[must_use]
    pub fn identity(&self) -> Option<String> {
        self.protection.identity().map(|identity| identity.to_string())
    }

    /// Mode `sealed`: keys for other protocols, the same at both ends.
    #[must_use]
    pub fn exporter(&self) -> Option<&Exporter> {
        self.exporter.as_ref()
    }

    /// The loopback socket that this program reads and writes.
    #[must_use]
    pub fn into_socket(self) -> TcpStream {
        self.near
    }
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
