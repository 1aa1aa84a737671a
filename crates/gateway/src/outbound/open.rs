//! Opens connections to peers, for `plait proxy`, `plait run` and library users, and carries them.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plait_proto::option::Mode;
use plait_proto::sealed::{Exporter, HandshakeError, MAX_PATHS, Params, RequiredPaths};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::info;

use super::datagrams::Datagrams;
use super::dial::Dialer;
use super::downgrade::{DowngradeCheck, DowngradeError};
use super::handshake_limit::HandshakeLimit;
use super::late_witnesses::LateWitnesses;
use super::route::Route;
use super::side_dialer::{RefusalMemory, SideDialer};
use super::witness::{OpenedWitnesses, OpeningWitnesses};
use super::witness_memory::WitnessMemory;
use crate::carry_error::CarryError;
use crate::connections::Connection;
use crate::datagrams::DatagramScheduler;
use crate::error::{ProtectionError, StartError};
use crate::gateway::Gateway;
use crate::handshake::{
    EstablishError, Established, FailureReason, HANDSHAKE_TIMEOUT, ResetAtStart, SealedError, Side,
    sealed_params,
};
use crate::keepalive;
use crate::paths::{
    Blackholes, PathGate, PathWatch, QuotaFile, Roles, Routes, Subflows, close_silent,
    warn_of_missing_interfaces,
};
use crate::protection::{ProtectionStatus, Refusal};
use crate::relay::{RelayError, Transforms};
use crate::running_session::RunningSession;
use crate::socket::{canonical, configure, has_mptcp};
use crate::trust::{ExpectedPeer, PeerAuthError, PeerName, SealedPeers};

/// How long a handshake with witnesses may take that can do without them: [`WITNESS_ROUND_TRIPS`] times as long as it took to
/// connect, within these bounds.
const WITNESS_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3);

const WITNESS_ROUND_TRIPS: u32 = 4;

/// The shortest time after which TCP sends again what was lost (Linux, TCP_RTO_MIN).
const MIN_RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(200);

/// Opens connections for applications and carries them.
pub struct Outbound {
    gateway: Arc<Gateway>,
    dialer: Arc<Dialer>,
    subflows: Option<Arc<Subflows>>,
    sealed_peers: Arc<SealedPeers>,
    handshakes: HandshakeLimit,
    witness_memory: Arc<WitnessMemory>,
    side_refusals: Arc<RefusalMemory>,
    pub(super) route: Route,
    pub(super) early_data: bool,
    pub(super) datagram_scheduler: DatagramScheduler,
    /// What carries datagrams, once a program needs it.
    pub(super) datagrams: Mutex<Option<Arc<Datagrams>>>,
    /// Those of the exit, if they are remembered.
    pub(super) exit_addresses: Mutex<Option<Vec<SocketAddr>>>,
}

/// A connection to a destination was not opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Connect(io::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Establish(#[from] EstablishError),
    #[error(transparent)]
    PeerAuth(#[from] PeerAuthError),
    #[error(
        "expected a destination beyond this host, got {0}: `plait proxy --allow-local` permits local ones"
    )]
    Local(SocketAddr),
    #[error(transparent)]
    Downgrade(#[from] DowngradeError),
    /// A further attempt leaves these witnesses out.
    #[error("the messages of a witness did not arrive in time")]
    WitnessTimeout,
}

impl OpenError {
    /// Why the handshake failed, if it did.
    fn failure_reason(&self) -> Option<FailureReason> {
        match self {
            OpenError::Connect(_) | OpenError::Local(_) | OpenError::WitnessTimeout => None,
            OpenError::Refused(refusal) => Some(refusal.into()),
            OpenError::Establish(error) => Some(error.into()),
            OpenError::PeerAuth(_) => Some(FailureReason::Identity),
            OpenError::Downgrade(error) => Some(error.reason()),
        }
    }
}

/// An established connection to a destination, not yet carried.
pub(super) struct Opened {
    /// The peer's address. A socket that the peer has reset meanwhile does not tell it.
    peer: SocketAddr,
    far: TcpStream,
    established: Established,
}

