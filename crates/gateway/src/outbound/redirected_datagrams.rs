//! Carries the datagrams (UDP) of redirected programs through an exit, transparently to the programs.
//!
//! `bpf/datagrams.h` marks their sockets, routing rules deliver to this host what they send ([`LocalDelivery`]), and
//! [`TransparentDatagrams`] carries it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use plait_linux::bpf_link;
use plait_linux::interfaces::{self, Interface, Scope, interfaces};
use plait_linux::local_delivery::LocalDelivery;
use plait_linux::netns::NetNs;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::datagrams::{Clients, TransparentDatagrams, bind_transparent};
use super::dns::answer_queries;
use super::open::Outbound;
use super::redirect::DatagramHooks;
use super::reply_sender::ReplySender;
use super::route::Route;
use crate::bindings::{
    PLAIT_DATAGRAM_SOCKET_V4, PLAIT_DATAGRAM_SOCKET_V6, PLAIT_MARK_PID, PLAIT_MARK_PROGRAM,
};
use crate::bpf::{self, BpfError};
use crate::networks::{Networks, link_networks, own_addresses};

/// An address of no host (RFC 5737), whose route is that to most hosts.
const TEST_NET: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The mark of the sockets of a program that this process runs.
pub(super) fn mark_of_program() -> u32 {
    PLAIT_MARK_PROGRAM | (std::process::id() & PLAIT_MARK_PID)
}

/// The sockets that are to receive the datagrams, and the routing that leads to them.
pub(super) struct DatagramSockets {
    pub(super) mark: u32,
    /// By their numbers in the map of the hooks.
    sockets: Vec<(u32, UdpSocket)>,
    sender: ReplySender,
    delivery: LocalDelivery,
}

impl DatagramSockets {
    /// `None` if connections do not go to an exit, which is what carries datagrams, or if this process may not; they are refused
    /// then.
    pub(super) fn open(route: &Route, mark: u32) -> Option<DatagramSockets> {
        match route {
            Route::Direct => None,
            Route::Exit(_) => DatagramSockets::try_open(mark)
                .inspect_err(|error| warn!("cannot carry datagrams, which are refused: {error}"))
                .ok(),
        }
    }

    fn try_open(mark: u32) -> io::Result<DatagramSockets> {
        let v4 = bind_transparent(Ipv4Addr::LOCALHOST.into())?;
        let v6 = bind_transparent(Ipv6Addr::LOCALHOST.into())
            .inspect_err(|error| debug!("no IPv6: {error}"))
            .ok()
            .map(|v6| (PLAIT_DATAGRAM_SOCKET_V6, v6));
        let sockets = [(PLAIT_DATAGRAM_SOCKET_V4, v4)].into_iter().chain(v6).collect();
        let delivery = LocalDelivery::of_sent(mark).map_err(io::Error::other)?;
        Ok(DatagramSockets { mark, sockets, sender: ReplySender::open()?, delivery })
    }

    /// Takes the datagrams from now on.
    pub(super) fn attach(self, hooks: DatagramHooks) -> Result<RedirectedDatagrams, BpfError> {
        for (number, socket) in &self.sockets {
            bpf::set_socket(&hooks.sockets, *number, socket.as_fd())?;
        }
        let failed = |error| BpfError::io("attach to the lookup of sockets", error);
        let namespace = NetNs::current().map_err(failed)?;
        let lookup =
            bpf_link::attach_to_namespace(hooks.lookup.as_fd(), namespace.as_fd()).map_err(failed)?;
        let datagrams = RedirectedDatagrams {
            sockets: self.sockets.into_iter().map(|(_, socket)| socket).collect(),
            sender: Arc::new(self.sender),
            own: hooks.own,
            delivery: Mutex::new(self.delivery),
            stop: CancellationToken::new(),
            _lookup: lookup,
        };
        datagrams
            .update(&BTreeSet::new())
            .map_err(|error| BpfError::io("route what programs send to the gateway", error))?;
        Ok(datagrams)
    }
}

/// The datagrams of one program, or of a host, until it is dropped.
pub(super) struct RedirectedDatagrams {
    sockets: Vec<UdpSocket>,
    sender: Arc<ReplySender>,
    own: Networks,
    delivery: Mutex<LocalDelivery>,
    stop: CancellationToken,
    _lookup: OwnedFd,
}

impl Drop for RedirectedDatagrams {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl RedirectedDatagrams {
    /// Carries them until the gateway of `outbound` stops.
    pub(super) fn carry(&self, outbound: &Arc<Outbound>) -> io::Result<()> {
        let Route::Exit(exit) = outbound.route() else { return Ok(()) };
        let queries = answer_queries(outbound, exit.clone());
        let sender = Arc::clone(&self.sender);
        let datagrams =
            TransparentDatagrams::new(outbound, Clients::Programs, sender, queries, self.stop.clone());
        for socket in &self.sockets {
            // The next gateway receives by the same sockets.
            let socket = tokio::net::UdpSocket::from_std(socket.try_clone()?)?;
            let receiving = Arc::clone(&datagrams).receive(socket);
            let stop = self.stop.clone();
            outbound.gateway().spawn_until_stopped(async move {
                stop.run_until_cancelled(receiving).await;
            });
        }
        Ok(())
    }

    /// Takes the interfaces and addresses that this host has now, and leaves out these networks beside those of links.
    pub(super) fn update(&self, excluded: &BTreeSet<IpNet>) -> io::Result<()> {
        let interfaces = interfaces().map_err(io::Error::other)?;
        let source = source(&interfaces);
        self.own.set(&own_addresses(&interfaces)).map_err(io::Error::other)?;
        let exceptions = excluded.iter().copied().chain(link_networks()).collect();
        let mut delivery = self.delivery.lock().unwrap_or_else(PoisonError::into_inner);
        delivery.update(&interfaces, source, &exceptions);
        Ok(())
    }
}

/// The address that programs see as theirs, as without plait.
fn source(interfaces: &[Interface]) -> Ipv4Addr {
    let routed = interfaces::route(TEST_NET).ok().flatten().map(|route| route.source);
    let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
    let own = addresses.filter(|address| address.scope == Scope::Global).map(|address| address.ip);
    let v4 = |ip| match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    };
    routed.into_iter().chain(own).find_map(v4).unwrap_or(Ipv4Addr::LOCALHOST)
}
