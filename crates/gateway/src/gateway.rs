//! The runtime under `plait serve`, `plait proxy` and `plait run`: what their connections share, from start to drain.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plait_linux::cgroup::{self, Cgroup};
use plait_linux::mptcp::{Protocol, stream_socket};
use plait_linux::pm;
use plait_proto::identity::{KeyPair, PublicKey};
use plait_proto::option::Mode;
use plait_proto::sealed::{HandshakeError, Params, ResponderConfig};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use socket2::{Domain, SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, trace, warn};

use crate::bpf::BpfError;
use crate::connections::{Connection, Connections};
use crate::control::{Control, Report};
use crate::establish::{End, EstablishError, Established, Reached, establish};
use crate::handshake::{Accepted, Reception, SealError, initiate};
use crate::kmod::{self, Enabled};
use crate::mode::Policy;
use crate::negotiation::{Agreement, Negotiator, Refusal, Unprotected, unprotected};
use crate::relay::{RelayError, relay, reset_on_drop};
use crate::said::Said;
use crate::transform::Transforms;
use crate::trust::{Expected, Identities};
use crate::witness::Witnesses;

/// A peer that is gone without a word is noticed after this long without traffic.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// What a gateway is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The command it serves, for reports.
    pub command: &'static str,
    /// How its connections are protected.
    pub policy: Policy,
    /// Who it is, and by which keys it knows others: with mode `sealed`.
    pub identities: Identities,
    /// Connections carried at once; more wait in the listen queue.
    pub most_connections: usize,
    /// How long live connections may take to end after a stop was asked for.
    pub drain: Duration,
}

/// A gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This host cannot give the protection that was asked for.
    #[error("this host cannot protect with mode '{mode}': {reason}")]
    Protection {
        /// The mode.
        mode: Mode,
        /// What is missing.
        reason: ProtectionError,
    },
    /// Identities were demanded together with another mode than `sealed`.
    #[error("peers and clients are known by their keys in mode 'sealed' alone, and the mode is '{0}'")]
    Identities(Mode),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {reason}{}", hint(reason))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        reason: io::Error,
    },
}

/// What protection needs and this host does not give.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    /// No MPTCP.
    #[error(
        "its kernel has no MPTCP, or it is switched off: sysctl -w net.mptcp.enabled=1 (`plait doctor` says more)"
    )]
    Mptcp,
    /// No control group for the gateway alone.
    #[error("no control group of its own: {0}")]
    Cgroup(cgroup::Error),
    /// No BPF programs.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The kernel module protects the sockets of this control group.
    #[error(
        "the kernel module protects what is made in its control group {} (`plait kmod enable`, process {}), and would \
         do it once more: start the gateway outside of that",
        .0.cgroup, .0.pid
    )]
    Twice(Box<Enabled>),
    /// No control of the paths.
    #[error(
        "no control over the paths: {0} (needs CAP_NET_ADMIN and a kernel with MPTCP; `plait doctor` says more)"
    )]
    Paths(io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another gateway or service has this port: stop it or choose another)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need root)",
        io::ErrorKind::AddrNotAvailable => " (no interface has this address)",
        _ => "",
    }
}

/// Why one connection ended badly.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarryError {
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Establish(#[from] EstablishError),
}

/// A running gateway.
pub struct Gateway {
    settings: Settings,
    policy: Policy,
    protection: Option<Protection>,
    /// Of this process before it was raised; what a program that is run here must find.
    pub(crate) descriptor_limit: Rlimit,
    connections: Connections,
    reception: Reception,
    listening: Mutex<Vec<SocketAddr>>,
    pub(crate) said: Said,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
}

/// Dropped in this order: the programs first, then the group they are attached to.
struct Protection {
    negotiator: Negotiator,
    _cgroup: Cgroup,
}

