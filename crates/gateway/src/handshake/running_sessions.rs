//! The responder's table of running sessions, in which late witnesses find theirs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use plait_proto::sealed::{ClosedSessions, PathIds, RendezvousError, SessionId, Witness};
use tokio::sync::watch;

use super::message_io::HANDSHAKE_TIMEOUT;
use crate::running_session::RunningSession;

/// A session, once its handshake is complete.
pub(super) type CompletedSession = watch::Receiver<Option<Arc<RunningSession>>>;

/// The sessions from their HELLO until their connection ends.
#[derive(Default)]
pub(super) struct RunningSessions(Mutex<Table>);

#[derive(Default)]
struct Table {
    running: HashMap<SessionId, TableEntry>,
    /// Their witnesses may still be on the way, and are nobody's fault.
    ended: ClosedSessions,
}

struct TableEntry {
    /// The witnesses that the handshake waits for.
    listed: PathIds,
    session: CompletedSession,
}

/// What a WITNESS belongs to.
pub(super) enum WitnessOwner {
    /// A handshake, which waits for it.
    Handshake,
    /// A session whose handshake does not wait for it.
    Session(CompletedSession),
    /// A session that has ended.
    EndedSession,
}

/// A session's place in the table.
pub(crate) struct Registration<'a> {
    sessions: &'a RunningSessions,
    id: SessionId,
    session: watch::Sender<Option<Arc<RunningSession>>>,
}

impl RunningSessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session whose handshake waits for the `listed` witnesses.
    ///
    /// # Errors
    /// A session with this id is running.
    pub(super) fn register(
        &self,
        id: SessionId,
        listed: PathIds,
    ) -> Result<Registration<'_>, RendezvousError> {
        match self.table().running.entry(id) {
            Entry::Occupied(_) => Err(RendezvousError::Replayed(id)),
            Entry::Vacant(vacant) => {
                let (sender, session) = watch::channel(None);
                vacant.insert(TableEntry { listed, session });
                Ok(Registration { sessions: self, id, session: sender })
            }
        }
    }

    /// What a WITNESS belongs to. One of an unknown session may be earlier than its HELLO.
    pub(super) fn owner(&self, witness: &Witness) -> WitnessOwner {
        let table = self.table();
        match table.running.get(witness.session()) {
            Some(entry) if entry.listed.contains(witness.path()) => WitnessOwner::Handshake,
            Some(entry) => WitnessOwner::Session(entry.session.clone()),
            None if table.ended.contains(witness.session()) => WitnessOwner::EndedSession,
            None => WitnessOwner::Handshake,
        }
    }

    /// The session that a side connection belongs to, if it is running.
    pub(super) fn session(&self, id: &SessionId) -> Option<CompletedSession> {
        self.table().running.get(id).map(|entry| entry.session.clone())
    }

    /// Forgets sessions that ended long ago.
    pub(super) fn expire(&self, now: Instant) {
        self.table().ended.forget(now);
    }
}

impl Registration<'_> {
    /// The handshake is complete.
    pub(crate) fn complete(&self, session: &Arc<RunningSession>) {
        self.session.send_replace(Some(Arc::clone(session)));
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let completed = self.session.borrow().is_some();
        let mut table = self.sessions.table();
        table.running.remove(&self.id);
        if completed {
            table.ended.remember(self.id, Instant::now() + HANDSHAKE_TIMEOUT);
        }
    }
}
