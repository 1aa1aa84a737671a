//! A client's session: its paths, as it shows them, and its datagrams.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use plait_proto::datagrams::{MAX_PATHS, Message, Opener, PathChoice, PathId, Preference, Sealer};
use plait_proto::exit::{ConnectFailure, Destination};
use tracing::trace;

use super::associations::Associations;
use crate::datagrams::{
    Copies, CountedLosses, DatagramCounters, DatagramSocket, InOrder, PathCounters, Received, Spread,
};
use crate::inbound::exit::{ClientId, Exit};

/// How much earlier than the last probe of a client the last one on a path may be that still works: while datagrams flow, a client that
/// spreads them probes each path every 50 ms.
const MAX_PROBE_LAG: Duration = Duration::from_millis(250);

/// A session.
pub(super) struct Session {
    socket: Arc<DatagramSocket>,
    sealer: Sealer,
    opener: Opener,
    state: Mutex<State>,
    associations: Associations,
    counters: Counters,
    /// Of all paths of all clients.
    path_counters: Arc<PathCounters>,
    losses: CountedLosses,
    /// For datagrams that the client spreads over paths.
    in_order: Arc<InOrder<Outgoing>>,
}

/// A datagram of the client.
type Outgoing = (u32, Destination, Vec<u8>);

#[derive(Default)]
struct State {
    paths: [ClientPath; MAX_PATHS],
    preference: Option<Preference>,
    copies: Copies,
    spread: Spread,
    next_copy: u64,
    next_probe: u64,
    message: Vec<u8>,
    packet: Vec<u8>,
}

/// Where a client is on one of its paths.
#[derive(Clone, Copy, Debug, Default)]
struct ClientPath {
    /// Where it receives.
    proven: Option<Ends>,
    /// The share of datagrams that the client wants on it, and when it last said so.
    share: Option<(u8, Instant)>,
    /// Where it may have moved to, and the number of the probe that it has to answer from there.
    claimed: Option<(Ends, u64)>,
}

/// The addresses of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    client: SocketAddr,
    /// That of this host, which answers are sent from.
    own: Option<IpAddr>,
}

#[derive(Debug, Default)]
struct Counters {
    received: AtomicU64,
    sent: AtomicU64,
    rejected: AtomicU64,
    dropped: AtomicU64,
}

/// Packets of a session.
#[derive(Debug)]
pub(super) struct SessionCounts {
    received: u64,
    sent: u64,
    rejected: u64,
    dropped: u64,
}

impl fmt::Display for SessionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionCounts { received, sent, rejected, dropped } = self;
        write!(f, "{received} packets received, {sent} sent, {rejected} rejected, {dropped} not sent")
    }
}

impl Session {
    pub(super) fn start(
        exit: Arc<Exit>,
        client: ClientId,
        socket: Arc<DatagramSocket>,
        (sealer, opener): (Sealer, Opener),
        counters: &Arc<DatagramCounters>,
    ) -> Arc<Session> {
        Arc::new_cyclic(|session: &Weak<Session>| Session {
            socket,
            sealer,
            opener,
            state: Mutex::default(),
            associations: Associations::new(exit, client, Weak::clone(session), Arc::clone(counters)),
            counters: Counters::default(),
            path_counters: counters.path("clients"),
            losses: CountedLosses::default(),
            in_order: in_order(Weak::clone(session)),
        })
    }

    /// Ends its associations.
    pub(super) fn stop(&self) {
        self.associations.stop();
    }

