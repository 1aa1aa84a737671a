//! Trusted path first: a connection's further subflows are created here, and not before its first flight has arrived.
//!
//! While a connection has one subflow the kernel cannot send elsewhere. So a connection starts with one, on the trusted
//! path, managed from user space; once the first flight ([`crate::handshake::FirstFlight`]) is DATA_ACKed, one subflow per
//! further interface is created. From then on [`PathWatch::run`] compares the subflows with the interfaces, whenever the
//! kernel reports a change and every few seconds, so that a lost subflow is replaced and a new interface is used.
//!
//! The connections are those of a gateway, or those that the kernel module protects ([`crate::kmod`]).

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::interfaces::{self, Interface};
use plait_linux::mptcp::Token;
use plait_linux::pm::{Events, Local, PathManager};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::events::{EventRouter, PathEvent, read_events};
use super::plan::Plan;
use super::roles::{PathName, Roles};
use super::routes::Routes;
use crate::socket::watch_readable;

/// Interfaces are compared with subflows at least this often.
const TICK: Duration = Duration::from_secs(5);

/// A connection without a path for this long has failed. The kernel has such a timeout too (`net.mptcp.close_timeout`), but
/// every attempt to create a subflow restarts it, even if the peer has forgotten the connection and resets the attempt.
const NO_PATH_TIMEOUT: Duration = Duration::from_secs(60);

/// A list of interfaces serves all connections for this long.
const INTERFACES_MAX_AGE: Duration = Duration::from_millis(200);

/// A subflow: its local address and TCP state.
pub(crate) type Path = (IpAddr, State);

/// Creates the further subflows of connections.
pub(crate) struct Subflows {
    roles: Roles,
    manager: PathManager,
    router: Mutex<EventRouter>,
    interfaces: Mutex<Option<(Instant, Arc<[Interface]>)>>,
    routes: Arc<Routes>,
}

impl Subflows {
    /// Reads the kernel's path-manager events in a background task, which ends with the last user of this value.
    pub(crate) fn start(roles: Roles, routes: Arc<Routes>) -> io::Result<Arc<Subflows>> {
        let manager = PathManager::open().map_err(io::Error::other)?;
        let events = Events::open().map_err(io::Error::other)?;
        let readable = watch_readable(&events)?;
        let (router, interfaces) = (Mutex::default(), Mutex::default());
        let subflows = Arc::new(Subflows { roles, manager, router, interfaces, routes });
        let weak = Arc::downgrade(&subflows);
        tokio::spawn(async move {
            let deliver = |event| weak.upgrade().map(|subflows| subflows.router().deliver(event));
            if let Err(error) = read_events(events, readable, deliver).await {
                warn!("cannot read path-manager events, lost subflows are detected late: {error}");
            }
        });
        Ok(subflows)
    }

    fn router(&self) -> MutexGuard<'_, EventRouter> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to the events of one connection's paths. `interface` is that of its initial subflow, or 0.
    pub(crate) fn watch(&self, token: Token, peer: SocketAddr, interface: u32) -> PathWatch<'_> {
        let events = self.router().subscribe(token);
        let plan = Plan::new(peer, interface);
        PathWatch { token, events, plan, last_path: Instant::now(), subflows: self }
    }

    /// The interfaces that connections may use now.
    pub(crate) fn usable(&self) -> Vec<Interface> {
        let Ok(interfaces) = self.interfaces() else { return Vec::new() };
        let usable = interfaces.iter().filter(|interface| interface.up && !interface.loopback);
        usable.filter(|interface| self.roles.of(interface).is_some()).cloned().collect()
    }

    /// The configured paths that connections cannot use now.
    pub(crate) fn unavailable(&self) -> Vec<String> {
        let usable = self.usable();
        let is_absent = |name: &&PathName| !usable.iter().any(|interface| name.is_of(interface));
        self.roles.names().filter(is_absent).map(PathName::to_string).collect()
    }

    /// The interface through which a connection leaves: the one it is bound to, or that of its local address.
    pub(crate) fn interface_of(&self, far: &TcpStream) -> Option<String> {
        if let Ok(Some(bound)) = SockRef::from(far).device() {
            return String::from_utf8(bound).ok();
        }
        let local = far.local_addr().ok()?.ip().to_canonical();
        let interfaces = self.interfaces().ok()?;
        let has_address =
            |interface: &&Interface| interface.addresses.iter().any(|address| address.ip == local);
        interfaces.iter().find(has_address).map(|interface| interface.name.clone())
    }

    /// The index of the interface through which a connection leaves; 0 if it is unknown.
    pub(crate) fn index_of(&self, far: &TcpStream) -> u32 {
        let (Some(name), Ok(interfaces)) = (self.interface_of(far), self.interfaces()) else { return 0 };
        interfaces.iter().find(|interface| interface.name == name).map_or(0, |interface| interface.index)
    }

    /// The number of configured paths: names with a configured role, present or not, other usable interfaces, and `main`,
    /// the one through which the main connection leaves; an unknown one counts as another. Two names of one interface count
    /// as two paths, of which one is missing.
    pub(crate) fn configured(&self, main: Option<&str>) -> usize {
        let present = self.interfaces().unwrap_or_default();
        let is_named = |interface: &&Interface| self.roles.names().any(|name| name.is_of(interface));
        let named: BTreeSet<&str> = present.iter().filter(is_named).map(|one| one.name.as_str()).collect();
        let usable = self.usable();
        let others = usable.iter().map(|interface| interface.name.as_str()).chain(main);
        let is_configured = |name: &&str| {
            named.contains(name)
                || self.roles.names().any(|path| *path == PathName::Interface((*name).into()))
        };
        let others: BTreeSet<&str> = others.filter(|name| !is_configured(name)).collect();
        self.roles.names().count() + others.len() + usize::from(main.is_none())
    }

    /// The source address of packets to `remote` through an interface, if it has a route.
    pub(crate) fn source_address(&self, interface: &Interface, remote: IpAddr) -> Option<IpAddr> {
        self.routes.source(remote, interface.index).ok().flatten()
    }

    fn interfaces(&self) -> io::Result<Arc<[Interface]>> {
        let mut cached = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((since, list)) if since.elapsed() < INTERFACES_MAX_AGE => Ok(Arc::clone(list)),
            _ => {
                let list: Arc<[Interface]> = interfaces::interfaces().map_err(io::Error::other)?.into();
                *cached = Some((Instant::now(), Arc::clone(&list)));
                Ok(list)
            }
        }
    }
}

