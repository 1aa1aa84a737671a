//! Network interfaces, their addresses, and route lookups.
//!
//! Queries the network namespace of the calling thread by netlink (`rtnetlink(7)`), which requires no privileges. No
//! data from the kernel makes this module panic.

mod changes;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use crate::bytes::{ip_address, u8_at, u16_at, u32_at, without_nul};
use crate::netlink::message::{Message, NLM_F_ACK, Request};
use crate::netlink::{Error, Socket};
use crate::sockopt;

pub use changes::Changes;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its index, from 1.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Whether its packets have an Ethernet header; those of TUN devices and many modems start with the IP header.
    pub ethernet: bool,
    /// Whether it is a virtual device, such as a veth pair, a TUN device or a bridge.
    pub software: bool,
    /// Whether it is a bridge.
    pub bridge: bool,
    /// Whether it is a port of a bridge, or a part of a bond or a team: what it carries has the addresses and routes of that one.
    pub port: bool,
    /// Maximum packet size, bytes.
    pub mtu: u32,
    /// Its addresses.
    pub addresses: Vec<Address>,
}

impl Interface {
    /// Whether it has this address.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip)
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
    /// Its scope.
    pub scope: Scope,
    /// Whether it can be used as a source: not tentative, duplicate or deprecated.
    pub usable: bool,
}

impl Address {
    /// Whether another address is in the same subnet, so that it is reachable without a router.
    pub fn network_contains(&self, other: IpAddr) -> bool {
        let (own, other, width) = match (self.ip, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (own.to_bits().into(), other.to_bits().into(), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let differing: u128 = own ^ other;
        let host_bits = width - u32::from(self.prefix).min(width);
        differing.checked_shr(host_bits).unwrap_or(0) == 0
    }
}

/// Where an address is valid (`rtnetlink(7)`, `ifa_scope`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    Global,
    /// On one link, such as `fe80::/10`.
    Link,
    /// Inside this host.
    Host,
    /// Another scope, such as the obsolete site scope.
    Other(u8),
}

/// All interfaces, by index.
///
/// # Errors
/// The kernel's reason.
pub fn interfaces() -> Result<Vec<Interface>, Error> {
    list(&mut Socket::route()?)
}

/// As [`interfaces`], in the namespace of a socket of the routing family.
pub(crate) fn list(socket: &mut Socket) -> Result<Vec<Interface>, Error> {
    let links = |flags| Request::new(RTM_GETLINK, flags, &[0; LINK_HEADER]);
    let addresses = |flags| Request::new(RTM_GETADDR, flags, &[0; ADDRESS_HEADER]);
    let mut interfaces = socket.dump(links, Interface::read)?;
    for (index, address) in socket.dump(addresses, Address::read)? {
        if let Some(interface) = interfaces.iter_mut().find(|interface| interface.index == index) {
            interface.addresses.push(address);
        }
    }
    interfaces.sort_by_key(|interface| interface.index);
    Ok(interfaces)
}

/// A route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the outgoing interface.
    pub if_index: u32,
    /// The source address of packets.
    pub source: IpAddr,
    /// The router that packets are sent to; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
}

/// Looks up the route to `destination`; `None` if there is none.
///
/// # Errors
/// The kernel's reason, if it is not a missing route.
pub fn route(destination: IpAddr) -> Result<Option<Route>, Error> {
    route_of(destination, None, None)
}

/// As [`route`], for packets with a source address or of a socket that is bound to an interface.
///
/// For IPv4, the kernel assumes that any destination is on the link of a given interface: see [`route_via`].
///
/// # Errors
/// As [`route`].
pub fn route_of(
    destination: IpAddr,
    source: Option<IpAddr>,
    if_index: Option<u32>,
) -> Result<Option<Route>, Error> {
    Query { destination, source, if_index }.route(&mut Socket::route()?)
}

