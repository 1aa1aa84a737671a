//! Sockets of carried connections: options, and operations that tokio lacks.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use plait_linux::mptcp::{Protocol, stream_socket};
use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;
use tracing::trace;

use crate::keepalive;

/// Connections that are established and not accepted yet, at most; `net.core.somaxconn` may allow fewer.
pub(crate) const BACKLOG: u32 = 4096;

/// How long to wait for a full socket to become writable before trying anyway: at first, and at most.
const WRITE_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How long the kernel may take to set `SO_ERROR` of a socket that it has woken: microseconds, unless the machine is busy.
const SO_ERROR_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the peer may take to read what is sent last.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether MPTCP sockets can be created here.
pub(crate) fn has_mptcp() -> bool {
    stream_socket(Domain::IPV4).is_ok_and(|(_, protocol)| protocol == Protocol::Mptcp)
}

/// A listener for programs, on an ordinary TCP socket.
pub(crate) fn tcp_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = tcp_socket(address)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Connects by an ordinary TCP socket, which resets from the start.
pub(crate) async fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = tcp_socket(address)?;
    reset_on_drop(&socket)?;
    let stream = socket.connect(address).await?;
    check_connected(&stream).await?;
    Ok(stream)
}

fn tcp_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

/// A socket on a port of loopback, which may receive what is for others (`IP_TRANSPARENT`). Takes CAP_NET_ADMIN.
pub(crate) fn transparent_socket(
    loopback: IpAddr,
    kind: Type,
    protocol: socket2::Protocol,
) -> io::Result<Socket> {
    let address = SocketAddr::new(loopback, 0);
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    match loopback {
        IpAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        IpAddr::V6(_) => {
            socket.set_only_v6(true)?;
            socket.set_ip_transparent_v6(true)?;
        }
    }
    socket.set_nonblocking(true)?;
    // No other host can reach its own address.
    socket.bind(&address.into())?;
    Ok(socket)
}

/// An IPv4-mapped IPv6 address as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Configures a connection's socket: it resets unless closed in order, sends small writes at once, and probes the peer after
/// being idle for this long.
pub(crate) fn configure(stream: &TcpStream, idle: Duration) -> io::Result<()> {
    reset_on_drop(stream)?;
    // MPTCP sockets of older kernels lack some of these; a connection works without them.
    let optional = [stream.set_nodelay(true), keepalive::probe_after(stream, idle)];
    for error in optional.into_iter().filter_map(Result::err) {
        trace!("socket option: {error}");
    }
    Ok(())
}

/// Checks that a socket is connected once it has become writable.
///
/// When an ICMP message answers the SYN, Linux queues it, and so wakes who waits for the socket, before it sets `SO_ERROR` (`tcp_v4_err`,
/// since 5.8): no error does not mean success.
pub(crate) async fn check_connected(stream: &TcpStream) -> io::Result<()> {
    let connected = async {
        loop {
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            match stream.peer_addr() {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                result => return result.map(drop),
            }
        }
    };
    timeout(SO_ERROR_TIMEOUT, connected).await.map_err(|_| io::ErrorKind::NotConnected)?
}

/// Makes a socket, or all that a listening one accepts, send a reset when it is closed, also by the kernel after SIGKILL.
pub(crate) fn reset_on_drop(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// Makes a socket close in order (FIN) when it is dropped.
pub(crate) fn close_on_drop(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(None)
}

/// Sends the end of this direction (FIN).
pub(crate) fn shutdown_write(to: &TcpStream) -> io::Result<()> {
    match SockRef::from(to).shutdown(std::net::Shutdown::Write) {
        // The peer closed both directions already; reading tells how.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}

/// Writes every byte, however long it takes.
///
/// A full MPTCP socket may never become writable: when the kernel's TCP memory is exhausted and none of the socket's bytes
/// are in flight, no event follows. (TCP accepts one segment even then.) So it also writes without an event.
pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let mut retry = WRITE_RETRY.0;
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Ok(writable) = timeout(retry, to.writable()).await {
                    writable?;
                    continue;
                }
                // tokio does not try before it has seen an event.
                match rustix::net::send(to, bytes, SendFlags::NOSIGNAL) {
                    Ok(written) => (bytes, retry) = (&bytes[written..], WRITE_RETRY.0),
                    Err(Errno::AGAIN) => retry = (2 * retry).min(WRITE_RETRY.1),
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends these bytes and the end of this direction, and waits a little for the peer to end its own: a reset would overtake
/// them.
pub(crate) async fn send_last(to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    write_all(to, bytes).await?;
    shutdown_write(to)?;
    let ended = async {
        let mut ignored = [0; 4096];
        loop {
            to.readable().await?;
            match to.try_read(&mut ignored) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Ok(()),
                _ => {}
            }
        }
    };
    timeout(LAST_TIMEOUT, ended).await.unwrap_or(Ok(()))
}

/// A descriptor whose readability can be awaited.
pub(crate) fn watch_readable(source: impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    let descriptor = source.as_fd().try_clone_to_owned()?;
    // SAFETY: the descriptor is owned by the result, which never replaces or closes it while it lives.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_that_still_connects_is_not_connected() {
        // Connections that are not accepted fill its queue, and it ignores the next SYN.
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        listener.listen(0).expect("it is bound");
        let address = listener.local_addr().expect("it is bound");
        let connect = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            socket.set_nonblocking(true).expect("a flag");
            let _ = socket.connect(&address);
            TcpStream::from_std(socket.into()).expect("a stream")
        };
        let accepted = connect();
        check_connected(&accepted).await.expect("the queue has a place");
        let ignored = connect();
        assert!(timeout(Duration::from_millis(200), check_connected(&ignored)).await.is_err());
        // Its next SYN is answered by a reset.
        drop(listener);
        let refused = check_connected(&ignored).await.map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
    }
}
