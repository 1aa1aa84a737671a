//! The runtime of `plait serve`, `plait proxy` and `plait run`: what their connections share, from start to drain.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plait_linux::{cgroup, local_delivery, pm};
use plait_proto::close_reason::CloseReason;
use plait_proto::codec::records::{Error, Padding};
use plait_proto::identity::{KeyPair, PublicKey};
use plait_proto::option::Mode;
use plait_proto::sealed::{HandshakeError, InitiatorConfig, Params, Service};
use rustix::process::Rlimit;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::capacity::{Capacity, gateway_descriptors, raise_descriptor_limit};
use crate::carry_error::CarryError;
use crate::congestion_control::CongestionControl;
use crate::connection_summary::summary;
use crate::connections::{Application, Connection, Connections};
use crate::counters::Counters;
use crate::datagrams::DatagramCounters;
use crate::error::{ProtectionError, StartError};
use crate::handshake::{
    EstablishError, Established, FailureReason, Negotiation, PendingHandshakes, SealedError,
    SharedNegotiation, Side, Witnesses, establish, initiate,
};
use crate::inbound::ServiceName;
use crate::keepalive;
use crate::kmod::{self, Enabled};
use crate::meter::Meter;
use crate::monitor::Monitor;
use crate::paths::SubflowCloser;
use crate::peak::Peak;
use crate::peer_limit::PeerLimit;
use crate::protection::{Agreement, ProtectionPolicy, ProtectionStatus};
use crate::relay::{RecordOptions, RelayError, Transforms, relay};
use crate::report::{Counts, Report};
use crate::settings::{REKEY_AFTER, Settings};
use crate::socket::{canonical, configure, reset_on_drop};
use crate::status::StatusSocket;
use crate::trust::{AuthenticatedPeer, ExpectedPeer, Identities};

/// A running gateway.
pub struct Gateway {
    settings: Settings,
    negotiation: Arc<Negotiation>,
    /// This process's limit before it was raised; programs that are run get it back.
    pub(crate) descriptor_limit: Rlimit,
    congestion_control: Arc<CongestionControl>,
    subflow_closer: SubflowCloser,
    connections: Connections,
    counters: Counters,
    pub(crate) datagrams: Arc<DatagramCounters>,
    pending: PendingHandshakes,
    pub(crate) peer_limit: PeerLimit,
    listening: Mutex<Vec<SocketAddr>>,
    capacity: Capacity,
    tasks: TaskTracker,
    peak: Peak,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Gateway {
    /// Starts a gateway. Only sockets created afterwards negotiate.
    ///
    /// If this host cannot protect, a preferred mode becomes `off`, with a warning; a required one is an error.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(settings: Settings) -> Result<Arc<Gateway>, StartError> {
        Gateway::start_after(settings, None)
    }

    /// As [`start`](Self::start), and goes on with the negotiation of another process.
    pub(crate) fn start_after(
        mut settings: Settings,
        other: Option<SharedNegotiation>,
    ) -> Result<Arc<Gateway>, StartError> {
        settings.prepare()?;
        let descriptor_limit = raise_descriptor_limit();
        remove_leftovers();
        let congestion_control = CongestionControl::choose(
            settings.congestion_control.as_deref(),
            settings.scheduler.as_ref(),
            settings.policy.mode(),
            descriptor_limit,
        )?;
        let others = gateway_descriptors(settings.opens_connections) + congestion_control.descriptors();
        let capacity = Capacity::new(descriptor_limit, others, settings.max_connections);
        let negotiation = Negotiation::start(settings.policy, settings.signal, check_not_protected, other)?;
        Ok(Gateway::new(
            settings,
            Arc::new(negotiation),
            descriptor_limit,
            Arc::new(congestion_control),
            Connections::default(),
            capacity,
        ))
    }

