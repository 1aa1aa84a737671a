//! The programs of `bpf/router.bpf.c`: at the interfaces, and at the lookup of sockets.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapHandle, libbpf_sys as sys};
use plait_linux::bpf_link;
use plait_linux::netns::NetNs;
use tracing::debug;

use super::connections::Flow;
use super::networks::NetworkKind;
use crate::bindings::{plait_lan_flow, plait_lan_syn, plait_network, plait_router_settings};
use crate::bpf::{self, BpfError, lookup};
use crate::ring_events::RingEvents;
use crate::skeleton::router::RouterSkelBuilder;

const HINT: &str = "plait router needs Linux 6.6, whose interfaces take programs by links (tcx)";

/// The programs, attached for as long as this lives.
pub(super) struct Hooks {
    interfaces: MapHandle,
    networks: MapHandle,
    held_flows: MapHandle,
    held_syns: MapHandle,
    sockets: MapHandle,
    dropped: MapHandle,
    ingress: OwnedFd,
    egress: OwnedFd,
    /// `None`: it was detached for good.
    attached: Mutex<Option<Attached>>,
}

/// What is attached and written.
#[derive(Default)]
struct Attached {
    /// At the lookup of sockets.
    lookup: Option<OwnedFd>,
    /// By the index of the interface.
    interfaces: BTreeMap<u32, [OwnedFd; 2]>,
    networks: BTreeMap<IpNet, NetworkKind>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("interfaces", &self.attached().as_ref().map(|attached| attached.interfaces.keys()))
            .finish_non_exhaustive()
    }
}

impl Hooks {
    /// Loads the programs. At interfaces, none is attached yet. `has_exit`: DNS is answered, and what is not carried is dropped.
    pub(super) fn load(has_exit: bool) -> Result<Hooks, BpfError> {
        let mut storage = MaybeUninit::uninit();
        let skeleton = bpf::load("router", RouterSkelBuilder::default(), &mut storage);
        let skeleton = skeleton.map_err(|error| error.hint(HINT))?;
        let failed = |error: io::Error| BpfError::io("attach to the lookup of sockets", error).hint(HINT);
        let descriptor = |program: BorrowedFd<'_>| program.try_clone_to_owned().map_err(failed);
        let maps = &skeleton.maps;
        let hooks = Hooks {
            interfaces: bpf::handle(&maps.interfaces)?,
            networks: bpf::handle(&maps.networks)?,
            held_flows: bpf::handle(&maps.held_flows)?,
            held_syns: bpf::handle(&maps.held_syns)?,
            sockets: bpf::handle(&maps.sockets)?,
            dropped: bpf::handle(&maps.dropped)?,
            ingress: descriptor(skeleton.progs.lan_ingress.as_fd())?,
            egress: descriptor(skeleton.progs.lan_egress.as_fd())?,
            attached: Mutex::default(),
        };
        let exit = u32::from(has_exit);
        bpf::write_settings(
            &maps.settings,
            &plait_router_settings { dns: exit, datagrams: exit, closed: exit },
        )?;
        let namespace = NetNs::current().map_err(failed)?;
        let program = skeleton.progs.select_socket.as_fd();
        let lookup = Some(bpf_link::attach_to_namespace(program, namespace.as_fd()).map_err(failed)?);
        *hooks.attached() = Some(Attached { lookup, ..Attached::default() });
        Ok(hooks)
    }

    fn attached(&self) -> MutexGuard<'_, Option<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the socket with this number, until it is closed.
    pub(super) fn set_socket(&self, number: u32, socket: BorrowedFd<'_>) -> Result<(), BpfError> {
        bpf::set_socket(&self.sockets, number, socket)
    }

