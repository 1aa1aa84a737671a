//! `plait router`: carries the TCP connections of hosts behind an interface, and their datagrams (UDP) if connections go to an exit,
//! transparently to these hosts.
//!
//! `bpf/router.bpf.c` takes their packets at the interface ([`hooks`]); routing rules deliver them to this host
//! ([`LocalDelivery`]). A connection is opened when its SYN arrives, and accepted when it is open ([`connections`]). Replies
//! leave by ordinary sockets, or by raw ones ([`super::reply_sender`]), in the name of the destination.

mod connections;
mod hooks;
mod networks;
mod watch;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::Arc;

use ipnet::IpNet;
use plait_linux::interfaces::{Changes, interfaces};
use plait_linux::local_delivery::LocalDelivery;
use plait_linux::privileges::MissingCapabilities;
use plait_linux::{netlink, sysctl};
use socket2::{Protocol, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::connections::LanConnections;
use self::hooks::Hooks;
use self::watch::Watch;
use super::datagrams::{Clients, TransparentDatagrams, bind_transparent};
use super::dns::answer_queries;
use super::open::Outbound;
use super::reply_sender::ReplySender;
use super::route::Route;
use crate::bindings::{
    PLAIT_MARK_LOCAL, PLAIT_SOCKET_TCP4, PLAIT_SOCKET_TCP6, PLAIT_SOCKET_UDP4, PLAIT_SOCKET_UDP6,
};
use crate::bpf::BpfError;
use crate::socket::{BACKLOG, transparent_socket};

/// What a router carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterSettings {
    /// The interfaces, by name, behind which the hosts are.
    pub interfaces: Vec<String>,
    /// Destinations that the kernel forwards, besides this host and the networks of the interfaces.
    pub exclude: Vec<IpNet>,
}

/// A router could not start.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// No interface is named.
    #[error(
        "expected the interface behind which the hosts are, got none: name it by --interface, or by `interfaces` in [router]"
    )]
    NoInterface,
    /// An interface does not exist.
    #[error(
        "there is no interface {0}, behind which the hosts would be: `ip link` lists the interfaces of this host"
    )]
    MissingInterface(String),
    /// Not root.
    #[error("this process lacks {0}: run plait as root, as by sudo")]
    Privileges(MissingCapabilities),
    /// The programs cannot be loaded or attached.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The interfaces cannot be listed.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(netlink::Error),
    /// Packets cannot be delivered to this host.
    #[error("cannot add the routing rules that deliver packets to this host: {0}")]
    Rules(netlink::Error),
    /// The sockets that take connections or send replies cannot be opened.
    #[error("cannot open the router's sockets: {0}")]
    Sockets(#[from] io::Error),
}

/// A running router, of which a process has one at a time. Dropping it removes what it has attached and set, and resets the
/// connections that it carries.
#[derive(Debug)]
#[must_use = "the router ends when this is dropped"]
pub struct Router {
    stop: CancellationToken,
    /// Ends before, when another process takes the packets.
    taking: CancellationToken,
    hooks: Arc<Hooks>,
    /// Last: packets must not be marked any longer.
    _delivery: LocalDelivery,
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.cancel();
        self.hooks.detach();
        match self.hooks.dropped() {
            0 => {}
            count => info!("the router has dropped {count} packets that it does not carry"),
        }
    }
}

impl Router {
    /// Leaves what hosts send from now on to another process, whose router runs already. Connections are carried on by this one, and
    /// their packets still delivered to it.
    pub fn hand_over(&self) {
        self.taking.cancel();
        self.hooks.detach();
    }
}

/// The router's sockets for one address family.
struct FamilySockets {
    listener: TcpListener,
    /// For datagrams, if the router carries them.
    datagrams: Option<UdpSocket>,
}

impl FamilySockets {
    /// On loopback, so that no other host can connect to the listener's own address.
    fn open(loopback: IpAddr, has_exit: bool) -> io::Result<FamilySockets> {
        let listener = transparent_socket(loopback, Type::STREAM, Protocol::TCP)?;
        listener.listen(BACKLOG.cast_signed())?;
        let datagrams = has_exit.then(|| UdpSocket::from_std(bind_transparent(loopback)?));
        let listener = TcpListener::from_std(listener.into())?;
        Ok(FamilySockets { listener, datagrams: datagrams.transpose()? })
    }
}

