//! The initiator's witness connections (mode `sealed`): a short connection on each path other than the main connection's.
//!
//! They go to the destination that was asked for, or to another address given for the same peer; never to one that the peer
//! announced. An attacker in the middle of the main connection could announce his own, and so be on every path.
//!
//! The handshake waits a short time for those of paths that have been about as fast as the main connection's. The others are
//! late: they are added to the running session ([`super::late_witnesses`]).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use plait_linux::interfaces::Interface;
use plait_proto::sealed::MAX_WITNESSES;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::dial::{Attempt, Dialer};
use super::late_witnesses::{LateWitnesses, LatenessRecorder};
use super::witness_memory::{Advice, WitnessMemory};
use crate::handshake::{Negotiation, Witnesses};
use crate::keepalive;
use crate::paths::{PathName, Subflows};
use crate::protection::Agreement;
use crate::race::alternate_families;
use crate::socket::{close_on_drop, configure};

/// How long a path may take to connect.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How much longer than one and a half times that of the main connection a witness may take to connect that is about as fast:
/// hosts wake programs late by so much.
const JITTER: Duration = Duration::from_millis(20);

/// How much longer than twice the time of the main connection a handshake waits for a witness: programs hardly notice it, and
/// only the first connections of a path that is slower.
const TOLERANCE: Duration = Duration::from_millis(100);

/// An interface, and the address to connect to through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) interface: String,
    pub(super) remote: SocketAddr,
}

impl Target {
    pub(super) fn peer(&self) -> IpAddr {
        self.remote.ip().to_canonical()
    }
}

/// Connections that are being opened; those that are no longer wanted close without a message.
pub(super) type Attempts = JoinSet<(Target, io::Result<TcpStream>)>;

/// The witness connections of one session, while they are being opened.
pub(super) struct OpeningWitnesses {
    pub(super) negotiation: Arc<Negotiation>,
    pub(super) memory: Arc<WitnessMemory>,
    begun: Instant,
    attempts: Attempts,
    /// The unfinished attempts that the handshake waits for.
    awaited: Vec<Target>,
    /// The attempts that it does not wait for.
    late: Vec<Target>,
    /// The failed attempts, and why.
    failed: Vec<(Target, String)>,
}

impl OpeningWitnesses {
    /// Starts to connect through each interface with a route to one of the peer's addresses, except `main`, that of the
    /// main connection. A session has at most [`MAX_WITNESSES`]: the interfaces with the lowest index are used. If witnesses are
    /// `required`, the handshake waits for all; else not for those of paths that were slow lately.
    pub(super) fn start(
        negotiation: &Arc<Negotiation>,
        dialer: &Arc<Dialer>,
        memory: &Arc<WitnessMemory>,
        subflows: &Subflows,
        (main, addresses): (&str, &[SocketAddr]),
        required: bool,
    ) -> OpeningWitnesses {
        let begun = Instant::now();
        let mut attempts = JoinSet::new();
        let (mut awaited, mut late) = (Vec::new(), Vec::new());
        let mut failed: Vec<(Target, String)> = Vec::new();
        // What a failure without a route is reported for.
        let first = addresses.first().copied();
        let unreachable = |interface: String| first.map(|remote| Target { interface, remote });
        let has_route = |interface: &Interface, address: SocketAddr| {
            subflows.has_route(interface, address.ip().to_canonical())
        };
        for interface in subflows.paths_to(addresses).into_iter().filter(|interface| interface.name != main) {
            if attempts.len() == usize::from(MAX_WITNESSES) {
                break;
            }
            let reachable = addresses.iter().find(|address| has_route(&interface, **address));
            let Some(remote) = reachable.copied() else {
                failed.extend(
                    unreachable(interface.name).map(|target| (target, "no route to the peer".into())),
                );
                continue;
            };
            let reachable = alternate_families(addresses).filter(|address| has_route(&interface, *address));
            let path = PathName::Interface(interface.name.clone());
            let race = reachable.map(|address| Attempt { address, path: Some(path.clone()) }).collect();
            let (dialer, target) = (Arc::clone(dialer), Target { interface: interface.name, remote });
            match memory.advice(&target.interface, target.peer(), begun.into_std()) {
                Advice::Skip if !required => {
                    failed.push((target, "it failed for the connections before".into()));
                    continue;
                }
                Advice::Late if !required => late.push(target.clone()),
                Advice::Wait | Advice::Late | Advice::Skip => awaited.push(target.clone()),
            }
            attempts.spawn(async move {
                let connected = dialer.race(race).await.map(|(stream, _)| stream);
                // One that is no longer wanted ends without a message, which the responder does not mind.
                (target, connected.and_then(|stream| close_on_drop(&stream).map(|()| stream)))
            });
        }
        for name in subflows.unavailable().into_iter().filter(|name| name != main) {
            failed.extend(
                unreachable(name).map(|target| (target, "the interface does not exist or is down".into())),
            );
        }
        let (negotiation, memory) = (Arc::clone(negotiation), Arc::clone(memory));
        OpeningWitnesses { negotiation, memory, begun, attempts, awaited, late, failed }
    }

