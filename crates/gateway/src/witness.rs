//! The initiator's witnesses (mode `sealed`): a short connection by each path that the main connection does not begin on.
//!
//! They go to the destination that was asked for, or to another address that was given for the same peer; never to one
//! that the peer has announced. Whoever stands in the main connection's way could announce his own, and so be on every
//! path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use plait_linux::interfaces::Interface;
use plait_proto::sealed::MAX_WITNESSES;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::dial::Dialer;
use crate::gateway::{Gateway, prepare};
use crate::negotiation::Agreement;
use crate::subflows::{Subflows, source_by};

/// How long a path may take to connect.
const PATIENCE: Duration = Duration::from_secs(3);

/// The witnesses of one connection, while they are opened.
pub(crate) struct Opening {
    gateway: Arc<Gateway>,
    deadline: Instant,
    attempts: JoinSet<(Target, io::Result<TcpStream>)>,
    /// By whose attempts nothing has come yet.
    waiting: Vec<Target>,
    /// By which nothing will, and why.
    failed: Vec<(Target, String)>,
}

/// By which interface, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    interface: String,
    remote: SocketAddr,
}

/// What there is to witness a connection.
pub(crate) struct Witnesses {
    /// How many paths were to be used, the main one included.
    pub(crate) configured: usize,
    pub(crate) streams: Vec<TcpStream>,
}

impl Opening {
    /// Begins with one by each interface that leads to one of the peer's addresses, `main` excepted: that of the main
    /// connection. Of more interfaces than a session has witnesses, the ones with the lowest index are taken.
    pub(crate) fn begin(
        gateway: &Arc<Gateway>,
        dialer: &Arc<Dialer>,
        subflows: &Subflows,
        main: &str,
        addresses: &[SocketAddr],
    ) -> Opening {
        let (mut attempts, mut waiting) = (JoinSet::new(), Vec::new());
        let mut failed: Vec<(Target, String)> = Vec::new();
        // Whom an interface that leads nowhere would have been for.
        let first = addresses.first().copied();
        let nowhere = |interface: String| first.map(|remote| Target { interface, remote });
        for interface in subflows.usable().into_iter().filter(|interface| interface.name != main) {
            if waiting.len() == usize::from(MAX_WITNESSES) {
                break;
            }
            let Some(remote) = first_reachable(&interface, addresses) else {
                let target =
                    nowhere(interface.name).map(|target| (target, "no route leads there by it".into()));
                failed.extend(target);
                continue;
            };
            let (dialer, target) = (Arc::clone(dialer), Target { interface: interface.name, remote });
            waiting.push(target.clone());
            attempts.spawn(async move {
                let connected = dialer.connect_by(target.remote, Some(&target.interface)).await;
                (target, connected)
            });
        }
        for name in subflows.absent().into_iter().filter(|name| name != main) {
            failed.extend(
                nowhere(name).map(|target| (target, "there is no such interface, or it is down".into())),
            );
        }
        let deadline = Instant::now() + PATIENCE;
        Opening { gateway: Arc::clone(gateway), deadline, attempts, waiting, failed }
    }

    /// Ends when each path has its witness, or will have none. `main` is the interface by which the main connection did
    /// leave, and `chosen` what its ends agreed on.
    pub(crate) async fn finish(mut self, configured: usize, main: Option<&str>, chosen: u8) -> Witnesses {
        let mut streams = Vec::new();
        while let Ok(Some(Ok((target, connected)))) =
            tokio::time::timeout_at(self.deadline, self.attempts.join_next()).await
        {
            self.waiting.retain(|waiting| *waiting != target);
            if Some(target.interface.as_str()) == main {
                continue;
            }
            let stream = match connected {
                Ok(stream) => self.agrees(&stream, chosen).await.map(|()| stream),
                Err(error) => Err(error.to_string()),
            };
            match stream {
                Ok(stream) => {
                    self.gateway.said.witness(&target.interface, target.peer());
                    streams.push(stream);
                }
                Err(reason) => self.failed.push((target, reason)),
            }
        }
        let slow = format!("no answer within {} s", PATIENCE.as_secs());
        self.failed.extend(self.waiting.drain(..).map(|target| (target, slow.clone())));
        for (target, reason) in
            self.failed.iter().filter(|(target, _)| Some(target.interface.as_str()) != main)
        {
            self.gateway.said.no_witness(&target.interface, target.peer(), reason);
        }
        Witnesses { configured: configured.max(streams.len() + 1), streams }
    }

    /// A witness is protected by the same means as what it witnesses.
    async fn agrees(&self, stream: &TcpStream, chosen: u8) -> Result<(), String> {
        prepare(stream).map_err(|error| error.to_string())?;
        match self.gateway.agreement(stream).await {
            Ok(Agreement::Protected(negotiated)) if negotiated.chosen == chosen => Ok(()),
            Ok(_) => Err("its ends do not agree on what those of the main connection do".into()),
            Err(refusal) => Err(refusal.to_string()),
        }
    }
}

impl Target {
    fn peer(&self) -> IpAddr {
        self.remote.ip().to_canonical()
    }
}

fn first_reachable(interface: &Interface, addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let leads_to = |address: &&SocketAddr| source_by(interface, address.ip().to_canonical()).is_some();
    addresses.iter().find(leads_to).copied()
}
