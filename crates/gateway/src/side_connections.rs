//! The side connections of a session of mode `sealed`: copies of small records on other paths, in both directions.
//!
//! Nothing of a side connection delays or ends its session: copies that it does not take at once are dropped, and those that
//! arrive are only [offered](plait_proto::codec::records::Opener::open_copy) to the receiving direction.

mod redundancy;
mod spared;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::mptcp::{FullInfo, Info, Subflow};
use plait_proto::codec::records::{COPY_HEADER, InvalidCopy, LENGTH, copy_len};
use plait_proto::sealed::PathId;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::report::RedundancyReport;
use crate::socket::write_all;

pub use redundancy::{ParseRedundancyError, Redundancy};
pub(crate) use spared::OpenedBy;
use spared::{Acknowledgments, AssignedBytes, round_trip};

/// Copies that wait to be written to a side connection, and their bytes, at most.
const MAX_QUEUED: (usize, usize) = (64, 256 << 10);

/// Copies of all side connections that wait for the receiving direction. A further one waits in its socket.
const MAX_RECEIVED: usize = 16;

/// The send buffer of a side connection: what is in it is no longer dropped, however old it is.
const SEND_BUFFER: usize = 64 << 10;

/// Between two looks at whether the peer acknowledges copies.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Looks in a row without progress, after which a side connection is opened anew: TCP would try again ever more rarely.
const MAX_STALLED: u32 = 2;

/// The side connections of a session that are open now.
pub(crate) struct SideConnections {
    redundancy: Redundancy,
    open: Mutex<BTreeMap<PathId, Queue>>,
    main: Mutex<MainConnection>,
    received: mpsc::Sender<ReceivedCopy>,
    pub(crate) counters: CopyCounters,
}

/// What is written to a side connection.
struct Queue {
    copies: mpsc::Sender<Vec<u8>>,
    bytes: Arc<AtomicUsize>,
    /// Its connection, whose state is looked at.
    socket: OwnedFd,
    opened_by: OpenedBy,
    path_address: IpAddr,
    acknowledgments: Acknowledgments,
    /// When its state was looked at, before a copy was sent.
    last_look: Instant,
}

impl Queue {
    /// Whether copies sent earlier are not acknowledged in time, as far as can be told. `main`: the session's subflows.
    fn is_overdue(&mut self, now: Instant, main: &[Subflow]) -> bool {
        let written = std::mem::replace(&mut self.last_look, now);
        let Ok(info) = Info::of(&self.socket) else { return true };
        let same_path = round_trip(main.iter().filter(|subflow| self.is_on_path_of(subflow)));
        let Some(round_trip) = same_path.or_else(|| round_trip(main.iter())) else { return true };
        let overdue = self.acknowledgments.is_overdue(now, written, &info, round_trip);
        overdue || self.bytes.load(Ordering::Relaxed) > 0
    }

    fn is_on_path_of(&self, subflow: &Subflow) -> bool {
        self.opened_by.path_address(subflow.local, subflow.remote) == self.path_address
    }
}

/// The session's main connection, as it was after the last record that was copied.
#[derive(Default)]
struct MainConnection {
    acknowledgments: Acknowledgments,
    assigned: AssignedBytes,
}

/// A copy of a record, as a side connection delivered it.
pub(crate) struct ReceivedCopy {
    pub(crate) bytes: Vec<u8>,
    connection: CancellationToken,
}

impl ReceivedCopy {
    /// It is not of a record of the peer: its side connection ends.
    pub(crate) fn reject(&self) {
        self.connection.cancel();
    }
}

/// The copies of a session.
#[derive(Debug, Default)]
pub(crate) struct CopyCounters {
    /// Written to side connections, or about to be.
    sent: AtomicU64,
    /// Not sent, because a side connection does not drain.
    dropped: AtomicU64,
    /// Received, of records that had not arrived yet.
    first: AtomicU64,
    /// Received in vain: the record had arrived, or could not be placed.
    late: AtomicU64,
    /// Received, but no copy of a record.
    invalid: AtomicU64,
}

