//! Policy routing (`ip-rule(8)`) that delivers marked packets to this host, whatever their destination: for transparent proxies.
//!
//! A rule for each interface and address family looks marked packets up in a table whose default route is a local one. The
//! number of the table contains the id of the process, by which leftovers of killed processes are found. Without packets that
//! bear the mark, they have no effect.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rustix::net::netdevice::name_to_index;
use rustix::process::{Pid, getpid};

use crate::bytes::{u8_at, without_nul};
use crate::interfaces::{Interface, Scope};
use crate::leftovers::has_ended;
use crate::netlink::message::{Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request};
use crate::netlink::{Error, Socket};

/// Delivery of marked packets, until it is dropped. Acts on the network namespace of the thread that created it.
#[derive(Debug)]
pub struct LocalDelivery {
    socket: Socket,
    loopback: u32,
    table: u32,
    rules: Vec<Rule>,
    routes: BTreeSet<Route>,
}

impl LocalDelivery {
    /// Delivers packets with this mark that arrive by one of the interfaces, which need not exist yet.
    ///
    /// # Errors
    /// The kernel's reason: `EPERM` without `CAP_NET_ADMIN`.
    pub fn of_received(interfaces: &[String], mark: u32) -> Result<LocalDelivery, Error> {
        let mut delivery = LocalDelivery::start(table_of(RECEIVED, getpid()), interfaces, mark)?;
        for address in [ANY_V4, ANY_V6] {
            let route = Route::local(delivery.loopback, address);
            if delivery.has_rules_of(route.family()) {
                delivery.add(&route)?;
            }
        }
        Ok(delivery)
    }

    /// Delivers packets of this host's sockets that have this mark (`SO_MARK`), once it is [updated](Self::update).
    ///
    /// # Errors
    /// As for [`of_received`](Self::of_received).
    pub fn of_sent(mark: u32) -> Result<LocalDelivery, Error> {
        // What this host sends has, in rules, arrived by loopback.
        LocalDelivery::start(table_of(SENT, getpid()), &["lo".into()], mark)
    }

    fn start(table: u32, interfaces: &[String], mark: u32) -> Result<LocalDelivery, Error> {
        let mut delivery = LocalDelivery {
            socket: Socket::route()?,
            loopback: loopback_index()?,
            table,
            rules: Vec::new(),
            routes: BTreeSet::new(),
        };
        // Rules exist whenever routes do, so that they show all leftovers.
        for family in [libc::AF_INET, libc::AF_INET6] {
            let family = family as u8;
            let rules =
                interfaces.iter().map(|interface| Rule { family, interface: interface.clone(), mark, table });
            for rule in rules {
                match delivery.socket.request(rule.request(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL), |_| ()) {
                    // From an earlier router of this process.
                    Err(error) if error.errno() == Some(libc::EEXIST) => {}
                    Err(error) if is_without(family, &error) => continue,
                    added => added?,
                }
                delivery.rules.push(rule);
            }
        }
        Ok(delivery)
    }

    /// Routes what is sent to these networks as without the mark. Sockets without an address of their own send from `source`, and
    /// those that are bound to one of the interfaces, or name it for a packet (`IP_PKTINFO`), from an address of it; with IPv6 the
    /// kernel chooses. To be called when interfaces or addresses have changed, of which the kernel removes routes.
    pub fn update(&mut self, interfaces: &[Interface], source: Ipv4Addr, exceptions: &BTreeSet<IpNet>) {
        let any = [Route::local(self.loopback, IpAddr::V4(source)), Route::local(self.loopback, ANY_V6)];
        let by_interface = interfaces
            .iter()
            .filter(|interface| interface.up && !interface.loopback)
            .flat_map(Route::of_interface);
        let exceptions = exceptions.iter().map(|network| Route::throw(*network));
        let wanted = any.into_iter().chain(by_interface).chain(exceptions);
        let wanted: BTreeSet<_> = wanted.filter(|route| self.has_rules_of(route.family())).collect();
        for route in &wanted {
            // Of an interface or address that has gone meanwhile, which is the next change.
            if let Err(error) = self.add(route) {
                tracing::debug!("cannot add a route to table {}: {error}", self.table);
            }
        }
        for route in self.routes.difference(&wanted) {
            let request = route.request(RTM_DELROUTE, 0, self.table);
            // One that is not there need not be deleted.
            let _ = self.socket.request(request, |_| ());
        }
        self.routes = wanted;
    }

    fn has_rules_of(&self, family: u8) -> bool {
        self.rules.iter().any(|rule| rule.family == family)
    }

    /// Adds a route, in the place of the one to the same network with the same priority.
    fn add(&mut self, route: &Route) -> Result<(), Error> {
        let request = route.request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, self.table);
        self.socket.request(request, |_| ())
    }
}

