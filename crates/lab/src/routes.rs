//! Plans the routes of each host from a topology, before anything is built.
//!
//! On each interface, a host has a route to every network that is reachable through it, with the fewest hops and
//! through hosts only that forward or bridge; what is behind a bridge is on the link. In the main table, a route with fewer hops has a lower metric, so that the next
//! best takes over when an interface goes down. A host with several interfaces also has a table for each, selected by
//! source address: a subflow leaves by the link of its source address, whatever its destination. Exception: between
//! two hosts with several links, the host at end `b` replies over the link of the peer's address instead, so that
//! both directions of a subflow use the link of the address at end `a`.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

use crate::topology::{Address, Host, Link, Side, Topology};

/// Table and rule preference of a host's first interface; those of further interfaces follow.
const FIRST_TABLE: u32 = 100;
const FIRST_PREFERENCE: u32 = 1000;
/// Above the kernel's default for IPv6 routes (1024), which routes to neighbours have.
const FIRST_METRIC: u32 = 2000;

/// A route over one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// The destination network.
    pub(crate) to: Address,
    /// The next hop; `None` if the network is on the link.
    pub(crate) via: Option<IpAddr>,
    pub(crate) interface: String,
    /// The preferred source address.
    pub(crate) source: Option<IpAddr>,
    /// The table; `None` for the main table.
    pub(crate) table: Option<u32>,
    pub(crate) metric: Option<u32>,
    pub(crate) congestion_control: Option<String>,
}

/// A rule that selects a table for packets from an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) from: IpAddr,
    pub(crate) table: u32,
    pub(crate) preference: u32,
}

/// The routes and rules of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The routes, in an order in which each depends only on earlier ones.
    pub(crate) routes: Vec<Route>,
    pub(crate) rules: Vec<Rule>,
}

/// Plans the routes and rules for one end of a link.
pub(crate) fn plan(topology: &Topology, host: &Host, link: &Link, side: Side) -> Plan {
    if host.bridge {
        return Plan::default();
    }
    let own = links_of(topology, &host.name);
    let position = own.iter().position(|(other, _)| other.name == link.name).unwrap_or_default();
    let position = u32::try_from(position).unwrap_or_default();
    let table = FIRST_TABLE + position;
    let end = link.end(side);
    let mut on_link = BTreeSet::new();
    let first = end.addresses.iter().filter(|address| on_link.insert(address.network()));
    let connected = first.map(|address| Route {
        to: address.network(),
        via: None,
        interface: end.interface.clone(),
        source: Some(address.ip),
        table: None,
        metric: None,
        congestion_control: host.congestion_control.clone(),
    });
    let connected: Vec<_> = connected.collect();
    let mut plan = Plan { routes: connected.clone(), rules: Vec::new() };
    for target in topology.links.iter().filter(|target| target.name != link.name) {
        for network in networks(target) {
            plan.routes.extend(route_to(topology, host, (link, side), target, network, &own));
        }
    }
    if own.len() > 1 {
        let further = plan.routes[connected.len()..].to_vec();
        let for_source = |route: &Route, table, metric| Route {
            table: Some(table),
            metric,
            source: None,
            ..route.clone()
        };
        plan.routes.extend(connected.iter().map(|route| for_source(route, table, None)));
        plan.routes.extend(further.iter().map(|route| for_source(route, table, Some(FIRST_METRIC))));
        for (position, (other, other_side)) in (0..).zip(&own) {
            let same = other.name != link.name
                && (side, *other_side) == (Side::B, Side::B)
                && other.a.host == link.a.host;
            if same {
                let table = FIRST_TABLE + position;
                plan.routes.extend(connected.iter().map(|route| for_source(route, table, None)));
            }
        }
        let rule =
            |address: &Address| Rule { from: address.ip, table, preference: FIRST_PREFERENCE + position };
        plan.rules = end.addresses.iter().map(rule).collect();
    }
    plan
}