    /// Attaches to exactly these interfaces, given by their indices. Those that it is attached to already, it stays. Does nothing
    /// after [`detach`](Self::detach).
    pub(super) fn attach(&self, indices: &[u32]) -> Result<(), BpfError> {
        let mut attached = self.attached();
        let Some(attached) = attached.as_mut() else { return Ok(()) };
        attached.interfaces.retain(|index, _| {
            let keeps = indices.contains(index);
            if !keeps {
                let _ = self.interfaces.delete(&index.to_ne_bytes());
            }
            keeps
        });
        for index in indices {
            if attached.interfaces.contains_key(index) {
                continue;
            }
            let attach = |program: &OwnedFd, place| {
                bpf_link::attach(program.as_fd(), *index, place, 0)
                    .map_err(|error| BpfError::io("attach to an interface", error).hint(HINT))
            };
            bpf::update(&self.interfaces, &index.to_ne_bytes(), &1u32)?;
            let egress = attach(&self.egress, sys::BPF_TCX_EGRESS)?;
            let ingress = attach(&self.ingress, sys::BPF_TCX_INGRESS)?;
            attached.interfaces.insert(*index, [ingress, egress]);
        }
        Ok(())
    }

    /// Sets the networks that are not carried.
    pub(super) fn set_networks(&self, networks: BTreeMap<IpNet, NetworkKind>) -> Result<(), BpfError> {
        let mut attached = self.attached();
        let Some(attached) = attached.as_mut() else { return Ok(()) };
        for (network, kind) in &networks {
            if attached.networks.get(network) != Some(kind) {
                bpf::update(&self.networks, bytemuck::bytes_of(&network_key(network)), &kind.number())?;
            }
        }
        for network in attached.networks.keys().filter(|network| !networks.contains_key(network)) {
            if let Err(error) = self.networks.delete(bytemuck::bytes_of(&network_key(network))) {
                debug!("cannot delete the network {network}: {error}");
            }
        }
        attached.networks = networks;
        Ok(())
    }

    /// The SYNs that are held from now on.
    pub(super) fn held_syns(&self) -> io::Result<RingEvents<plait_lan_syn>> {
        RingEvents::open(&self.held_syns)
    }

    /// Holds the SYN of this connection no longer.
    pub(super) fn release(&self, flow: Flow) {
        // One that is not there is not held.
        let _ = self.held_flows.delete(bytemuck::bytes_of(&flow_key(flow)));
    }

    /// How many packets were dropped because they are not carried.
    pub(super) fn dropped(&self) -> u64 {
        lookup(&self.dropped, &0u32.to_ne_bytes()).ok().flatten().unwrap_or(0)
    }

    /// Detaches all programs, for good.
    pub(super) fn detach(&self) {
        let Some(Attached { lookup, interfaces, .. }) = self.attached().take() else { return };
        // The interfaces first: no service of this host may get what was for others.
        drop(interfaces);
        drop(lookup);
    }
}

fn network_key(network: &IpNet) -> plait_network {
    let (address, prefix) = match network.network() {
        IpAddr::V4(address) => (address.to_ipv6_mapped(), 96 + network.prefix_len()),
        IpAddr::V6(address) => (address, network.prefix_len()),
    };
    plait_network { prefix: prefix.into(), address: words(address) }
}

fn flow_key(flow: Flow) -> plait_lan_flow {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    plait_lan_flow {
        client: words(mapped(flow.client)),
        destination: words(mapped(flow.destination)),
        client_port: flow.client.port().to_be(),
        destination_port: flow.destination.port().to_be(),
    }
}

/// In network order.
fn words(address: Ipv6Addr) -> [u32; 4] {
    bytemuck::cast(address.octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_network_order_and_mapped() {
        let key = network_key(&"10.1.0.0/16".parse().expect("a network"));
        assert_eq!(key.prefix, 112);
        let bytes: [u8; 16] = bytemuck::cast(key.address);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 0]);
        let flow = Flow {
            client: "[fd00::1]:80".parse().expect("an address"),
            destination: "192.0.2.1:443".parse().expect("an address"),
        };
        let key = flow_key(flow);
        assert_eq!(key.client_port.to_ne_bytes(), [0, 80]);
        assert_eq!(bytemuck::cast::<_, [u8; 16]>(key.destination)[12..], [192, 0, 2, 1]);
    }
}