impl Opened {
    /// The peer's address.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn protection(&self) -> ProtectionStatus {
        self.established.protection.clone()
    }

    /// Mode `sealed`: keys for other protocols.
    pub(super) fn exporter(&self) -> Option<Exporter> {
        self.established.exporter.clone()
    }

    /// Its socket, and what transforms its bytes.
    pub(super) fn transport(&mut self) -> (&TcpStream, &mut Transforms) {
        (&self.far, &mut self.established.transforms)
    }

    /// Its socket.
    pub(super) fn far(&self) -> &TcpStream {
        &self.far
    }

    /// The local address on the network.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.far.local_addr()
    }
}

/// A connection before its handshake.
struct NewConnection<'a> {
    /// What the application asked for.
    peer: &'a PeerName,
    /// The peer, if it must authenticate.
    expected: Option<&'a ExpectedPeer>,
    /// All addresses that were given for it.
    addresses: &'a [SocketAddr],
    far: &'a TcpStream,
    /// How long it took to connect.
    connect_time: Duration,
    /// Whether the attempt before waited for witnesses whose messages did not arrive.
    is_retry: bool,
}

impl Outbound {
    /// Takes over path management for the connections that will be opened here.
    ///
    /// # Errors
    /// Paths cannot be managed, so "trusted path first" cannot be guaranteed, unless the gateway's mode is off. All paths
    /// are required, but fewer than two are named: an interface that is only used while it is up would not be missed.
    pub fn start(gateway: &Arc<Gateway>, roles: Roles) -> Result<Outbound, StartError> {
        let mode = gateway.policy().mode();
        let protects = mode != Mode::Off;
        let roles = match gateway.policy().required_paths() {
            RequiredPaths::Any | RequiredPaths::AtLeast(_) => roles,
            RequiredPaths::All => {
                let named = roles.names().count();
                if !(2..=usize::from(MAX_PATHS)).contains(&named) {
                    return Err(StartError::NamedPaths(named));
                }
                roles.only_named()
            }
        };
        warn_of_missing_interfaces(&roles);
        let routes = Arc::<Routes>::default();
        let gate = PathGate::start(
            roles,
            gateway.negotiation().cgroup(),
            gateway.monitor(),
            gateway.congestion_control(),
        );
        let gate = Arc::new(gate.map_err(StartError::PathRules)?);
        let subflows = has_mptcp().then(|| Subflows::start(Arc::clone(&gate), Arc::clone(&routes)));
        let subflows = match subflows.transpose() {
            Ok(subflows) => subflows,
            Err(reason) if protects => {
                return Err(StartError::Protection { mode, reason: ProtectionError::Paths(reason) });
            }
            Err(error) => {
                info!("the kernel's path manager decides about subflows: {error}");
                None
            }
        };
        // Without it a blackhole is not reverted; then connections are refused, or carried plain with a warning.
        let blackholes = if protects { Blackholes::watch().ok() } else { None };
        let dialer = Arc::new(Dialer::new(gateway, gate, subflows.is_some(), blackholes, routes));
        let sealed_peers = match gateway.monitor() {
            Some(monitor) => SealedPeers::of_monitor(Arc::clone(monitor)),
            None => SealedPeers::of_user(),
        };
        let sealed_peers = Arc::new(sealed_peers);
        Ok(Outbound {
            gateway: Arc::clone(gateway),
            dialer,
            subflows,
            sealed_peers,
            handshakes: HandshakeLimit::default(),
            witness_memory: Arc::default(),
            side_refusals: Arc::default(),
            route: Route::Direct,
            early_data: false,
            datagram_scheduler: DatagramScheduler::default(),
            datagrams: Mutex::default(),
            exit_addresses: Mutex::default(),
        })
    }

    /// The directories of what it knows of peers.
    pub(crate) fn peer_memory(&self) -> Vec<PathBuf> {
        let sealed = self.sealed_peers.directories();
        sealed.into_iter().chain(self.gateway.identities().directories()).collect()
    }

    /// The directories of what it stores of quotas.
    pub(crate) fn quota_directories(&self) -> Vec<PathBuf> {
        if !self.dialer.gate().roles().has_quota() {
            return Vec::new();
        }
        QuotaFile::of_user().iter().flat_map(QuotaFile::directories).collect()
    }

