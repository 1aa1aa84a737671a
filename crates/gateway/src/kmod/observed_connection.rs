//! A connection of another process, whose paths are managed here, as the kernel's socket lists show it.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::TcpInfo;
use plait_linux::diag::{self, Sockets};
use plait_linux::mptcp::{FullInfo, Info, Subflow, Token};

use crate::paths::{Backoff, POLL_INTERVAL, UPLOAD_BYTES, UPLOAD_POLL_INTERVAL, Watched};

/// Between two checks of an idle connection, at most.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Between two checks whether a connection still exists.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(5);

/// A list of all subflows serves all connections for this long.
const SUBFLOWS_MAX_AGE: Duration = Duration::from_millis(200);

/// The connections of this network namespace.
pub(super) struct SocketLists {
    sockets: Mutex<Sockets>,
    subflows: Mutex<Option<(Instant, Arc<[ListedSubflow]>)>>,
}

type ListedSubflow = (Token, Subflow);

impl SocketLists {
    pub(super) fn open() -> Result<SocketLists, diag::Error> {
        Ok(SocketLists { sockets: Mutex::new(Sockets::open()?), subflows: Mutex::default() })
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subflows(&self) -> io::Result<Arc<[ListedSubflow]>> {
        let mut cached = self.subflows.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((since, list)) if since.elapsed() < SUBFLOWS_MAX_AGE => Ok(Arc::clone(list)),
            _ => {
                let list: Arc<[ListedSubflow]> = self.sockets().subflows().map_err(io::Error::other)?.into();
                *cached = Some((Instant::now(), Arc::clone(&list)));
                Ok(list)
            }
        }
    }
}

/// A connection that has one subflow until its first flight has arrived.
pub(super) struct ObservedConnection {
    pub(super) token: Token,
    /// The addresses of its initial subflow, and the interface that this is bound to, or 0.
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) if_index: u32,
    pub(super) lists: Arc<SocketLists>,
}

impl Watched for ObservedConnection {
    fn full_info(&self) -> io::Result<FullInfo> {
        let listed = self.lists.subflows()?;
        let own = listed.iter().filter(|(token, _)| *token == self.token);
        let subflows = own.map(|(_, found)| found.clone()).collect();
        let info = self.info().ok_or(io::ErrorKind::NotConnected)?;
        Ok(FullInfo { info, subflows })
    }

    fn carried(&self) -> u64 {
        0
    }

    fn expects_more(&self) -> bool {
        false
    }

    async fn more_than(&self, _carried: u64) {
        pending().await
    }

    fn set_in_use(&self, _in_use: bool) {}

    // The socket is another process's.
    fn share_receive_buffer(&self) {}
}

impl ObservedConnection {
    /// Waits until the connection may have further subflows: what was sent first is DATA_ACKed, and the peer has begun to
    /// answer, or silently receives an upload. Also ends when the connection, or its initial subflow, has ended.
    pub(super) async fn first_flight(&self) {
        let mut backoff = Backoff::new(POLL_INTERVAL.0, IDLE_POLL_INTERVAL);
        while self.initial().is_some_and(|tcp| tcp.bytes_sent == Some(0)) {
            backoff.sleep().await;
        }
        let Some(sent) = self.info() else { return };
        let mut backoff = Backoff::new(POLL_INTERVAL.0, POLL_INTERVAL.1);
        while self.info().is_some_and(|now| now.snd_una < sent.write_seq) {
            backoff.sleep().await;
        }
        let (start, mut backoff) = (Instant::now(), Backoff::new(POLL_INTERVAL.0, IDLE_POLL_INTERVAL));
        let is_upload =
            |tcp: &TcpInfo| tcp.bytes_acked >= UPLOAD_BYTES && start.elapsed() >= UPLOAD_POLL_INTERVAL;
        while self.initial().is_some_and(|tcp| tcp.bytes_received == 0 && !is_upload(&tcp)) {
            backoff.sleep().await;
        }
    }

    /// Waits until some time after the connection has ended.
    pub(super) async fn ended(&self) {
        while self.info().is_some() {
            tokio::time::sleep(LIVENESS_INTERVAL).await;
        }
    }

    /// `None` once it has ended, or if the kernel does not tell.
    fn info(&self) -> Option<Info> {
        self.lists.sockets().connection(self.token).ok().flatten()
    }

    fn initial(&self) -> Option<TcpInfo> {
        self.lists.sockets().subflow(self.local, self.remote, self.if_index).ok().flatten()
    }
}