impl Protection {
    fn start(policy: Policy) -> Result<Protection, ProtectionError> {
        if !has_mptcp() {
            return Err(ProtectionError::Mptcp);
        }
        if let Some(enabled) = kmod::enabler_of(process::id()) {
            return Err(ProtectionError::Twice(Box::new(enabled)));
        }
        let cgroup = Cgroup::create_below_current("gateway").map_err(ProtectionError::Cgroup)?;
        let negotiator = Negotiator::attach(policy, &cgroup)?;
        cgroup.enter().map_err(ProtectionError::Cgroup)?;
        // Keys are in memory from now on: no core dumps, and no other process of this user may look.
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            debug!("this process can still be dumped: {error}");
        }
        Ok(Protection { negotiator, _cgroup: cgroup })
    }
}

impl Gateway {
    /// Starts a gateway; sockets that are to negotiate must be made after this.
    ///
    /// Where this host cannot protect, a preferred mode becomes `off`, with a warning; a required one is an error.
    pub fn start(settings: Settings) -> Result<Arc<Gateway>, StartError> {
        let Settings { policy, identities, .. } = &settings;
        if policy.mode() != Mode::Sealed && (identities.judge_peers() || identities.judge_clients()) {
            return Err(StartError::Identities(policy.mode()));
        }
        let descriptor_limit = raise_descriptor_limit();
        remove_leftovers();
        let (policy, protection) = match settings.policy.mode() {
            Mode::Off => (settings.policy, None),
            mode => match Protection::start(settings.policy) {
                Ok(protection) => (settings.policy, Some(protection)),
                Err(reason) if settings.policy.requires() => {
                    return Err(StartError::Protection { mode, reason });
                }
                Err(reason) => {
                    warn!("nothing will be protected: mode '{mode}' cannot be negotiated here: {reason}");
                    (Policy::Off, None)
                }
            },
        };
        Ok(Arc::new(Gateway {
            descriptor_limit,
            room: Arc::new(Semaphore::new(settings.most_connections)),
            settings,
            policy,
            protection,
            connections: Connections::default(),
            reception: Reception::new(),
            listening: Mutex::default(),
            said: Said::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        }))
    }

    /// The policy in force: `Off` where this host cannot protect.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Answers `plait status` until the gateway stops. Without a run directory there is no status.
    pub fn publish(self: &Arc<Self>) {
        let control = match Control::open() {
            Ok(control) => control,
            Err(error) => return info!("`plait status` will not see this gateway: {error}"),
        };
        let gateway = Arc::clone(self);
        self.tasks.spawn(async move {
            gateway.abort.run_until_cancelled(control.answer(|| gateway.report())).await;
        });
    }

    fn report(&self) -> Report {
        Report {
            pid: process::id(),
            command: self.settings.command.to_owned(),
            listen: self.listening.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            mode: self.policy.mode(),
            require: self.policy.requires(),
            counts: self.connections.counts(),
            handshakes: self.reception.report(),
            connections: self.connections.report(),
        }
    }

