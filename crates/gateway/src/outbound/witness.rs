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
use crate::handshake::{Negotiation, Witnesses};
use crate::paths::{Subflows, source_address};
use crate::protection::Agreement;
use crate::socket::configure;

/// How long a path may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The witness connections of one session, while they are being opened.
pub(crate) struct OpeningWitnesses {
    negotiation: Arc<Negotiation>,
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
    /// main connection. A session has at most [`MAX_WITNESSES`]: the interfaces with the lowest index are used.
    pub(crate) fn start(
        negotiation: &Arc<Negotiation>,
        dialer: &Arc<Dialer>,
        subflows: &Subflows,
        main: &str,
        addresses: &[SocketAddr],
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
            pending.push(target.clone());
            attempts.spawn(async move {
                let connected = dialer.race(race).await;
                (target, connected.map(|(stream, _)| stream))
            });
        }
        for name in subflows.unavailable().into_iter().filter(|name| name != main) {
            failed.extend(
                unreachable(name).map(|target| (target, "the interface does not exist or is down".into())),
            );
        }
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        OpeningWitnesses { negotiation: Arc::clone(negotiation), deadline, attempts, pending, failed }
    }

    /// Waits until every path has its witness or failed. `main` is the interface through which the main connection left
    /// after all, and `chosen` the variant its ends agreed on.
    pub(crate) async fn finish(mut self, configured: usize, main: Option<&str>, chosen: u8) -> Witnesses {
        let mut streams = Vec::new();
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
                    streams.push(stream);
                }
                Err(reason) => self.failed.push((target, reason)),
            }
        }
        let slow = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
        self.failed.extend(self.pending.drain(..).map(|target| (target, slow.clone())));
        for (target, reason) in
            self.failed.iter().filter(|(target, _)| Some(target.interface.as_str()) != main)
        {
            self.negotiation.warn_once.no_witness(&target.interface, target.peer(), reason);
        }
        Witnesses { configured: configured.max(streams.len() + 1), streams }
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

impl Target {
    fn peer(&self) -> IpAddr {
        self.remote.ip().to_canonical()
    }
}

fn has_route(interface: &Interface, address: SocketAddr) -> bool {
    source_address(interface, address.ip().to_canonical()).is_some()
}