impl Outbound {
    /// Carries the connections of the hosts behind interfaces, until the router is dropped or the gateway stops. The interfaces
    /// should not be paths: see [`Roles::exclude`](crate::Roles::exclude). Must be called within a runtime.
    ///
    /// If connections go to an exit, so do datagrams, DNS queries to any resolver are answered by that of the exit, and what is not
    /// carried is dropped.
    ///
    /// # Errors
    /// See [`RouterError`].
    pub fn start_router(self: &Arc<Self>, settings: &RouterSettings) -> Result<Router, RouterError> {
        if settings.interfaces.is_empty() {
            return Err(RouterError::NoInterface);
        }
        let missing = MissingCapabilities::for_bpf().or_else(MissingCapabilities::to_send_packets);
        if let Some(missing) = missing {
            return Err(RouterError::Privileges(missing));
        }
        let changes = Changes::open()?;
        let existing = interfaces().map_err(RouterError::Interfaces)?;
        for name in &settings.interfaces {
            if !existing.iter().any(|interface| interface.name == *name) {
                return Err(RouterError::MissingInterface(name.clone()));
            }
        }
        let exit = match self.route() {
            Route::Exit(exit) => Some(exit.clone()),
            Route::Direct => None,
        };
        let v4 = FamilySockets::open(Ipv4Addr::LOCALHOST.into(), exit.is_some())?;
        // `None` without IPv6.
        let v6 = FamilySockets::open(Ipv6Addr::LOCALHOST.into(), exit.is_some())
            .inspect_err(|error| debug!("no IPv6: {error}"))
            .ok();
        let sender = Arc::new(ReplySender::open()?);
        let hooks = Arc::new(Hooks::load(exit.is_some())?);
        let numbers = [(PLAIT_SOCKET_TCP4, PLAIT_SOCKET_UDP4), (PLAIT_SOCKET_TCP6, PLAIT_SOCKET_UDP6)];
        for (family, (tcp, udp)) in [Some(&v4), v6.as_ref()].into_iter().zip(numbers) {
            let Some(family) = family else { continue };
            hooks.set_socket(tcp, family.listener.as_fd())?;
            if let Some(datagrams) = &family.datagrams {
                hooks.set_socket(udp, datagrams.as_fd())?;
            }
        }
        let delivery =
            LocalDelivery::of_received(&settings.interfaces, PLAIT_MARK_LOCAL).map_err(RouterError::Rules)?;
        let stop = CancellationToken::new();
        let connections =
            LanConnections::new(Arc::clone(self), Arc::clone(&hooks), Arc::clone(&sender), stop.clone());
        let watch = Watch::new(settings, Arc::clone(&hooks), changes)?;
        let taking = stop.child_token();
        let router = Router {
            stop: stop.clone(),
            taking: taking.clone(),
            hooks: Arc::clone(&hooks),
            _delivery: delivery,
        };
        let spawn_while_taking = |task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let taking = taking.clone();
            self.gateway().spawn_until_stopped(async move {
                taking.run_until_cancelled(task).await;
            });
        };
        let syns = hooks.held_syns()?;
        let datagrams = exit.map(|exit| {
            let queries = answer_queries(self, exit);
            TransparentDatagrams::new(self, Clients::Hosts, Arc::clone(&sender), queries, taking.clone())
        });
        for family in [Some(v4), v6].into_iter().flatten() {
            let accepting = Arc::clone(&connections).accept(family.listener);
            let stop = stop.clone();
            tokio::spawn(async move { stop.run_until_cancelled(accepting).await });
            if let (Some(socket), Some(datagrams)) = (family.datagrams, &datagrams) {
                spawn_while_taking(Box::pin(Arc::clone(datagrams).receive(socket)));
            }
        }
        // From now on, packets are taken.
        watch.attach()?;
        let opening = connections.open_held(syns);
        let ended = stop.clone();
        self.gateway().spawn_until_drained(async move {
            ended.run_until_cancelled(opening).await;
        });
        spawn_while_taking(Box::pin(watch.run()));
        self.warn_of_forwarding();
        Ok(router)
    }

    /// What happens to packets when the router has ended.
    fn warn_of_forwarding(&self) {
        let forwards = |name| sysctl::read(name).is_ok_and(|value| value != "0");
        if !forwards("net/ipv4/ip_forward") && !forwards("net/ipv6/conf/all/forwarding") {
            return;
        }
        let text = "this host forwards packets (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding): when the router has \
                    ended, connections leave unprotected, unless a firewall rule or the kill switch forbids it";
        match self.route() {
            Route::Exit(_) => warn!("{text}"),
            Route::Direct => info!("{text}"),
        }
    }
}
