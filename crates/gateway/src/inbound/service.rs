//! Where accepted connections are carried to.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plait_proto::sealed::Exporter;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::mpsc;

use crate::keepalive;
use crate::protection::ProtectionStatus;
use crate::socket::{canonical, configure, reset_on_drop};
use crate::stream::Stream;

/// The destination of accepted connections.
#[derive(Clone, Debug)]
pub(super) enum Service {
    /// A server at this address.
    Address(Arc<str>),
    /// This program.
    Local(mpsc::Sender<Stream>),
}

impl Service {
    /// Connects to the service; returns the gateway's end.
    pub(super) async fn connect(
        &self,
        peer: SocketAddr,
        protection: ProtectionStatus,
        exporter: Option<Exporter>,
    ) -> io::Result<TcpStream> {
        match self {
            Service::Address(address) => {
                let near = connect(address).await?;
                configure(&near, keepalive::IDLE)?;
                Ok(near)
            }
            Service::Local(sender) => {
                let (stream, near) = Stream::pair(canonical(peer), protection, exporter).await?;
                sender.send(stream).await.map_err(|_| io::Error::other("the listener was closed"))?;
                Ok(near)
            }
        }
    }
}

/// Connects to the first address of `HOST:PORT` that answers, by a socket that resets from the start.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        reset_on_drop(&socket)?;
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Service::Address(address) => f.write_str(address),
            Service::Local(_) => f.write_str("in this program"),
        }
    }
}
