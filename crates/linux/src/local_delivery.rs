//! Policy routing (`ip-rule(8)`) that delivers marked packets to this host, whatever their destination: for transparent proxies.
//!
//! A rule for each interface and address family looks marked packets up in a table whose only route is a local default route. The
//! number of the table contains the id of the process, by which leftovers of killed processes are found. Without packets that
//! bear the mark, they have no effect.

use rustix::net::netdevice::name_to_index;
use rustix::process::{Pid, getpid};

use crate::bytes::{u8_at, without_nul};
use crate::leftovers::has_ended;
use crate::netlink::message::{Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Request};
use crate::netlink::{Error, Socket};

/// Delivery of marked packets, until it is dropped. Acts on the network namespace of the thread that created it.
#[derive(Debug)]
pub struct LocalDelivery {
    socket: Socket,
    loopback: u32,
    table: u32,
    rules: Vec<Rule>,
}

impl LocalDelivery {
    /// Delivers packets with this mark that arrive by one of the interfaces, which need not exist yet.
    ///
    /// # Errors
    /// The kernel's reason: `EPERM` without `CAP_NET_ADMIN`.
    pub fn start(interfaces: &[String], mark: u32) -> Result<LocalDelivery, Error> {
        let table = table_of(getpid());
        let mut delivery =
            LocalDelivery { socket: Socket::route()?, loopback: loopback_index()?, table, rules: Vec::new() };
        // A rule exists whenever the route does, so that the rules show all leftovers.
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
            if delivery.rules.iter().any(|rule| rule.family == family) {
                let route =
                    route_request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, family, delivery.loopback, table);
                delivery
                    .socket
                    .request(route, |_| ())
                    .or_else(|error| if error.errno() == Some(libc::EEXIST) { Ok(()) } else { Err(error) })?;
            }
        }
        Ok(delivery)
    }
}

impl Drop for LocalDelivery {
    fn drop(&mut self) {
        remove(&mut self.socket, self.loopback, self.table, &self.rules);
    }
}

/// Removes what killed processes have left in the network namespace of the calling thread. Returns its description.
///
/// # Errors
/// The kernel's reason.
pub fn clean_leftovers() -> Result<Vec<String>, Error> {
    let (mut socket, loopback) = (Socket::route()?, loopback_index()?);
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
        remove(&mut socket, loopback, *table, &rules);
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

/// Adds or deletes the local default route of a table.
fn route_request(kind: u16, flags: u16, family: u8, loopback: u32, table: u32) -> Request {
    let mut header = [0; ROUTE_HEADER];
    header[0] = family;
    header[5] = RTPROT_STATIC;
    header[6] = RT_SCOPE_HOST;
    header[7] = RTN_LOCAL;
    Request::new(kind, flags | NLM_F_ACK, &header)
        .attribute(RTA_OIF, &loopback.to_ne_bytes())
        .attribute(RTA_TABLE, &table.to_ne_bytes())
}

fn loopback_index() -> Result<u32, Error> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    let index = socket.and_then(|socket| name_to_index(socket, "lo"));
    index.map_err(|error| Error::Socket(error.into()))
}

/// Removes the routes first, then the rules. What is not there any longer is no error.
fn remove(socket: &mut Socket, loopback: u32, table: u32, rules: &[Rule]) {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let route = route_request(RTM_DELROUTE, 0, family as u8, loopback, table);
        if let Err(error) = socket.request(route, |_| ()) {
            tracing::trace!("the local route of table {table}: {error}");
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

/// The table of a process.
fn table_of(pid: Pid) -> u32 {
    TABLES | (pid.as_raw_pid().unsigned_abs() & MAX_PID)
}

/// The process whose table this is; `None` if it is none of plait's.
fn pid_of(table: u32) -> Option<Pid> {
    let pid = table.checked_sub(TABLES).filter(|pid| *pid <= MAX_PID)?;
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// The first of the tables: "p" in ASCII is 0x70.
const TABLES: u32 = 0x7000_0000;
/// Process ids of Linux are below PID_MAX_LIMIT, which is a power of two.
const MAX_PID: u32 = (1 << 22) - 1;
/// Before those of VPNs, which would route marked packets elsewhere.
const PRIORITY: u32 = 70;

const RULE_HEADER: usize = 12;
const ROUTE_HEADER: usize = 12;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FR_ACT_TO_TBL: u8 = 1;
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_numbered_by_process() {
        for pid in [Some(getpid()), Pid::from_raw(1), Pid::from_raw(4_194_303)] {
            assert_eq!(pid.and_then(|pid| pid_of(table_of(pid))), pid);
        }
        for other in [0, 254, 255, TABLES, TABLES + MAX_PID + 1, u32::MAX] {
            assert_eq!(pid_of(other), None, "{other}");
        }
    }
}