impl Drop for LocalDelivery {
    fn drop(&mut self) {
        remove(&mut self.socket, self.table, &self.rules);
    }
}

/// Removes what killed processes have left in the network namespace of the calling thread. Returns its description.
///
/// # Errors
/// The kernel's reason.
pub fn clean_leftovers() -> Result<Vec<String>, Error> {
    let mut socket = Socket::route()?;
    let mut left = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let request =
            |flags| Request::new(RTM_GETRULE, flags, &[family as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        match socket.dump(request, Rule::read) {
            Err(error) if is_without(family as u8, &error) => {}
            rules => left.extend(rules?.into_iter().filter(|rule| pid_of(rule.table).is_some_and(has_ended))),
        }
    }
    let mut tables: Vec<_> = left.iter().map(|rule| rule.table).collect();
    tables.sort_unstable();
    tables.dedup();
    for table in &tables {
        let rules: Vec<_> = left.iter().filter(|rule| rule.table == *table).cloned().collect();
        remove(&mut socket, *table, &rules);
    }
    Ok(tables.into_iter().map(|table| format!("table {table}")).collect())
}

/// A rule for an interface.
#[derive(Clone, Debug)]
struct Rule {
    family: u8,
    interface: String,
    mark: u32,
    table: u32,
}

impl Rule {
    fn read(message: &Message) -> Option<Rule> {
        if message.kind != RTM_NEWRULE {
            return None;
        }
        let attributes = message.attributes(RULE_HEADER);
        let interface = attributes.find(FRA_IIFNAME)?;
        Some(Rule {
            family: u8_at(message.payload, 0)?,
            interface: String::from_utf8_lossy(without_nul(interface)).into_owned(),
            mark: attributes.u32(FRA_FWMARK)?,
            table: attributes.u32(FRA_TABLE)?,
        })
    }

    fn request(&self, kind: u16, flags: u16) -> Request {
        let mut header = [0; RULE_HEADER];
        header[0] = self.family;
        header[7] = FR_ACT_TO_TBL;
        let interface = [self.interface.as_bytes(), &[0]].concat();
        Request::new(kind, flags | NLM_F_ACK, &header)
            .attribute(FRA_IIFNAME, &interface)
            .attribute(FRA_PRIORITY, &PRIORITY.to_ne_bytes())
            .attribute(FRA_FWMARK, &self.mark.to_ne_bytes())
            .attribute(FRA_FWMASK, &u32::MAX.to_ne_bytes())
            .attribute(FRA_TABLE, &self.table.to_ne_bytes())
    }
}

/// A route of a table.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    /// `struct rtmsg`
    header: [u8; ROUTE_HEADER],
    /// Types and values.
    attributes: Vec<(u16, Vec<u8>)>,
}

