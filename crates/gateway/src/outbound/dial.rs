//! Opens MPTCP connections, by the trusted path first; [`crate::paths`] creates their further subflows.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plait_linux::interfaces::{Interface, bound_index, interfaces, route};
use plait_linux::mptcp::{is_mptcp, stream_socket};
use plait_linux::pm::user_space_sockets;
use rustix::io::Errno;
use socket2::{Domain, Socket};
use tokio::net::TcpStream;

use crate::congestion_control::CongestionControl;
use crate::gateway::Gateway;
use crate::handshake::{Negotiation, ResetAtStart};
use crate::paths::{Blackholes, PathGate, PathName, Routes};
use crate::race::{alternate_families, race};
use crate::socket::{canonical, check_connected, reset_on_drop};

/// Sockets created at once, at most: meanwhile the host's path-manager setting is changed, for some microseconds.
const MAX_SOCKET_BATCH: usize = 64;

/// How long a destination may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens connections.
pub(super) struct Dialer {
    gate: Arc<PathGate>,
    congestion_control: Arc<CongestionControl>,
    sockets: Option<SocketPool>,
    socket_batch: usize,
    blackholes: Option<Blackholes>,
    routes: Arc<Routes>,
    negotiation: Arc<Negotiation>,
}

/// An address to connect to, and the path to it; `None`: as routing decides.
pub(super) struct Attempt {
    pub(super) address: SocketAddr,
    pub(super) path: Option<PathName>,
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
    pub(super) fn new(
        gateway: &Gateway,
        gate: Arc<PathGate>,
        user_space_paths: bool,
        blackholes: Option<Blackholes>,
        routes: Arc<Routes>,
    ) -> Dialer {
        Dialer {
            gate,
            congestion_control: Arc::clone(gateway.congestion_control()),
            sockets: user_space_paths.then(SocketPool::default),
            // Of few descriptors, some remain for connections.
            socket_batch: (gateway.capacity().max_carried / 2).clamp(1, MAX_SOCKET_BATCH),
            blackholes,
            routes,
            negotiation: Arc::clone(gateway.negotiation()),
        }
    }

    /// What decides which paths may be used.
    pub(super) fn gate(&self) -> &PathGate {
        &self.gate
    }

    /// Whether a path is trusted; otherwise routing decides.
    pub(super) fn has_trusted(&self) -> bool {
        self.gate.roles().has_trusted()
    }

    /// The interface that is tried first; `None`: as routing decides, or it is missing now.
    pub(super) fn first_trusted(&self) -> Option<String> {
        let trusted = self.gate.trusted().ok()?.into_iter().next()?;
        interface_of(&trusted).ok()
    }

    /// Connects to the first of a peer's addresses that answers, through this interface or, without one, through a trusted one
    /// if any is configured.
    ///
    /// # Errors
    /// Of the last attempt.
    pub(super) async fn connect(
        self: &Arc<Self>,
        addresses: &[SocketAddr],
        interface: Option<&str>,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        let named = match interface {
            Some(name) => vec![self.gate.bound(name)?],
            None => self.gate.trusted()?,
        };
        let mut attempts = VecDeque::new();
        for address in alternate_families(addresses) {
            let through: Vec<Option<PathName>> = match named.as_slice() {
                _ if address.ip().is_loopback() => vec![None],
                [] => self.routed(address)?,
                named => named.iter().cloned().map(Some).collect(),
            };
            attempts.extend(through.into_iter().map(|path| Attempt { address, path }));
        }
        self.race(attempts).await
    }

    /// The paths to an address without a trusted one: as routing decides (`None`), unless rules forbid that path.
    fn routed(&self, address: SocketAddr) -> io::Result<Vec<Option<PathName>>> {
        if self.gate.roles().rules().is_empty() {
            return Ok(vec![None]);
        }
        let remote = address.ip().to_canonical();
        let has_route = |interface: &Interface| {
            self.routes.source(remote, interface.index).is_ok_and(|source| source.is_some())
        };
        let routed = route(remote).ok().flatten().map(|route| route.if_index);
        self.gate.routed(routed, has_route)
    }

    /// Races attempts.
    pub(super) async fn race(
        self: &Arc<Self>,
        attempts: VecDeque<Attempt>,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        race(attempts, |Attempt { address, path }| {
            let dialer = Arc::clone(self);
            async move {
                let connected = dialer.connect_through(address, path.as_ref()).await;
                let connected = connected.map_err(|error| match path {
                    Some(path) => with_path(&path, error),
                    None => error,
                });
                connected.map(|stream| (stream, address))
            }
        })
        .await
    }

