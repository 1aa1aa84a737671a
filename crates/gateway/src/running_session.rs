//! A session of mode `sealed` while its connection is carried: its level, which late witnesses raise.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plait_proto::sealed::{HandshakeError, LateShares, Level, PathId, SessionWitnesses};
use tokio::sync::watch;

use crate::relay::Updates;
use crate::side_connections::SideConnections;

/// A running session. Its connection owns it; who adds late witnesses refers to it weakly.
pub(crate) struct RunningSession {
    witnesses: Mutex<SessionWitnesses>,
    updates: Arc<Updates>,
    side: Option<Arc<SideConnections>>,
    intercepted: watch::Sender<Option<PathId>>,
}

impl RunningSession {
    /// `side`: its side connections, if this end wants any.
    pub(crate) fn new(
        witnesses: SessionWitnesses,
        updates: Arc<Updates>,
        side: Option<Arc<SideConnections>>,
    ) -> RunningSession {
        let (witnesses, intercepted) = (Mutex::new(witnesses), watch::Sender::new(None));
        RunningSession { witnesses, updates, side, intercepted }
    }

    /// Its side connections, if this end wants any.
    pub(crate) fn side(&self) -> Option<&Arc<SideConnections>> {
        self.side.as_ref()
    }

    /// Locked for a computation, never across a wait.
    pub(crate) fn witnesses(&self) -> MutexGuard<'_, SessionWitnesses> {
        self.witnesses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The level that it has reached.
    pub(crate) fn level(&self) -> Level {
        self.witnesses().level()
    }

    /// Counts a late witness that was verified, and has its shares mixed into the keys.
    ///
    /// # Errors
    /// Its path has another witness.
    pub(crate) fn add(&self, shares: LateShares) -> Result<Level, HandshakeError> {
        let level = self.witnesses().add(&shares)?;
        self.updates.mix(shares);
        Ok(level)
    }

    /// A late witness proved that somebody is in the middle: the connection must end.
    pub(crate) fn set_intercepted(&self, path: PathId) {
        self.intercepted.send_replace(Some(path));
    }

    /// Waits until a late witness proves that somebody is in the middle; returns its path.
    pub(crate) async fn intercepted(&self) -> PathId {
        let mut intercepted = self.intercepted.subscribe();
        let path = intercepted.wait_for(Option::is_some).await.ok().and_then(|path| *path);
        path.expect("its sender is borrowed, and it has a path")
    }

    /// What waits until the session has ended.
    pub(crate) fn end(&self) -> impl Future<Output = ()> + use<> {
        let mut intercepted = self.intercepted.subscribe();
        // Never true: it ends when the sender is dropped.
        async move { drop(intercepted.wait_for(|_| false).await) }
    }
}

impl fmt::Debug for RunningSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningSession({})", self.level())
    }
}
