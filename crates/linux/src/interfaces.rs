//! The network interfaces of this namespace, their addresses, and which of them leads to a destination.
//!
//! Asked of the kernel over netlink's routing family (`rtnetlink(7)`), in the network namespace of the calling
//! thread; any user may query them. No data from the kernel makes this module panic.

use std::net::IpAddr;

use crate::bytes::{ip_address, u8_at, u16_at, u32_at};
use crate::netlink::message::{Message, NLM_F_ACK, Request};
use crate::netlink::{Error, Socket};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its index, from 1.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// It is switched on.
    pub up: bool,
    /// It is switched on and has a carrier: packets can leave.
    pub running: bool,
    /// It is the loopback interface.
    pub loopback: bool,
    /// Its packets begin with an Ethernet header; those of others, such as TUN devices and many modems, with IP's.
    pub ethernet: bool,
    /// Whether it is a software device, such as a veth pair, a TUN device or a bridge, and not a hardware driver's.
    pub software: bool,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// Its addresses.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network prefix, bits.
    pub prefix: u8,
    /// How far it is valid.
    pub scope: Scope,
    /// It can be used as a source: not tentative, not a duplicate, not deprecated.
    pub usable: bool,
}

impl Address {
    /// Whether another address belongs to the network of this one, so that no router is needed to reach it.
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

/// How far an address is valid (`rtnetlink(7)`, `rtm_scope`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    Global,
    /// On one link only, such as `fe80::/10`.
    Link,
    /// Inside this host only.
    Host,
    /// What the administrator defined, such as the obsolete site scope.
    Other(u8),
}

/// All interfaces, by index.
///
/// # Errors
/// The kernel's reason.
pub fn interfaces() -> Result<Vec<Interface>, Error> {
    list(&mut Socket::route()?)
}

/// As [`interfaces`], of the namespace of a socket of the routing family.
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

/// A way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface that packets leave by.
    pub if_index: u32,
    /// The source address they get.
    pub source: IpAddr,
}

/// The default route of packets to `destination`. `None` if there is none.
///
/// # Errors
/// The kernel's reason, other than that there is no route.
pub fn route(destination: IpAddr) -> Result<Option<Route>, Error> {
    Query { destination, source: None, if_index: None }.ask(&mut Socket::route()?)
}

/// The source address that packets to `destination` have when they leave by the interface `if_index`; `None` if no
/// route leads there by it.
///
/// Includes routes that apply only to a source address of that interface (`ip rule add from ...`). For IPv4, the kernel
/// assumes that any destination is on the link of a given interface; this assumption is excluded.
///
/// # Errors
/// The kernel's reason, other than that there is no route.
pub fn route_via(destination: IpAddr, if_index: u32) -> Result<Option<IpAddr>, Error> {
    let mut socket = Socket::route()?;
    let mut query = Query { destination, source: None, if_index: Some(if_index) };
    if query.matches(&mut socket)?
        && let Some(route) = query.ask(&mut socket)?
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

/// A query of the routing tables.
#[derive(Clone, Copy)]
struct Query {
    destination: IpAddr,
    source: Option<IpAddr>,
    if_index: Option<u32>,
}

impl Query {
    /// Whether an entry of the tables matches and lets packets out by the interface asked for.
    fn matches(&self, socket: &mut Socket) -> Result<bool, Error> {
        Ok(self.send(socket, RTM_F_FIB_MATCH)?.is_some_and(|found| {
            // A multipath entry has no single interface; the kernel picked one that matches.
            found.usable && (found.if_index.is_none() || found.if_index == self.if_index)
        }))
    }

    /// The route packets would take.
    fn ask(&self, socket: &mut Socket) -> Result<Option<Route>, Error> {
        let Some(found) = self.send(socket, 0)?.filter(|found| found.usable) else { return Ok(None) };
        Ok(found
            .if_index
            .zip(found.source.or(self.source))
            .map(|(if_index, source)| Route { if_index, source }))
    }

    fn send(&self, socket: &mut Socket, flags: u32) -> Result<Option<Entry>, Error> {
        let bits = if self.destination.is_ipv4() { 32 } else { 128 };
        let family = if self.destination.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
        let source_bits = if self.source.is_some() { bits } else { 0 };
        // struct rtmsg
        let mut header = [family, bits, source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header[8..].copy_from_slice(&flags.to_ne_bytes());
        let mut request = Request::new(RTM_GETROUTE, NLM_F_ACK, &header);
        request = with_address(request, RTA_DST, self.destination);
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

/// The kernel's answer.
struct Entry {
    usable: bool,
    if_index: Option<u32>,
    source: Option<IpAddr>,
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
        let set = |flag: i32| flags & flag as u32 != 0;
        Some(Interface {
            index: u32_at(message.payload, 4)?,
            name: String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(name)).into_owned(),
            up: set(libc::IFF_UP),
            running: set(libc::IFF_UP) && set(libc::IFF_LOWER_UP),
            loopback: set(libc::IFF_LOOPBACK),
            ethernet: matches!(u16_at(message.payload, 2)?, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK),
            software: attributes.inside(IFLA_LINKINFO).find(IFLA_INFO_KIND).is_some(),
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
        // On point-to-point links IFA_ADDRESS is the other end, and IFA_LOCAL ours.
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

/// Besides "unreachable": an interface that does not exist or is down, a source that is not ours, and the types of
/// routes that discard packets.
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

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_network_ends_where_its_prefix_says() {
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
        fn no_message_makes_reading_panic(kind in 16u16..27, payload: Vec<u8>) {
            let message = Message { kind, flags: 0, sequence: 0, payload: &payload };
            let _ = (Interface::read(&message), Address::read(&message), Entry::read(&message));
        }
    }
}
