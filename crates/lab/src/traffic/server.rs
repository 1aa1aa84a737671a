//! The server, which answers requests.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::request::{Request, STAMP, now, set_congestion_control};

/// Connections at a time; further ones are closed.
pub(super) const MAX_CONNECTIONS: usize = 4096;
/// How long a client may be silent.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes that are read or written at a time.
pub(super) const BLOCK: usize = 1 << 16;

/// Answers [`Workload`](super::Workload) and [`Periodic`](super::Periodic). It sends whatever amount clients ask for: for
/// networks of a lab only.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    congestion_control: Option<String>,
}

impl Server {
    /// Listens. `congestion_control` is that of the connections; `None`: the host's.
    ///
    /// # Errors
    /// Those of `bind` and `listen`.
    pub fn listen(address: SocketAddr, congestion_control: Option<String>) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address)?, congestion_control })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of `getsockname`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    /// A connection cannot be accepted, the kernel has no such congestion control, or no thread can be started.
    pub fn run(&self) -> io::Result<()> {
        let open = Arc::new(AtomicUsize::new(0));
        for connection in self.listener.incoming() {
            let connection = connection?;
            if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            set_congestion_control(&connection, self.congestion_control.as_deref())?;
            let open = Arc::clone(&open);
            let answer = move || {
                // The client notices, and reports it.
                let _ = answer(&connection);
                open.fetch_sub(1, Ordering::Relaxed);
            };
            thread::Builder::new().name("traffic".into()).spawn(answer)?;
        }
        Ok(())
    }
}

fn answer(mut connection: &TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(IDLE_TIMEOUT))?;
    connection.set_write_timeout(Some(IDLE_TIMEOUT))?;
    match Request::read(connection)? {
        Request::Download(size) => send(connection, size),
        Request::Upload(size) => {
            receive(connection, size)?;
            connection.write_all(&[0])
        }
        Request::Messages(size) => {
            connection.set_nodelay(true)?;
            let mut message = vec![0; size.into()];
            while connection.read_exact(&mut message).is_ok() {
                let stamp: [u8; STAMP] = now().to_be_bytes();
                connection.write_all(&stamp)?;
            }
            Ok(())
        }
    }
}

/// Sends that many bytes.
pub(super) fn send(mut to: &TcpStream, size: u64) -> io::Result<()> {
    let block = [0; BLOCK];
    let mut left = size;
    while left > 0 {
        let length = left.min(BLOCK as u64);
        to.write_all(&block[..length as usize])?;
        left -= length;
    }
    Ok(())
}

/// Receives exactly that many bytes.
pub(super) fn receive(mut from: &TcpStream, size: u64) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    let mut left = size;
    while left > 0 {
        let length = left.min(BLOCK as u64) as usize;
        match from.read(&mut block[..length])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => left -= received as u64,
        }
    }
    Ok(())
}
