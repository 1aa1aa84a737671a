//! A server that accepted connections are carried to, by TCP or a unix socket.

use std::fmt;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plait_proto::identity::PublicKey;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::proxy_protocol::ProxyProtocol;
use super::service_address::ServiceAddress;
use crate::keepalive;
use crate::socket::{close_on_drop, configure, connect_tcp, write_all};

/// How long a server may take to accept the connection of a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// One of the services behind a port: what clients ask for, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSettings {
    /// The name or address by which clients must ask for it; `None`: any.
    pub name: Option<String>,
    /// The port that they ask for; `None`: that which is listened on.
    pub port: Option<u16>,
    /// Where it listens.
    pub to: ServiceAddress,
    /// What tells it the client's address, if anything does.
    pub proxy: Option<ProxyProtocol>,
    /// Who may use it; `None`: all clients of the gateway.
    pub clients: Option<Vec<PublicKey>>,
    /// The interval of its health checks, if there are any.
    pub health: Option<Duration>,
}

impl ServiceSettings {
    /// The only service of a port, for all clients.
    pub(super) fn new(to: ServiceAddress, proxy: Option<ProxyProtocol>) -> ServiceSettings {
        ServiceSettings { name: None, port: None, to, proxy, clients: None, health: None }
    }
}

/// A server, and whether it was up the last time.
#[derive(Debug)]
pub(super) struct Server {
    name: Option<String>,
    to: ServiceAddress,
    proxy: Option<ProxyProtocol>,
    health: Option<Duration>,
    /// Found by the last health check.
    is_down: AtomicBool,
}

impl Server {
    pub(super) fn new(settings: &ServiceSettings) -> Server {
        let ServiceSettings { name, to, proxy, health, .. } = settings.clone();
        Server { name, to, proxy, health, is_down: AtomicBool::new(false) }
    }

    /// Connects for a client, from whose connection to `server` it carries the bytes.
    ///
    /// # Errors
    /// The reason; at once if the last health check failed.
    pub(super) async fn connect(&self, client: SocketAddr, server: SocketAddr) -> io::Result<TcpStream> {
        if self.is_down() {
            return Err(io::Error::other("the last health check failed"));
        }
        let near = self.open().await?;
        if let Some(proxy) = self.proxy {
            write_all(&near, &proxy.header(client, server, self.name.as_deref())?).await?;
        }
        Ok(near)
    }

    /// Where it listens.
    pub(super) fn address(&self) -> &ServiceAddress {
        &self.to
    }

    /// Whether the last health check failed.
    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    async fn open(&self) -> io::Result<TcpStream> {
        match &self.to {
            ServiceAddress::Tcp(address) => {
                let near = connect(address).await?;
                configure(&near, keepalive::IDLE)?;
                Ok(near)
            }
            ServiceAddress::Unix(path) => connect_unix(path).await,
        }
    }

    /// Checks at its interval whether the server accepts connections, and warns when that changes; without an interval, never.
    pub(super) async fn check_health(&self) {
        let Some(interval) = self.health else { return pending().await };
        loop {
            let checked = timeout(HEALTH_TIMEOUT, self.check()).await;
            let checked = checked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let was_down = self.is_down.swap(checked.is_err(), Ordering::Relaxed);
            match checked {
                Err(error) if !was_down => {
                    warn!("the service {self} is down: {error}; its clients are refused until it is up");
                }
                Ok(()) if was_down => warn!("the service {self} is up again"),
                _ => {}
            }
            sleep(interval).await;
        }
    }

    async fn check(&self) -> io::Result<()> {
        let near = self.open().await?;
        if let Some(proxy) = self.proxy {
            write_all(&near, &proxy.local_header()?).await?;
        }
        close_on_drop(&near)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.to),
            None => self.to.fmt(f),
        }
    }
}

/// Connects to the first address of `HOST:PORT` that answers, by a socket that resets from the start.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(address).await? {
        match connect_tcp(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to a unix socket. It is carried like a TCP connection, because a relay uses only what stream sockets of any family have;
/// but it has no socket address.
async fn connect_unix(path: &Path) -> io::Result<TcpStream> {
    let stream = UnixStream::connect(path).await.map_err(|error| match error.kind() {
        // The gateway has given up root.
        io::ErrorKind::PermissionDenied => io::Error::new(
            error.kind(),
            format!("{error}: let the user as whom plait runs (plait, or nobody) write to the socket and enter its directory"),
        ),
        _ => error,
    })?;
    TcpStream::from_std(StdTcpStream::from(OwnedFd::from(stream.into_std()?)))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_unix_socket_gets_the_header_and_ends_in_order() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let to = ServiceAddress::Unix(path);
        let server = Server::new(&ServiceSettings::new(to, Some(ProxyProtocol::V2)));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
        let near = server.connect(address, address).await.expect("it listens");
        let (mut accepted, _) = listener.accept().await.expect("a connection");
        drop(near);
        let mut received = Vec::new();
        accepted.read_to_end(&mut received).await.expect("the end");
        assert_eq!(received, ProxyProtocol::V2.header(address, address, None).expect("a header"));
        server.check().await.expect("it listens");
        drop(listener);
        let error = server.check().await.expect_err("it does not listen");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
