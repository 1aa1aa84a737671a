//! The responder's table of half-open sessions, where HELLO and the WITNESSes of a session meet in any order.
//!
//! The caller that adds the last missing message of a session receives all of it. Until then the table keeps what has arrived: `M` is
//! a handle of the task that waits on a session's main connection (the sending half of a channel, say), `W` the
//! connection of a witness. Dropping a handle is how the table gives up a session; it closes connections in no other way.
//!
//! Memory is bounded by [`Limits`], whatever peers do. The table has no clock: callers pass the time.
//!
//! ```text
//! main connection:     let (sender, complete) = oneshot::channel();
//!                      let session = table.lock().add_hello(now, peer, responder.session(), responder.witnesses(), sender)?;
//!                      session.map(|CompleteSession { main, witnesses }| main.send(witnesses));
//!                      match timeout_at(deadline, complete).await { .. => responder.reply(..), or else
//!                          table.lock().abandon(&responder.session()) and reset }
//! witness connection:  let session = table.lock().add_witness(now, peer, witness, connection)?;
//!                      session.map(|CompleteSession { main, witnesses }| main.send(witnesses));
//! periodically:        table.lock().expire(now)
//! ```

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::messages::{SessionId, Witness};
use super::paths::{PathId, PathIds};

/// Closed sessions that are remembered, so that nothing can be added to them; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 1 << 16;

/// Bounds of a [`Rendezvous`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Half-open sessions. Each holds at most 16 connections.
    pub sessions: usize,
    /// Waiting connections from one address, which many clients may share behind a NAT.
    pub waiting_per_address: usize,
    /// How long a session may take, from its first message.
    pub timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { sessions: 1024, waiting_per_address: 1024, timeout: Duration::from_secs(10) }
    }
}

/// A connection was refused; the caller resets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// [`Limits::sessions`] is reached.
    #[error("{0} sessions are half open already")]
    Sessions(usize),
    /// [`Limits::waiting_per_address`] is reached.
    #[error("{max} connections from {peer} already wait for the rest of their sessions")]
    Address {
        /// The address.
        peer: IpAddr,
        /// The limit.
        max: usize,
    },
    /// A second HELLO of a session.
    #[error("session {0:?} already has a HELLO: is this a replay?")]
    Replayed(SessionId),
    /// A WITNESS of a closed session.
    #[error("WITNESS of path {1} for session {0:?}, which is closed: is this a replay?")]
    Late(SessionId, PathId),
    /// A WITNESS of a path that HELLO does not list.
    #[error("WITNESS of path {1}, which HELLO of session {0:?} does not list")]
    Unlisted(SessionId, PathId),
    /// A second WITNESS of a path.
    #[error("expected one WITNESS of path {1} for session {0:?}, got another")]
    Repeated(SessionId, PathId),
}

/// Counters of sessions and refused connections since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RendezvousStats {
    /// Completed sessions.
    pub completed: u64,
    /// Expired sessions whose HELLO came, but not every witness.
    pub without_witness: u64,
    /// Expired sessions whose witnesses came, but no HELLO.
    pub without_hello: u64,
    /// Sessions abandoned by their main connection.
    pub abandoned: u64,
    /// Connections refused because of [`Limits::sessions`].
    pub sessions: u64,
    /// Connections refused because of [`Limits::waiting_per_address`].
    pub address: u64,
    /// HELLOs of sessions that already had one.
    pub replayed: u64,
    /// WITNESSes of closed sessions.
    pub late: u64,
    /// WITNESSes that HELLO did not list.
    pub unlisted: u64,
    /// WITNESSes of a path that already had one.
    pub repeated: u64,
}

/// A session whose messages have all arrived.
#[derive(Debug)]
pub struct CompleteSession<M, W> {
    /// The handle of the main connection.
    pub main: M,
    /// One of every path that HELLO lists, in ascending order.
    pub witnesses: Vec<(Witness, W)>,
}

/// Keeps the first messages of sessions until the rest arrives.
pub struct Rendezvous<M, W> {
    limits: Limits,
    half_open: HashMap<SessionId, HalfOpen<M, W>>,
    /// No session of `half_open` has an earlier deadline.
    next_deadline: Option<Instant>,
    waiting_from: HashMap<IpAddr, usize>,
    closed: ClosedSessions,
    stats: RendezvousStats,
}

