//! The responder's desk, where HELLO and the WITNESSes of a session find each other in any order.
//!
//! Whoever brings what completes a session gets all of it. Until then the desk keeps what came: `M` stands for who waits on
//! a session's main connection (the sending half of a channel, say), `W` for the connection of a witness. Dropping one is
//! how the desk tells that nothing will come of it; it does not end connections otherwise.
//!
//! Memory is bounded by [`Limits`], whatever peers do. The desk has no clock: callers say what time it is.
//!
//! ```text
//! main connection:     let (sender, gathered) = oneshot::channel();
//!                      let complete = desk.lock().hello(now, peer, responder.session(), responder.witnesses(), sender)?;
//!                      complete.map(|Gathered { main, witnesses }| main.send(witnesses));
//!                      match timeout_at(deadline, gathered).await { .. => responder.answer(..), or else
//!                          desk.lock().leave(&responder.session()) and reset }
//! witness' connection: let complete = desk.lock().witness(now, peer, witness, connection)?;
//!                      complete.map(|Gathered { main, witnesses }| main.send(witnesses));
//! now and then:        desk.lock().expire(now)
//! ```

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::messages::{SessionId, Witness};
use super::paths::{PathId, PathIds};

/// Sessions that are over are remembered, so that nothing can be added to them; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 1 << 16;

/// What a desk keeps at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sessions of which something is there and something is not. Each holds at most 16 connections.
    pub(crate) sessions: usize,
    /// Connections that wait from one address. Many clients may share one, behind a NAT.
    pub(crate) waiting_from_one_address: usize,
    /// How long a session may take, from what came first.
    pub(crate) patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { sessions: 1024, waiting_from_one_address: 1024, patience: Duration::from_secs(10) }
    }
}

/// A connection is not taken at the desk; it is to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{0} sessions are half open already")]
    Sessions(usize),
    #[error("{most} connections from {peer} wait for the rest of their sessions already")]
    Address { peer: IpAddr, most: usize },
    #[error("session {0:?} has its HELLO already: is it a replay?")]
    Replayed(SessionId),
    #[error("WITNESS of path {path} for session {session:?}, which is over: is it a replay?")]
    Late { session: SessionId, path: PathId },
    #[error("WITNESS of path {path}, which HELLO of session {session:?} does not list")]
    Unlisted { session: SessionId, path: PathId },
    #[error("expected one WITNESS of path {path} for session {session:?}, got another")]
    Repeated { session: SessionId, path: PathId },
}

/// What became of sessions and connections, since the desk was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Sessions that were completed.
    pub(crate) complete: u64,
    /// Sessions whose HELLO came and of whose witnesses one did not.
    pub(crate) without_witness: u64,
    /// Sessions of which witnesses came and HELLO did not.
    pub(crate) without_hello: u64,
    /// Sessions that their main connection left.
    pub(crate) left: u64,
    /// Connections refused because too many sessions were half open.
    pub(crate) sessions: u64,
    /// Connections refused because too many waited from their address.
    pub(crate) address: u64,
    /// HELLOs of sessions that had one.
    pub(crate) replayed: u64,
    /// WITNESSes of sessions that were over.
    pub(crate) late: u64,
    /// WITNESSes that HELLO did not list.
    pub(crate) unlisted: u64,
    /// WITNESSes of a path that had one.
    pub(crate) repeated: u64,
}

/// A session of which everything has come.
#[derive(Debug)]
pub(crate) struct Gathered<M, W> {
    /// Who waits on the main connection.
    pub(crate) main: M,
    /// One of every path that HELLO lists, ascending.
    pub(crate) witnesses: Vec<(Witness, W)>,
}

/// Keeps what has come of sessions until the rest comes.
pub(crate) struct Desk<M, W> {
    limits: Limits,
    half_open: HashMap<SessionId, HalfOpen<M, W>>,
    /// No session of `half_open` has an earlier deadline.
    next_deadline: Option<Instant>,
    waiting_from: HashMap<IpAddr, usize>,
    over: Over,
    counts: Counts,
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

impl Counts {
    /// Sessions that came to nothing.
    pub(crate) fn dropped(&self) -> u64 {
        self.without_witness + self.without_hello + self.left
    }

    /// Connections that were not taken.
    pub(crate) fn refused(&self) -> u64 {
        self.sessions + self.address + self.replayed + self.late + self.unlisted + self.repeated
    }
}

impl<M, W> HalfOpen<M, W> {
    fn is_complete(&self) -> bool {
        let has = |path: PathId| self.witnesses.contains_key(&path);
        self.main.as_ref().is_some_and(|main| main.listed.iter().all(has))
    }