    /// Connects by a path, or as routing decides.
    async fn connect_through(
        &self,
        destination: SocketAddr,
        path: Option<&PathName>,
    ) -> io::Result<TcpStream> {
        let Some(blackholes) = &self.blackholes else {
            return self.connect_once(destination, path).await;
        };
        let before = blackholes.resets();
        let connected = self.connect_once(destination, path).await;
        let lacks_mptcp = match &connected {
            Ok(stream) => !is_mptcp(stream)?,
            // A peer that requires protection resets a TCP connection.
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        };
        if lacks_mptcp && blackholes.was_reset(before) {
            return self.connect_once(destination, path).await;
        }
        connected
    }

    async fn connect_once(&self, destination: SocketAddr, path: Option<&PathName>) -> io::Result<TcpStream> {
        let socket = self.socket(Domain::for_address(destination))?;
        reset_on_drop(&socket)?;
        self.congestion_control.set_on(&socket)?;
        if let Some(path) = path {
            socket.bind_device(Some(interface_of(path)?.as_bytes()))?;
            // The kernel would take any IPv4 destination for one on the interface's link, and wait for its answer.
            let index = bound_index(&socket)?;
            let route = self.routes.source(destination.ip().to_canonical(), index);
            if route.is_ok_and(|source| source.is_none()) {
                return Err(Errno::NETUNREACH.into());
            }
            if let Some(source) = source_of(path, destination) {
                socket.bind(&source.into())?;
            }
        }
        socket.set_nonblocking(true)?;
        match tokio::time::timeout(CONNECT_TIMEOUT, self.connect_socket(socket, destination)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// As [`tokio::net::TcpSocket::connect`]; but if the peer has reset the connection already, the error is why, if that is
    /// known.
    async fn connect_socket(&self, socket: Socket, destination: SocketAddr) -> io::Result<TcpStream> {
        match socket.connect(&destination.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                return Err(error);
            }
            _ => {}
        }
        let stream = TcpStream::from_std(socket.into())?;
        stream.writable().await?;
        match check_connected(&stream).await {
            Ok(()) => Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(self.negotiation.reset_at_start(&stream).map_or(error, io::Error::from))
            }
            Err(error) => Err(error),
        }
    }

    fn socket(&self, domain: Domain) -> io::Result<Socket> {
        let Some(sockets) = &self.sockets else {
            return Ok(stream_socket(domain)?.0);
        };
        let pool = if domain == Domain::IPV4 { &sockets.v4 } else { &sockets.v6 };
        let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.is_empty() {
            *pool = user_space_sockets(self.socket_batch, domain).map_err(io::Error::other)?;
        }
        pool.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// The interface that a path leaves through now.
fn interface_of(path: &PathName) -> io::Result<String> {
    if let PathName::Interface(name) = path {
        return Ok(name.clone());
    }
    let interfaces = interfaces().map_err(io::Error::other)?;
    let named = interfaces.into_iter().find(|interface| path.is_of(interface));
    named.map(|interface| interface.name).ok_or_else(|| Errno::ADDRNOTAVAIL.into())
}

/// The source of connections to a destination, if the path's name is an address of the same family.
fn source_of(path: &PathName, destination: SocketAddr) -> Option<SocketAddr> {
    let PathName::Address(source) = path else { return None };
    let source = match source {
        IpAddr::V4(source) if destination.is_ipv6() => source.to_ipv6_mapped().into(),
        source => *source,
    };
    let same_family = source.to_canonical().is_ipv4() == canonical(destination).is_ipv4();
    same_family.then(|| SocketAddr::new(source, 0))
}

/// Adds the path to an error, and keeps its kind for the application's reply.
fn with_path(path: &PathName, error: io::Error) -> io::Error {
    if error.get_ref().is_some_and(|inner| inner.is::<ResetAtStart>()) {
        return error;
    }
    let by = if matches!(path, PathName::Interface(_)) { "through" } else { "from" };
    io::Error::new(error.kind(), format!("{by} {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_the_named_address_of_the_same_family() {
        let of = |path: &str, destination: &str| {
            let source = source_of(&PathName::from(path), destination.parse().expect("an address"));
            source.map(|source| source.to_string())
        };
        assert_eq!(of("192.0.2.1", "198.51.100.1:80").as_deref(), Some("192.0.2.1:0"));
        assert_eq!(of("192.0.2.1", "[::ffff:198.51.100.1]:80").as_deref(), Some("[::ffff:192.0.2.1]:0"));
        assert_eq!(of("2001:db8::1", "[2001:db8::2]:80").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(of("192.0.2.1", "[2001:db8::2]:80"), None);
        assert_eq!(of("2001:db8::1", "[::ffff:198.51.100.1]:80"), None);
        assert_eq!(of("eth0", "198.51.100.1:80"), None);
    }
}
