//! What the watched connections of this host share: its interfaces, the kernel's path manager, and events of both.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::diag::Sockets;
use plait_linux::interfaces::{self, Changes, Interface};
use plait_linux::mptcp::{Subflow, Token};
use plait_linux::pm::{self, Events, Local, PathManager};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tracing::{debug, trace, warn};

use super::events::{EventRouter, PathEvent, read_changes, read_events};
use super::gate::PathGate;
use super::path_name::PathName;
use super::routes::Routes;
use crate::rate_limit::RateLimit;
use crate::socket::watch_readable;

/// A list of interfaces serves all connections for this long.
const INTERFACES_MAX_AGE: Duration = Duration::from_millis(200);

/// Creates and closes the further subflows of connections.
pub(crate) struct Subflows {
    gate: Arc<PathGate>,
    manager: PathManager,
    /// `None` if the kernel lacks socket diagnostics.
    sockets: Option<Mutex<Sockets>>,
    router: Mutex<EventRouter>,
    interfaces: Mutex<Option<(Instant, Arc<[Interface]>)>>,
    routes: Arc<Routes>,
    /// Interfaces, addresses or routes have changed, or a path is back.
    changed: watch::Sender<()>,
    /// The probes of all connections, by interface.
    probes: RateLimit<u32>,
}

/// Attempts by which all connections probe a silent path in a second, of up to four SYNs each. One that is answered is announced
/// to the other connections.
const MAX_PROBES: u32 = 4;

impl Subflows {
    /// Reads the kernel's events in background tasks, which end with the last user of this value.
    pub(crate) fn start(gate: Arc<PathGate>, routes: Arc<Routes>) -> io::Result<Arc<Subflows>> {
        let manager = PathManager::open().map_err(io::Error::other)?;
        let sockets =
            Sockets::open().inspect_err(|error| debug!("initial subflows are closed late: {error}"));
        let sockets = sockets.ok().map(Mutex::new);
        let events = Events::open().map_err(io::Error::other)?;
        let readable = watch_readable(&events)?;
        let (router, interfaces, changed) = (Mutex::default(), Mutex::default(), watch::Sender::new(()));
        let probes = RateLimit::new(MAX_PROBES, Duration::from_secs(1));
        let subflows =
            Arc::new(Subflows { gate, manager, sockets, router, interfaces, routes, changed, probes });
        subflows.watch_interfaces();
        subflows.enforce_rules();
        let weak = Arc::downgrade(&subflows);
        tokio::spawn(async move {
            let deliver = |event| weak.upgrade().map(|subflows| subflows.router().deliver(event));
            if let Err(error) = read_events(events, readable, deliver).await {
                warn!("cannot read path-manager events, lost subflows are detected late: {error}");
            }
        });
        Ok(subflows)
    }

