//! Witnesses that confirm a session after its handshake, at both ends.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use plait_proto::sealed::{
    Confirm, HandshakeError, Level, PathId, PathIds, RendezvousError, SessionId, Share, Witness,
};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::message_io::{HANDSHAKE_TIMEOUT, SealedError, recv, with_timeout};
use crate::running_session::RunningSession;
use crate::socket::{close_on_drop, write_all};

/// Ended sessions that are remembered, the newest, for as long as a handshake may take.
const MAX_ENDED: usize = 1 << 16;

/// Adds a witness to a session, at the initiator. Returns the level that it has reached.
pub(crate) async fn add_late_witness(
    session: &Weak<RunningSession>,
    path: PathId,
    stream: &TcpStream,
) -> Result<Level, SealedError> {
    let running = || session.upgrade().ok_or(SealedError::SessionEnded);
    with_timeout(HANDSHAKE_TIMEOUT, async {
        let (awaiting, witness) = running()?.late().witness(path)?;
        write_all(stream, &witness).await?;
        let share: Share = recv(stream).await?;
        let verified = running()?.late().verify_share(awaiting, share);
        if let Err(HandshakeError::Confirmation(path)) = verified {
            running()?.set_intercepted(path);
        }
        let (shares, confirm) = verified?;
        write_all(stream, &confirm).await?;
        recv_end(stream).await?;
        close_on_drop(stream)?;
        Ok(running()?.add(shares)?)
    })
    .await
}

/// Waits until the responder has closed a witness in order: it has verified CONFIRM.
async fn recv_end(stream: &TcpStream) -> io::Result<()> {
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes after the last message")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// The sessions of a responder that late witnesses can be added to.
#[derive(Default)]
pub(super) struct RunningSessions(Mutex<Known>);

#[derive(Default)]
struct Known {
    running: HashMap<SessionId, Running>,
    /// Their witnesses may still be on the way, and are nobody's fault.
    ended: HashSet<SessionId>,
    by_end: VecDeque<(Instant, SessionId)>,
}

struct Running {
    listed: PathIds,
    session: watch::Receiver<Option<Arc<RunningSession>>>,
}

/// What a WITNESS is of.
pub(super) enum WitnessOf {
    /// A handshake, which waits for it.
    Handshake,
    /// A session whose handshake does not, once it is complete.
    Session(watch::Receiver<Option<Arc<RunningSession>>>),
    /// A session that has ended.
    Ended,
}

/// A session's place in the table, from its HELLO until its connection ends.
pub(crate) struct Registration<'a> {
    sessions: &'a RunningSessions,
    id: SessionId,
    session: watch::Sender<Option<Arc<RunningSession>>>,
}

impl RunningSessions {
    fn known(&self) -> MutexGuard<'_, Known> {
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
        match self.known().running.entry(id) {
            Entry::Occupied(_) => Err(RendezvousError::Replayed(id)),
            Entry::Vacant(vacant) => {
                let (sender, session) = watch::channel(None);
                vacant.insert(Running { listed, session });
                Ok(Registration { sessions: self, id, session: sender })
            }
        }
    }

    pub(super) fn find(&self, witness: &Witness) -> WitnessOf {
        let known = self.known();
        match known.running.get(witness.session()) {
            Some(running) if running.listed.contains(witness.path()) => WitnessOf::Handshake,
            Some(running) => WitnessOf::Session(running.session.clone()),
            None if known.ended.contains(witness.session()) => WitnessOf::Ended,
            None => WitnessOf::Handshake,
        }
    }

    /// Forgets sessions that ended long ago.
    pub(super) fn expire(&self, now: Instant) {
        let mut known = self.known();
        while known.by_end.front().is_some_and(|(ended, _)| now.duration_since(*ended) >= HANDSHAKE_TIMEOUT) {
            known.forget_oldest();
        }
    }
}

impl Known {
    fn forget_oldest(&mut self) {
        if let Some((_, id)) = self.by_end.pop_front() {
            self.ended.remove(&id);
        }
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
        let mut known = self.sessions.known();
        known.running.remove(&self.id);
        if completed {
            if known.by_end.len() >= MAX_ENDED {
                known.forget_oldest();
            }
            known.ended.insert(self.id);
            known.by_end.push_back((Instant::now(), self.id));
        }
    }
}

/// Answers a late witness, at the responder. `has_joins` tells whether a connection has had further subflows.
pub(super) async fn answer(
    mut session: watch::Receiver<Option<Arc<RunningSession>>>,
    witness: Witness,
    stream: &TcpStream,
    has_joins: impl Fn(&TcpStream) -> bool,
) -> Result<Level, SealedError> {
    let session = session.wait_for(Option::is_some).await.map_err(|_| SealedError::SessionEnded)?.clone();
    let session = session.ok_or(SealedError::SessionEnded)?;
    let (awaiting, share) = session.late().share(witness)?;
    write_all(stream, &share).await?;
    let confirm: Confirm = recv(stream).await?;
    if has_joins(stream) {
        return Err(SealedError::EarlySubflow);
    }
    let shares = session.late().verify_confirm(awaiting, &confirm)?;
    let level = session.add(shares)?;
    close_on_drop(stream)?;
    Ok(level)
}