/// Whether the kernel accepts packets from `source` to `destination`, an address of this host, that arrive by the interface
/// `if_index`. It does not if `rp_filter` is 1 and packets to `source` would leave by another interface (RFC 3704, 2.2).
///
/// # Errors
/// The kernel's reason, if it is not that it would drop them.
pub fn accepts(source: IpAddr, destination: IpAddr, if_index: u32) -> Result<bool, Error> {
    let mut entry = None;
    let request = with_address(lookup(destination, Some(source), 0), RTA_SRC, source)
        .attribute(RTA_IIF, &if_index.to_ne_bytes());
    match Socket::route()?.request(request, |message| entry = Entry::read(message)) {
        Ok(()) => Ok(entry.is_some_and(|found| found.usable)),
        Err(error) if error.errno().is_some_and(|errno| errno == libc::EXDEV || means_no_route(errno)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The source address of packets to `destination` that leave by the interface `if_index`; `None` without a route by it.
///
/// Considers routes that apply only to a source address of that interface (`ip rule add from ...`). For IPv4, the kernel
/// assumes that any destination is on the link of a given interface; such results are ignored.
///
/// # Errors
/// The kernel's reason, if it is not a missing route.
pub fn route_via(destination: IpAddr, if_index: u32) -> Result<Option<IpAddr>, Error> {
    let mut socket = Socket::route()?;
    let mut query = Query { destination, source: None, if_index: Some(if_index) };
    if query.matches(&mut socket)?
        && let Some(route) = query.route(&mut socket)?
    {
        return Ok(Some(route.source));
    }
    let interfaces = interfaces()?;
    let Some(interface) = interfaces.iter().find(|interface| interface.index == if_index) else {
        return Ok(None);
    };
    for address in interface.addresses.iter().filter(|a| a.scope == Scope::Global && a.usable) {
        query.source = Some(address.ip);
        if address.ip.is_ipv4() == destination.is_ipv4() && query.matches(&mut socket)? {
            return Ok(Some(address.ip));
        }
    }
    Ok(None)
}

/// The index of the interface that a socket is bound to; 0 for none.
///
/// # Errors
/// The kernel's reason.
pub fn bound_index(socket: impl AsFd) -> io::Result<u32> {
    let mut index = [0; 4];
    sockopt::get(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &mut index)?;
    Ok(u32::from_ne_bytes(index))
}

/// A lookup in the routing tables.
#[derive(Clone, Copy)]
struct Query {
    destination: IpAddr,
    source: Option<IpAddr>,
    if_index: Option<u32>,
}

impl Query {
    /// Whether an entry of the tables matches and uses the requested interface.
    fn matches(&self, socket: &mut Socket) -> Result<bool, Error> {
        Ok(self.send(socket, RTM_F_FIB_MATCH)?.is_some_and(|found| {
            // A multipath entry has no single interface; the kernel chose one that matches.
            found.usable && (found.if_index.is_none() || found.if_index == self.if_index)
        }))
    }

    /// The route that packets take.
    fn route(&self, socket: &mut Socket) -> Result<Option<Route>, Error> {
        let Some(found) = self.send(socket, 0)?.filter(|found| found.usable) else { return Ok(None) };
        Ok(found.if_index.zip(found.source.or(self.source)).map(|(if_index, source)| Route {
            if_index,
            source,
            gateway: found.gateway,
        }))
    }

    fn send(&self, socket: &mut Socket, flags: u32) -> Result<Option<Entry>, Error> {
        let mut request = lookup(self.destination, self.source, flags);
        if let Some(source) = self.source {
            request = with_address(request, RTA_SRC, source);
        }
        if let Some(index) = self.if_index {
            request = request.attribute(RTA_OIF, &index.to_ne_bytes());
        }
        let mut entry = None;
        match socket.request(request, |message| entry = Entry::read(message)) {
            Ok(()) => Ok(entry),
            Err(error) if error.errno().is_some_and(means_no_route) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A request for the route to `destination`, without its source.
fn lookup(destination: IpAddr, source: Option<IpAddr>, flags: u32) -> Request {
    let bits = if destination.is_ipv4() { 32 } else { 128 };
    let family = if destination.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let source_bits = if source.is_some() { bits } else { 0 };
    // struct rtmsg
    let mut header = [family, bits, source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[8..].copy_from_slice(&flags.to_ne_bytes());
    with_address(Request::new(RTM_GETROUTE, NLM_F_ACK, &header), RTA_DST, destination)
}

/// The result of a lookup.
struct Entry {
    usable: bool,
    if_index: Option<u32>,
    source: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

impl Entry {
    fn read(message: &Message) -> Option<Entry> {
        if message.kind != RTM_NEWROUTE {
            return None;
        }
        let attributes = message.attributes(ROUTE_HEADER);
        Some(Entry {
            usable: matches!(u8_at(message.payload, 7)?, RTN_UNICAST | RTN_LOCAL),
            if_index: attributes.u32(RTA_OIF),
            source: attributes.find(RTA_PREFSRC).and_then(ip_address),
            gateway: attributes.find(RTA_GATEWAY).and_then(ip_address),
        })
    }
}

impl Interface {
    fn read(message: &Message) -> Option<Interface> {
        if message.kind != RTM_NEWLINK {
            return None;
        }
        let flags = u32_at(message.payload, 8)?;
        let attributes = message.attributes(LINK_HEADER);
        let name = attributes.find(IFLA_IFNAME)?;
        let link_info = attributes.nested(IFLA_LINKINFO);
        let set = |flag: i32| flags & flag as u32 != 0;
        Some(Interface {
            index: u32_at(message.payload, 4)?,
            name: String::from_utf8_lossy(without_nul(name)).into_owned(),
            up: set(libc::IFF_UP),
            running: set(libc::IFF_UP) && set(libc::IFF_LOWER_UP),
            loopback: set(libc::IFF_LOOPBACK),
            ethernet: matches!(u16_at(message.payload, 2)?, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK),
            software: link_info.find(IFLA_INFO_KIND).is_some(),
            bridge: link_info.find(IFLA_INFO_KIND).is_some_and(|kind| without_nul(kind) == b"bridge"),
            port: link_info.find(IFLA_INFO_SLAVE_KIND).is_some_and(is_port),
            mtu: attributes.u32(IFLA_MTU)?,
            addresses: Vec::new(),
        })
    }
}

impl Address {
    /// An address and the index of its interface.
    fn read(message: &Message) -> Option<(u32, Address)> {
        if message.kind != RTM_NEWADDR {
            return None;
        }
        let attributes = message.attributes(ADDRESS_HEADER);
        // On point-to-point links, IFA_LOCAL is the local address, and IFA_ADDRESS the peer's.
        let ip = attributes.find(IFA_LOCAL).or_else(|| attributes.find(IFA_ADDRESS))?;
        let flags = attributes.u32(IFA_FLAGS).unwrap_or(u8_at(message.payload, 2)?.into());
        let address = Address {
            ip: ip_address(ip)?,
            prefix: u8_at(message.payload, 1)?,
            scope: match u8_at(message.payload, 3)? {
                0 => Scope::Global,
                253 => Scope::Link,
                254 => Scope::Host,
                other => Scope::Other(other),
            },
            usable: flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED | IFA_F_DEPRECATED) == 0,
        };
        Some((u32_at(message.payload, 4)?, address))
    }
}

fn with_address(request: Request, kind: u16, address: IpAddr) -> Request {
    match address {
        IpAddr::V4(v4) => request.attribute(kind, &v4.octets()),
        IpAddr::V6(v6) => request.attribute(kind, &v6.octets()),
    }
}

/// Whether an interface with this IFLA_INFO_SLAVE_KIND has no addresses of its own. Those in a VRF do.
fn is_port(kind: &[u8]) -> bool {
    [&b"bridge"[..], b"bond", b"team"].contains(&without_nul(kind))
}

/// Includes errors for an interface that does not exist or is down, a source address that is not local, and routes that
/// discard packets.
fn means_no_route(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENODEV | libc::ENETDOWN | libc::EINVAL | libc::EACCES
    )
}

const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_SLAVE_KIND: u16 = 4;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_IIF: u16 = 3;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefix_length_determines_the_subnet() {
        let address = |ip: &str, prefix| {
            let ip: IpAddr = ip.parse().unwrap();
            Address { ip, prefix, scope: Scope::Global, usable: true }
        };
        let contains = |own: Address, other: &str| own.network_contains(other.parse().unwrap());
        assert!(contains(address("192.0.2.1", 25), "192.0.2.127"));
        assert!(!contains(address("192.0.2.1", 25), "192.0.2.128"));
        assert!(contains(address("192.0.2.1", 0), "203.0.113.9"));
        assert!(!contains(address("192.0.2.1", 32), "192.0.2.2"));
        assert!(contains(address("2001:db8::1", 64), "2001:db8::ffff"));
        assert!(!contains(address("2001:db8::1", 64), "2001:db8:0:1::1"));
        assert!(!contains(address("2001:db8::1", 0), "192.0.2.1"));
    }

    proptest! {
        #[test]
        fn arbitrary_messages_do_not_panic(kind in 16u16..27, payload: Vec<u8>) {
            let message = Message { kind, flags: 0, sequence: 0, payload: &payload };
            let _ = (Interface::read(&message), Address::read(&message), Entry::read(&message));
        }
    }
}