    /// Accepts connections until a stop is asked for, each handled in a task of its own.
    pub(crate) async fn accept<H, F>(self: &Arc<Self>, listener: TcpListener, handle: H)
    where
        H: Fn(TcpStream, SocketAddr) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        if let Ok(address) = listener.local_addr() {
            self.listening.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        }
        // What is accepted inherits it: there is no moment in which it would end in good order.
        if let Err(error) = reset_on_drop(&listener) {
            debug!("what is accepted resets only from then on: {error}");
        }
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => {
                        if let Err(error) = prepare(&stream) {
                            debug!("{from}: {error}");
                            continue;
                        }
                        let place = self.place().await;
                        let handled = handle(stream, from);
                        let abort = self.abort.clone();
                        self.tasks.spawn(async move {
                            abort.run_until_cancelled(handled).await;
                            drop(place);
                        });
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

    /// Carries a connection in a task of its own; it is reset when the gateway stops and does not drain it.
    pub(crate) fn carry_in_background(self: &Arc<Self>, carried: impl Future<Output = ()> + Send + 'static) {
        let gateway = Arc::clone(self);
        self.tasks.spawn(async move {
            let place = gateway.place().await;
            gateway.abort.run_until_cancelled(carried).await;
            drop(place);
        });
    }

    async fn place(&self) -> OwnedSemaphorePermit {
        let place = Arc::clone(&self.room).acquire_owned().await;
        place.expect("the semaphore is never closed")
    }

    /// Judges a connection's handshake; says so once per peer when it is carried plain although a mode was wanted.
    pub(crate) async fn agreement(&self, far: &TcpStream) -> Result<Agreement, Refusal> {
        let judged = match &self.protection {
            Some(protection) => protection.negotiator.agreement(self.policy, far).await,
            None => unprotected(self.policy, Unprotected::Off),
        };
        let peer = far.peer_addr().map(|address| address.ip().to_canonical());
        match &judged {
            Err(_) => self.connections.refuse(),
            Ok(agreement) => {
                if let (Agreement::Plain(reason), Ok(peer)) = (agreement, peer) {
                    self.said.plain(peer, *reason);
                }
            }
        }
        judged
    }

    /// Tells and hears what the agreed mode needs before application bytes are carried.
    pub(crate) async fn establish(
        &self,
        agreement: &Agreement,
        end: End,
        far: &TcpStream,
    ) -> Result<Established, EstablishError> {
        let established = match agreement {
            Agreement::Plain(_) => return Ok(Established::plain()),
            Agreement::Protected(negotiated) => establish(negotiated, self.policy.mode(), end, far).await,
        };
        if established.is_err() {
            self.connections.refuse();
        }
        established
    }

    /// Seals a connection that was opened here, with those that witness it, and with a peer that is as `expected`.
    pub(crate) async fn seal(
        &self,
        params: &Params,
        expected: Option<&Expected>,
        far: &TcpStream,
        witnesses: Witnesses,
    ) -> Result<Established, EstablishError> {
        let own = expected.map(|_| self.identities().shown()).transpose();
        let own = own.map_err(|error| SealError::from(HandshakeError::from(error)))?;
        let judge = |key: &PublicKey| expected.map(|expected| expected.judge(key)).transpose();
        let done = initiate(params, self.policy.demand(), own.as_deref(), judge, far, witnesses).await;
        let done = done.map_err(EstablishError::from).inspect_err(|error| self.refuse(error))?;
        self.said.level(far, done.level);
        Ok(Established::sealed(&done))
    }

    /// Seals a connection that was accepted here; `None` if it was one that witnesses another.
    pub(crate) async fn sealed(
        &self,
        params: &Params,
        far: TcpStream,
    ) -> Result<Option<(TcpStream, Established)>, EstablishError> {
        let joined = |stream: &TcpStream| match &self.protection {
            Some(protection) => protection.negotiator.joined(stream),
            None => true,
        };
        let config = ResponderConfig {
            paths: self.policy.demand(),
            static_key: self.identities().own().map(KeyPair::private),
            require_identity: self.identities().judge_clients(),
        };
        let judge = |key: &PublicKey| self.identities().judge_client(key);
        let accepted = self.reception.respond(params, config, judge, far, joined).await;
        match accepted.map_err(EstablishError::from).inspect_err(|error| self.refuse(error))? {
            Accepted::Witness => Ok(None),
            Accepted::Main(far, done) => {
                self.said.level(&far, done.level);
                Ok(Some((far, Established::sealed(&done))))
            }
        }
    }

    fn refuse(&self, error: &EstablishError) {
        if error.is_about_identity() {
            self.connections.refuse_stranger();
        } else {
            self.connections.refuse();
        }
    }

    /// Who this gateway is, and by which keys it knows others.
    pub(crate) fn identities(&self) -> &Identities {
        &self.settings.identities
    }

    /// Counts a connection that is not carried for who the other end is, or because it cannot say.
    pub(crate) fn refuse_stranger(&self) {
        self.connections.refuse_stranger();
    }

    /// Gives up, until the gateway stops, witnesses of connections that never came.
    pub(crate) fn keep_reception(self: &Arc<Self>) {
        let gateway = Arc::clone(self);
        self.tasks.spawn(async move {
            let keeping = async {
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    gateway.reception.expire();
                }
            };
            gateway.abort.run_until_cancelled(keeping).await;
        });
    }

