//! A connection of another process, whose paths are managed here: what the kernel's lists of sockets say of it.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::TcpInfo;
use plait_linux::diag::{self, Sockets};
use plait_linux::mptcp::{Info, Token};

use crate::subflows::{LOOK, Path, UPLOAD, UPLOAD_LOOK};

/// Between two looks at a connection that says nothing, at most.
const IDLE_LOOK: Duration = Duration::from_millis(250);

/// Whether a connection still exists is looked at this often.
const ALIVE_LOOK: Duration = Duration::from_secs(5);

/// A list of all subflows serves all connections for this long.
const FRESH: Duration = Duration::from_millis(200);

/// Where the connections of this network namespace are looked up.
pub(super) struct Lists {
    sockets: Mutex<Sockets>,
    subflows: Mutex<Option<(Instant, Arc<[Listed]>)>>,
}

type Listed = (Token, SocketAddr, State);

impl Lists {
    pub(super) fn open() -> Result<Lists, diag::Error> {
        Ok(Lists { sockets: Mutex::new(Sockets::open()?), subflows: Mutex::default() })
    }

    fn sockets(&self) -> std::sync::MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subflows(&self) -> io::Result<Arc<[Listed]>> {
        let mut kept = self.subflows.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((since, list)) if since.elapsed() < FRESH => Ok(Arc::clone(list)),
            _ => {
                let list: Arc<[Listed]> = self.sockets().subflows().map_err(io::Error::other)?.into();
                *kept = Some((Instant::now(), Arc::clone(&list)));
                Ok(list)
            }
        }
    }
}

/// A connection that has one subflow until its first flight has arrived.
pub(super) struct Held {
    pub(super) token: Token,
    /// The ends of its first subflow, and the interface that this is bound to, or 0.
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) if_index: u32,
    pub(super) lists: Arc<Lists>,
}

impl Held {
    /// Ends once the connection may have further subflows: what was sent first is DATA_ACKed, and the peer has begun to
    /// answer, or listens to an upload in silence. Also when the connection, or its first subflow, has ended.
    pub(super) async fn first_flight(&self) {
        let mut look = Look::new(IDLE_LOOK);
        while self.initial().is_some_and(|tcp| tcp.bytes_sent == Some(0)) {
            look.again().await;
        }
        let Some(sent) = self.info() else { return };
        let mut look = Look::new(LOOK.1);
        while self.info().is_some_and(|now| now.snd_una < sent.write_seq) {
            look.again().await;
        }
        let (begin, mut look) = (Instant::now(), Look::new(IDLE_LOOK));
        let is_upload = |tcp: &TcpInfo| tcp.bytes_acked >= UPLOAD && begin.elapsed() >= UPLOAD_LOOK;
        while self.initial().is_some_and(|tcp| tcp.bytes_received == 0 && !is_upload(&tcp)) {
            look.again().await;
        }
    }

    /// Its subflows.
    pub(super) fn paths(&self) -> io::Result<Vec<Path>> {
        let subflows = self.lists.subflows()?;
        let own = subflows.iter().filter(|(token, ..)| *token == self.token);
        Ok(own.map(|(_, local, state)| (local.ip().to_canonical(), *state)).collect())
    }

    /// Ends some time after the connection has.
    pub(super) async fn ended(&self) {
        while self.info().is_some() {
            tokio::time::sleep(ALIVE_LOOK).await;
        }
    }

    /// `None` once it has ended, also where the kernel does not say.
    fn info(&self) -> Option<Info> {
        self.lists.sockets().connection(self.token).ok().flatten()
    }

    fn initial(&self) -> Option<TcpInfo> {
        self.lists.sockets().subflow(self.local, self.remote, self.if_index).ok().flatten()
    }
}

/// Looks that come less and less often.
struct Look {
    pause: Duration,
    most: Duration,
}

impl Look {
    fn new(most: Duration) -> Look {
        Look { pause: LOOK.0, most }
    }

    async fn again(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.most);
    }
}