/// The links of a host, with the side that the host is on.
fn links_of<'t>(topology: &'t Topology, host: &str) -> Vec<(&'t Link, Side)> {
    let ends = topology.links.iter().flat_map(|link| Side::BOTH.map(|side| (link, side)));
    ends.filter(|(link, side)| link.end(*side).host == host).collect()
}

fn networks(link: &Link) -> BTreeSet<Address> {
    link.a.addresses.iter().map(|address| address.network()).collect()
}

/// The route in the main table over `out` to a network of `target`.
fn route_to(
    topology: &Topology,
    host: &Host,
    out: (&Link, Side),
    target: &Link,
    network: Address,
    own: &[(&Link, Side)],
) -> Option<Route> {
    let hops = hops(topology, host, out, target, network)?;
    // Among routes with equal hop counts, the link that is first in the file is preferred.
    let nearer = own.iter().take_while(|(link, _)| link.name != out.0.name).map(|end| (end, true));
    let others = own.iter().skip_while(|(link, _)| link.name != out.0.name).skip(1).map(|end| (end, false));
    let before = nearer.chain(others).filter(|(end, first)| {
        let other = self::hops(topology, host, **end, target, network);
        other.is_some_and(|other| other < hops || (*first && other == hops))
    });
    let rank = u32::try_from(before.count()).unwrap_or_default();
    let (link, side) = out;
    let of_family = |side: Side| {
        let mut addresses = link.end(side).addresses.iter().map(|address| address.ip);
        addresses.find(|ip| ip.is_ipv4() == network.ip.is_ipv4())
    };
    Some(Route {
        to: network,
        via: next_hop(topology, out, target, network)?,
        interface: link.end(side).interface.clone(),
        source: of_family(side),
        table: None,
        metric: Some(FIRST_METRIC + rank),
        congestion_control: host.congestion_control.clone(),
    })
}

/// The next hop by a link to a network of `target`: the other end, or whom that bridges to. `Some(None)`: the network is on the
/// link.
fn next_hop(
    topology: &Topology,
    (link, side): (&Link, Side),
    target: &Link,
    network: Address,
) -> Option<Option<IpAddr>> {
    let of_family = |link: &Link, side: Side| {
        let mut addresses = link.end(side).addresses.iter().map(|address| address.ip);
        addresses.find(|ip| ip.is_ipv4() == network.ip.is_ipv4())
    };
    let bridge = topology.host(&link.end(side.other()).host).filter(|host| host.bridge);
    let Some(bridge) = bridge else { return Some(Some(of_family(link, side.other())?)) };
    let mut ports: Vec<_> = links_of(topology, &bridge.name);
    ports.retain(|(port, _)| port.name != link.name);
    if ports.iter().any(|(port, _)| port.name == target.name) {
        return Some(None);
    }
    let hops_by = |port: &(&Link, Side)| hops(topology, bridge, *port, target, network);
    let (port, side) = ports.into_iter().filter(|port| hops_by(port).is_some()).min_by_key(hops_by)?;
    Some(Some(of_family(port, side.other())?))
}

/// The number of forwarding hosts between a link of `host` and a network of `target`; `None` if it is not reachable.
fn hops(
    topology: &Topology,
    host: &Host,
    (link, side): (&Link, Side),
    target: &Link,
    network: Address,
) -> Option<usize> {
    let carries = |link: &Link| {
        let of_family = |address: &Address| address.ip.is_ipv4() == network.ip.is_ipv4();
        Side::BOTH.iter().all(|side| link.end(*side).addresses.iter().any(of_family))
    };
    if !carries(link) {
        return None;
    }
    let mut seen = BTreeSet::from([host.name.as_str()]);
    let mut next = VecDeque::from([(link.end(side.other()).host.as_str(), 0)]);
    while let Some((at, hops)) = next.pop_front() {
        if !seen.insert(at) {
            continue;
        }
        let forwards = topology.host(at).is_some_and(|host| host.forward || host.bridge);
        let ends = [target.a.host.as_str(), target.b.host.as_str()];
        // A host accepts packets to its own addresses without forwarding.
        if ends.contains(&at) && (forwards || ends.contains(&host.name.as_str())) {
            return Some(hops);
        }
        if forwards {
            let further = links_of(topology, at).into_iter().filter(|(link, _)| carries(link));
            next.extend(further.map(|(link, side)| (link.end(side.other()).host.as_str(), hops + 1)));
        }
    }
    None
}

