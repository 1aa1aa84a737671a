//! The connections that a gateway carries.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use plait_linux::State;
use plait_linux::mptcp::{self, FullInfo, Info, Token};
use plait_proto::option::Mode;
use tokio::net::TcpStream;
use tracing::trace;

use crate::handshake::FirstFlight;
use crate::keepalive;
use crate::meter::Meter;
use crate::paths::{Backoff, POLL_INTERVAL, UPLOAD_BYTES, UPLOAD_POLL_INTERVAL, Watched};
use crate::protection::ProtectionStatus;
use crate::relay::{KeyUpdateCounter, Progress};
use crate::report::{ConnectionReport, SubflowReport};
use crate::socket::canonical;

/// One connection over the network, from the end of its handshake on.
pub(crate) struct Connection {
    pub(crate) far: TcpStream,
    pub(crate) token: Option<Token>,
    pub(crate) progress: Progress,
    pub(crate) protection: ProtectionStatus,
    application: Application,
    pub(crate) peer: SocketAddr,
    since: Instant,
    /// Those of its subflows so far.
    locals: Mutex<BTreeSet<IpAddr>>,
    entry: Entry,
}

/// The other end of a connection on this host.
#[derive(Clone, Debug)]
pub(crate) struct Application {
    pub(crate) address: SocketAddr,
    /// Of an accepted connection: the service that it is carried to, if that is a server.
    pub(crate) service: Option<String>,
}

impl From<SocketAddr> for Application {
    fn from(address: SocketAddr) -> Application {
        Application { address, service: None }
    }
}

/// Every live connection of a gateway.
#[derive(Default)]
pub(crate) struct Connections {
    live: Arc<Mutex<LiveConnections>>,
    /// Shared by the gateways of one process.
    last_id: Arc<AtomicU64>,
    /// Of all connections so far.
    key_updates: Arc<AtomicU64>,
}

type LiveConnections = BTreeMap<u64, Weak<Connection>>;

/// A connection's place among the live ones; removed when dropped.
struct Entry {
    id: u64,
    live: Arc<Mutex<LiveConnections>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.live).remove(&self.id);
    }
}

fn lock(live: &Mutex<LiveConnections>) -> MutexGuard<'_, LiveConnections> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// Those of another gateway in this process, whose ids differ.
    pub(crate) fn beside(&self) -> Connections {
        Connections { last_id: Arc::clone(&self.last_id), ..Connections::default() }
    }

    /// Adds a connection, for as long as it lives. `meter` limits its bytes.
    pub(crate) fn add(
        &self,
        application: Application,
        peer: SocketAddr,
        far: TcpStream,
        protection: ProtectionStatus,
        meter: Option<Arc<Meter>>,
    ) -> Arc<Connection> {
        let token = Info::of(&far).ok().filter(|info| !info.fallback).map(|info| info.token);
        let local = far.local_addr().ok().map(|local| local.ip().to_canonical());
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Arc::new(Connection {
            far,
            token,
            progress: Progress {
                key_updates: KeyUpdateCounter::new(&self.key_updates),
                meter,
                ..Progress::default()
            },
            protection,
            application,
            peer,
            since: Instant::now(),
            locals: Mutex::new(local.into_iter().collect()),
            entry: Entry { id, live: Arc::clone(&self.live) },
        });
        lock(&self.live).insert(id, Arc::downgrade(&connection));
        connection
    }

    fn live(&self) -> LiveConnections {
        lock(&self.live).clone()
    }

    /// A number that changes whenever a live connection makes progress: bytes are carried, or the peer acknowledges some.
    pub(crate) fn progress(&self) -> u64 {
        self.all().iter().fold(0, |sum: u64, connection| {
            let acknowledged = Info::of(&connection.far).map_or(0, |info| info.snd_una);
            sum.wrapping_add(acknowledged).wrapping_add(connection.carried())
        })
    }

    /// The connections that live now.
    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        self.live().values().filter_map(Weak::upgrade).collect()
    }

    /// The key updates of all connections since the gateway's start.
    pub(crate) fn key_updates(&self) -> u64 {
        self.key_updates.load(Ordering::Relaxed)
    }

    pub(crate) fn report(&self) -> Vec<ConnectionReport> {
        let live = self.live();
        live.iter().filter_map(|(id, connection)| Some(connection.upgrade()?.report(*id))).collect()
    }
}