    /// The addresses that connections wait from, each as often as one does.
    fn peers(&self) -> impl Iterator<Item = IpAddr> {
        let main = self.main.iter().map(|main| main.peer);
        main.chain(self.witnesses.values().map(|arrived| arrived.peer))
    }
}

impl<M, W> Desk<M, W> {
    pub(crate) fn new(limits: Limits) -> Desk<M, W> {
        Desk {
            limits,
            half_open: HashMap::new(),
            next_deadline: None,
            waiting_from: HashMap::new(),
            over: Over::default(),
            counts: Counts::default(),
        }
    }

    /// HELLO has come, by a connection from `peer`, and lists these witnesses.
    pub(crate) fn hello(
        &mut self,
        now: Instant,
        peer: IpAddr,
        session: SessionId,
        listed: PathIds,
        main: M,
    ) -> Result<Option<Gathered<M, W>>, Refused> {
        self.expire(now);
        let known = self.half_open.get(&session);
        if known.is_some_and(|known| known.main.is_some()) || self.over.contains(&session) {
            return Err(self.refuse(Refused::Replayed(session)));
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
            self.is_gone(peer);
            self.refuse(Refused::Unlisted { session, path });
        }
        Ok(self.gathered(session))
    }

    /// A WITNESS has come, by a connection from `peer`.
    pub(crate) fn witness(
        &mut self,
        now: Instant,
        peer: IpAddr,
        witness: Witness,
        handle: W,
    ) -> Result<Option<Gathered<M, W>>, Refused> {
        self.expire(now);
        let Witness { session, path, .. } = witness;
        if self.over.contains(&session) {
            return Err(self.refuse(Refused::Late { session, path }));
        }
        if let Some(known) = self.half_open.get(&session) {
            if known.main.as_ref().is_some_and(|main| !main.listed.contains(path)) {
                return Err(self.refuse(Refused::Unlisted { session, path }));
            }
            if known.witnesses.contains_key(&path) {
                return Err(self.refuse(Refused::Repeated { session, path }));
            }
        }
        let half_open = self.admit(now, peer, session)?;
        half_open.witnesses.insert(path, Arrived { peer, witness, handle });
        Ok(self.gathered(session))
    }

    /// The main connection no longer waits, for whatever reason. Only for a HELLO that was taken.
    pub(crate) fn leave(&mut self, session: &SessionId) {
        if let Some(half_open) = self.half_open.remove(session) {
            half_open.peers().for_each(|peer| self.is_gone(peer));
            self.over.remember(*session, half_open.deadline);
            self.counts.left += 1;
        }
    }

    /// Drops what has waited too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.over.forget(now);
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        for (_, expired) in self.half_open.extract_if(|_, half_open| half_open.deadline <= now) {
            for peer in expired.peers() {
                is_gone(&mut self.waiting_from, peer);
            }
            match expired.main {
                Some(_) => self.counts.without_witness += 1,
                None => self.counts.without_hello += 1,
            }
        }
        self.next_deadline = self.half_open.values().map(|half_open| half_open.deadline).min();
    }

    /// What became of sessions and connections.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Sessions of which something is there and something is not.
    pub(crate) fn waiting(&self) -> usize {
        self.half_open.len()
    }

    /// A place for one more connection of the session.
    fn admit(
        &mut self,
        now: Instant,
        peer: IpAddr,
        session: SessionId,
    ) -> Result<&mut HalfOpen<M, W>, Refused> {
        let Limits { sessions, waiting_from_one_address: most, patience } = self.limits;
        if self.half_open.len() >= sessions && !self.half_open.contains_key(&session) {
            return Err(self.refuse(Refused::Sessions(sessions)));
        }
        let waiting = self.waiting_from.get(&peer).copied().unwrap_or(0);
        if waiting >= most {
            return Err(self.refuse(Refused::Address { peer, most }));
        }
        self.waiting_from.insert(peer, waiting + 1);
        let deadline = now + patience;
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |earliest| earliest.min(deadline)));
        let half_open = self.half_open.entry(session);
        Ok(half_open.or_insert_with(|| HalfOpen { deadline, main: None, witnesses: BTreeMap::new() }))
    }

    /// Takes the session from the desk if nothing is missing.
    fn gathered(&mut self, session: SessionId) -> Option<Gathered<M, W>> {
        if !self.half_open.get(&session)?.is_complete() {
            return None;
        }
        let half_open = self.half_open.remove(&session)?;
        half_open.peers().for_each(|peer| self.is_gone(peer));
        self.over.remember(session, half_open.deadline);
        self.counts.complete += 1;
        let witnesses = half_open.witnesses.into_values().map(|arrived| (arrived.witness, arrived.handle));
        Some(Gathered { main: half_open.main?.handle, witnesses: witnesses.collect() })
    }

    /// Counts a refusal.
    fn refuse(&mut self, refused: Refused) -> Refused {
        let count = match refused {
            Refused::Sessions(_) => &mut self.counts.sessions,
            Refused::Address { .. } => &mut self.counts.address,
            Refused::Replayed(_) => &mut self.counts.replayed,
            Refused::Late { .. } => &mut self.counts.late,
            Refused::Unlisted { .. } => &mut self.counts.unlisted,
            Refused::Repeated { .. } => &mut self.counts.repeated,
        };
        *count += 1;
        refused
    }

    fn is_gone(&mut self, peer: IpAddr) {
        is_gone(&mut self.waiting_from, peer);
    }
}