impl Route {
    fn new(network: IpNet, scope: u8, kind: u8) -> Route {
        let (family, octets) = match network.network() {
            IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        let mut header = [0; ROUTE_HEADER];
        header[..2].copy_from_slice(&[family as u8, network.prefix_len()]);
        header[5..8].copy_from_slice(&[RTPROT_STATIC, scope, kind]);
        Route { header, attributes: vec![(RTA_DST, octets)] }
    }

    /// By an interface, whose index is the priority, too: the kernel replaces routes of the same priority.
    fn by(mut self, if_index: u32) -> Route {
        let index = if_index.to_ne_bytes().to_vec();
        self.attributes.extend([(RTA_OIF, index.clone()), (RTA_PRIORITY, index)]);
        self
    }

    /// Delivers to this host what is sent by an interface, from this address if it is one of IPv4.
    fn local(if_index: u32, source: IpAddr) -> Route {
        let everywhere = IpNet::new_assert(if source.is_ipv4() { ANY_V4 } else { ANY_V6 }, 0);
        let mut route = Route::new(everywhere, RT_SCOPE_HOST, RTN_LOCAL).by(if_index);
        if let IpAddr::V4(source) = source
            && !source.is_unspecified()
        {
            route.attributes.push((RTA_PREFSRC, source.octets().to_vec()));
        }
        route
    }

    /// Ends the lookup in this table.
    fn throw(network: IpNet) -> Route {
        Route::new(network, RT_SCOPE_UNIVERSE, RTN_THROW)
    }

    /// Those for sockets that are bound to an interface. With IPv6, a lookup by an interface ignores routes that throw.
    fn of_interface(interface: &Interface) -> impl Iterator<Item = Route> {
        let index = interface.index;
        let global = interface.addresses.iter().filter(|address| address.scope == Scope::Global);
        let source = global.map(|address| address.ip).find(IpAddr::is_ipv4);
        let locals = source.into_iter().chain([ANY_V6]).map(move |source| Route::local(index, source));
        let v6 = interface.addresses.iter().filter(|address| address.ip.is_ipv6());
        let on_link = v6.filter_map(move |address| {
            let network = IpNet::new(address.ip, address.prefix).ok()?.trunc();
            Some(Route::new(network, RT_SCOPE_LINK, RTN_UNICAST).by(index))
        });
        locals.chain(on_link)
    }

    /// One that the kernel lists, if it is of this table.
    fn read(message: &Message, table: u32) -> Option<Route> {
        let attributes = message.attributes(ROUTE_HEADER);
        if message.kind != RTM_NEWROUTE || attributes.u32(RTA_TABLE)? != table {
            return None;
        }
        let mut header: [u8; ROUTE_HEADER] = message.payload.get(..ROUTE_HEADER)?.try_into().ok()?;
        // Flags, such as those of the next hop, select no route.
        header[8..].fill(0);
        let attribute = |kind| attributes.find(kind).map(|value| (kind, value.to_vec()));
        Some(Route {
            header,
            attributes: [RTA_DST, RTA_PRIORITY].into_iter().filter_map(attribute).collect(),
        })
    }

    fn family(&self) -> u8 {
        self.header[0]
    }

    fn request(&self, kind: u16, flags: u16, table: u32) -> Request {
        let request = Request::new(kind, flags | NLM_F_ACK, &self.header);
        let request = request.attribute(RTA_TABLE, &table.to_ne_bytes());
        self.attributes.iter().fold(request, |request, (kind, value)| request.attribute(*kind, value))
    }
}

fn loopback_index() -> Result<u32, Error> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    let index = socket.and_then(|socket| name_to_index(socket, "lo"));
    index.map_err(|error| Error::Socket(error.into()))
}

/// Removes the routes of a table first, then the rules. What is not there any longer is no error.
fn remove(socket: &mut Socket, table: u32, rules: &[Rule]) {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let request = |flags| {
            let header = [family as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            Request::new(RTM_GETROUTE, flags, &header).attribute(RTA_TABLE, &table.to_ne_bytes())
        };
        let routes = socket.dump(request, |message| Route::read(message, table)).unwrap_or_default();
        for route in routes {
            if let Err(error) = socket.request(route.request(RTM_DELROUTE, 0, table), |_| ()) {
                tracing::debug!("cannot remove a route of table {table}: {error}");
            }
        }
    }
    for rule in rules {
        if let Err(error) = socket.request(rule.request(RTM_DELRULE, 0), |_| ()) {
            tracing::debug!("cannot remove the routing rule for {}: {error}", rule.interface);
        }
    }
}

/// Whether the kernel has no IPv6.
fn is_without(family: u8, error: &Error) -> bool {
    i32::from(family) == libc::AF_INET6
        && matches!(error.errno(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EINVAL))
}

/// A process's table of one kind.
fn table_of(kind: u32, pid: Pid) -> u32 {
    TABLES | kind | (pid.as_raw_pid().unsigned_abs() & MAX_PID)
}

/// The process whose table this is; `None` if it is none of plait's.
fn pid_of(table: u32) -> Option<Pid> {
    let pid = [RECEIVED, SENT]
        .iter()
        .find_map(|kind| table.checked_sub(TABLES | kind).filter(|pid| *pid <= MAX_PID))?;
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// The first of the tables: "p" in ASCII is 0x70.
const TABLES: u32 = 0x7000_0000;
/// Process ids of Linux are below PID_MAX_LIMIT, which is a power of two.
const MAX_PID: u32 = (1 << 22) - 1;
/// What is delivered by a table: what arrives, or what sockets send.
const RECEIVED: u32 = 0;
const SENT: u32 = MAX_PID + 1;
/// Before those of VPNs, which would route marked packets elsewhere.
const PRIORITY: u32 = 70;

const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

const RULE_HEADER: usize = 12;
const ROUTE_HEADER: usize = 12;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FR_ACT_TO_TBL: u8 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_HOST: u8 = 254;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_THROW: u8 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_numbered_by_process() {
        for pid in [Some(getpid()), Pid::from_raw(1), Pid::from_raw(4_194_303)] {
            for kind in [RECEIVED, SENT] {
                assert_eq!(pid.and_then(|pid| pid_of(table_of(kind, pid))), pid);
            }
        }
        for other in [0, 254, 255, TABLES, TABLES | SENT, (TABLES | SENT) + MAX_PID + 1, u32::MAX] {
            assert_eq!(pid_of(other), None, "{other}");
        }
    }
}