    /// Starts a gateway beside this one in the same process, with peers, clients and services of its own. It shares the
    /// negotiation, so that its policy, its signal and its congestion control are this one's, and the limit of connections.
    ///
    /// # Errors
    /// The settings do not fit together.
    pub fn start_beside(&self, mut settings: Settings) -> Result<Arc<Gateway>, StartError> {
        settings.prepare()?;
        Ok(Gateway::new(
            settings,
            Arc::clone(&self.negotiation),
            self.descriptor_limit,
            Arc::clone(&self.congestion_control),
            self.connections.beside(),
            self.capacity.clone(),
        ))
    }

    /// With what gateways of one process may share.
    fn new(
        settings: Settings,
        negotiation: Arc<Negotiation>,
        descriptor_limit: Rlimit,
        congestion_control: Arc<CongestionControl>,
        connections: Connections,
        capacity: Capacity,
    ) -> Arc<Gateway> {
        Arc::new(Gateway {
            peer_limit: PeerLimit::new(settings.max_connections_per_peer),
            subflow_closer: SubflowCloser::new(settings.monitor.as_ref()),
            settings,
            negotiation,
            descriptor_limit,
            congestion_control,
            connections,
            capacity,
            counters: Counters::default(),
            datagrams: Arc::default(),
            pending: PendingHandshakes::new(),
            listening: Mutex::default(),
            tasks: TaskTracker::new(),
            peak: Peak::default(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        })
    }

    /// The policy in force: `Off` if this host cannot protect.
    pub fn policy(&self) -> ProtectionPolicy {
        self.negotiation.policy()
    }

    /// What judges the handshakes of its connections.
    pub(crate) fn negotiation(&self) -> &Arc<Negotiation> {
        &self.negotiation
    }

    /// How many connections it accepts and carries at once.
    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// What its MPTCP sockets use.
    pub(crate) fn congestion_control(&self) -> &Arc<CongestionControl> {
        &self.congestion_control
    }

    /// Closes subflows of accepted connections.
    pub(crate) fn subflow_closer(&self) -> &SubflowCloser {
        &self.subflow_closer
    }

    /// Does what takes root, if this process gives it up.
    pub(crate) fn monitor(&self) -> Option<&Arc<Monitor>> {
        self.settings.monitor.as_ref()
    }

    /// Sessions whose handshakes are not complete, and those that late witnesses join.
    pub(crate) fn pending(&self) -> &PendingHandshakes {
        &self.pending
    }

    /// What peers that connect may ask for, unless that is the port that they connect to.
    pub(crate) fn service_names(&self) -> &[ServiceName] {
        &self.settings.services
    }

    /// Its key pair and the keys of its peers.
    pub(crate) fn identities(&self) -> &Identities {
        &self.settings.identities
    }

    /// Counts a failed handshake, and warns of it. `interface`: through which the main connection leaves, if it is known.
    pub(crate) fn handshake_failed(
        &self,
        peer: SocketAddr,
        interface: Option<&str>,
        reason: FailureReason,
        error: &dyn Display,
    ) {
        self.counters.refused(reason);
        self.negotiation.warn_once.handshake_failure(canonical(peer), interface, reason, error);
    }

    /// Answers `plait status` until the gateway stops, and keeps its memory small. Without a run directory there is no status.
    pub fn publish(self: &Arc<Self>) {
        self.release_memory_after_peaks();
        let gateway = Arc::clone(self);
        self.answer_status(move || gateway.report());
    }

    pub(crate) fn release_memory_after_peaks(self: &Arc<Self>) {
        let gateway = Arc::clone(self);
        self.spawn_until_stopped(async move { gateway.peak.release_memory_after(&gateway.tasks).await });
    }

    /// Answers `plait status` with these reports until the gateway stops.
    pub(crate) fn answer_status(self: &Arc<Self>, report: impl Fn() -> Report + Send + Sync + 'static) {
        let socket = match StatusSocket::create() {
            Ok(socket) => socket,
            Err(error) => return info!("`plait status` will not show this gateway: {error}"),
        };
        let gateway = Arc::clone(self);
        self.tasks.spawn(async move {
            gateway.abort.run_until_cancelled(socket.serve(report)).await;
        });
    }

    pub(crate) fn report(&self) -> Report {
        Report {
            pid: process::id(),
            command: self.settings.command.to_owned(),
            listen: self.listening.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            mode: self.policy().mode(),
            require: self.policy().requires(),
            required_paths: self.policy().required_paths_text(),
            counts: Counts { key_updates: self.connections.key_updates(), ..self.counters.report() },
            handshake_failures: self.counters.failures(),
            handshakes: self.pending.report(),
            datagrams: self.datagrams.report(),
            connections: self.connections.report(),
        }
    }

    /// Accepts connections until a stop is requested, and handles each in a task, with a permit for `places` that it keeps as long
    /// as the connection takes them: one, or [its share](Capacity::places_per_carried) if it does so as long as it is carried.
    pub(crate) async fn accept<H, F>(self: &Arc<Self>, listener: TcpListener, places: u32, handle: H)
    where
        H: Fn(TcpStream, SocketAddr, OwnedSemaphorePermit) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        if let Ok(address) = listener.local_addr() {
            self.listening.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        }
        // Accepted sockets inherit it: at no moment would they close in order.
        if let Err(error) = reset_on_drop(&listener) {
            debug!("accepted connections reset only once they are configured: {error}");
        }
        let accepting = async {
            loop {
                // Before it is accepted, so that no more descriptors are open than may be.
                let place = self.capacity.place(places).await;
                match listener.accept().await {
                    Ok((stream, from)) => {
                        self.counters.count_accepted();
                        // One that was established before the listening socket was configured has inherited nothing.
                        if let Err(error) = configure(&stream, keepalive::IDLE) {
                            debug!("{from}: {error}");
                            continue;
                        }
                        let handled = handle(stream, from, place);
                        let abort = self.abort.clone();
                        self.tasks.spawn(async move {
                            abort.run_until_cancelled(handled).await;
                        });
                        self.peak.record(&self.tasks);
                    }
                    // Out of descriptors, or a connection that was reset before it was accepted.
                    Err(error) => {
                        warn!("cannot accept: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        };
        self.stop.run_until_cancelled(accepting).await;
    }

    /// How many connections its listeners have accepted.
    pub(crate) fn accepted_connections(&self) -> u64 {
        self.counters.accepted_connections()
    }

    /// Runs a background task until a stop is requested.
    pub(crate) fn spawn_until_stopped(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Runs a background task until the connections have ended, or are reset, after a stop was requested.
    pub(crate) fn spawn_until_drained(&self, task: impl Future<Output = ()> + Send + 'static) {
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            abort.run_until_cancelled(task).await;
        });
    }

    /// Whether a stop was requested.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Runs a task until a stop is requested.
    pub(crate) async fn until_stopped(&self, task: impl Future<Output = ()>) {
        self.stop.run_until_cancelled(task).await;
    }

    /// Carries a connection in a background task; it is reset if it has not ended when the gateway's drain is over.
    pub(crate) fn carry_in_background(self: &Arc<Self>, carried: impl Future<Output = ()> + Send + 'static) {
        let gateway = Arc::clone(self);
        self.tasks.spawn(async move {
            let permit = gateway.capacity.permit().await;
            gateway.abort.run_until_cancelled(carried).await;
            drop(permit);
        });
    }

    /// Establishes a connection that is plain, or of the modes `xor64` and `stream`.
    pub(crate) async fn establish(
        &self,
        agreement: &Agreement,
        side: Side,
        far: &TcpStream,
    ) -> Result<Established, EstablishError> {
        match agreement {
            Agreement::Plain(_) => Ok(Established::plain()),
            Agreement::Protected(negotiated) => establish(negotiated, side, far).await,
        }
    }

    /// Tells the peer why a connection could not be established; if the peer ended it, returns why, as far as it told.
    pub(crate) fn failed(&self, far: &TcpStream, error: EstablishError) -> EstablishError {
        match self.negotiation.failed(far, (&error).into()) {
            Some(reason) => EstablishError::Ended(reason),
            None => error,
        }
    }

    /// Runs the handshake of mode `sealed` on a connection opened here, and asks for `service`. If the peer's key is expected, both
    /// ends authenticate.
    pub(crate) async fn handshake_outbound(
        &self,
        params: &Params,
        service: &Service,
        expected: Option<&ExpectedPeer>,
        far: &TcpStream,
        witnesses: Witnesses,
        limit: Duration,
    ) -> Result<Established, EstablishError> {
        let key_pair = expected.map(|_| self.identities().outbound_key_pair()).transpose();
        let key_pair = key_pair.map_err(|error| SealedError::from(HandshakeError::from(error)))?;
        let verify_peer = |key: &PublicKey| {
            let known = expected.map(|expected| expected.verify(key)).transpose();
            known.map(|known| known.map(|known| AuthenticatedPeer { key: *key, known }))
        };
        let config = InitiatorConfig {
            paths: self.policy().required_paths(),
            static_key: key_pair.as_deref().map(KeyPair::private),
            hybrid: self.settings.hybrid,
            service,
        };
        let session = initiate(params, config, verify_peer, far, witnesses, limit).await;
        let session = session.map_err(EstablishError::from)?;
        self.negotiation.warn_once.level(far, session.witnesses.level());
        Ok(Established::sealed(session, self.record_options()))
    }

    /// How the records of its connections are sealed.
    pub(crate) fn record_options(&self) -> RecordOptions {
        RecordOptions {
            padding: self.settings.padding.unwrap_or(Padding::NONE),
            rekey_after: self.settings.rekey_after.unwrap_or(*REKEY_AFTER.end()),
            redundancy: self.settings.redundancy,
        }
    }

    /// Registers an established connection, whose bytes `meter` limits.
    pub(crate) fn register(
        &self,
        application: impl Into<Application>,
        peer: SocketAddr,
        far: TcpStream,
        protection: ProtectionStatus,
        meter: Option<Arc<Meter>>,
    ) -> Arc<Connection> {
        let connection = self.connections.add(application.into(), peer, far, protection, meter);
        self.counters.carried(connection.protection.mode);
        connection
    }

    /// Carries a connection until it ends or fails, or until `failure` completes.
    pub(crate) async fn carry(
        &self,
        near: &TcpStream,
        connection: &Connection,
        transforms: Transforms,
        failure: impl Future<Output = impl Into<CarryError>>,
    ) -> Result<(), CarryError> {
        let carried = tokio::select! {
            done = relay(near, &connection.far, transforms, &connection.progress) => done.map_err(CarryError::from),
            reason = failure => Err(reason.into()),
        };
        if tracing::enabled!(tracing::Level::INFO) {
            info!("{}", summary(connection, &carried));
        }
        carried.inspect_err(|error| self.carry_failed(connection, error))
    }

    /// Tells the peer why a connection ends, or logs why the peer ended it.
    fn carry_failed(&self, connection: &Connection, error: &CarryError) {
        let Connection { far, peer, protection, progress, .. } = connection;
        let warn_once = &self.negotiation.warn_once;
        if let Some(reason) = error.close_reason() {
            self.negotiation.set_close_reason(far, reason);
        }
        match error {
            CarryError::Relay(RelayError::Record(Error::Failure(reason))) => {
                warn_once.ended_by_peer(*peer, *reason, true);
            }
            CarryError::Relay(error @ (RelayError::Record(_) | RelayError::KeyUpdate(_))) => {
                self.counters.invalid_record();
                warn_once.invalid_record(*peer, error);
            }
            CarryError::Relay(RelayError::Far(error)) => {
                // Before it was accepted, it is not connected.
                let was_reset = error.kind() != io::ErrorKind::TimedOut;
                if let Some(reason) = self.negotiation.close_reason_of_peer(far) {
                    warn_once.ended_by_peer(*peer, reason, false);
                } else if was_reset && protection.mode == Mode::Off && progress.received.total() == 0 {
                    warn_once.reset_at_start(*peer, self.policy().mode());
                }
            }
            CarryError::Relay(_)
            | CarryError::Refused(_)
            | CarryError::Establish(_)
            | CarryError::Exhausted(_) => {}
        }
    }

    /// Stops accepting; live connections go on.
    pub(crate) fn stop_accepting(&self) {
        self.stop.cancel();
    }

    /// Stops accepting, and waits until live connections have ended by themselves.
    pub(crate) async fn retire(&self) {
        self.stop_accepting();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Stops accepting, lets live connections end within the drain time, then resets the rest.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        let drained = tokio::time::timeout(self.settings.drain, self.drained()).await.is_ok();
        self.reset_remaining(drained).await;
    }

    /// As [`shut_down`](Self::shut_down), but the drain time starts anew while bytes move: a program that wrote and exited
    /// may rely on the network to deliver, as it does without a gateway.
    pub async fn shut_down_when_idle(&self) {
        self.stop.cancel();
        let stalled = async {
            let mut before = None;
            while before != Some(self.connections.progress()) {
                before = Some(self.connections.progress());
                tokio::time::sleep(self.settings.drain).await;
            }
        };
        let drained = tokio::select! {
            () = self.drained() => true,
            () = stalled => false,
        };
        self.reset_remaining(drained).await;
    }

    /// Waits until no connection is carried or about to be, after accepting has stopped.
    pub(crate) async fn drained(&self) {
        self.capacity.unused().await;
    }

    async fn reset_remaining(&self, drained: bool) {
        if !drained {
            warn!("resetting the connections that are still open after {:?}", self.settings.drain);
            for connection in self.connections.all() {
                self.negotiation.set_close_reason(&connection.far, CloseReason::Stopped);
            }
        }
        self.tasks.close();
        self.abort.cancel();
        self.tasks.wait().await;
    }
}

/// Fails if the kernel module protects the sockets of this process.
fn check_not_protected() -> Result<(), ProtectionError> {
    kmod::enabler_of(process::id())
        .map_or(Ok(()), |Enabled { cgroup, pid, .. }| Err(ProtectionError::AlreadyProtected { cgroup, pid }))
}

/// Removes what killed gateways left behind. An ordinary user can remove little; `plait doctor --clean` reports failures.
pub fn remove_leftovers() {
    let failures = [
        cgroup::clean_leftovers().err().map(|error| error.to_string()),
        pm::restore_after_crash().err().map(|error| error.to_string()),
        local_delivery::clean_leftovers().err().map(|error| error.to_string()),
        plait_linux::clean_run_directory().err().map(|error| error.to_string()),
    ];
    for failure in failures.into_iter().flatten() {
        debug!("leftovers of killed gateways: {failure}");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::protection::NegotiationSignal;

    /// Of mode off, which needs no privileges.
    pub(crate) fn unprotected_settings() -> Settings {
        Settings {
            command: "test",
            opens_connections: true,
            policy: ProtectionPolicy::Off,
            signal: NegotiationSignal::Option,
            identities: Identities::default(),
            hybrid: false,
            padding: None,
            rekey_after: None,
            redundancy: None,
            services: Vec::new(),
            congestion_control: None,
            scheduler: None,
            max_connections: 1,
            max_connections_per_peer: 1,
            drain: Duration::ZERO,
            monitor: None,
        }
    }

    #[tokio::test]
    async fn connection_that_was_established_before_accepting_is_reset_when_dropped() {
        let gateway = Gateway::start(unprotected_settings()).expect("mode off needs no privileges");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("any port");
        let address = listener.local_addr().expect("it is bound");
        let mut client = TcpStream::connect(address).await.expect("it listens");
        let accepting = gateway.accept(listener, 1, |stream, _, _| async move { drop(stream) });
        let read = tokio::select! {
            read = client.read_u8() => read,
            () = accepting => unreachable!("it accepts until the gateway stops"),
        };
        assert_eq!(read.expect_err("no byte was sent").kind(), io::ErrorKind::ConnectionReset);
    }
}