/// One connection less waits from this address.
fn is_gone(waiting_from: &mut HashMap<IpAddr, usize>, peer: IpAddr) {
    if let Some(waiting) = waiting_from.get_mut(&peer) {
        *waiting -= 1;
        if *waiting == 0 {
            waiting_from.remove(&peer);
        }
    }
}

/// Sessions that are over, until their deadline.
#[derive(Default)]
struct Over {
    sessions: HashSet<SessionId>,
    by_age: VecDeque<(Instant, SessionId)>,
}

impl Over {
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

    /// Sessions end in about the order in which they began, so one that is forgotten a little late does no harm.
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
mod tests {
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::super::keys::Secret;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);
    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));

    fn session(number: u8) -> SessionId {
        SessionId::new([number; 32])
    }

    fn path(number: u8) -> PathId {
        PathId::new(number).expect("a path's number")
    }

    fn paths(numbers: &[u8]) -> PathIds {
        numbers.iter().map(|number| path(*number)).collect()
    }

    fn witness(of: u8, number: u8) -> Witness {
        Witness { session: session(of), path: path(number), share: Secret::copy_of(&[number; 32]) }
    }

    fn desk(sessions: usize, waiting_from_one_address: usize) -> (Desk<&'static str, u8>, Instant) {
        (Desk::new(Limits { sessions, waiting_from_one_address, patience: PATIENCE }), Instant::now())
    }

    /// Nothing is kept for anybody.
    fn is_empty<M, W>(desk: &Desk<M, W>) -> bool {
        desk.half_open.is_empty() && desk.waiting_from.is_empty()
    }

    fn described(gathered: Option<Gathered<&'static str, u8>>) -> Option<(&'static str, Vec<(u8, u8)>)> {
        gathered.map(|Gathered { main, witnesses }| {
            (main, witnesses.iter().map(|(witness, handle)| (witness.path.number(), *handle)).collect())
        })
    }

    #[test]
    fn a_session_is_gathered_in_any_order() {
        // 0 stands for HELLO.
        for order in [[0, 2, 5], [0, 5, 2], [2, 0, 5], [5, 0, 2], [2, 5, 0], [5, 2, 0]] {
            let (mut desk, now) = desk(1, 3);
            let mut came = None;
            for (index, what) in order.into_iter().enumerate() {
                assert!(came.is_none(), "not before everything has come");
                came = described(match what {
                    0 => desk.hello(now, HERE, session(1), paths(&[2, 5]), "main").expect("taken"),
                    number => desk.witness(now, HERE, witness(1, number), number * 10).expect("taken"),
                });
                assert_eq!(came.is_some(), index == 2);
            }
            assert_eq!(came, Some(("main", vec![(2, 20), (5, 50)])));
            assert!(is_empty(&desk));
            assert_eq!(desk.counts(), Counts { complete: 1, ..Counts::default() });
        }
    }

    #[test]
    fn a_session_without_witnesses_is_complete_at_once() {
        let (mut desk, now) = desk(1, 1);
        let gathered = desk.hello(now, HERE, session(1), paths(&[]), "main").expect("taken");
        assert_eq!(described(gathered), Some(("main", vec![])));
    }

    #[test]
    fn sessions_do_not_mix() {
        let (mut desk, now) = desk(2, 4);
        assert!(desk.hello(now, HERE, session(1), paths(&[1]), "one").expect("taken").is_none());
        assert!(desk.witness(now, HERE, witness(2, 1), 21).expect("taken").is_none());
        let gathered = desk.hello(now, HERE, session(2), paths(&[1]), "two").expect("taken");
        assert_eq!(described(gathered), Some(("two", vec![(1, 21)])));
        let gathered = desk.witness(now, HERE, witness(1, 1), 11).expect("taken");
        assert_eq!(described(gathered), Some(("one", vec![(1, 11)])));
    }

    #[test]
    fn replays_are_refused_while_the_session_lives_and_until_its_deadline() {
        let (mut desk, now) = desk(9, 9);
        desk.hello(now, HERE, session(1), paths(&[1]), "main").expect("taken");
        let replayed = Refused::Replayed(session(1));
        let late = Refused::Late { session: session(1), path: path(1) };
        assert_eq!(desk.hello(now, THERE, session(1), paths(&[]), "replay").expect_err("refused"), replayed);
        assert!(desk.witness(now, HERE, witness(1, 1), 1).expect("taken").is_some());
        assert_eq!(desk.hello(now, HERE, session(1), paths(&[1]), "replay").expect_err("refused"), replayed);
        assert_eq!(desk.witness(now, HERE, witness(1, 1), 1).expect_err("refused"), late);
        let past = now + PATIENCE;
        assert!(desk.witness(past, HERE, witness(1, 1), 1).is_ok(), "forgotten, and expires alone");
        assert_eq!(desk.counts(), Counts { complete: 1, replayed: 2, late: 1, ..Counts::default() });
    }

    #[test]
    fn a_witness_comes_once_and_listed() {
        let (mut desk, now) = desk(9, 9);
        desk.witness(now, HERE, witness(1, 3), 30).expect("taken");
        let repeated = Refused::Repeated { session: session(1), path: path(3) };
        assert_eq!(desk.witness(now, THERE, witness(1, 3), 31).expect_err("refused"), repeated);
        desk.witness(now, THERE, witness(1, 4), 40).expect("taken, for nobody knows better yet");
        assert!(desk.hello(now, HERE, session(1), paths(&[3, 5]), "main").expect("taken").is_none());
        let unlisted = Refused::Unlisted { session: session(1), path: path(4) };
        assert_eq!(desk.witness(now, HERE, witness(1, 4), 41).expect_err("refused"), unlisted);
        let gathered = desk.witness(now, HERE, witness(1, 5), 50).expect("taken");
        assert_eq!(described(gathered), Some(("main", vec![(3, 30), (5, 50)])), "the first one counts");
        assert!(is_empty(&desk));
        assert_eq!(desk.counts(), Counts { complete: 1, repeated: 1, unlisted: 2, ..Counts::default() });
        assert_eq!((desk.waiting(), desk.counts().dropped(), desk.counts().refused()), (0, 0, 3));
    }

    #[test]
    fn what_waits_too_long_is_dropped_and_counted() {
        let mut desk = Desk::new(Limits { patience: PATIENCE, ..Limits::default() });
        let now = Instant::now();
        let (main, connection) = (Rc::new(()), Rc::new(()));
        assert_eq!(desk.next_deadline, None);
        desk.hello(now, HERE, session(1), paths(&[1, 2]), Rc::clone(&main)).expect("taken");
        desk.witness(now + PATIENCE / 2, HERE, witness(1, 1), Rc::clone(&connection)).expect("taken");
        desk.witness(now + PATIENCE / 2, THERE, witness(2, 1), Rc::clone(&connection)).expect("taken");
        assert_eq!(desk.next_deadline, Some(now + PATIENCE));
        desk.expire(now + PATIENCE - Duration::from_nanos(1));
        assert_eq!((Rc::strong_count(&main), Rc::strong_count(&connection)), (2, 3));
        desk.expire(now + PATIENCE);
        assert_eq!((Rc::strong_count(&main), Rc::strong_count(&connection)), (1, 2));
        assert_eq!(desk.next_deadline, Some(now + PATIENCE * 3 / 2));
        desk.expire(now + PATIENCE * 3 / 2);
        assert_eq!(Rc::strong_count(&connection), 1);
        assert!(is_empty(&desk));
        assert_eq!(desk.next_deadline, None);
        assert_eq!(desk.counts(), Counts { without_witness: 1, without_hello: 1, ..Counts::default() });
        assert_eq!((desk.waiting(), desk.counts().dropped(), desk.counts().refused()), (0, 2, 0));
    }

    #[test]
    fn a_session_that_its_main_connection_left_takes_nothing_with_it() {
        let (mut desk, now) = desk(9, 9);
        desk.witness(now, THERE, witness(1, 1), 1).expect("taken");
        desk.hello(now, HERE, session(1), paths(&[1, 2]), "main").expect("taken");
        desk.leave(&session(1));
        desk.leave(&session(1));
        assert!(is_empty(&desk));
        let late = Refused::Late { session: session(1), path: path(2) };
        assert_eq!(desk.witness(now, HERE, witness(1, 2), 2).expect_err("refused"), late);
        assert_eq!(desk.counts(), Counts { left: 1, late: 1, ..Counts::default() });
    }

    #[test]
    fn half_open_sessions_are_bounded_and_known_ones_go_on() {
        let (mut desk, now) = desk(2, 99);
        desk.witness(now, HERE, witness(1, 1), 1).expect("taken");
        desk.witness(now, HERE, witness(2, 1), 1).expect("taken");
        let full = Refused::Sessions(2);
        assert_eq!(desk.witness(now, HERE, witness(3, 1), 1).expect_err("refused"), full);
        assert_eq!(desk.hello(now, HERE, session(3), paths(&[1]), "main").expect_err("refused"), full);
        assert!(desk.hello(now, HERE, session(1), paths(&[1]), "main").expect("taken").is_some());
        assert!(desk.hello(now, HERE, session(3), paths(&[1]), "main").is_ok());
        assert_eq!(desk.counts().sessions, 2);
    }

    #[test]
    fn connections_of_one_address_are_bounded() {
        let (mut desk, now) = desk(99, 2);
        desk.witness(now, HERE, witness(1, 1), 1).expect("taken");
        desk.witness(now, HERE, witness(1, 2), 1).expect("taken");
        let crowd = Refused::Address { peer: HERE, most: 2 };
        assert_eq!(desk.witness(now, HERE, witness(1, 3), 1).expect_err("refused"), crowd);
        assert!(!desk.half_open[&session(1)].witnesses.contains_key(&path(3)));
        desk.hello(now, THERE, session(1), paths(&[1, 2]), "main").expect("taken");
        assert!(desk.witness(now, HERE, witness(2, 1), 1).is_ok(), "there is room again");
        assert_eq!(desk.counts().address, 1);
    }

    #[test]
    fn a_clock_that_stands_or_jumps_does_no_harm() {
        let (mut desk, now) = desk(99, 99);
        let later = now + PATIENCE * 1000;
        desk.witness(later, HERE, witness(1, 1), 1).expect("taken");
        desk.expire(now);
        assert!(desk.hello(now, HERE, session(1), paths(&[1]), "main").expect("taken").is_some());
        desk.expire(now);
        desk.expire(later + PATIENCE);
        assert!(is_empty(&desk) && desk.over.by_age.is_empty() && desk.over.sessions.is_empty());
    }

    #[test]
    fn sessions_that_are_over_are_remembered_within_bounds() {
        let (mut over, now) = (Over::default(), Instant::now());
        for number in 0..MAX_REMEMBERED as u64 + 10 {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            over.remember(SessionId::new(id), now + PATIENCE);
            assert!(over.contains(&SessionId::new(id)));
        }
        assert_eq!((over.sessions.len(), over.by_age.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }

    proptest! {
        /// Against a second account of what must hold whatever comes.
        #[test]
        fn whatever_comes_the_desk_keeps_its_bounds(
            steps in proptest::collection::vec((0u8..6, 0u8..5, 0u8..4, any::<bool>(), 0u64..4), 0..200),
        ) {
            let (most_sessions, most_waiting) = (3, 4);
            let (mut desk, mut now) = desk(most_sessions, most_waiting);
            for (what, number, id, here, seconds) in steps {
                now += Duration::from_secs(seconds);
                let peer = if here { HERE } else { THERE };
                let gathered = match what {
                    0 | 1 => desk.hello(now, peer, session(number), paths(&[1, 2]), "main"),
                    2 => { desk.leave(&session(number)); Ok(None) }
                    _ => desk.witness(now, peer, witness(number, id + 1), id),
                };
                if let Ok(Some(gathered)) = gathered {
                    let came: Vec<u8> =
                        gathered.witnesses.iter().map(|(witness, _)| witness.path.number()).collect();
                    prop_assert_eq!(came, [1, 2]);
                    prop_assert!(gathered.witnesses.iter().all(|(witness, _)| witness.session == session(number)));
                }
                prop_assert!(desk.half_open.len() <= most_sessions);
                let mut waiting: HashMap<IpAddr, usize> = HashMap::new();
                for peer in desk.half_open.values().flat_map(HalfOpen::peers) {
                    *waiting.entry(peer).or_default() += 1;
                }
                prop_assert!(waiting.values().all(|waiting| *waiting <= most_waiting));
                prop_assert_eq!(&waiting, &desk.waiting_from);
                let deadlines = desk.half_open.values().map(|half_open| half_open.deadline);
                prop_assert!(deadlines.min() >= desk.next_deadline || desk.half_open.is_empty());
            }
            desk.expire(now + PATIENCE);
            prop_assert!(is_empty(&desk));
        }
    }
}
