//! The responder's table of half-open sessions, where HELLO and the WITNESSes of a session meet in any order.
//!
//! The caller that adds the last missing message of a session receives all of it. Until then the table keeps what has arrived: `M` is
//! a handle of the task that waits on a session's main connection (the sending half of a channel, say), `W` the
//! connection of a witness. Dropping a handle is how the table gives up a session; it closes connections in no other way.
//!
//! Memory is bounded by [`Limits`], whatever peers do. There are two pools, of sessions with HELLO and of those without, so
//! that WITNESSes of sessions that never come displace only others of that kind; and in each, a network that floods
//! displaces its own sessions. The table has no clock: callers pass the time.
//!
//! A message is added only once a connection has brought it, so that the peer has proved its address by TCP's handshake.
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

use std::collections::{BTreeMap, HashMap};
use std::mem::replace;
use std::net::IpAddr;
use std::time::Instant;

use super::closed_sessions::ClosedSessions;
use super::fair_pool::FairPool;
use super::limits::{Limits, peer_network};
use super::messages::Witness;
use super::paths::{PathId, PathIds};
use super::session_id::SessionId;

/// A connection was refused; the caller resets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
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
    /// Sessions displaced by newer ones, because of [`Limits`].
    pub displaced: u64,
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
    with_hello: FairPool,
    without_hello: FairPool,
    closed: ClosedSessions,
    stats: RendezvousStats,
}

struct HalfOpen<M, W> {
    deadline: Instant,
    /// Where HELLO came from, or else the first WITNESS.
    network: IpAddr,
    main: Option<Main<M>>,
    witnesses: BTreeMap<PathId, (Witness, W)>,
}

struct Main<M> {
    listed: PathIds,
    handle: M,
}

impl RendezvousStats {
    /// Sessions that were dropped incomplete.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.without_witness + self.without_hello + self.abandoned + self.displaced
    }

    /// Connections that were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.replayed + self.late + self.unlisted + self.repeated
    }
}

impl<M, W> HalfOpen<M, W> {
    fn is_complete(&self) -> bool {
        let has = |path: PathId| self.witnesses.contains_key(&path);
        self.main.as_ref().is_some_and(|main| main.listed.iter().all(has))
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
            with_hello: FairPool::new(limits),
            without_hello: FairPool::new(limits),
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
        let (network, timeout) = (peer_network(peer), self.limits.timeout);
        let half_open = self.half_open_session(now, network, session);
        half_open.deadline = now + timeout;
        let before = replace(&mut half_open.network, network);
        half_open.main = Some(Main { listed, handle: main });
        let arrived = half_open.witnesses.len();
        half_open.witnesses.retain(|path, _| listed.contains(*path));
        let unlisted = arrived - half_open.witnesses.len();
        self.stats.unlisted += unlisted as u64;
        self.without_hello.remove(before, &session);
        let complete = self.take_complete(session);
        if complete.is_none() {
            let displaced = self.with_hello.add(network, session);
            self.displace(displaced);
        }
        Ok(complete)
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
        let network = peer_network(peer);
        if !self.half_open.contains_key(&session) {
            let displaced = self.without_hello.add(network, session);
            self.displace(displaced);
        }
        let half_open = self.half_open_session(now, network, session);
        half_open.witnesses.insert(path, (witness, handle));
        Ok(self.take_complete(session))
    }

    /// The main connection, whose HELLO was added, no longer waits.
    pub fn abandon(&mut self, session: &SessionId) {
        if self.close(session).is_some() {
            self.stats.abandoned += 1;
        }
    }

    /// Drops sessions whose time is up.
    pub fn expire(&mut self, now: Instant) {
        self.closed.forget(now);
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        for (session, expired) in self.half_open.extract_if(|_, half_open| half_open.deadline <= now) {
            let (pool, count) = match expired.main {
                Some(_) => (&mut self.with_hello, &mut self.stats.without_witness),
                None => (&mut self.without_hello, &mut self.stats.without_hello),
            };
            pool.remove(expired.network, &session);
            *count += 1;
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
        self.with_hello.len() + self.without_hello.len()
    }

    fn half_open_session(
        &mut self,
        now: Instant,
        network: IpAddr,
        session: SessionId,
    ) -> &mut HalfOpen<M, W> {
        let deadline = now + self.limits.timeout;
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |earliest| earliest.min(deadline)));
        let new = || HalfOpen { deadline, network, main: None, witnesses: BTreeMap::new() };
        self.half_open.entry(session).or_insert_with(new)
    }

    /// Gives up a session that made room for another.
    fn displace(&mut self, session: Option<SessionId>) {
        if let Some(session) = session {
            self.close(&session);
            self.stats.displaced += 1;
        }
    }

    /// Removes the session if nothing is missing.
    fn take_complete(&mut self, session: SessionId) -> Option<CompleteSession<M, W>> {
        if !self.half_open.get(&session)?.is_complete() {
            return None;
        }
        let half_open = self.close(&session)?;
        self.stats.completed += 1;
        Some(CompleteSession {
            main: half_open.main?.handle,
            witnesses: half_open.witnesses.into_values().collect(),
        })
    }

    /// Removes the session for good: nothing is added to it again.
    fn close(&mut self, session: &SessionId) -> Option<HalfOpen<M, W>> {
        let half_open = self.half_open.remove(session)?;
        let pool = if half_open.main.is_some() { &mut self.with_hello } else { &mut self.without_hello };
        pool.remove(half_open.network, session);
        self.closed.remember(*session, half_open.deadline);
        Some(half_open)
    }

    /// Counts the refusal.
    fn refuse(&mut self, refused: RendezvousError) -> RendezvousError {
        let count = match refused {
            RendezvousError::Replayed(_) => &mut self.stats.replayed,
            RendezvousError::Late(..) => &mut self.stats.late,
            RendezvousError::Unlisted(..) => &mut self.stats.unlisted,
            RendezvousError::Repeated(..) => &mut self.stats.repeated,
        };
        *count += 1;
        refused
    }
}

#[cfg(test)]
mod tests;