    /// Without this, changes of interfaces are noticed later.
    fn watch_interfaces(self: &Arc<Self>) {
        let opened = Changes::open().and_then(|changes| Ok((watch_readable(&changes)?, changes)));
        let (readable, changes) = match opened {
            Ok(opened) => opened,
            Err(error) => return warn!("changes of interfaces are noticed late: {error}"),
        };
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            let changed = || {
                weak.upgrade().map(|subflows| {
                    subflows.forget_interfaces();
                    subflows.announce_change();
                })
            };
            if let Err(error) = read_changes(changes, readable, changed).await {
                warn!("changes of interfaces are noticed late: {error}");
            }
        });
    }

    /// Without rules, nothing changes by itself.
    fn enforce_rules(self: &Arc<Self>) {
        if self.gate.roles().rules().is_empty() {
            return;
        }
        // The kernel learns of the interfaces before anything is sent.
        let _ = self.interfaces();
        let weak = Arc::downgrade(self);
        let changed = move || {
            if let Some(subflows) = weak.upgrade() {
                subflows.announce_change();
            }
        };
        tokio::spawn(Arc::clone(&self.gate).run(changed));
    }

    fn forget_interfaces(&self) {
        *self.interfaces.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.routes.clear();
        if !self.gate.roles().rules().is_empty() {
            let _ = self.interfaces();
        }
    }

    fn router(&self) -> MutexGuard<'_, EventRouter> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to the events of one connection's paths, until [`unsubscribe`](Self::unsubscribe).
    pub(super) fn subscribe(&self, token: Token) -> mpsc::Receiver<PathEvent> {
        self.router().subscribe(token)
    }

    pub(super) fn unsubscribe(&self, token: Token) {
        self.router().unsubscribe(token);
    }

    /// Tells of changes of interfaces, addresses and routes, and of paths that are back.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Tells the watches of all connections to look at once.
    pub(super) fn announce_change(&self) {
        // Nobody may listen.
        let _ = self.changed.send(());
    }

    /// Whether a connection may probe a silent path now.
    pub(super) fn admit_probe(&self, interface: u32) -> bool {
        self.probes.admit(interface).is_some()
    }

    /// Starts to create a subflow of a connection.
    pub(super) fn create(
        &self,
        token: Token,
        local: &Local,
        remote: SocketAddr,
        remote_id: u8,
    ) -> Result<(), pm::Error> {
        self.manager.subflow_create(token, local, remote, remote_id)
    }

    /// The interfaces that are paths to a peer: those that connections may use. A bridge that is not named is one only if it has a route
    /// to the peer: others lead to this host's containers and virtual machines.
    pub(crate) fn paths_to(&self, peer: &[SocketAddr]) -> Vec<Interface> {
        let mut usable = self.usable();
        usable.retain(|interface| {
            !interface.bridge
                || self.gate.roles().names().any(|name| name.is_of(interface))
                || peer.iter().any(|address| self.has_route(interface, address.ip().to_canonical()))
        });
        usable
    }

    /// Closes a subflow of a connection, whose socket is bound to this interface or, with 0, to none.
    pub(super) fn close(&self, token: Token, local: SocketAddr, remote: SocketAddr, if_index: u32) {
        let closed = self.manager.subflow_destroy(token, local, remote).or_else(|_| {
            // An IPv6 socket may have IPv4 addresses.
            self.manager.subflow_destroy(token, mapped(local), mapped(remote))
        });
        match closed {
            Ok(()) => debug!("closed the subflow from {local} to {remote}"),
            Err(error) => return debug!("{error}"),
        }
        // Of the initial subflow the kernel has only shut down the sending side: what the peer sends on it is acknowledged, and not
        // delivered.
        if let Some(sockets) = &self.sockets {
            let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = sockets.abort_subflow(local, remote, if_index) {
                debug!("{error}");
            }
        }
    }

    /// Tells whether peers should send by other paths than those of each rule.
    pub(super) fn paused(&self) -> watch::Receiver<Vec<bool>> {
        self.gate.paused()
    }

    /// The number of the rule of the interface with an address.
    pub(super) fn rule_of(&self, local: IpAddr) -> Option<usize> {
        let interfaces = self.interfaces().ok()?;
        let own = interfaces.iter().find(|interface| interface.has_address(local))?;
        self.gate.roles().rule_of(own).map(|(number, _)| number)
    }

    /// Asks the peer to send on a subflow only if no other works, or no longer. Returns whether it was asked.
    pub(super) fn set_backup(&self, token: Token, subflow: &Subflow, backup: bool) -> bool {
        let (local, remote) = (subflow.local, subflow.remote);
        let asked = self
            .manager
            .set_backup(token, local, remote, backup)
            .or_else(|_| self.manager.set_backup(token, mapped(local), mapped(remote), backup));
        match &asked {
            Ok(()) => trace!(
                "the subflow from {local} to {remote} is {}",
                if backup { "a backup" } else { "regular" }
            ),
            Err(error) => debug!("{error}"),
        }
        asked.is_ok()
    }

    /// The interfaces that connections may use now.
    pub(crate) fn usable(&self) -> Vec<Interface> {
        let Ok(interfaces) = self.interfaces() else { return Vec::new() };
        interfaces.iter().filter(|interface| self.gate.admits(interface)).cloned().collect()
    }

    /// Whether the interface with this address may not carry connections now: by its schedule, or because its quota is used up.
    pub(super) fn is_blocked(&self, local: IpAddr) -> bool {
        if self.gate.roles().rules().is_empty() {
            return false;
        }
        let interfaces = self.interfaces().unwrap_or_default();
        let own = interfaces.iter().find(|interface| interface.has_address(local));
        own.is_some_and(|interface| self.gate.blocked(interface).is_some())
    }

    /// Whether no interface with a carrier has this address, whatever its role: a program may bind a connection to any.
    pub(super) fn is_gone(&self, local: IpAddr) -> bool {
        self.interfaces().is_ok_and(|list| !list.iter().any(|each| each.running && each.has_address(local)))
    }

    /// The configured paths that connections cannot use now.
    pub(crate) fn unavailable(&self) -> Vec<String> {
        let usable = self.usable();
        let is_absent = |name: &PathName| !usable.iter().any(|interface| name.is_of(interface));
        let absent = self.gate.roles().names().filter(is_absent);
        absent.map(|name| name.to_string()).collect()
    }

    /// The interface through which a connection leaves: the one it is bound to, or that of its local address.
    pub(crate) fn interface_of(&self, far: &TcpStream) -> Option<String> {
        if let Ok(Some(bound)) = SockRef::from(far).device() {
            return String::from_utf8(bound).ok();
        }
        let local = far.local_addr().ok()?.ip().to_canonical();
        let interfaces = self.interfaces().ok()?;
        interfaces
            .iter()
            .find(|interface| interface.has_address(local))
            .map(|interface| interface.name.clone())
    }

    /// The index of the interface through which a connection leaves; 0 if it is unknown.
    pub(crate) fn index_of(&self, far: &TcpStream) -> u32 {
        let (Some(name), Ok(interfaces)) = (self.interface_of(far), self.interfaces()) else { return 0 };
        interfaces.iter().find(|interface| interface.name == name).map_or(0, |interface| interface.index)
    }

    /// The number of configured paths to a peer: names with a configured role, present or not, other usable interfaces, and `main`,
    /// the one through which the main connection leaves; an unknown one counts as another. Two names of one interface count
    /// as two paths, of which one is missing.
    pub(crate) fn configured(&self, main: Option<&str>, peer: &[SocketAddr]) -> usize {
        let present = self.interfaces().unwrap_or_default();
        let names: Vec<PathName> = self.gate.roles().names().collect();
        let is_named = |interface: &&Interface| names.iter().any(|name| name.is_of(interface));
        let named: BTreeSet<&str> = present.iter().filter(is_named).map(|one| one.name.as_str()).collect();
        let paths = self.paths_to(peer);
        let others = paths.iter().map(|interface| interface.name.as_str()).chain(main);
        let is_configured = |name: &&str| {
            named.contains(name) || names.iter().any(|path| *path == PathName::Interface((*name).into()))
        };
        let others: BTreeSet<&str> = others.filter(|name| !is_configured(name)).collect();
        names.len() + others.len() + usize::from(main.is_none())
    }

    /// Whether packets to `remote` have a route through an interface.
    pub(crate) fn has_route(&self, interface: &Interface, remote: IpAddr) -> bool {
        self.source_address(interface, remote).is_some()
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
                self.gate.set_interfaces(&list);
                *cached = Some((Instant::now(), Arc::clone(&list)));
                Ok(list)
            }
        }
    }
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}