struct HalfOpen<M, W> {
    deadline: Instant,
    main: Option<Main<M>>,
    witnesses: BTreeMap<PathId, Arrived<W>>,
}

struct Main<M> {
    peer: IpAddr,
    listed: PathIds,
    handle: M,
}

struct Arrived<W> {
    peer: IpAddr,
    witness: Witness,
    handle: W,
}

impl RendezvousStats {
    /// Sessions that were dropped incomplete.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.without_witness + self.without_hello + self.abandoned
    }

    /// Connections that were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.sessions + self.address + self.replayed + self.late + self.unlisted + self.repeated
    }
}

impl<M, W> HalfOpen<M, W> {
    fn is_complete(&self) -> bool {
        let has = |path: PathId| self.witnesses.contains_key(&path);
        self.main.as_ref().is_some_and(|main| main.listed.iter().all(has))
    }

    /// The addresses of waiting connections, one for each connection.
    fn peers(&self) -> impl Iterator<Item = IpAddr> {
        let main = self.main.iter().map(|main| main.peer);
        main.chain(self.witnesses.values().map(|arrived| arrived.peer))
    }
}

impl<M, W> Rendezvous<M, W> {
    /// An empty table.
    #[must_use]
    pub fn new(limits: Limits) -> Rendezvous<M, W> {
        Rendezvous {
            limits,
            half_open: HashMap::new(),
            next_deadline: None,
            waiting_from: HashMap::new(),
            closed: ClosedSessions::default(),
            stats: RendezvousStats::default(),
        }
    }

    /// Adds a HELLO that came by a connection from `peer` and lists these witnesses. Returns the session if it is complete.
    ///
    /// # Errors
    /// The connection is refused.
    pub fn add_hello(
        &mut self,
        now: Instant,
        peer: IpAddr,
        session: SessionId,
        listed: PathIds,
        main: M,
    ) -> Result<Option<CompleteSession<M, W>>, RendezvousError> {
        self.expire(now);
        let known = self.half_open.get(&session);
        if known.is_some_and(|known| known.main.is_some()) || self.closed.contains(&session) {
            return Err(self.refuse(RendezvousError::Replayed(session)));
        }
        let half_open = self.admit(now, peer, session)?;
        half_open.main = Some(Main { peer, listed, handle: main });
        let mut strays = Vec::new();
        half_open.witnesses.retain(|path, stray| {
            let is_listed = listed.contains(*path);
            if !is_listed {
                strays.push((*path, stray.peer));
            }
            is_listed
        });
        for (path, peer) in strays {
            self.release(peer);
            self.refuse(RendezvousError::Unlisted(session, path));
        }
        Ok(self.take_complete(session))
    }

    /// Adds a WITNESS that came by a connection from `peer`. Returns the session if it is complete.
    ///
    /// # Errors
    /// The connection is refused.
    pub fn add_witness(
        &mut self,
        now: Instant,
        peer: IpAddr,
        witness: Witness,
        handle: W,
    ) -> Result<Option<CompleteSession<M, W>>, RendezvousError> {
        self.expire(now);
        let Witness { session, path, .. } = witness;
        if self.closed.contains(&session) {
            return Err(self.refuse(RendezvousError::Late(session, path)));
        }
        if let Some(known) = self.half_open.get(&session) {
            if known.main.as_ref().is_some_and(|main| !main.listed.contains(path)) {
                return Err(self.refuse(RendezvousError::Unlisted(session, path)));
            }
            if known.witnesses.contains_key(&path) {
                return Err(self.refuse(RendezvousError::Repeated(session, path)));
            }
        }
        let half_open = self.admit(now, peer, session)?;
        half_open.witnesses.insert(path, Arrived { peer, witness, handle });
        Ok(self.take_complete(session))
    }

    /// The main connection, whose HELLO was added, no longer waits.
    pub fn abandon(&mut self, session: &SessionId) {
        if let Some(half_open) = self.half_open.remove(session) {
            half_open.peers().for_each(|peer| self.release(peer));
            self.closed.remember(*session, half_open.deadline);
            self.stats.abandoned += 1;
        }
    }

