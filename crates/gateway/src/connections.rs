//! The connections that a gateway carries now, and how many it has carried and refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use plait_linux::mptcp::{FullInfo, Info, Token};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use crate::establish::Reached;
use crate::relay::Progress;
use plait_proto::option::Mode;

/// One connection on the network's side, from the end of its handshake on.
pub(crate) struct Connection {
    pub(crate) far: TcpStream,
    pub(crate) token: Option<Token>,
    pub(crate) progress: Progress,
    reached: Reached,
    application: SocketAddr,
    peer: SocketAddr,
    since: Instant,
}

/// Every connection of a gateway.
#[derive(Default)]
pub(crate) struct Connections {
    live: Mutex<BTreeMap<u64, Weak<Connection>>>,
    next: AtomicU64,
    protected: AtomicU64,
    plain: AtomicU64,
    refused: AtomicU64,
    strangers: AtomicU64,
}

/// How many connections came to what since the gateway began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Carried protected.
    pub protected: u64,
    /// Carried plain.
    pub plain: u64,
    /// Not carried: refused by policy, or the handshake could not be trusted.
    pub refused: u64,
    /// Of those, for who the other end is, or because it does not say.
    pub strangers: u64,
}

/// One live connection, for people and programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Counts from 1 in one gateway.
    pub id: u64,
    /// The application's end.
    pub application: SocketAddr,
    /// The network's far end.
    pub peer: SocketAddr,
    /// How its bytes are protected.
    pub mode: Mode,
    /// Of mode `sealed`: the paths that witness it, of those configured, such as `2/3`.
    pub level: Option<String>,
    /// Of mode `sealed`: by which key the other end is known: `pinned`, or `first-use`; absent if it could be anybody.
    pub identity: Option<String>,
    /// Whether the peer agreed on that in the handshake.
    pub negotiated: bool,
    /// `mptcp`, or `tcp` after a fallback.
    pub protocol: String,
    /// RFC 8684 token, hexadecimal; absent with `tcp`.
    pub token: Option<String>,
    /// Application bytes handed to the network.
    pub sent: u64,
    /// Application bytes from the network.
    pub received: u64,
    /// Seconds since the handshake.
    pub age_s: f64,
    /// Its subflows now.
    pub subflows: Vec<SubflowReport>,
}

/// One subflow of a live connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubflowReport {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Bytes that the other end acknowledged on it.
    pub acked: u64,
    /// Bytes received on it.
    pub received: u64,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
}

impl Connections {
    /// Enters a connection for as long as it lives.
    pub(crate) fn enter(
        &self,
        application: SocketAddr,
        peer: SocketAddr,
        reached: Reached,
        far: TcpStream,
    ) -> Arc<Connection> {
        let token = Info::of(&far).ok().filter(|info| !info.fallback).map(|info| info.token);
        let peer = canonical(peer);
        let connection = Arc::new(Connection {
            far,
            token,
            progress: Progress::default(),
            reached,
            application,
            peer,
            since: Instant::now(),
        });
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|_, connection| connection.strong_count() > 0);
        live.insert(id, Arc::downgrade(&connection));
        if reached.mode == Mode::Off { &self.plain } else { &self.protected }.fetch_add(1, Ordering::Relaxed);
        connection
    }

    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// For who the other end is, or because it does not say.
    pub(crate) fn refuse_stranger(&self) {
        self.refuse();
        self.strangers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            protected: self.protected.load(Ordering::Relaxed),
            plain: self.plain.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            strangers: self.strangers.load(Ordering::Relaxed),
        }
    }

    /// A number that changes whenever a live connection gets on: bytes are carried, or the peer acknowledges some.
    pub(crate) fn progress(&self) -> u64 {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        live.values().filter_map(Weak::upgrade).fold(0, |sum: u64, connection| {
            let acknowledged = Info::of(&connection.far).map_or(0, |info| info.snd_una);
            let carried = connection.progress.sent() + connection.progress.received();
            sum.wrapping_add(acknowledged).wrapping_add(carried)
        })
    }

    pub(crate) fn report(&self) -> Vec<ConnectionReport> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        live.iter().filter_map(|(id, connection)| Some(connection.upgrade()?.report(*id))).collect()
    }
}

impl Connection {
    fn report(&self, id: u64) -> ConnectionReport {
        let subflows = FullInfo::of(&self.far).map(|info| info.subflows).unwrap_or_default();
        let Reached { mode, level, identity } = self.reached;
        ConnectionReport {
            id,
            application: self.application,
            peer: self.peer,
            mode,
            level: level.map(|level| level.to_string()),
            identity: identity.map(|identity| identity.to_string()),
            negotiated: mode != Mode::Off,
            protocol: if self.token.is_some() { "mptcp" } else { "tcp" }.to_owned(),
            token: self.token.map(|token| format!("{:08x}", token.0)),
            sent: self.progress.sent(),
            received: self.progress.received(),
            age_s: self.since.elapsed().as_secs_f64(),
            subflows: subflows
                .into_iter()
                .map(|subflow| SubflowReport {
                    local: canonical(subflow.local),
                    remote: canonical(subflow.remote),
                    acked: subflow.tcp.bytes_acked,
                    received: subflow.tcp.bytes_received,
                    rtt_us: subflow.tcp.rtt_us,
                })
                .collect(),
        }
    }
}

/// An IPv4 peer of an IPv6 socket, as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
