//! One path: the first reason why it carries no subflow, whether announced addresses are reachable by it, and its MTU.

use std::net::IpAddr;

use super::connection::{Place, lost_option};
use super::{has_subflow, host};
use crate::facts::{Connection, Facts, Join, JoinAnswer, Mptcp, Path, Probes};
use crate::firewall::suspects;
use crate::mtu::PathMtu;
use crate::report::{Check, Subject, Verdict};
use crate::syn::SynKind;

/// The subflow of a path, or the first fault that prevents it.
pub(super) fn check(facts: &Facts, path: &Path) -> Check {
    if has_subflow(facts, path) {
        return Check::ok(Subject::Subflow, format!("established from {}", path.address));
    }
    CHECKS.iter().find_map(|check| check(facts, path)).unwrap_or_else(|| no_reason(facts, path))
}

const CHECKS: &[fn(&Facts, &Path) -> Option<Check>] = &[
    carrier,
    route,
    endpoint,
    source_rule,
    rp_filter,
    firewall_out,
    next_hop,
    network,
    firewall_in,
    join_stripped,
    join_reset,
    join_dropped,
    initial_address,
];

fn carrier(_: &Facts, path: &Path) -> Option<Check> {
    (!path.running).then(|| {
        let name = &path.interface;
        Check::fault(
            Subject::Carrier,
            format!("{name} has no carrier"),
            [format!("ip link set {name} up   # and plug it in")],
        )
    })
}

fn route(facts: &Facts, path: &Path) -> Option<Check> {
    path.destinations.is_empty().then(|| {
        let name = &path.interface;
        let [route, rule] = source_route(path, "via ROUTER ");
        Check::fault(
            Subject::Route,
            format!("no route to {} by {name}", facts.target.ip()),
            [format!("{route}   # ROUTER: of the network of {name}"), rule],
        )
    })
}

fn endpoint(facts: &Facts, path: &Path) -> Option<Check> {
    let (name, address) = (&path.interface, path.address);
    let add = format!("ip mptcp endpoint add {address} dev {name} subflow");
    let Some(endpoint) = path.endpoint.filter(|endpoint| endpoint.subflow) else {
        // The first subflow needs none, and an announced address is joined from where routing leads.
        if path.first || path.destinations.iter().any(|to| *to != facts.target.ip()) {
            return None;
        }
        let found = format!(
            "no MPTCP endpoint with the address {address} of {name}: the kernel creates no subflow from it"
        );
        return Some(Check::fault(Subject::Endpoint, found, [add]));
    };
    (endpoint.if_index != 0 && endpoint.if_index != path.if_index).then(|| {
        let found = format!("the MPTCP endpoint {address} is bound to another interface than {name}");
        Check::fault(Subject::Endpoint, found, [format!("ip mptcp endpoint delete id {}", endpoint.id), add])
    })
}

fn source_rule(facts: &Facts, path: &Path) -> Option<Check> {
    let bound = path.endpoint.is_some_and(|endpoint| endpoint.if_index == path.if_index);
    let other = path.leaves_by.as_ref().filter(|name| **name != path.interface && !bound)?;
    let via = path.gateway.map_or(String::new(), |gateway| format!("via {gateway} "));
    let found = format!(
        "packets from {} to {} leave by {other}: no rule leads them to {}",
        path.address,
        facts.target.ip(),
        path.interface
    );
    Some(Check::fault(Subject::SourceRule, found, source_route(path, &via)))
}

/// Commands for a route that applies to packets from the path's address alone.
fn source_route(path: &Path, via: &str) -> [String; 2] {
    let ip = if path.address.is_ipv4() { "ip" } else { "ip -6" };
    // Not a table that exists, most likely.
    let table = 1000 + path.if_index;
    [
        format!("{ip} route add default {via}dev {} table {table}", path.interface),
        format!("{ip} rule add from {} table {table}", path.address),
    ]
}