    /// Enters an established connection into the gateway's books.
    pub(crate) fn enter(
        &self,
        application: SocketAddr,
        far: TcpStream,
        reached: Reached,
    ) -> io::Result<Arc<Connection>> {
        let peer = far.peer_addr()?;
        Ok(self.connections.enter(application, peer, reached, far))
    }

    /// Carries a connection to its end, or until `meanwhile` finds a reason not to.
    pub(crate) async fn carry(
        &self,
        near: &TcpStream,
        connection: &Connection,
        transforms: Transforms,
        meanwhile: impl Future<Output = impl Into<CarryError>>,
    ) -> Result<(), CarryError> {
        tokio::select! {
            done = relay(near, &connection.far, transforms, &connection.progress) => Ok(done?),
            reason = meanwhile => {
                let reason = reason.into();
                if matches!(reason, CarryError::Refused(_)) {
                    self.connections.refuse();
                }
                Err(reason)
            }
        }
    }

    /// Whether the peer broke the rule that the first flight crosses the trusted path alone.
    pub(crate) fn broke_trusted_first(&self, far: &TcpStream) -> bool {
        self.protection.as_ref().is_some_and(|protection| protection.negotiator.early_subflow(far))
    }

    /// Stops accepting, lets live connections end until the drain deadline, then resets what is left.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        let in_time = tokio::time::timeout(self.settings.drain, self.drained()).await.is_ok();
        self.reset_the_rest(in_time).await;
    }

    /// As [`shut_down`](Self::shut_down), but the deadline begins anew while bytes move: a program that has written
    /// and ended may rely on the network to go on, as it does without a gateway.
    pub async fn shut_down_patiently(&self) {
        self.stop.cancel();
        let stalled = async {
            let mut before = None;
            while before != Some(self.connections.progress()) {
                before = Some(self.connections.progress());
                tokio::time::sleep(self.settings.drain).await;
            }
        };
        let in_time = tokio::select! {
            () = self.drained() => true,
            () = stalled => false,
        };
        self.reset_the_rest(in_time).await;
    }

    async fn drained(&self) {
        while self.room.available_permits() < self.settings.most_connections {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn reset_the_rest(&self, all_ended: bool) {
        if !all_ended {
            warn!("connections that were still open after {:?} are reset", self.settings.drain);
        }
        self.tasks.close();
        self.abort.cancel();
        self.tasks.wait().await;
    }
}

/// Every socket of a connection: it resets unless ended well, small writes leave at once, and dead peers are noticed.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    reset_on_drop(stream)?;
    let socket = SockRef::from(stream);
    // MPTCP sockets of older kernels have not all of these; a connection works without them.
    let optional = [
        stream.set_nodelay(true),
        socket.set_keepalive(true),
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE)),
    ];
    for error in optional.into_iter().filter_map(Result::err) {
        trace!("socket option: {error}");
    }
    Ok(())
}

/// Whether an MPTCP socket can be made here and now.
pub(crate) fn has_mptcp() -> bool {
    stream_socket(Domain::IPV4).is_ok_and(|(_, protocol)| protocol == Protocol::Mptcp)
}

/// Undoes what killed gateways left behind. An ordinary user can undo little, and `plait doctor --clean` says what failed.
fn remove_leftovers() {
    let failures = [
        cgroup::clean_leftovers().err().map(|error| error.to_string()),
        pm::restore_after_crash().err().map(|error| error.to_string()),
        plait_linux::clean_run_directory().err().map(|error| error.to_string()),
    ];
    for failure in failures.into_iter().flatten() {
        debug!("leftovers of killed gateways: {failure}");
    }
}

/// Raises this process's limit of open files as far as it may; what it was before.
fn raise_descriptor_limit() -> Rlimit {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        debug!("the limit of open files stays as it is: {error}");
    }
    limit
}
