//! The initiator's witness connections (mode `sealed`): a short connection on each path other than the main connection's.
//!
//! They go to the destination that was asked for, or to another address given for the same peer; never to one that the peer
//! announced. An attacker in the middle of the main connection could announce his own, and so be on every path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use plait_linux::interfaces::Interface;
use plait_proto::sealed::MAX_WITNESSES;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::dial::{Attempt, Dialer, alternate_families};
use super::witness_memory::{Advice, WitnessMemory};
use crate::handshake::{Negotiation, Witnesses};
use crate::paths::{Subflows, source_address};
use crate::protection::Agreement;
use crate::socket::configure;

/// How long a path may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The witness connections of one session, while they are being opened.
pub(super) struct OpeningWitnesses {
    negotiation: Arc<Negotiation>,
    memory: Arc<WitnessMemory>,
    deadline: Instant,
    attempts: JoinSet<(Target, io::Result<TcpStream>)>,
    /// The unfinished attempts.
    pending: Vec<Target>,
    /// The failed attempts, and why.
    failed: Vec<(Target, String)>,
}

/// An interface, and the address to connect to through it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    interface: String,
    remote: SocketAddr,
}

impl OpeningWitnesses {
    /// Starts to connect through each interface with a route to one of the peer's addresses, except `main`, that of the
    /// main connection. A session has at most [`MAX_WITNESSES`]: the interfaces with the lowest index are used. Unless
    /// witnesses are `required`, those of paths that failed lately are left out.
    pub(super) fn start(
        negotiation: &Arc<Negotiation>,
        dialer: &Arc<Dialer>,
        memory: &Arc<WitnessMemory>,
        subflows: &Subflows,
        (main, addresses): (&str, &[SocketAddr]),
        required: bool,
    ) -> OpeningWitnesses {
        let (mut attempts, mut pending) = (JoinSet::new(), Vec::new());
        let mut failed: Vec<(Target, String)> = Vec::new();
        // What a failure without a route is reported for.
        let first = addresses.first().copied();
        let unreachable = |interface: String| first.map(|remote| Target { interface, remote });
        for interface in subflows.usable().into_iter().filter(|interface| interface.name != main) {
            if pending.len() == usize::from(MAX_WITNESSES) {
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
            let race = reachable.map(|address| Attempt::new(address, Some(&interface.name))).collect();
            let (dialer, target) = (Arc::clone(dialer), Target { interface: interface.name, remote });
            let advice = memory.advice(&target.interface, target.peer(), Instant::now().into_std());
            if required || advice == Advice::Wait {
                pending.push(target.clone());
                attempts.spawn(async move {
                    let connected = dialer.race(race).await;
                    (target, connected.map(|(stream, _)| stream))
                });
                continue;
            }
            if advice == Advice::Probe {
                let (memory, target) = (Arc::clone(memory), target.clone());
                tokio::spawn(async move {
                    if tokio::time::timeout(CONNECT_TIMEOUT, dialer.race(race))
                        .await
                        .is_ok_and(|done| done.is_ok())
                    {
                        memory.succeeded(&target.interface, target.peer());
                    }
                });
            }
            failed.push((target, "it failed for the connections before".into()));
        }
        for name in subflows.unavailable().into_iter().filter(|name| name != main) {
            failed.extend(
                unreachable(name).map(|target| (target, "the interface does not exist or is down".into())),
            );
        }
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let (negotiation, memory) = (Arc::clone(negotiation), Arc::clone(memory));
        OpeningWitnesses { negotiation, memory, deadline, attempts, pending, failed }
    }

    /// Waits until every path has its witness or failed. `main` is the interface through which the main connection left
    /// after all, and `chosen` the variant its ends agreed on.
    pub(super) async fn finish(
        mut self,
        configured: usize,
        main: Option<&str>,
        chosen: u8,
    ) -> OpenedWitnesses {
        let (mut streams, mut paths) = (Vec::new(), Vec::new());
        while let Ok(Some(Ok((target, connected)))) =
            tokio::time::timeout_at(self.deadline, self.attempts.join_next()).await
        {
            self.pending.retain(|pending| *pending != target);
            if Some(target.interface.as_str()) == main {
                continue;
            }
            let stream = match connected {
                Ok(stream) => self.check(&stream, chosen).await.map(|()| stream),
                Err(error) => Err(error.to_string()),
            };
            match stream {
                Ok(stream) => {
                    self.negotiation.warn_once.witness(&target.interface, target.peer());
                    paths.push((target.interface, target.remote.ip()));
                    streams.push(stream);
                }
                Err(reason) => self.failed.push((target, reason)),
            }
        }
        let slow = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
        for target in self.pending.drain(..) {
            self.memory.failed(&target.interface, target.peer(), Instant::now().into_std());
            self.failed.push((target, slow.clone()));
        }
        for (target, reason) in
            self.failed.iter().filter(|(target, _)| Some(target.interface.as_str()) != main)
        {
            self.negotiation.warn_once.no_witness(&target.interface, target.peer(), reason);
        }
        OpenedWitnesses {
            witnesses: Witnesses { configured: configured.max(streams.len() + 1), streams },
            memory: self.memory,
            paths,
        }
    }

    /// A witness must have negotiated what the main connection did.
    async fn check(&self, stream: &TcpStream, chosen: u8) -> Result<(), String> {
        configure(stream).map_err(|error| error.to_string())?;
        match self.negotiation.agreement(self.negotiation.policy(), stream).await {
            Ok(Agreement::Protected(negotiated)) if negotiated.chosen == chosen => Ok(()),
            Ok(_) => Err("it negotiated something else than the main connection".into()),
            Err(refusal) => Err(refusal.to_string()),
        }
    }
}

/// The witness connections of one session, and the paths that they are on.
pub(super) struct OpenedWitnesses {
    pub(super) witnesses: Witnesses,
    memory: Arc<WitnessMemory>,
    paths: Vec<(String, IpAddr)>,
}

impl OpenedWitnesses {
    /// None: of a session over its main connection alone.
    pub(super) fn none(configured: usize, memory: &Arc<WitnessMemory>) -> OpenedWitnesses {
        let witnesses = Witnesses { configured, streams: Vec::new() };
        OpenedWitnesses { witnesses, memory: Arc::clone(memory), paths: Vec::new() }
    }