    /// Waits for the awaited ones, or if it `waits_for_all`, for all. `main` is the interface through which the main connection
    /// left after all, which took `connect_time` until now, and `chosen` the variant its ends agreed on.
    pub(super) async fn finish(
        mut self,
        configured: usize,
        main: (Option<&str>, Duration),
        chosen: u8,
        waits_for_all: bool,
    ) -> (OpenedWitnesses, LateWitnesses) {
        let (main, connect_time) = main;
        let max_rtt = connect_time * 3 / 2 + JITTER;
        let mut deadline = self.begun + CONNECT_TIMEOUT;
        if waits_for_all {
            self.awaited.append(&mut self.late);
        } else {
            deadline = deadline.min(Instant::now() + connect_time + TOLERANCE);
        }
        let (mut streams, mut paths, mut opened_late) = (Vec::new(), Vec::new(), Vec::new());
        while !self.awaited.is_empty() {
            let Ok(Some(Ok((target, connected)))) =
                tokio::time::timeout_at(deadline, self.attempts.join_next()).await
            else {
                break;
            };
            let was_awaited = self.awaited.contains(&target);
            self.awaited.retain(|awaited| *awaited != target);
            self.late.retain(|late| *late != target);
            if Some(target.interface.as_str()) == main {
                continue;
            }
            match check(&self.negotiation, connected, chosen).await {
                Ok(stream) if was_awaited => {
                    self.negotiation.warn_once.witness(&target.interface, target.peer());
                    paths.push((target, self.begun.elapsed() <= max_rtt));
                    streams.push(stream);
                }
                Ok(stream) => opened_late.push((target, stream)),
                Err(reason) => self.failed.push((target, reason)),
            }
        }
        for target in self.awaited.drain(..) {
            self.memory.slow(&target.interface, target.peer(), Instant::now().into_std());
            self.late.push(target);
        }
        for (target, reason) in
            self.failed.iter().filter(|(target, _)| Some(target.interface.as_str()) != main)
        {
            self.negotiation.warn_once.no_witness(&target.interface, target.peer(), reason);
        }
        self.late.retain(|target| Some(target.interface.as_str()) != main);
        let memory = Arc::clone(&self.memory);
        let late = LateWitnesses {
            recorder: LatenessRecorder { negotiation: self.negotiation, memory, max_rtt },
            attempts: self.attempts,
            pending: self.late,
            opened: opened_late,
            first_path: streams.len() + 1,
            chosen,
        };
        let witnesses = Witnesses { configured: configured.max(streams.len() + 1), streams };
        (OpenedWitnesses { witnesses, memory: self.memory, paths }, late)
    }
}

/// A witness must have negotiated what the main connection did.
pub(super) async fn check(
    negotiation: &Negotiation,
    connected: io::Result<TcpStream>,
    chosen: u8,
) -> Result<TcpStream, String> {
    let stream = connected.map_err(|error| error.to_string())?;
    configure(&stream, keepalive::IDLE).map_err(|error| error.to_string())?;
    match negotiation.agreement(negotiation.policy(), &stream).await {
        Ok(Agreement::Protected(negotiated)) if negotiated.chosen == chosen => Ok(stream),
        Ok(_) => Err("it negotiated something else than the main connection".into()),
        Err(refusal) => Err(refusal.to_string()),
    }
}

/// The witness connections of a handshake, and the paths that they are on.
pub(super) struct OpenedWitnesses {
    pub(super) witnesses: Witnesses,
    memory: Arc<WitnessMemory>,
    /// And whether they were as fast as the main connection.
    paths: Vec<(Target, bool)>,
}

impl OpenedWitnesses {
    /// None: of a session over its main connection alone.
    pub(super) fn none(configured: usize, memory: &Arc<WitnessMemory>) -> OpenedWitnesses {
        let witnesses = Witnesses { configured, streams: Vec::new() };
        OpenedWitnesses { witnesses, memory: Arc::clone(memory), paths: Vec::new() }
    }

    /// What takes note of the handshake's end, and its witnesses.
    pub(super) fn split(self) -> (Witnesses, WitnessOutcome) {
        (self.witnesses, WitnessOutcome { memory: self.memory, paths: self.paths })
    }
}

/// Takes note of whether paths carried a handshake's messages.
pub(super) struct WitnessOutcome {
    memory: Arc<WitnessMemory>,
    paths: Vec<(Target, bool)>,
}

impl WitnessOutcome {
    /// Whether there was any witness.
    pub(super) fn has_witnesses(&self) -> bool {
        !self.paths.is_empty()
    }

    /// All messages arrived.
    pub(super) fn succeeded(&self) {
        let now = Instant::now().into_std();
        for (target, prompt) in &self.paths {
            if *prompt {
                self.memory.prompt(&target.interface, target.peer());
            } else {
                self.memory.delayed(&target.interface, target.peer(), now);
            }
        }
    }

    /// Messages were lost: it cannot be told on which path.
    pub(super) fn lost(&self) {
        let now = Instant::now().into_std();
        for (target, _) in &self.paths {
            self.memory.lost(&target.interface, target.peer(), now);
        }
    }

    /// Messages did not arrive at all.
    pub(super) fn timed_out(&self, negotiation: &Negotiation) {
        self.lost();
        for (target, _) in &self.paths {
            let reason = "its messages did not arrive";
            negotiation.warn_once.no_witness(&target.interface, target.peer(), reason);
        }
    }
}