    /// Drops sessions whose time is up.
    pub fn expire(&mut self, now: Instant) {
        self.closed.forget(now);
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        for (_, expired) in self.half_open.extract_if(|_, half_open| half_open.deadline <= now) {
            for peer in expired.peers() {
                release(&mut self.waiting_from, peer);
            }
            match expired.main {
                Some(_) => self.stats.without_witness += 1,
                None => self.stats.without_hello += 1,
            }
        }
        self.next_deadline = self.half_open.values().map(|half_open| half_open.deadline).min();
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> RendezvousStats {
        self.stats
    }

    /// The number of half-open sessions.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.half_open.len()
    }

    /// Makes room for one more connection of the session.
    fn admit(
        &mut self,
        now: Instant,
        peer: IpAddr,
        session: SessionId,
    ) -> Result<&mut HalfOpen<M, W>, RendezvousError> {
        let Limits { sessions, waiting_per_address: max, timeout } = self.limits;
        if self.half_open.len() >= sessions && !self.half_open.contains_key(&session) {
            return Err(self.refuse(RendezvousError::Sessions(sessions)));
        }
        let waiting = self.waiting_from.get(&peer).copied().unwrap_or(0);
        if waiting >= max {
            return Err(self.refuse(RendezvousError::Address { peer, max }));
        }
        self.waiting_from.insert(peer, waiting + 1);
        let deadline = now + timeout;
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |earliest| earliest.min(deadline)));
        let half_open = self.half_open.entry(session);
        Ok(half_open.or_insert_with(|| HalfOpen { deadline, main: None, witnesses: BTreeMap::new() }))
    }

    /// Removes the session if nothing is missing.
    fn take_complete(&mut self, session: SessionId) -> Option<CompleteSession<M, W>> {
        if !self.half_open.get(&session)?.is_complete() {
            return None;
        }
        let half_open = self.half_open.remove(&session)?;
        half_open.peers().for_each(|peer| self.release(peer));
        self.closed.remember(session, half_open.deadline);
        self.stats.completed += 1;
        let witnesses = half_open.witnesses.into_values().map(|arrived| (arrived.witness, arrived.handle));
        Some(CompleteSession { main: half_open.main?.handle, witnesses: witnesses.collect() })
    }

    /// Counts the refusal.
    fn refuse(&mut self, refused: RendezvousError) -> RendezvousError {
        let count = match refused {
            RendezvousError::Sessions(_) => &mut self.stats.sessions,
            RendezvousError::Address { .. } => &mut self.stats.address,
            RendezvousError::Replayed(_) => &mut self.stats.replayed,
            RendezvousError::Late(..) => &mut self.stats.late,
            RendezvousError::Unlisted(..) => &mut self.stats.unlisted,
            RendezvousError::Repeated(..) => &mut self.stats.repeated,
        };
        *count += 1;
        refused
    }

    fn release(&mut self, peer: IpAddr) {
        release(&mut self.waiting_from, peer);
    }
}

/// One connection fewer waits from this address.
fn release(waiting_from: &mut HashMap<IpAddr, usize>, peer: IpAddr) {
    if let Some(waiting) = waiting_from.get_mut(&peer) {
        *waiting -= 1;
        if *waiting == 0 {
            waiting_from.remove(&peer);
        }
    }
}

/// Closed sessions, until their deadline.
#[derive(Default)]
struct ClosedSessions {
    sessions: HashSet<SessionId>,
    by_age: VecDeque<(Instant, SessionId)>,
}

impl ClosedSessions {
    fn contains(&self, session: &SessionId) -> bool {
        self.sessions.contains(session)
    }

    fn remember(&mut self, session: SessionId, deadline: Instant) {
        if self.by_age.len() >= MAX_REMEMBERED {
            self.forget_oldest();
        }
        if self.sessions.insert(session) {
            self.by_age.push_back((deadline, session));
        }
    }

    /// Sessions close roughly in the order of their deadlines, so one that is forgotten a little late does no harm.
    fn forget(&mut self, now: Instant) {
        while self.by_age.front().is_some_and(|(deadline, _)| *deadline <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, session)) = self.by_age.pop_front() {
            self.sessions.remove(&session);
        }
    }
}

#[cfg(test)]
mod tests;
