//! This host's paths to the target, and probes of them.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plait_linux::interfaces::{Interface, Scope, accepts, route_of, route_via};
use plait_linux::packets::PacketTap;
use plait_linux::pm::Endpoint;
use plait_linux::{netlink, sysctl};

use super::name_of;
use crate::exchange::Prober;
use crate::facts::{Connection, JoinAnswer, Path, Probes};
use crate::hops;
use crate::mtu;
use crate::syn::{Answer, SynKind};

pub(crate) struct Found {
    pub(crate) paths: Vec<Path>,
    pub(crate) unused_interfaces: Vec<String>,
    pub(crate) down_interfaces: Vec<String>,
}

/// The interfaces by which a subflow to the target or to an address that it announced could be created.
pub(crate) fn find(
    target: SocketAddr,
    announced: &[SocketAddr],
    interfaces: &[Interface],
    names: &[String],
    endpoints: &[Endpoint],
) -> Result<Found, netlink::Error> {
    let first = route_of(target.ip(), None, None)?.map(|route| route.if_index);
    let mut found = Found { paths: Vec::new(), unused_interfaces: Vec::new(), down_interfaces: Vec::new() };
    for interface in interfaces.iter().filter(|interface| !interface.loopback) {
        let usable = interface.addresses.iter().filter(|own| own.scope == Scope::Global && own.usable);
        let addresses: Vec<IpAddr> =
            usable.map(|own| own.ip).filter(|own| own.is_ipv4() == target.is_ipv4()).collect();
        let Some(any) = addresses.first().copied() else { continue };
        if !interface.up {
            found.down_interfaces.push(interface.name.clone());
            continue;
        }
        let endpoint = endpoints.iter().find(|endpoint| addresses.contains(&endpoint.address)).copied();
        let mut destinations = vec![target.ip()];
        destinations.extend(announced.iter().map(SocketAddr::ip));
        destinations.dedup();
        let mut reachable = Vec::new();
        let mut source = None;
        for destination in destinations {
            if let Some(from) = route_via(destination, interface.index)? {
                source = source.or(Some(from));
                reachable.push(destination);
            }
        }
        let wanted = match names {
            [] => !reachable.is_empty() || endpoint.is_some(),
            names => names.contains(&interface.name),
        };
        if wanted {
            let address = endpoint.map(|endpoint| endpoint.address).or(source).unwrap_or(any);
            let path = path(target, interface, interfaces, address, endpoint, reachable)?;
            found.paths.push(Path { first: first == Some(interface.index), ..path });
        } else {
            found.unused_interfaces.push(interface.name.clone());
        }
    }
    Ok(found)
}

fn path(
    target: SocketAddr,
    interface: &Interface,
    interfaces: &[Interface],
    address: IpAddr,
    endpoint: Option<Endpoint>,
    destinations: Vec<IpAddr>,
) -> Result<Path, netlink::Error> {
    let peer = destinations.first().copied().unwrap_or(target.ip());
    let by_interface = route_of(peer, Some(address), Some(interface.index))?;
    let unbound = route_of(peer, Some(address), None)?;
    Ok(Path {
        interface: interface.name.clone(),
        if_index: interface.index,
        first: false,
        running: interface.running,
        mtu: interface.mtu,
        address,
        endpoint,
        gateway: by_interface.and_then(|route| route.gateway).filter(|_| !destinations.is_empty()),
        destinations,
        leaves_by: unbound.map(|route| name_of(interfaces, route.if_index)),
        // IPv6 has no such filter.
        accepts_answers: address.is_ipv6() || accepts(peer, address, interface.index)?,
        rp_filter: if address.is_ipv6() { 0 } else { rp_filter(&interface.name) },
        next_hop_answers: None,
        probes: None,
        trace: None,
        path_mtu: None,
        listeners: Vec::new(),
    })
}