    /// What takes note of the session's end, and its witnesses.
    pub(super) fn split(self) -> (Witnesses, WitnessOutcome) {
        (self.witnesses, WitnessOutcome { memory: self.memory, paths: self.paths })
    }
}

/// Takes note of whether paths carried a session's messages.
pub(super) struct WitnessOutcome {
    memory: Arc<WitnessMemory>,
    paths: Vec<(String, IpAddr)>,
}

impl WitnessOutcome {
    /// Whether there was any witness.
    pub(super) fn has_witnesses(&self) -> bool {
        !self.paths.is_empty()
    }

    pub(super) fn succeeded(&self) {
        self.paths.iter().for_each(|(interface, peer)| self.memory.succeeded(interface, *peer));
    }

    /// Messages did not arrive in time: it cannot be told which path lost them.
    pub(super) fn timed_out(&self, negotiation: &Negotiation) {
        let now = Instant::now().into_std();
        for (interface, peer) in &self.paths {
            self.memory.lost(interface, *peer, now);
            negotiation.warn_once.no_witness(interface, peer.to_canonical(), "its messages did not arrive");
        }
    }
}

impl Target {
    fn peer(&self) -> IpAddr {
        self.remote.ip().to_canonical()
    }
}

fn has_route(interface: &Interface, address: SocketAddr) -> bool {
    source_address(interface, address.ip().to_canonical()).is_some()
}
