//! Opens MPTCP connections, by the trusted path first; [`crate::paths`] creates their further subflows.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use plait_linux::mptcp::{is_mptcp, stream_socket};
use plait_linux::pm::user_space_sockets;
use socket2::{Domain, Socket};
use tokio::net::{TcpSocket, TcpStream};

use crate::paths::{Blackholes, Roles};
use crate::socket::reset_on_drop;

/// Sockets created at once: meanwhile the host's path-manager setting is changed, for some microseconds.
const SOCKET_BATCH: usize = 64;

/// How long a destination may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens connections.
pub(super) struct Dialer {
    roles: Roles,
    sockets: Option<SocketPool>,
    blackholes: Option<Blackholes>,
}

/// Unused sockets whose path manager is in user space.
#[derive(Default)]
struct SocketPool {
    v4: Mutex<Vec<Socket>>,
    v6: Mutex<Vec<Socket>>,
}

impl Dialer {
    /// `user_space_paths`: only [`crate::paths`] creates further subflows, which needs CAP_NET_ADMIN; otherwise the
    /// kernel's path manager does. `blackholes`: reverts the kernel's blackhole detection, so that connections are MPTCP.
    pub(super) fn new(roles: Roles, user_space_paths: bool, blackholes: Option<Blackholes>) -> Dialer {
        Dialer { roles, sockets: user_space_paths.then(SocketPool::default), blackholes }
    }

    /// The interface that is tried first; `None`: as routing decides.
    pub(super) fn first_trusted(&self) -> Option<&str> {
        self.roles.trusted().next()
    }

    /// Connects to a destination, through a trusted interface if one is configured.
    pub(super) async fn connect(&self, destination: SocketAddr) -> io::Result<TcpStream> {
        let mut trusted = self.roles.trusted().peekable();
        if trusted.peek().is_none() || destination.ip().is_loopback() {
            return self.connect_through(destination, None).await;
        }
        let mut last = None;
        for interface in trusted {
            match self.connect_through(destination, Some(interface)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(with_interface(interface, error)),
            }
        }
        Err(last.expect("at least one interface was tried"))
    }

    /// Connects through an interface, or as routing decides.
    pub(super) async fn connect_through(
        &self,
        destination: SocketAddr,
        interface: Option<&str>,
    ) -> io::Result<TcpStream> {
        let Some(blackholes) = &self.blackholes else {
            return self.connect_once(destination, interface).await;
        };
        let before = blackholes.resets();
        let connected = self.connect_once(destination, interface).await;
        let lacks_mptcp = match &connected {
            Ok(stream) => !is_mptcp(stream)?,
            // A peer that requires protection resets a TCP connection.
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        };
        if lacks_mptcp && blackholes.was_reset(before) {
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
        let pool = if domain == Domain::IPV4 { &sockets.v4 } else { &sockets.v6 };
        let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.is_empty() {
            *pool = user_space_sockets(SOCKET_BATCH, domain).map_err(io::Error::other)?;
        }
        pool.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// Adds the interface to an error, and keeps its kind for the application's reply.
fn with_interface(interface: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("through the trusted interface {interface}: {error}"))
}