fn rp_filter(interface: &str) -> u32 {
    let of = |name| sysctl::read(&format!("net/ipv4/conf/{name}/rp_filter")).ok()?.parse().ok();
    of("all").max(of(interface)).unwrap_or(0)
}

/// Sends SYNs by a path: to find out why it carries no subflow, its MTU, and whether announced addresses have a listener.
pub(super) fn probe(
    tap: &PacketTap,
    target: SocketAddr,
    connection: &Connection,
    path: &mut Path,
) -> io::Result<()> {
    let Some(first) = path.destinations.first().copied().filter(|_| path.running) else { return Ok(()) };
    let (source, if_index) = (path.address, path.if_index);
    let open = |to| Prober::open(tap, source, if_index, to);
    let mut prober = open(SocketAddr::new(first, target.port()))?;
    let established =
        connection.subflows.iter().any(|subflow| subflow.established && subflow.local.ip() == source);
    let mut reachable = established;
    if !established {
        let probes = send_each_kind(&mut prober)?;
        path.next_hop_answers = answers_arp(path.gateway.unwrap_or(first));
        if let Some(kind) = unanswered_kind(connection, path, &probes) {
            path.trace = Some((kind, hops::trace(&mut prober, kind)?));
        }
        reachable = probes.tcp.answered();
        path.probes = Some(probes);
    }
    if reachable {
        path.path_mtu = Some(mtu::measure(&mut prober, path.mtu)?);
    }
    for address in connection.announced.iter().filter(|address| path.destinations.contains(&address.ip())) {
        let mut prober = open(*address)?;
        let syn = prober.syn(SynKind::Tcp);
        let outcome = prober.exchange(&[syn], ATTEMPTS, WAIT)?.pop().unwrap_or_default();
        path.listeners.push((*address, outcome));
    }
    Ok(())
}

fn send_each_kind(prober: &mut Prober) -> io::Result<Probes> {
    let syns = [SynKind::Tcp, SynKind::Capable, SynKind::Join].map(|kind| prober.syn(kind));
    let outcomes = prober.exchange(&syns, ATTEMPTS, WAIT)?;
    let [tcp, capable, join] = outcomes[..] else { return Ok(Probes::default()) };
    Ok(Probes { tcp, capable, join })
}

/// The SYNs that are lost, or lose their option, somewhere on the path.
fn unanswered_kind(connection: &Connection, path: &Path, probes: &Probes) -> Option<SynKind> {
    let first = connection.local.is_some_and(|local| local.ip() == path.address);
    let join = connection.joins.iter().find(|join| join.local.ip() == path.address);
    let join_lost = join.is_some_and(|join| !matches!(join.answer, None | Some(JoinAnswer::Joined)));
    let joins_by_tcp = matches!(probes.join.answer, Some(Answer::Accepted { mptcp: false }));
    match probes {
        Probes { tcp, .. } if !tcp.left => None,
        Probes { tcp, .. } if !tcp.answered() => Some(SynKind::Tcp),
        Probes { join, .. } if join.blocked => None,
        _ if first && !connection.mptcp && !connection.blackhole => Some(SynKind::Capable),
        Probes { join, .. } if connection.mptcp && (!join.answered() || joins_by_tcp || join_lost) => {
            Some(SynKind::Join)
        }
        _ => None,
    }
}

/// Whether a neighbor has answered ARP; `None` without an entry in the ARP table.
fn answers_arp(neighbor: IpAddr) -> Option<bool> {
    let table = fs::read_to_string("/proc/thread-self/net/arp").ok()?;
    let entry = table.lines().find(|line| line.split_whitespace().next() == Some(&neighbor.to_string()))?;
    // The third column is hexadecimal; bit 1 (ATF_COM) is set once an answer has arrived.
    let flags = entry.split_whitespace().nth(2)?.strip_prefix("0x")?;
    u32::from_str_radix(flags, 16).ok().map(|flags| flags & 2 != 0)
}

const ATTEMPTS: u32 = 3;
const WAIT: Duration = Duration::from_secs(1);
