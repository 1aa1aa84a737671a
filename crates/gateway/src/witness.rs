//! The initiator's witnesses (mode `sealed`): a short connection by each path that the main connection does not begin on.
//!
//! They go to the destination that was asked for, or to another address that was given for the same peer; never to one
//! that the peer has announced. Whoever stands in the main connection's way could announce his own, and so be on every
//! path.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plait_host::interfaces::Interface;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

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
}

/// By which interface, and where to.
#[derive(Clone, Debug)]
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
    /// connection.
    pub(crate) fn begin(
        gateway: &Arc<Gateway>,
        dialer: &Arc<Dialer>,
        subflows: &Subflows,
        main: &str,
        addresses: &[SocketAddr],
    ) -> Opening {
        let mut attempts = JoinSet::new();
        for interface in subflows.usable().into_iter().filter(|interface| interface.name != main) {
            let Some(remote) = first_reachable(&interface, addresses) else { continue };
            let (dialer, target) = (Arc::clone(dialer), Target { interface: interface.name, remote });
            attempts.spawn(async move {
                let connected = dialer.connect_by(target.remote, Some(&target.interface)).await;
                (target, connected)
            });
        }
        Opening { gateway: Arc::clone(gateway), deadline: Instant::now() + PATIENCE, attempts }
    }

    /// Ends when each path has its witness, or will have none. `main` is the interface by which the main connection did
    /// leave, and `chosen` what its ends agreed on.
    pub(crate) async fn finish(mut self, configured: usize, main: Option<&str>, chosen: u8) -> Witnesses {
        let mut streams = Vec::new();
        while let Ok(Some(Ok((target, connected)))) =
            tokio::time::timeout_at(self.deadline, self.attempts.join_next()).await
        {
            match connected {
                Ok(_) if Some(target.interface.as_str()) == main => {}
                Ok(stream) if self.agrees(&stream, chosen).await => streams.push(stream),
                Ok(_) => debug!("{} by {} does not witness: no agreement", target.remote, target.interface),
                Err(error) => debug!("{} by {} does not witness: {error}", target.remote, target.interface),
            }
        }
        Witnesses { configured: configured.max(streams.len() + 1), streams }
    }

    /// A witness is protected by the same means as what it witnesses.
    async fn agrees(&self, stream: &TcpStream, chosen: u8) -> bool {
        if prepare(stream).is_err() {
            return false;
        }
        let agreement = self.gateway.agreement(stream).await;
        matches!(agreement, Ok(Agreement::Protected(negotiated)) if negotiated.chosen == chosen)
    }
}

fn first_reachable(interface: &Interface, addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let leads_to = |address: &&SocketAddr| source_by(interface, address.ip().to_canonical()).is_some();
    addresses.iter().find(leads_to).copied()
}
