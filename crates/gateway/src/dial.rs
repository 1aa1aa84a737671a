//! Opens the network's side of a connection: over MPTCP, by the trusted path, with its further subflows left to
//! [`crate::subflows`].

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use plait_linux::mptcp::{is_mptcp, stream_socket};
use plait_linux::pm::user_space_sockets;
use socket2::{Domain, Socket};
use tokio::net::{TcpSocket, TcpStream};

use crate::blackholes::Blackholes;
use crate::relay::reset_on_drop;
use crate::roles::Roles;

/// Sockets made at once: while they are made, the host's path-manager setting is changed for some microseconds.
const SOCKETS_AT_ONCE: usize = 64;

/// A destination that does not answer for this long is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens connections.
pub(crate) struct Dialer {
    roles: Roles,
    sockets: Option<Sockets>,
    blackholes: Option<Blackholes>,
}

/// Sockets whose path manager is in user space, kept in stock.
#[derive(Default)]
struct Sockets {
    v4: Mutex<Vec<Socket>>,
    v6: Mutex<Vec<Socket>>,
}

impl Dialer {
    /// `own_path_management`: no subflow but the first is made unless [`crate::subflows`] makes it; needs
    /// CAP_NET_ADMIN. Otherwise the kernel's path manager serves these connections like every other program's.
    /// `blackholes`: what the kernel takes for one is ended, so that connections are MPTCP.
    pub(crate) fn new(roles: Roles, own_path_management: bool, blackholes: Option<Blackholes>) -> Dialer {
        Dialer { roles, sockets: own_path_management.then(Sockets::default), blackholes }
    }

    /// The interface by which it is tried first to connect; `None`: as routing decides.
    pub(crate) fn first_trusted(&self) -> Option<&str> {
        self.roles.trusted().next()
    }

    /// Connects to a destination; the first subflow leaves by a trusted interface when one is named.
    pub(crate) async fn connect(&self, destination: SocketAddr) -> io::Result<TcpStream> {
        let mut trusted = self.roles.trusted().peekable();
        if trusted.peek().is_none() || destination.ip().is_loopback() {
            return self.connect_by(destination, None).await;
        }
        let mut last = None;
        for interface in trusted {
            match self.connect_by(destination, Some(interface)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(by_trusted(interface, error)),
            }
        }
        Err(last.expect("at least one interface was tried"))
    }

    /// Connects by an interface, or as routing decides.
    pub(crate) async fn connect_by(
        &self,
        destination: SocketAddr,
        interface: Option<&str>,
    ) -> io::Result<TcpStream> {
        let Some(blackholes) = &self.blackholes else {
            return self.connect_once(destination, interface).await;
        };
        let before = blackholes.endings();
        let connected = self.connect_once(destination, interface).await;
        let lacks_mptcp = match &connected {
            Ok(stream) => !is_mptcp(stream)?,
            // A peer that requires protection does not hear a TCP connection to its end.
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        };
        if lacks_mptcp && blackholes.ended(before) {
            return self.connect_once(destination, interface).await;
        }
        connected
    }

    async fn connect_once(&self, destination: SocketAddr, interface: Option<&str>) -> io::Result<TcpStream> {
        let socket = self.socket(Domain::for_address(destination))?;
        reset_on_drop(&socket)?;
        if let Some(interface) = interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        socket.set_nonblocking(true)?;
        let socket = TcpSocket::from_std_stream(socket.into());
        match tokio::time::timeout(CONNECT_TIMEOUT, socket.connect(destination)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn socket(&self, domain: Domain) -> io::Result<Socket> {
        let Some(sockets) = &self.sockets else {
            return Ok(stream_socket(domain)?.0);
        };
        let stock = if domain == Domain::IPV4 { &sockets.v4 } else { &sockets.v6 };
        let mut stock = stock.lock().unwrap_or_else(PoisonError::into_inner);
        if stock.is_empty() {
            *stock = user_space_sockets(SOCKETS_AT_ONCE, domain).map_err(io::Error::other)?;
        }
        stock.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// Says which interface an error is about, and keeps its kind for the application's reply.
fn by_trusted(interface: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("by the trusted interface {interface}: {error}"))
}