    pub(super) fn counts(&self) -> SessionCounts {
        let Counters { received, sent, rejected, dropped } = &self.counters;
        let [received, sent, rejected, dropped] =
            [received, sent, rejected, dropped].map(|counter| counter.load(Ordering::Relaxed));
        SessionCounts { received, sent, rejected, dropped }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a packet that claims to belong to it.
    pub(super) fn received(&self, received: Received<'_>) {
        let Received { from, to, packet } = received;
        let ends = Ends { client: from, own: to };
        let message = match self.opener.open(packet) {
            Ok((path, bytes)) => {
                self.losses.count(&self.opener, path, &self.path_counters);
                Message::decode(bytes).ok().map(|message| (path, message))
            }
            Err(error) => {
                trace!("{from}: {error}");
                None
            }
        };
        let Some((path, message)) = message else {
            self.counters.rejected.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.counters.received.fetch_add(1, Ordering::Relaxed);
        match message {
            Message::Probe { number, preference } => self.probed(path, ends, number, preference),
            Message::ProbeReply { number } => self.state().paths[index(path)].answered(ends, number),
            Message::Data { association, copy, destination, payload } => {
                self.path_counters.received(payload.len());
                let Some(number) = copy else {
                    return self.associations.send(association, destination, payload);
                };
                let mut state = self.state();
                let is_spread = state.is_spread();
                if !state.copies.is_first(number) {
                    return;
                }
                drop(state);
                if is_spread {
                    self.in_order.arrived(number, (association, destination, payload.to_vec()));
                } else {
                    self.associations.send(association, destination, payload);
                }
            }
            Message::Close { association } => self.associations.close(association),
            // Only an exit refuses.
            Message::Refused { .. } => {}
        }
    }

    /// Answers a probe, and before, has the client prove that it receives where it came from: with the answer it begins to send, and
    /// what comes back must find a path.
    fn probed(&self, path: PathId, ends: Ends, number: u64, preference: Preference) {
        let mut state = self.state();
        let state = &mut *state;
        if state.preference.is_none_or(|latest| preference.number > latest.number) {
            state.preference = Some(preference);
        }
        if let PathChoice::Spread { share } = preference.paths {
            state.paths[index(path)].share = Some((share, Instant::now()));
        }
        if let Some(number) = state.paths[index(path)].challenge(ends, &mut state.next_probe) {
            let probe = Message::Probe { number, preference };
            self.send_by(path, ends, &probe, &mut state.message, &mut state.packet);
        }
        self.send_by(path, ends, &Message::ProbeReply { number }, &mut state.message, &mut state.packet);
    }

    /// Sends the client a datagram of a destination.
    pub(super) fn deliver(&self, association: u32, destination: Destination, payload: &[u8]) {
        let mut state = self.state();
        let paths = state.preference.map(|preference| preference.paths);
        let is_numbered = matches!(paths, Some(PathChoice::All | PathChoice::Spread { .. }));
        let copy = is_numbered.then(|| {
            state.next_copy += 1;
            state.next_copy - 1
        });
        self.send(&mut state, &Message::Data { association, copy, destination, payload });
    }

    /// Tells the client that its datagrams are not sent.
    pub(super) fn refuse(&self, association: u32, reason: ConnectFailure, destination: Destination) {
        self.send(&mut self.state(), &Message::Refused { association, reason, destination });
    }

    /// Sends a message by the path that the client prefers, or if it receives nothing there, by another.
    fn send(&self, state: &mut State, message: &Message<'_>) {
        let State { paths, preference, spread, message: bytes, packet, .. } = state;
        let proven = |path: PathId| Some((path, paths[index(path)].proven?));
        let all = || PathId::all().filter_map(proven);
        let chosen: Vec<(PathId, Ends)> = match preference.map(|preference| preference.paths) {
            Some(PathChoice::All) => all().collect(),
            Some(PathChoice::One(path)) => proven(path).or_else(|| all().next()).into_iter().collect(),
            Some(PathChoice::Spread { .. }) => {
                let next = spread.next(&shares(paths)).and_then(proven);
                next.or_else(|| all().next()).into_iter().collect()
            }
            None => all().take(1).collect(),
        };
        if chosen.is_empty() {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
        for (path, ends) in chosen {
            self.send_by(path, ends, message, bytes, packet);
        }
    }

    fn send_by(
        &self,
        path: PathId,
        ends: Ends,
        message: &Message<'_>,
        bytes: &mut Vec<u8>,
        packet: &mut Vec<u8>,
    ) {
        message.encode(bytes);
        self.sealer.seal(path, bytes, packet);
        let counter = match self.socket.send(ends.client, ends.own, packet) {
            Ok(()) => {
                if let Message::Data { payload, .. } = message {
                    self.path_counters.sent(payload.len());
                }
                &self.counters.sent
            }
            Err(error) => {
                trace!("{}: {error}", ends.client);
                &self.counters.dropped
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl State {
    fn is_spread(&self) -> bool {
        let paths = self.preference.map(|preference| preference.paths);
        matches!(paths, Some(PathChoice::Spread { .. }))
    }
}

/// The shares of the paths by which the client receives, but for those that its probes come by no longer.
fn shares(paths: &[ClientPath; MAX_PATHS]) -> Vec<(PathId, u8)> {
    let last = paths.iter().filter_map(|path| path.share).map(|(_, at)| at).max();
    let share = |path: PathId| {
        let ClientPath { proven, share, .. } = paths[index(path)];
        let (share, at) = proven.and(share)?;
        let is_late = last.is_some_and(|last| last.duration_since(at) > MAX_PROBE_LAG);
        (!is_late).then_some((path, share))
    };
    PathId::all().filter_map(share).collect()
}

fn in_order(session: Weak<Session>) -> Arc<InOrder<Outgoing>> {
    InOrder::new(move |(association, destination, payload): Outgoing| {
        if let Some(session) = session.upgrade() {
            session.associations.send(association, destination, &payload);
        }
    })
}

impl ClientPath {
    /// The number of a probe that the client has to answer from these addresses, unless it is known to receive there.
    fn challenge(&mut self, ends: Ends, next_probe: &mut u64) -> Option<u64> {
        if self.proven == Some(ends) {
            self.claimed = None;
            return None;
        }
        let number = match self.claimed {
            Some((claimed, number)) if claimed == ends => number,
            _ => {
                *next_probe += 1;
                *next_probe
            }
        };
        self.claimed = Some((ends, number));
        Some(number)
    }

    /// Takes the answer of a probe.
    fn answered(&mut self, ends: Ends, number: u64) {
        if self.claimed == Some((ends, number)) {
            (self.proven, self.claimed) = (Some(ends), None);
        }
    }
}

fn index(path: PathId) -> usize {
    path.number().into()
}
