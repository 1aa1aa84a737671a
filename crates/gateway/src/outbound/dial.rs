//! Opens MPTCP connections, by the trusted path first; [`crate::paths`] creates their further subflows.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plait_linux::interfaces::{bound_index, interfaces};
use plait_linux::mptcp::{is_mptcp, stream_socket};
use plait_linux::pm::user_space_sockets;
use rustix::io::Errno;
use socket2::{Domain, Socket};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::congestion_control::CongestionControl;
use crate::gateway::Gateway;
use crate::handshake::{Negotiation, ResetAtStart};
use crate::paths::{Blackholes, PathName, Roles, Routes};
use crate::socket::{canonical, reset_on_drop};

/// Sockets created at once, at most: meanwhile the host's path-manager setting is changed, for some microseconds.
const MAX_SOCKET_BATCH: usize = 64;

/// Before the next attempt starts beside one that is not answered (the Connection Attempt Delay of RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// How long a destination may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens connections.
pub(super) struct Dialer {
    roles: Roles,
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
        roles: Roles,
        user_space_paths: bool,
        blackholes: Option<Blackholes>,
        routes: Arc<Routes>,
    ) -> Dialer {
        Dialer {
            roles,
            congestion_control: Arc::clone(gateway.congestion_control()),
            sockets: user_space_paths.then(SocketPool::default),
            // Of few descriptors, some remain for connections.
            socket_batch: (gateway.max_carried() / 2).clamp(1, MAX_SOCKET_BATCH),
            blackholes,
            routes,
            negotiation: Arc::clone(gateway.negotiation()),
        }
    }

    /// Whether a path is trusted; otherwise routing decides.
    pub(super) fn has_trusted(&self) -> bool {
        self.roles.trusted().next().is_some()
    }

    /// The interface that is tried first; `None`: as routing decides, or it is missing now.
    pub(super) fn first_trusted(&self) -> Option<String> {
        interface_of(self.roles.trusted().next()?).ok()
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
        let trusted = || self.roles.trusted().cloned().collect();
        let named: Vec<PathName> =
            interface.map_or_else(trusted, |name| vec![PathName::Interface(name.into())]);
        let attempts = alternate_families(addresses).flat_map(|address| {
            let through = named.iter().filter(|_| !address.ip().is_loopback()).cloned().map(Some);
            let through: Vec<Option<PathName>> = through.collect();
            let through = if through.is_empty() { vec![None] } else { through };
            through.into_iter().map(move |path| Attempt { address, path })
        });
        self.race(attempts.collect()).await
    }

    /// Races attempts as RFC 8305, section 5, says: each starts when the one before has failed, or after a delay.
    pub(super) async fn race(
        self: &Arc<Self>,
        attempts: VecDeque<Attempt>,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut waiting = attempts;
        // Those that lose are reset when it is dropped.
        let mut running = JoinSet::new();
        while let Some(Attempt { address, path }) = waiting.pop_front() {
            let dialer = Arc::clone(self);
            running.spawn(async move {
                let connected = dialer.connect_through(address, path.as_ref()).await;
                let connected = connected.map_err(|error| match path {
                    Some(path) => with_path(&path, error),
                    None => error,
                });
                connected.map(|stream| (stream, address))
            });
            let done = match waiting.is_empty() {
                true => Ok(running.join_next().await),
                false => tokio::time::timeout(ATTEMPT_DELAY, running.join_next()).await,
            };
            match done {
                Ok(Some(Ok(Ok(connected)))) => return Ok(connected),
                Ok(Some(Ok(Err(error)))) => last = error,
                Ok(Some(Err(_)) | None) | Err(_) => {}
            }
        }
        while let Some(done) = running.join_next().await {
            match done {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
        Err(last)
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
        match stream.take_error()? {
            None => Ok(stream),
            Some(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(self.negotiation.reset_at_start(&stream).map_or(error, io::Error::from))
            }
            Some(error) => Err(error),
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

/// The addresses with alternating families, the first one's first (RFC 8305, section 4).
pub(super) fn alternate_families(addresses: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let is_ipv4 = addresses.first().is_some_and(|first| canonical(*first).is_ipv4());
    let (first, other): (Vec<_>, Vec<_>) =
        addresses.iter().partition(|address| canonical(**address).is_ipv4() == is_ipv4);
    let most = first.len().max(other.len());
    (0..most).flat_map(move |index| first.get(index).copied().into_iter().chain(other.get(index).copied()))
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

    #[test]
    fn families_alternate() {
        let order = |addresses: &[&str]| {
            let addresses: Vec<SocketAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            alternate_families(&addresses).map(|address| address.to_string()).collect::<Vec<_>>()
        };
        let (a, b, c, d) = ("[2001:db8::1]:1", "[2001:db8::2]:1", "192.0.2.1:1", "192.0.2.2:1");
        assert_eq!(order(&[a, b, c]), [a, c, b]);
        assert_eq!(order(&[c, d, a, b]), [c, a, d, b]);
        assert_eq!(order(&[c]), [c]);
        assert!(order(&[]).is_empty());
    }
}