    /// Where its connections go.
    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    /// The interfaces with a route to an address, by index and name; `None`: routing decides alone.
    pub(super) fn interfaces_to(&self, address: IpAddr) -> Option<Vec<(u32, String)>> {
        let subflows = self.subflows.as_ref().filter(|_| !address.is_loopback())?;
        let usable = subflows.usable().into_iter();
        let leading = usable.filter(|interface| subflows.has_route(interface, address));
        Some(leading.map(|interface| (interface.index, interface.name)).collect())
    }

    /// Tells when interfaces, addresses or routes have changed.
    pub(super) fn interface_changes(&self) -> Option<watch::Receiver<()>> {
        self.subflows.as_ref().map(|subflows| subflows.changes())
    }

    /// The gateway it belongs to.
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Connects to the first destination that answers, to several at once if they are slow, and establishes the connection as
    /// its ends agreed, but not in a weaker mode than `sealed` if the peer was reached so before. `peer` is what the application
    /// asked for, `interface` the one that it bound the connection to, which is trusted for it.
    pub(super) async fn open(
        &self,
        peer: &PeerName,
        destinations: &[SocketAddr],
        interface: Option<&str>,
    ) -> Result<Opened, OpenError> {
        match self.open_once(peer, destinations, interface, false).await {
            Err(OpenError::WitnessTimeout) => self.open_once(peer, destinations, interface, true).await,
            opened => opened,
        }
    }