/// The subscription to one connection's path events.
pub(crate) struct PathWatch<'a> {
    token: Token,
    events: mpsc::Receiver<PathEvent>,
    plan: Plan,
    /// When the connection was last seen to have a subflow.
    last_path: Instant,
    subflows: &'a Subflows,
}

impl Drop for PathWatch<'_> {
    fn drop(&mut self) {
        self.subflows.router().unsubscribe(self.token);
    }
}

impl PathWatch<'_> {
    /// Manages the connection's subflows from the end of its first flight on, until dropped, or until the connection is lost,
    /// which is the error: the peer rejects every subflow, or there has been none for too long. `paths` lists its subflows.
    pub(crate) async fn run(
        mut self,
        first_flight: impl Future<Output = ()>,
        paths: impl Fn() -> io::Result<Vec<Path>>,
    ) -> io::Error {
        tokio::select! {
            () = first_flight => {}
            error = self.lost_early(&paths) => return error,
        }
        self.last_path = Instant::now();
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.plan.apply(event);
            }
            if let Ok(paths) = paths() {
                if !has_live(&paths) && self.plan.is_rejected() {
                    return reset_by_peer();
                }
                self.reconcile(&paths);
            } else {
                self.last_path = Instant::now();
            }
            if self.last_path.elapsed() > NO_PATH_TIMEOUT {
                let why = format!("no path for {} s", NO_PATH_TIMEOUT.as_secs());
                return io::Error::new(io::ErrorKind::TimedOut, why);
            }
            let next = self.plan.next_retry();
            let wait = next.map_or(TICK, |due| due.saturating_duration_since(Instant::now()).min(TICK));
            if let Ok(Some(event)) = tokio::time::timeout(wait, self.events.recv()).await {
                self.plan.apply(event);
            }
        }
    }

    /// Completes if the peer resets the only subflow before the end of the first flight, when there may be no other.
    async fn lost_early(&mut self, paths: impl Fn() -> io::Result<Vec<Path>>) -> io::Error {
        while let Some(event) = self.events.recv().await {
            self.plan.apply(event);
            let was_reset = matches!(event, PathEvent::Closed { by_peer: true, .. });
            if was_reset && paths().is_ok_and(|paths| !has_live(&paths)) {
                return reset_by_peer();
            }
        }
        pending().await
    }

    /// Creates a subflow through every usable interface that has none.
    fn reconcile(&mut self, paths: &[Path]) {
        if has_live(paths) {
            self.last_path = Instant::now();
        }
        let has_subflow = |ip: IpAddr| paths.iter().any(|(local, _)| *local == ip);
        for interface in &self.subflows.usable() {
            if interface.addresses.iter().any(|address| has_subflow(address.ip)) {
                self.plan.set_live(interface.index);
            } else if self.plan.is_due(interface.index) {
                self.create_subflow(interface);
            }
        }
    }

    fn create_subflow(&mut self, interface: &Interface) {
        let Some((remote_id, remote, source)) =
            self.plan.choose(interface, |remote| self.subflows.source_address(interface, remote))
        else {
            return;
        };
        let id = self.plan.record_attempt(interface.index);
        let local = Local { address: source, id, if_index: interface.index, backup: false };
        match self.subflows.manager.subflow_create(self.token, &local, remote, remote_id) {
            Ok(()) => debug!("subflow through {} from {source} to {remote}", interface.name),
            Err(error) => debug!("no subflow through {} to {remote}: {error}", interface.name),
        }
    }
}

fn has_live(paths: &[Path]) -> bool {
    paths.iter().any(|(_, state)| !matches!(state, State::SynSent | State::Closed))
}

/// The kernel keeps a connection whose last subflow was reset, for a new one.
fn reset_by_peer() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the peer has reset every path")
}