impl Watched for Connection {
    fn full_info(&self) -> io::Result<FullInfo> {
        let info = FullInfo::of(&self.far)?;
        let locals = info.subflows.iter().map(|subflow| subflow.local.ip().to_canonical());
        let locals = locals.filter(|local| !local.is_unspecified());
        self.locals.lock().unwrap_or_else(PoisonError::into_inner).extend(locals);
        Ok(info)
    }

    fn carried(&self) -> u64 {
        self.progress.sent.total() + self.progress.received.total()
    }

    fn expects_more(&self) -> bool {
        self.progress.waits_for_rest.load(Ordering::Relaxed)
    }

    async fn more_than(&self, carried: u64) {
        loop {
            let moved = self.progress.moved();
            if self.carried() != carried {
                return;
            }
            moved.await;
        }
    }

    fn set_in_use(&self, in_use: bool) {
        keepalive::set_in_use(&self.far, in_use);
    }

    fn share_receive_buffer(&self) {
        if let Err(error) = mptcp::share_receive_buffer(&self.far) {
            trace!("receive buffer of new subflows: {error}");
        }
    }
}

impl Connection {
    /// What there is to say of it at its end.
    pub(crate) fn last_report(&self) -> ConnectionReport {
        self.report(self.entry.id)
    }

    /// The local addresses of its subflows so far, without such that existed for a moment.
    pub(crate) fn local_addresses(&self) -> BTreeSet<IpAddr> {
        let _ = self.full_info();
        self.locals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the connection may have further subflows.
    pub(crate) async fn first_flight(&self, first_flight: FirstFlight) {
        if first_flight == FirstFlight::BothDirections {
            self.progress.sent.first_byte().await;
        }
        self.sent_bytes_acknowledged().await;
        if first_flight == FirstFlight::BothDirections {
            self.answered().await;
        }
    }

    /// Waits until the peer has sent the DATA_ACK of everything sent until now.
    async fn sent_bytes_acknowledged(&self) {
        let Ok(sent) = Info::of(&self.far) else { return };
        let mut backoff = Backoff::new(POLL_INTERVAL.0, POLL_INTERVAL.1);
        // Bytes sent meanwhile leave by the only subflow too, so the mark need not move with them.
        while Info::of(&self.far).is_ok_and(|now| now.snd_una < sent.write_seq) {
            backoff.sleep().await;
        }
    }

    /// Waits until the peer has begun to answer, or silently receives an upload.
    async fn answered(&self) {
        let uploading = async {
            tokio::time::sleep(UPLOAD_POLL_INTERVAL).await;
            while self.progress.sent.total() < UPLOAD_BYTES {
                tokio::time::sleep(UPLOAD_POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            () = self.progress.received.first_byte() => {}
            () = uploading => {}
        }
    }

    fn report(&self, id: u64) -> ConnectionReport {
        let subflows = FullInfo::of(&self.far).map(|info| info.subflows).unwrap_or_default();
        let (mode, level, identity) =
            (self.protection.mode, self.protection.level(), self.protection.identity());
        ConnectionReport {
            id,
            application: self.application.address,
            service: self.application.service.clone(),
            peer: self.peer,
            mode,
            level: level.map(|level| level.to_string()),
            identity: identity.map(|identity| identity.to_string()),
            negotiated: mode != Mode::Off,
            protocol: if self.token.is_some() { "mptcp" } else { "tcp" }.to_owned(),
            token: self.token.map(|token| format!("{:08x}", token.0)),
            key_updates: (mode == Mode::Sealed).then(|| self.progress.key_updates.total()),
            redundancy: self.protection.session.as_ref().and_then(|session| Some(session.side()?.report())),
            sent: self.progress.sent.total(),
            received: self.progress.received.total(),
            age_s: self.since.elapsed().as_secs_f64(),
            // The kernel lists a reset subflow, without its addresses, until it has removed it.
            subflows: subflows
                .into_iter()
                .filter(|subflow| subflow.tcp.state != State::Closed)
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