    /// `is_retry`: the one before waited for witnesses whose messages did not arrive.
    async fn open_once(
        &self,
        peer: &PeerName,
        destinations: &[SocketAddr],
        interface: Option<&str>,
        is_retry: bool,
    ) -> Result<Opened, OpenError> {
        let negotiation = self.gateway.negotiation();
        if negotiation.policy().mode() != Mode::Off && interface.is_none() && !self.dialer.has_trusted() {
            negotiation.warn_once.no_trusted_path();
        }
        let Some(first) = destinations.first().copied() else {
            return Err(OpenError::Connect(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )));
        };
        let downgrade = DowngradeCheck::new(peer, negotiation.policy(), &self.sealed_peers);
        let downgrade = downgrade.map_err(OpenError::from);
        let downgrade = downgrade.map_err(|error| self.failed(first, None, error))?;
        let _running = match negotiation.policy().mode() {
            Mode::Sealed => Some(self.handshakes.acquire(first).await),
            Mode::Xor64 | Mode::Stream | Mode::Off => None,
        };
        let main = interface.map(str::to_owned).or_else(|| self.dialer.first_trusted());
        // Concurrently with the main connection, on the other paths.
        let (begun, witnesses) = (Instant::now(), self.start_witnesses(main.as_deref(), destinations));
        let connected = self.dialer.connect(destinations, interface).await;
        let (far, destination) = connected.map_err(|error| self.connect_failed(first, error))?;
        let connect_time = begun.elapsed();
        configure(&far, keepalive::IN_USE).map_err(OpenError::Connect)?;
        let expected = self.gateway.identities().expected(peer, destination).map_err(OpenError::from);
        let expected = expected.map_err(|error| self.failed(destination, Some(&far), error))?;
        let expected = expected.as_ref();
        let connected =
            NewConnection { peer, expected, addresses: destinations, far: &far, connect_time, is_retry };
        let established = self.establish(&connected, downgrade, witnesses).await;
        let established = established.map_err(|error| self.failed(destination, Some(&far), error))?;
        if established.protection.mode == Mode::Sealed {
            self.sealed_peers.remember(peer, canonical(destination).ip()).await;
        }
        Ok(Opened { peer: canonical(destination), far, established })
    }

    /// Establishes a connection as its ends agreed, with a peer that must authenticate if one is expected.
    async fn establish(
        &self,
        connected: &NewConnection<'_>,
        downgrade: DowngradeCheck,
        witnesses: Option<OpeningWitnesses>,
    ) -> Result<Established, OpenError> {
        let agreement = self.gateway.negotiation().agreement(downgrade.policy(), connected.far).await;
        let agreement = match agreement {
            Ok(agreement) => agreement,
            Err(refusal) => return Err(downgrade.explain(refusal)?.into()),
        };
        match sealed_params(&agreement, Side::Initiator) {
            // On the heap: the state of other modes' connections, which is moved around, stays small.
            Some(params) => Box::pin(self.establish_sealed(connected, &params, witnesses)).await,
            None if connected.expected.is_some() => Err(Refusal::Unauthenticated.into()),
            None => Ok(self.gateway.establish(&agreement, Side::Initiator, connected.far).await?),
        }
    }

    /// Runs the handshake of mode `sealed` with the witnesses that are as fast as the main connection; the others are added when
    /// they come.
    async fn establish_sealed(
        &self,
        connected: &NewConnection<'_>,
        params: &Params,
        witnesses: Option<OpeningWitnesses>,
    ) -> Result<Established, OpenError> {
        let NewConnection { peer, expected, far, connect_time, .. } = *connected;
        let required = self.requires_witnesses();
        let waits = required || (!connected.is_retry && self.needs_all_witnesses(connected));
        let (opened, late) = self.finish_witnesses(witnesses, connected, params, waits).await;
        let (witnesses, outcome) = opened.split();
        let can_do_without = outcome.has_witnesses() && !required;
        let limit = match can_do_without {
            true if waits => *WITNESS_TIMEOUT.end(),
            true => {
                let limit = WITNESS_ROUND_TRIPS * connect_time;
                limit.clamp(*WITNESS_TIMEOUT.start(), *WITNESS_TIMEOUT.end())
            }
            false => HANDSHAKE_TIMEOUT,
        };
        let service = self.route.service(peer);
        let begun = Instant::now();
        let established =
            self.gateway.handshake_outbound(params, &service, expected, far, witnesses, limit).await;
        if can_do_without && matches!(established, Err(EstablishError::Sealed(SealedError::Timeout))) {
            outcome.timed_out(self.gateway.negotiation());
            return Err(OpenError::WitnessTimeout);
        }
        let established = established?;
        if begun.elapsed() <= 2 * connect_time + MIN_RETRANSMISSION_TIMEOUT {
            outcome.succeeded();
        } else {
            outcome.lost();
        }
        if let Some((late, session)) = late.zip(established.protection.session.as_ref()) {
            late.add_to(session);
        }
        if let Some(session) = &established.protection.session {
            self.start_side_connections(session, connected, params.chosen);
        }
        Ok(established)
    }

    /// Starts to open the side connections of a session, if this gateway wants any, and the main connection's path is known.
    fn start_side_connections(
        &self,
        session: &Arc<RunningSession>,
        connected: &NewConnection<'_>,
        chosen: u8,
    ) {
        let Some(subflows) = self.subflows.as_ref().filter(|_| session.side().is_some()) else { return };
        let Some(main) = subflows.interface_of(connected.far) else { return };
        let dialer = SideDialer {
            gateway: Arc::clone(&self.gateway),
            dialer: Arc::clone(&self.dialer),
            subflows: Arc::clone(subflows),
            memory: Arc::clone(&self.side_refusals),
            addresses: connected.addresses.to_vec(),
            chosen,
        };
        dialer.start(session, &main);
    }

    /// Whether a connection should have all witnesses before it carries bytes: it will trust the key that the peer shows, or
    /// somebody was in the middle before.
    fn needs_all_witnesses(&self, connected: &NewConnection<'_>) -> bool {
        connected.expected.is_some_and(ExpectedPeer::is_first_use)
            || connected.far.peer_addr().is_ok_and(|peer| self.witness_memory.was_intercepted(peer.ip()))
    }

    /// An error of connecting; a reset may be the end of a handshake.
    fn connect_failed(&self, peer: SocketAddr, error: io::Error) -> OpenError {
        let negotiation = self.gateway.negotiation();
        match error.downcast::<ResetAtStart>() {
            Ok(ResetAtStart::Refused(refusal)) => self.failed(peer, None, refusal.into()),
            Ok(ResetAtStart::Ended(reason)) => self.failed(peer, None, EstablishError::Ended(reason).into()),
            Err(error) => {
                if error.kind() == io::ErrorKind::ConnectionReset {
                    negotiation.warn_once.reset_at_start(canonical(peer), negotiation.policy().mode());
                }
                OpenError::Connect(error)
            }
        }
    }

    /// Counts a failed handshake, warns of it, and tells the peer why; or returns why the peer ended it, as far as it told.
    pub(super) fn failed(&self, peer: SocketAddr, far: Option<&TcpStream>, error: OpenError) -> OpenError {
        let Some(reason) = error.failure_reason() else {
            if let (OpenError::WitnessTimeout, Some(far)) = (&error, far) {
                self.gateway.negotiation().failed(far, FailureReason::Timeout);
            }
            return error;
        };
        let told = far.and_then(|far| self.gateway.negotiation().failed(far, reason));
        let error = told.map_or(error, |reason| EstablishError::Ended(reason).into());
        let interface =
            self.subflows.as_ref().zip(far).and_then(|(subflows, far)| subflows.interface_of(far));
        let reason = error.failure_reason().unwrap_or(reason);
        self.gateway.handshake_failed(peer, interface.as_deref(), reason, &error);
        error
    }

    /// Starts to open the witnesses of a connection that leaves through the interface `main`, in mode `sealed` and if the
    /// interface is known.
    fn start_witnesses(&self, main: Option<&str>, addresses: &[SocketAddr]) -> Option<OpeningWitnesses> {
        let sealed = self.gateway.policy().mode() == Mode::Sealed;
        let subflows = self.subflows.as_ref().filter(|_| sealed)?;
        Some(OpeningWitnesses::start(
            self.gateway.negotiation(),
            &self.dialer,
            &self.witness_memory,
            subflows,
            (main?, addresses),
            self.requires_witnesses(),
        ))
    }

    /// Whether a connection is refused if a path has no witness.
    fn requires_witnesses(&self) -> bool {
        match self.gateway.policy().required_paths() {
            RequiredPaths::Any => false,
            RequiredPaths::AtLeast(_) | RequiredPaths::All => true,
        }
    }

    async fn finish_witnesses(
        &self,
        started: Option<OpeningWitnesses>,
        connected: &NewConnection<'_>,
        params: &Params,
        waits_for_all: bool,
    ) -> (OpenedWitnesses, Option<LateWitnesses>) {
        let main = self.subflows.as_ref().and_then(|subflows| subflows.interface_of(connected.far));
        let main = main.as_deref();
        let opening = started.or_else(|| self.start_witnesses(main, connected.addresses));
        let configured =
            self.subflows.as_ref().map_or(1, |subflows| subflows.configured(main, connected.addresses));
        if configured > usize::from(MAX_PATHS) {
            self.gateway.negotiation().warn_once.too_many_paths(configured);
        }
        let Some(opening) = opening else {
            return (OpenedWitnesses::none(configured, &self.witness_memory), None);
        };
        let main = (main, connected.connect_time);
        let (opened, late) = opening.finish(configured, main, params.chosen, waits_for_all).await;
        (opened, Some(late))
    }

    /// Carries an application's connection over an opened one until it ends.
    pub(super) async fn carry(&self, near: &TcpStream, opened: Opened) -> Result<(), CarryError> {
        let application = near.peer_addr().map_err(RelayError::Near)?;
        let Opened { peer, far, established } = opened;
        let Established { protection, transforms, first_flight, .. } = established;
        let connection = self.gateway.register(application, peer, far, protection, None);
        let watch = self.subflows.as_ref().zip(connection.token).map(|(subflows, token)| {
            PathWatch::new(subflows, token, peer, subflows.index_of(&connection.far))
        });
        let paths_failed = async {
            match watch {
                Some(watch) => {
                    let first_flight = connection.first_flight(first_flight);
                    RelayError::Far(watch.run(first_flight, &*connection).await)
                }
                None => match close_silent(&*connection, self.gateway.subflow_closer()).await {},
            }
        };
        let failed = async {
            tokio::select! {
                error = paths_failed => CarryError::from(error),
                error = intercepted(&connection) => error.into(),
            }
        };
        let carried = self.gateway.carry(near, &connection, transforms, failed).await;
        if let Err(CarryError::Establish(error)) = &carried {
            self.witness_memory.set_intercepted(peer.ip());
            let interface =
                self.subflows.as_ref().and_then(|subflows| subflows.interface_of(&connection.far));
            self.gateway.handshake_failed(peer, interface.as_deref(), error.into(), error);
        }
        carried
    }
}

/// Waits until a late witness proves that somebody is in the middle of a connection.
async fn intercepted(connection: &Connection) -> EstablishError {
    match &connection.protection.session {
        Some(session) => SealedError::from(HandshakeError::Confirmation(session.intercepted().await)).into(),
        None => pending().await,
    }
}
