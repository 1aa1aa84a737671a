//! Where accepted connections are carried to.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::exit::{Admission, Exit, ExitError};
use super::server::Server;
use super::service_address::ServiceAddress;
use crate::connections::Application;
use crate::handshake::Established;
use crate::socket::canonical;
use crate::stream::Stream;

/// In place of the address that a unix socket does not have.
const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The destination of accepted connections.
#[derive(Clone, Debug)]
pub(super) enum Service {
    /// A server.
    Server(Arc<Server>),
    /// This program.
    Local(mpsc::Sender<Stream>),
    /// The destinations that clients name.
    Exit(Arc<Exit>),
}

/// A connection to a service.
pub(super) struct Reached {
    /// The gateway's end.
    pub(super) near: TcpStream,
    /// What it takes of an exit, as long as it is carried.
    pub(super) admission: Option<Admission>,
}

impl Reached {
    fn unlimited(near: TcpStream) -> Reached {
        Reached { near, admission: None }
    }
}

/// A service cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error(transparent)]
    Connect(#[from] io::Error),
    /// Of a client's destination. The client knows, if it can.
    #[error(transparent)]
    Exit(#[from] ExitError),
}

impl Service {
    /// Its end of a connection, as it is reported.
    pub(super) fn application(&self, near: &TcpStream) -> io::Result<Application> {
        let address = match self {
            Service::Server(server) if matches!(server.address(), ServiceAddress::Unix(_)) => NO_ADDRESS,
            _ => near.peer_addr()?,
        };
        let service = match self {
            Service::Server(server) => Some(server.to_string()),
            Service::Local(_) | Service::Exit(_) => None,
        };
        Ok(Application { address, service })
    }

    /// Connects to the service for the peer behind `far`; `None`: the peer got its answer, and nothing is to be carried.
    pub(super) async fn connect(
        &self,
        peer: SocketAddr,
        far: &TcpStream,
        established: &mut Established,
    ) -> Result<Option<Reached>, ServiceError> {
        match self {
            Service::Server(server) => {
                let near = server.connect(peer, far.local_addr()?).await?;
                Ok(Some(Reached::unlimited(near)))
            }
            Service::Local(sender) => {
                let (protection, exporter) = (established.protection.clone(), established.exporter.take());
                let (stream, near) = Stream::pair(canonical(peer), protection, exporter).await?;
                sender.send(stream).await.map_err(|_| io::Error::other("the listener was closed"))?;
                Ok(Some(Reached::unlimited(near)))
            }
            Service::Exit(exit) => {
                let reached = exit.connect(peer, far, established).await?;
                Ok(reached.map(|(near, admission)| Reached { near, admission: Some(admission) }))
            }
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Service::Server(server) => server.fmt(f),
            Service::Local(_) => f.write_str("in this program"),
            Service::Exit(_) => f.write_str("behind this exit"),
        }
    }
}