impl CopyCounters {
    pub(crate) fn first(&self, copies: u64) {
        self.first.fetch_add(copies, Ordering::Relaxed);
    }

    pub(crate) fn late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn invalid(&self) {
        self.invalid.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why a side connection has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SideError {
    #[error(transparent)]
    Network(#[from] io::Error),
    #[error(transparent)]
    Copy(#[from] InvalidCopy),
    #[error("a copy failed authentication")]
    Rejected,
    #[error("another one of its path took its place")]
    Replaced,
    #[error("the peer acknowledges nothing on this path")]
    Silent,
    #[error("the peer has closed it")]
    Closed,
}

impl SideConnections {
    /// Those of a new session, and what they will receive.
    pub(crate) fn new(redundancy: Redundancy) -> (Arc<SideConnections>, mpsc::Receiver<ReceivedCopy>) {
        let (received, receiver) = mpsc::channel(MAX_RECEIVED);
        let (open, main, counters) = (Mutex::default(), Mutex::default(), CopyCounters::default());
        (Arc::new(SideConnections { redundancy, open, main, received, counters }), receiver)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<PathId, Queue>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write of so many bytes is copied now.
    pub(crate) fn wants(&self, written: usize) -> bool {
        self.redundancy.includes(written) && !self.open().is_empty()
    }

    /// The path whose side connection need not carry copies of what the main connection has just sent, because that went the
    /// same way, and all that was sent before is acknowledged in time.
    pub(crate) fn spared(&self, main: &TcpStream) -> Option<PathId> {
        let now = Instant::now();
        let FullInfo { info, subflows } = FullInfo::of(main).ok()?;
        let mut known = self.main.lock().unwrap_or_else(PoisonError::into_inner);
        // All take note of every write.
        let sent_on = known.assigned.only_subflow(&subflows);
        let round_trip = round_trip(subflows.iter())?;
        let mut overdue = known.acknowledgments.is_overdue(now, now, &info, round_trip);
        let mut open = self.open();
        for queue in open.values_mut() {
            overdue |= queue.is_overdue(now, &subflows);
        }
        let sent_on = sent_on.filter(|_| !overdue && open.len() > 1)?;
        let mut same = open.iter().filter(|(_, queue)| queue.is_on_path_of(sent_on)).map(|(path, _)| *path);
        // Paths behind one address cannot be told apart.
        same.next().filter(|_| same.next().is_none())
    }

    /// Sends a copy on every side connection that takes it at once, but for the `spared` one.
    pub(crate) fn send(&self, copy: &[u8], spared: Option<PathId>) {
        for (_, queue) in self.open().iter().filter(|(path, _)| Some(**path) != spared) {
            let waiting = queue.bytes.load(Ordering::Relaxed);
            let taken = waiting + copy.len() <= MAX_QUEUED.1 && queue.copies.try_send(copy.to_vec()).is_ok();
            if taken {
                queue.bytes.fetch_add(copy.len(), Ordering::Relaxed);
            }
            let counter = if taken { &self.counters.sent } else { &self.counters.dropped };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Carries copies on an authenticated side connection until it ends. It takes the place of another one of its path.
    pub(crate) async fn run(&self, path: PathId, stream: &TcpStream, opened_by: OpenedBy) -> SideError {
        // Without it, more copies wait in the kernel.
        let _ = SockRef::from(stream).set_send_buffer_size(SEND_BUFFER);
        let (socket, path_address) = match socket_and_path(stream, opened_by) {
            Ok(found) => found,
            Err(error) => return error.into(),
        };
        let (copies, to_send) = mpsc::channel(MAX_QUEUED.0);
        let own = copies.downgrade();
        let bytes = Arc::new(AtomicUsize::new(0));
        let queue = Queue {
            copies,
            bytes: Arc::clone(&bytes),
            socket,
            opened_by,
            path_address,
            acknowledgments: Acknowledgments::default(),
            last_look: Instant::now(),
        };
        self.open().insert(path, queue);
        let rejected = CancellationToken::new();
        let end = tokio::select! {
            error = write_copies(stream, to_send, &bytes) => error,
            error = self.read_copies(stream, &rejected) => error,
            error = stalled(stream) => error,
            () = rejected.cancelled() => SideError::Rejected,
        };
        let mut open = self.open();
        // Unless it was replaced, its queue is the one in the table.
        if own
            .upgrade()
            .is_some_and(|own| open.get(&path).is_some_and(|queue| queue.copies.same_channel(&own)))
        {
            open.remove(&path);
        }
        end
    }

    async fn read_copies(&self, stream: &TcpStream, connection: &CancellationToken) -> SideError {
        loop {
            match read_copy(stream).await {
                Ok(bytes) => {
                    let copy = ReceivedCopy { bytes, connection: connection.clone() };
                    if self.received.send(copy).await.is_err() {
                        // The direction has ended; what still comes is not wanted.
                        std::future::pending::<()>().await;
                    }
                }
                Err(error) => {
                    if let SideError::Copy(_) = error {
                        self.counters.invalid();
                    }
                    return error;
                }
            }
        }
    }

    pub(crate) fn report(&self) -> RedundancyReport {
        let CopyCounters { sent, dropped, first, late, invalid } = &self.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RedundancyReport {
            copied: self.redundancy,
            side_connections: self.open().len() as u64,
            sent: of(sent),
            dropped: of(dropped),
            first: of(first),
            late: of(late),
            invalid: of(invalid),
        }
    }
}

/// Another descriptor of a connection's socket, and the address of its path.
fn socket_and_path(stream: &TcpStream, opened_by: OpenedBy) -> io::Result<(OwnedFd, IpAddr)> {
    let path_address = opened_by.path_address(stream.local_addr()?, stream.peer_addr()?);
    Ok((stream.as_fd().try_clone_to_owned()?, path_address))
}

async fn write_copies(
    stream: &TcpStream,
    mut copies: mpsc::Receiver<Vec<u8>>,
    waiting: &AtomicUsize,
) -> SideError {
    while let Some(copy) = copies.recv().await {
        let written = write_all(stream, &copy).await;
        waiting.fetch_sub(copy.len(), Ordering::Relaxed);
        if let Err(error) = written {
            return error.into();
        }
    }
    SideError::Replaced
}

async fn read_copy(stream: &TcpStream) -> Result<Vec<u8>, SideError> {
    let mut copy = vec![0; COPY_HEADER + LENGTH];
    read_exact(stream, &mut copy).await?;
    let length = copy_len(&copy)?.unwrap_or(copy.len());
    copy.resize(length, 0);
    read_exact(stream, &mut copy[COPY_HEADER + LENGTH..]).await?;
    Ok(copy)
}

async fn read_exact(stream: &TcpStream, mut bytes: &mut [u8]) -> Result<(), SideError> {
    while !bytes.is_empty() {
        stream.readable().await?;
        match stream.try_read(bytes) {
            Ok(0) => return Err(SideError::Closed),
            Ok(length) => bytes = &mut bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Waits until the peer has acknowledged nothing for long, although there is something to acknowledge.
async fn stalled(stream: &TcpStream) -> SideError {
    let (mut before, mut stalled) = (None, 0);
    while stalled < MAX_STALLED {
        tokio::time::sleep(POLL_INTERVAL).await;
        let Ok(info) = Info::of(stream) else { continue };
        let outstanding = info.snd_una < info.write_seq;
        stalled = if outstanding && before == Some(info.snd_una) { stalled + 1 } else { 0 };
        before = Some(info.snd_una);
    }
    SideError::Silent
}

#[cfg(test)]
mod tests;