impl fmt::Display for Route {
    /// Formats the arguments of `ip route`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to)?;
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        write!(f, " dev {}", self.interface)?;
        if let Some(source) = self.source {
            write!(f, " src {source}")?;
        }
        if let Some(table) = self.table {
            write!(f, " table {table}")?;
        }
        if let Some(metric) = self.metric {
            write!(f, " metric {metric}")?;
        }
        if let Some(congestion_control) = &self.congestion_control {
            write!(f, " congctl {congestion_control}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    /// Formats the arguments of `ip rule`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} table {} pref {}", self.from, self.table, self.preference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two links from the client to a router, and two from the router to the server.
    const ROUTER: &str = r#"
        hosts.client = {}
        hosts.router = { forward = true }
        hosts.server = {}
        links = [
            { name = "lte1", a = "client", b = "router" },
            { name = "lte2", a = "client", b = "router" },
            { name = "net1", a = "router", b = "server" },
            { name = "net2", a = "router", b = "server" },
        ]
    "#;

    fn shown(topology: &Topology, host: &str, link: &str) -> Vec<String> {
        let host = topology.host(host).expect("a host");
        let link = topology.link(link).expect("a link");
        let side = if link.a.host == host.name { Side::A } else { Side::B };
        let plan = plan(topology, host, link, side);
        let lines = plan.routes.iter().map(Route::to_string).chain(plan.rules.iter().map(Rule::to_string));
        lines.filter(|line| !line.contains("fd77")).collect()
    }

    fn parse(text: &str) -> Topology {
        Topology::parse(text, "test.toml").unwrap_or_else(|mistake| panic!("{mistake}"))
    }

    #[test]
    fn each_address_leaves_by_its_own_link() {
        let expected = [
            "10.77.2.0/24 dev lte2 src 10.77.2.1",
            "10.77.1.0/24 via 10.77.2.2 dev lte2 src 10.77.2.1 metric 2001",
            "10.77.3.0/24 via 10.77.2.2 dev lte2 src 10.77.2.1 metric 2001",
            "10.77.4.0/24 via 10.77.2.2 dev lte2 src 10.77.2.1 metric 2001",
            "10.77.2.0/24 dev lte2 table 101",
            "10.77.1.0/24 via 10.77.2.2 dev lte2 table 101 metric 2000",
            "10.77.3.0/24 via 10.77.2.2 dev lte2 table 101 metric 2000",
            "10.77.4.0/24 via 10.77.2.2 dev lte2 table 101 metric 2000",
            "from 10.77.2.1 table 101 pref 1001",
        ];
        assert_eq!(shown(&parse(ROUTER), "client", "lte2"), expected);
    }

    #[test]
    fn a_host_with_one_link_has_one_table() {
        let topology = parse(
            r#"
            hosts = { a = { congestion_control = "cubic" }, r = { forward = true }, s = { forward = true }, b = {} }
            links = [
                { name = "ar", a = "a", b = "r" },
                { name = "rs", a = "r", b = "s" },
                { name = "sb", a = "s", b = "b" },
            ]
            "#,
        );
        let expected = [
            "10.77.1.0/24 dev ar src 10.77.1.1 congctl cubic",
            "10.77.2.0/24 via 10.77.1.2 dev ar src 10.77.1.1 metric 2000 congctl cubic",
            "10.77.3.0/24 via 10.77.1.2 dev ar src 10.77.1.1 metric 2000 congctl cubic",
        ];
        assert_eq!(shown(&topology, "a", "ar"), expected);
    }

    #[test]
    fn the_shorter_way_comes_first_and_hosts_that_do_not_forward_are_no_way() {
        let topology = parse(
            r#"
            hosts = { a = {}, r = { forward = true }, s = { forward = true }, n = {}, b = {} }
            links = [
                { name = "long", a = "a", b = "r" },
                { name = "rs", a = "r", b = "s" },
                { name = "short", a = "a", b = "s" },
                { name = "none", a = "a", b = "n" },
                { name = "nb", a = "n", b = "b" },
                { name = "sb", a = "s", b = "b" },
                { name = "rn", a = "r", b = "n" },
            ]
            "#,
        );
        let to_b = |link| {
            let lines = shown(&topology, "a", link).into_iter();
            lines.filter(|line| line.starts_with("10.77.6.") && !line.contains("table")).collect::<Vec<_>>()
        };
        assert_eq!(to_b("short"), ["10.77.6.0/24 via 10.77.3.2 dev short src 10.77.3.1 metric 2000"]);
        assert_eq!(to_b("long"), ["10.77.6.0/24 via 10.77.1.2 dev long src 10.77.1.1 metric 2001"]);
        assert_eq!(to_b("none"), [""; 0]);
    }

    #[test]
    fn two_hosts_reach_each_others_addresses_over_either_link() {
        let topology = parse(
            r#"
            hosts = { a = {}, b = {} }
            links = [{ name = "x", a = "a", b = "b" }, { name = "y", a = "a", b = "b" }]
            "#,
        );
        let expected = "10.77.2.0/24 via 10.77.1.2 dev x table 100 metric 2000";
        let of_a = shown(&topology, "a", "x");
        assert!(of_a.contains(&expected.into()), "{of_a:?}");
        assert!(!of_a.contains(&"10.77.1.0/24 dev x table 101".into()), "{of_a:?}");
        let of_b = shown(&topology, "b", "x");
        assert!(of_b.contains(&expected.replace("10.77.1.2", "10.77.1.1")), "{of_b:?}");
        assert!(
            of_b.contains(&"10.77.1.0/24 dev x table 101".into()),
            "an answer to x leaves by x: {of_b:?}"
        );
    }

    #[test]
    fn what_a_bridge_joins_is_on_the_link() {
        let topology = parse(
            r#"
            hosts = { client = {}, ap = { bridge = true }, server = {}, router = { forward = true }, far = {} }
            links = [
                { name = "eth", a = "client", b = "ap" },
                { name = "wlan", a = "client", b = "ap" },
                { name = "lan", a = "ap", b = "server" },
                { name = "up", a = "ap", b = "router" },
                { name = "net", a = "router", b = "far" },
            ]
            "#,
        );
        let main = |host, link| {
            let lines = shown(&topology, host, link).into_iter();
            lines.filter(|line| !line.contains("table")).collect::<Vec<_>>()
        };
        let expected = [
            "10.77.2.0/24 dev wlan src 10.77.2.1",
            "10.77.1.0/24 dev wlan src 10.77.2.1 metric 2001",
            "10.77.3.0/24 dev wlan src 10.77.2.1 metric 2001",
            "10.77.4.0/24 dev wlan src 10.77.2.1 metric 2001",
            "10.77.5.0/24 via 10.77.4.2 dev wlan src 10.77.2.1 metric 2001",
        ];
        assert_eq!(main("client", "wlan"), expected);
        let of_server = main("server", "lan");
        assert!(
            of_server.contains(&"10.77.2.0/24 dev lan src 10.77.3.2 metric 2000".into()),
            "{of_server:?}"
        );
        assert_eq!(shown(&topology, "ap", "lan"), [""; 0]);
    }

    #[test]
    fn families_go_their_own_ways() {
        let topology = parse(
            r#"
            hosts = { a = {}, r = { forward = true }, b = {} }
            links = [
                { name = "four", a = { host = "a", addresses = ["10.1.0.1/24"] }, b = { host = "r", addresses = ["10.1.0.2/24"] } },
                { name = "rb", a = "r", b = "b" },
            ]
            "#,
        );
        let host = topology.host("a").expect("a");
        let plan = plan(&topology, host, &topology.links[0], Side::A);
        assert!(plan.routes.iter().all(|route| route.to.ip.is_ipv4()), "{plan:?}");
        assert_eq!(plan.routes.len(), 2);
    }
}