fn rp_filter(facts: &Facts, path: &Path) -> Option<Check> {
    (!path.accepts_answers && path.rp_filter == 1).then(|| {
        let name = &path.interface;
        let other = path.leaves_by.as_deref().unwrap_or("another interface");
        let found = format!(
            "rp_filter of {name} is strict (1): answers of {} by it are dropped, as the route back leads to {other}",
            facts.target.ip()
        );
        Check::fault(
            Subject::RpFilter,
            found,
            [format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", name.replace('.', "/"))],
        )
    })
}

fn firewall_out(facts: &Facts, path: &Path) -> Option<Check> {
    let probes = path.probes?;
    let blocked =
        [(probes.tcp, "SYNs"), (probes.join, "SYNs with MP_JOIN"), (probes.capable, "SYNs with MP_CAPABLE")];
    let (_, what) = blocked.into_iter().find(|(outcome, _)| outcome.blocked)?;
    Some(dropped_here(
        facts,
        path,
        format!("a rule of this host drops {what} that leave by {}", path.interface),
    ))
}

/// An answer arrived on the interface, and the kernel's subflow was not established by it.
fn firewall_in(facts: &Facts, path: &Path) -> Option<Check> {
    let join = joins(facts, path).find(|join| join.answer == Some(JoinAnswer::Joined))?;
    let found = format!(
        "{} answered a join by {}, and this host dropped the answer",
        join.remote.ip(),
        path.interface
    );
    Some(dropped_here(facts, path, found))
}

fn dropped_here(facts: &Facts, path: &Path, found: String) -> Check {
    let ruleset = facts.host.firewall.as_deref().unwrap_or_default();
    let rules = suspects(ruleset, &path.interface, facts.target);
    let mut mend: Vec<String> =
        rules.iter().map(|rule| format!("{}   # {}", rule.delete(), rule.text)).collect();
    if mend.is_empty() {
        mend.push("nft -a list ruleset   # or iptables-save: find the rule and delete it".into());
    }
    Check { mend, ..Check::fault(Subject::Firewall, found, []) }
}

fn next_hop(_: &Facts, path: &Path) -> Option<Check> {
    let probes = path.probes.filter(|probes| !probes.tcp.left)?;
    let router = path.gateway.map_or("the next hop".to_owned(), |gateway| gateway.to_string());
    let found = match path.next_hop_answers {
        Some(false) => format!("{router} does not answer ARP on {}", path.interface),
        _ if !probes.join.left => {
            format!("nothing leaves by {}: {router} may not answer there", path.interface)
        }
        _ => return None,
    };
    let command =
        format!("ip neigh show dev {}   # is the address of the router right, and is it on?", path.interface);
    Some(Check::fault(Subject::NextHop, found, [command]))
}

fn network(facts: &Facts, path: &Path) -> Option<Check> {
    let probes = path.probes.filter(|probes| probes.tcp.left && !probes.tcp.answered())?;
    let (name, address) = (&path.interface, path.address);
    let target = path.destinations.first().copied().unwrap_or(facts.target.ip());
    let place = path.trace.as_ref().map(|(_, trace)| Place::of(trace)).unwrap_or_default();
    let found = format!(
        "no SYN by {name} has an answer from {target}, not even of plain TCP: {}",
        place.dropped(target)
    );
    let refused = matches!(probes.tcp.answer, Some(crate::syn::Answer::Icmp { .. }));
    let found = if refused { format!("{found}; a router says that {target} is unreachable") } else { found };
    let pass =
        place.advice(&format!("let packets from {address} to {target} pass, and the answers,"), target);
    if let Some(router) = path.gateway.filter(IpAddr::is_ipv4) {
        let nat = format!(
            "nft add rule ip nat postrouting ip saddr {address} masquerade   # on {router}, if it should translate (NAT)"
        );
        return Some(Check::fault(Subject::Network, found, [nat, pass]));
    }
    Some(Check::fault(Subject::Network, found, [pass]))
}

fn join_stripped(facts: &Facts, path: &Path) -> Option<Check> {
    let stripped = joins(facts, path).any(|join| join.answer == Some(JoinAnswer::Stripped));
    let probe = path.probes.is_some_and(|probes| lost_option(probes.join.answer));
    // A service that is no MPTCP socket answers so too, which `capable` tells.
    (stripped || probe && is_mptcp(facts)).then(|| {
        let target = facts.target.ip();
        let place = place_of_join(path);
        let found = format!(
            "SYNs with MP_JOIN by {} are answered without it: {}",
            path.interface,
            place.stripped(target)
        );
        Check::fault(Subject::MpJoin, found, [place.advice("let TCP option 30 pass", target)])
    })
}

fn join_reset(facts: &Facts, path: &Path) -> Option<Check> {
    let join = joins(facts, path).find(|join| matches!(join.answer, Some(JoinAnswer::Reset { .. })))?;
    let remote = join.remote;
    if join.answer == Some(JoinAnswer::Reset { mptcp: true }) {
        let found =
            format!("{remote} refuses the join (MP_TCPRST): probably the limit of subflows there is reached");
        let command =
            format!("ip mptcp limits set subflows 8 add_addr_accepted 8   # on {}", facts.target.ip());
        return Some(Check::fault(Subject::MpJoin, found, [command]));
    }
    let announced = announced(facts).any(|address| address.ip() == remote.ip());
    if announced {
        return Some(no_listener(facts, remote));
    }
    let found = format!(
        "a join by {} to {remote} is reset without MP_TCPRST: by a middlebox, not by MPTCP",
        path.interface
    );
    let place = place_of_join(path);
    Some(Check::fault(Subject::MpJoin, found, [place.advice("let TCP option 30 pass", remote.ip())]))
}

fn join_dropped(facts: &Facts, path: &Path) -> Option<Check> {
    let Probes { tcp, join, .. } = path.probes?;
    let target = facts.target.ip();
    (is_mptcp(facts) && tcp.answered() && !join.answered()).then(|| {
        let place = place_of_join(path);
        let found = format!(
            "SYNs with MP_JOIN by {} have no answer, others have: {}",
            path.interface,
            place.dropped(target)
        );
        Check::fault(Subject::MpJoin, found, [place.advice("let TCP option 30 pass", target)])
    })
}

fn initial_address(facts: &Facts, path: &Path) -> Option<Check> {
    let connection = facts.connection.as_ref().filter(|connection| connection.initial_address_closed)?;
    let elsewhere =
        path.destinations.iter().any(|to| connection.announced.iter().any(|other| other.ip() == *to));
    (!elsewhere).then(|| {
        let target = facts.target.ip();
        let found = format!(
            "{target} accepts no further subflow to its first address, and announces none that {} leads to",
            path.interface
        );
        let command = format!(
            "sysctl -w net.mptcp.allow_join_initial_addr_port=1   # on {target}, or announce an address there"
        );
        Check::fault(Subject::MpJoin, found, [command])
    })
}

/// All checks passed, and still the kernel has not created a subflow.
fn no_reason(facts: &Facts, path: &Path) -> Check {
    let Some(connection) = facts.connection.as_ref().filter(|connection| connection.mptcp) else {
        let found = match facts.host.mptcp {
            Mptcp::Enabled => "no subflow, as the connection does not use MPTCP",
            _ => "no subflow, as this host has no MPTCP",
        };
        return Check::unknown(Subject::Subflow, found);
    };
    let earlier = [host::path_manager(facts), host::limits(facts)];
    if earlier.iter().flatten().any(|check| check.verdict == Verdict::Fault) {
        return Check::unknown(
            Subject::Subflow,
            "no subflow, as the path manager of this host creates none: see above",
        );
    }
    if !connection.keepalive {
        let found = "no subflow: there is none before the service has sent something, and this kernel sends it no keepalive probes";
        let other = format!("plait doctor {}:22   # or another service that sends first", facts.target.ip());
        return Check::fault(Subject::Subflow, found, [other]);
    }
    let tried = joins(facts, path).count();
    Check::fault(
        Subject::Subflow,
        format!("no subflow from {}, and no reason was found ({tried} joins seen)", path.address),
        ["nstat -asz 'MPTcpExt*'; ip mptcp monitor   # what the kernel counts and reports during a connection".into()],
    )
}

/// Announced addresses at which nothing listens.
pub(super) fn listeners(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    for address in announced(facts) {
        let tried = facts.paths.iter().flat_map(|path| &path.listeners).filter(|(to, _)| to == address);
        let answers: Vec<_> = tried.map(|(_, outcome)| outcome).collect();
        if answers.is_empty() {
            continue;
        }
        let listens =
            answers.iter().any(|outcome| matches!(outcome.answer, Some(crate::syn::Answer::Accepted { .. })));
        checks.push(match listens {
            true => {
                Check::ok(Subject::Listener, format!("the target listens at {address}, which it announces"))
            }
            false => no_listener(facts, *address),
        });
    }
    checks
}

fn no_listener(facts: &Facts, announced: std::net::SocketAddr) -> Check {
    let target = facts.target.ip();
    Check::fault(
        Subject::Listener,
        format!("the target announces {}, and nothing listens at {announced}", announced.ip()),
        [
            format!("let the service listen on all addresses ([::]:{})   # on {target}", announced.port()),
            format!(
                "ip mptcp endpoint delete id ID   # or: on {target}; ID of {} in ip mptcp endpoint show",
                announced.ip()
            ),
        ],
    )
}

/// Whether packets of the interface's length arrive.
pub(super) fn mtu(path: &Path) -> Option<Check> {
    let name = &path.interface;
    Some(match path.path_mtu? {
        PathMtu::Full(mtu) => Check::ok(Subject::Mtu, format!("packets of {mtu} bytes arrive")),
        PathMtu::Reported(mtu) => Check::ok(
            Subject::Mtu,
            format!("packets of {mtu} bytes arrive; a router reports longer ones, and the kernel adapts"),
        ),
        PathMtu::Unknown => {
            Check::unknown(Subject::Mtu, "not measured: the target answers no SYN with payload")
        }
        PathMtu::BlackHole(mtu) => Check::fault(
            Subject::Mtu,
            format!(
                "packets of more than {mtu} bytes vanish without an ICMP message: transfers by {name} (MTU {}) hang",
                path.mtu
            ),
            [
                format!("ip link set {name} mtu {mtu}"),
                "sysctl -w net.ipv4.tcp_mtu_probing=1   # or: for all connections".into(),
            ],
        ),
    })
}

fn joins<'a>(facts: &'a Facts, path: &'a Path) -> impl Iterator<Item = &'a Join> {
    let joins = facts.connection.as_ref().map_or(&[][..], |connection| &connection.joins);
    joins.iter().filter(|join| join.local.ip() == path.address)
}

fn announced(facts: &Facts) -> impl Iterator<Item = &std::net::SocketAddr> {
    facts.connection.iter().flat_map(|connection: &Connection| &connection.announced)
}

fn is_mptcp(facts: &Facts) -> bool {
    facts.connection.as_ref().is_some_and(|connection| connection.mptcp)
}

fn place_of_join(path: &Path) -> Place {
    let trace = path.trace.as_ref().filter(|(kind, _)| *kind == SynKind::Join);
    trace.map(|(_, trace)| Place::of(trace)).unwrap_or_default()
}
