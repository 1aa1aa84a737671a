//! The way of an application's bytes: read from one socket, transform in place, write to the other, in both directions.
//! (In mode `sealed` they travel as records: [`crate::records`].)
//!
//! Keeps TCP's meaning: the end of one direction is passed on and leaves the other open (half-close), a reset on either
//! side resets the other, and nothing is read that cannot be written (back-pressure): a connection holds at most one
//! buffer per direction, and only while bytes are on their way. Buffers are large, for speed, until [`MAX_LARGE`] of
//! them are held, and small from then on.
//!
//! A socket that reaches this module must have been set to reset rather than close when it is dropped
//! ([`reset_on_drop`]) before it was connected, so that a gateway that dies at whatever moment never looks like the end of
//! the stream; only a relay that saw both directions end makes it an ordinary close.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use plait_proto::codec::records::MAX_RECORD;
use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::records;
use crate::transform::{Incoming, Outgoing, Transform, Transforms};

/// Bytes read at once, and the most that waits in one direction.
const LARGE: usize = 256 << 10;
const SMALL: usize = MAX_RECORD;

/// Large buffers held at once, by all connections together.
const MAX_LARGE: usize = 256;

/// Large buffers that a worker thread keeps for reuse.
const SPARE_BUFFERS: usize = 8;

/// After how long a socket is tried that has not said that it would take bytes: at first, and at most.
const UNTOLD: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

thread_local! {
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

static LARGE_HELD: AtomicUsize = AtomicUsize::new(0);

/// What has crossed a connection so far, in application bytes.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    sent: AtomicU64,
    received: AtomicU64,
    /// Woken once, when the first byte was handed to the far socket.
    pub(crate) first_sent: Notify,
    /// Woken once, when the first byte came from the far socket.
    pub(crate) first_received: Notify,
}

impl Progress {
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Which side of a relay failed, and how.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("the application's side: {0}")]
    Near(io::Error),
    #[error("the network's side: {0}")]
    Far(io::Error),
    #[error("the network's side: {0}")]
    Record(plait_proto::codec::records::Error),
}

/// Makes a socket, or all that a listening one accepts, reset its connection when it is closed, by whomever: also by the
/// kernel after a kill -9.
pub(crate) fn reset_on_drop(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// Makes a socket end its connection in good order when it is closed.
pub(crate) fn close_on_drop(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(None)
}

/// Carries both directions between the application (`near`) and the network (`far`) until both have ended, or one side
/// fails; then both sockets reset.
pub(crate) async fn relay(
    near: &TcpStream,
    far: &TcpStream,
    transforms: Transforms,
    progress: &Progress,
) -> Result<(), RelayError> {
    let Transforms { mut outgoing, mut incoming } = transforms;
    let out = async {
        let (count, first) = (&progress.sent, &progress.first_sent);
        let done = match &mut outgoing {
            Outgoing::InPlace(transform) => pump(near, far, transform, count, first).await,
            Outgoing::Records(sealer) => records::seal(near, far, sealer, count, first).await,
        };
        done.map_err(|failure| failure.place(RelayError::Near, RelayError::Far))
    };
    let back = async {
        let (count, first) = (&progress.received, &progress.first_received);
        let done = match &mut incoming {
            Incoming::InPlace(transform) => pump(far, near, transform, count, first).await,
            Incoming::Records(opener) => records::open(far, near, opener, count, first).await,
        };
        done.map_err(|failure| failure.place(RelayError::Far, RelayError::Near))
    };
    tokio::try_join!(out, back)?;
    close_on_drop(near).map_err(RelayError::Near)?;
    close_on_drop(far).map_err(RelayError::Far)
}

/// Why one direction ended badly.
pub(crate) enum PumpFailure {
    Reading(io::Error),
    Writing(io::Error),
    /// What was read is not what the peer wrote.
    Record(plait_proto::codec::records::Error),
}

impl PumpFailure {
    fn place(self, reading: fn(io::Error) -> RelayError, writing: fn(io::Error) -> RelayError) -> RelayError {
        match self {
            PumpFailure::Reading(error) => reading(error),
            PumpFailure::Writing(error) => writing(error),
            PumpFailure::Record(error) => RelayError::Record(error),
        }
    }
}

/// One direction: from the first byte to the end of the stream, which it passes on.
async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    transform: &mut Transform,
    count: &AtomicU64,
    first: &Notify,
) -> Result<(), PumpFailure> {
    loop {
        from.readable().await.map_err(PumpFailure::Reading)?;
        let mut buffer = Buffer::take();
        let length = match from.try_read(&mut buffer.bytes) {
            Ok(0) => return end_of_direction(to).map_err(PumpFailure::Writing),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(PumpFailure::Reading(error)),
        };
        let bytes = &mut buffer.bytes[..length];
        transform.apply(bytes);
        write_all(to, bytes).await.map_err(PumpFailure::Writing)?;
        if count.fetch_add(length as u64, Ordering::Relaxed) == 0 {
            first.notify_one();
        }
    }
}

/// Passes on that nothing more will come.
pub(crate) fn end_of_direction(to: &TcpStream) -> io::Result<()> {
    match SockRef::from(to).shutdown(std::net::Shutdown::Write) {
        // The other side is gone altogether; its own direction tells how.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}

/// Writes every byte, however long it takes.
///
/// A socket that takes none may never say that it would: that of MPTCP, when all of the kernel's memory for TCP is in use
/// and none of its bytes are on their way. (TCP's own takes a segment all the same.) So it is tried without being told, too.
pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let mut untold = UNTOLD.0;
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Ok(told) = timeout(untold, to.writable()).await {
                    told?;
                    continue;
                }
                // tokio asks the kernel only when it was told.
                match rustix::net::send(to, bytes, SendFlags::NOSIGNAL) {
                    Ok(written) => (bytes, untold) = (&bytes[written..], UNTOLD.0),
                    Err(Errno::AGAIN) => untold = (2 * untold).min(UNTOLD.1),
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A large buffer, which goes back to the worker thread's spares, or a small one while many are held.
pub(crate) struct Buffer {
    pub(crate) bytes: Box<[u8]>,
}

impl Buffer {
    pub(crate) fn take() -> Buffer {
        if LARGE_HELD.fetch_add(1, Ordering::Relaxed) >= MAX_LARGE {
            LARGE_HELD.fetch_sub(1, Ordering::Relaxed);
            return Buffer { bytes: vec![0; SMALL].into_boxed_slice() };
        }
        let spare = SPARE.with_borrow_mut(Vec::pop);
        Buffer { bytes: spare.unwrap_or_else(|| vec![0; LARGE].into_boxed_slice()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() < LARGE {
            return;
        }
        LARGE_HELD.fetch_sub(1, Ordering::Relaxed);
        let bytes = std::mem::take(&mut self.bytes);
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_BUFFERS {
                spare.push(bytes);
            }
        });
    }
}
