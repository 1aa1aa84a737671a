//! Opens the initiator's side connections, one on each path, and opens them again when they end.
//!
//! One is on the main connection's own path, because that connection's scheduler may have chosen the path of the other copies, and
//! because what TCP sends again delays everything behind it in the same connection.
//!
//! Like witnesses, they go to an address that was asked for, never to one that the peer announced.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use plait_proto::sealed::{MAX_WITNESSES, MessageError, PathId};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use super::dial::{Attempt, Dialer};
use super::witness::{CONNECT_TIMEOUT, check};
use crate::gateway::Gateway;
use crate::handshake::{SealedError, begin_side};
use crate::paths::{PathName, Subflows};
use crate::race::alternate_families;
use crate::running_session::RunningSession;
use crate::side_connections::OpenedBy;
use crate::socket::close_on_drop;

/// Before a side connection is opened again: at first, and at most.
const RETRY_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// One that lasted so long worked: the next attempt is not delayed further.
const STABLE: Duration = Duration::from_secs(10);

/// Before a peer is asked again that wants no copies.
const DECLINED_INTERVAL: Duration = Duration::from_secs(600);

/// Before a peer is asked again that reset a side connection instead of answering, as one does that knows none.
const RESET_INTERVAL: Duration = Duration::from_secs(60);

/// Peers beyond which those that may be asked again are forgotten.
const MAX_PEERS: usize = 4096;

/// Peers that took no side connection, by path, and when they are asked again.
#[derive(Default)]
pub(super) struct RefusalMemory(Mutex<HashMap<(String, IpAddr), Instant>>);

impl RefusalMemory {
    fn refused(&self, interface: &str, peer: IpAddr, interval: Duration) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if refused.len() >= MAX_PEERS {
            refused.retain(|_, until| *until > now);
        }
        if refused.len() < MAX_PEERS {
            refused.insert((interface.to_owned(), peer), now + interval);
        }
    }

    /// When the peer may be asked.
    fn not_before(&self, interface: &str, peer: IpAddr) -> Instant {
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refused.get(&(interface.to_owned(), peer)).copied().unwrap_or_else(Instant::now)
    }
}

/// Opens the side connections of one session.
pub(super) struct SideDialer {
    pub(super) gateway: Arc<Gateway>,
    pub(super) dialer: Arc<Dialer>,
    pub(super) subflows: Arc<Subflows>,
    pub(super) memory: Arc<RefusalMemory>,
    /// The addresses that were given for the peer.
    pub(super) addresses: Vec<SocketAddr>,
    /// The variant that the main connection agreed on.
    pub(super) chosen: u8,
}

/// Why a side connection was not opened.
#[derive(Debug, thiserror::Error)]
enum SideDialError {
    #[error("{0}")]
    Connect(String),
    #[error("too many connections are open")]
    Limit,
    #[error(transparent)]
    Sealed(#[from] SealedError),
}

impl SideDialError {
    /// Before the peer is asked again, if it refused.
    fn refusal(&self) -> Option<Duration> {
        match self {
            SideDialError::Sealed(SealedError::Message(MessageError::Ended { got: 0, .. })) => {
                Some(DECLINED_INTERVAL)
            }
            SideDialError::Sealed(SealedError::Network(error))
                if error.kind() == io::ErrorKind::ConnectionReset =>
            {
                Some(RESET_INTERVAL)
            }
            _ => None,
        }
    }
}

impl SideDialer {
    /// Keeps a side connection on each path, `main` being that of the main connection, in the background until the session ends; none
    /// if there is no other path.
    pub(super) fn start(self, session: &Arc<RunningSession>, main: &str) {
        let mut paths: Vec<String> =
            self.subflows.paths_to(&self.addresses).into_iter().map(|interface| interface.name).collect();
        paths.extend(self.subflows.unavailable());
        paths.retain(|path| path != main);
        if paths.is_empty() {
            return;
        }
        paths.push(main.to_owned());
        let dialer = Arc::new(self);
        let numbers = (1..=MAX_WITNESSES).filter_map(|number| PathId::new(number).ok());
        for (path, interface) in numbers.zip(paths) {
            let keep_open = Arc::clone(&dialer).keep_open(Arc::downgrade(session), path, interface);
            let end = session.end();
            tokio::spawn(async move {
                tokio::select! {
                    () = keep_open => {}
                    () = end => {}
                }
            });
        }
    }

    async fn keep_open(self: Arc<Self>, session: Weak<RunningSession>, path: PathId, interface: String) {
        let Some(peer) = self.addresses.first().map(|address| address.ip().to_canonical()) else { return };
        let mut changes = self.subflows.changes();
        let mut pause = RETRY_INTERVAL.0;
        loop {
            sleep_until(self.memory.not_before(&interface, peer)).await;
            let begun = Instant::now();
            match self.open(&session, path, &interface).await {
                Ok((stream, _places)) => {
                    let Some(side) = session.upgrade().and_then(|session| session.side().cloned()) else {
                        return;
                    };
                    debug!("a side connection through {interface} is open");
                    let end = side.run(path, &stream, OpenedBy::Us).await;
                    debug!("a side connection through {interface}: {end}");
                }
                Err(error) => {
                    debug!("no side connection through {interface}: {error}");
                    if let Some(interval) = error.refusal() {
                        self.memory.refused(&interface, peer, interval);
                    }
                }
            }
            if begun.elapsed() >= STABLE {
                pause = RETRY_INTERVAL.0;
            }
            changes.borrow_and_update();
            // A path that is back is not waited for any longer than this.
            sleep(RETRY_INTERVAL.0).await;
            let _ = timeout(pause - RETRY_INTERVAL.0, changes.changed()).await;
            pause = (2 * pause).min(RETRY_INTERVAL.1);
        }
    }

    async fn open(
        &self,
        session: &Weak<RunningSession>,
        path: PathId,
        interface: &str,
    ) -> Result<(TcpStream, [OwnedSemaphorePermit; 2]), SideDialError> {
        let places = self.gateway.capacity().try_open_side().ok_or(SideDialError::Limit)?;
        let through = PathName::Interface(interface.to_owned());
        let race = alternate_families(&self.addresses)
            .map(|address| Attempt { address, path: Some(through.clone()) })
            .collect();
        let connected = timeout(CONNECT_TIMEOUT, self.dialer.race(race)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let connected = connected.map(|(stream, _)| stream);
        let stream = check(self.gateway.negotiation(), connected, self.chosen)
            .await
            .map_err(SideDialError::Connect)?;
        begin_side(session, path, &stream).await?;
        // The end of the session is none of an attack.
        close_on_drop(&stream).map_err(SealedError::from)?;
        Ok((stream, places))
    }
}
