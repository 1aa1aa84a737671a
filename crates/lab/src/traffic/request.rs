//! What a client asks of the server, at the beginning of a connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;

/// 16 bytes: [`MAGIC`], the kind, three zero bytes, and a size in network order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// That many bytes from the server.
    Download(u64),
    /// That many bytes to the server, which then sends a byte.
    Upload(u64),
    /// Messages of that many bytes to the server, which sends the time at which each arrived, [`STAMP`] bytes.
    Messages(u16),
}

const MAGIC: [u8; 4] = *b"PLT1";
const LENGTH: usize = 16;

/// The length of a time: nanoseconds of CLOCK_MONOTONIC in network order.
pub(super) const STAMP: usize = 8;

impl Request {
    pub(super) fn write(self, mut to: impl Write) -> io::Result<()> {
        let (kind, size) = match self {
            Self::Download(size) => (0, size),
            Self::Upload(size) => (1, size),
            Self::Messages(size) => (2, size.into()),
        };
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = kind;
        bytes[8..].copy_from_slice(&size.to_be_bytes());
        to.write_all(&bytes)
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Self> {
        let mut bytes = [0; LENGTH];
        from.read_exact(&mut bytes)?;
        let size = u64::from_be_bytes([8, 9, 10, 11, 12, 13, 14, 15].map(|at| bytes[at]));
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "expected a request of plait lab traffic");
        if bytes[..4] != MAGIC || bytes[5..8] != [0; 3] {
            return Err(wrong());
        }
        match bytes[4] {
            0 => Ok(Self::Download(size)),
            1 => Ok(Self::Upload(size)),
            2 => u16::try_from(size).ok().filter(|size| *size > 0).map(Self::Messages).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

/// Connects to a server; this and each read and write may take `timeout`.
pub(super) fn connect(
    server: SocketAddr,
    congestion_control: Option<&str>,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let connection = TcpStream::connect_timeout(&server, timeout)?;
    set_congestion_control(&connection, congestion_control)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(timeout))?;
    connection.set_write_timeout(Some(timeout))?;
    Ok(connection)
}

/// Sets the congestion control of a connection, and of subflows that the kernel adds later.
pub(super) fn set_congestion_control(connection: &TcpStream, name: Option<&str>) -> io::Result<()> {
    let Some(name) = name else { return Ok(()) };
    sockopt::set_tcp_congestion(connection, name)
        .map_err(|error| io::Error::other(format!("cannot use the congestion control {name}: {error}")))
}

/// CLOCK_MONOTONIC, which all network namespaces of a machine share, in nanoseconds.
pub(super) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_round_trip(size: u64, message in 1u16..) {
            for request in [Request::Download(size), Request::Upload(size), Request::Messages(message)] {
                let mut bytes = Vec::new();
                request.write(&mut bytes).expect("a vector grows");
                prop_assert_eq!(Request::read(&*bytes).expect("a request"), request);
            }
        }

        #[test]
        fn anything_else_is_an_error(bytes: [u8; LENGTH]) {
            prop_assume!(bytes[..4] != MAGIC);
            prop_assert!(Request::read(&bytes[..]).is_err());
        }
    }
}
