use std::net::SocketAddr;
use std::time::Duration;

use plait_linux::pm::{Endpoint, Limits};
use plait_wire::icmp::IcmpErrorKind;

use super::judge;
use crate::exchange::Outcome;
use crate::facts::{Connection, Facts, Host, Join, JoinAnswer, Mptcp, Path, Probes, Subflow};
use crate::hops::{Hop, Trace};
use crate::mtu::PathMtu;
use crate::report::{Check, Diagnosis, Subject, Verdict};
use crate::syn::{Answer, SynKind};

const TARGET: &str = "203.0.113.1:443";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn accepted(mptcp: bool) -> Outcome {
    let answer = Some(Answer::Accepted { mptcp });
    Outcome { left: true, blocked: false, answer, rtt: Some(Duration::from_millis(20)) }
}

fn reset(mptcp: bool) -> Outcome {
    Outcome { answer: Some(Answer::Reset { mptcp }), ..accepted(false) }
}

fn unanswered() -> Outcome {
    Outcome { left: true, ..Outcome::default() }
}

/// What an MPTCP listener answers.
fn healthy_probes() -> Probes {
    Probes { tcp: accepted(false), capable: accepted(true), join: reset(true) }
}

fn path(interface: &str, if_index: u32, local: &str) -> Path {
    let (address, target) = (local.parse().unwrap(), address(TARGET));
    Path {
        interface: interface.into(),
        if_index,
        first: interface == "eth",
        running: true,
        mtu: 1500,
        address,
        endpoint: Some(Endpoint { id: if_index as u8, address, if_index, signal: false, subflow: true }),
        destinations: vec![target.ip()],
        gateway: Some("192.0.2.254".parse().unwrap()),
        leaves_by: Some(interface.into()),
        accepts_answers: true,
        rp_filter: 0,
        next_hop_answers: Some(true),
        probes: None,
        trace: None,
        path_mtu: Some(PathMtu::Full(1500)),
        listeners: Vec::new(),
    }
}

fn subflow(local: &str) -> Subflow {
    Subflow { local: address(local), remote: address(TARGET), established: true }
}

fn join(answer: Option<JoinAnswer>) -> Join {
    Join { local: address("198.51.100.1:2000"), remote: address(TARGET), if_index: 3, answer }
}

/// A host with two paths that both carry a subflow.
fn healthy() -> Facts {
    Facts {
        target: address(TARGET),
        host: Host {
            mptcp: Mptcp::Enabled,
            kernel_path_manager: true,
            limits: Limits { subflows: 8, add_addr_accepted: 8 },
            congestion_control: "cubic".into(),
            allowed_congestion_control: "reno cubic".into(),
            firewall: Some(String::new()),
        },
        paths: vec![path("eth", 2, "192.0.2.1"), path("wlan", 3, "198.51.100.1")],
        chosen: false,
        unused_interfaces: Vec::new(),
        down_interfaces: Vec::new(),
        connection: Some(Connection {
            local: Some(address("192.0.2.1:1000")),
            mptcp: true,
            capable_syns: 1,
            stripped: Some(false),
            keepalive: true,
            subflows: vec![subflow("192.0.2.1:1000"), subflow("198.51.100.1:2000")],
            joins: vec![join(Some(JoinAnswer::Joined))],
            ..Connection::default()
        }),
    }
}

/// A host whose second path carries no subflow.
fn lacking() -> Facts {
    let mut facts = healthy();
    connection(&mut facts).subflows.pop();
    connection(&mut facts).joins.clear();
    facts.paths[1].probes = Some(healthy_probes());
    facts
}

fn connection(facts: &mut Facts) -> &mut Connection {
    facts.connection.as_mut().unwrap()
}

/// A host whose connection has fallen back to TCP.
fn fallen_back() -> Facts {
    let mut facts = lacking();
    let connection = connection(&mut facts);
    connection.mptcp = false;
    connection.stripped = Some(true);
    facts.paths[0].probes =
        Some(Probes { capable: accepted(false), join: accepted(false), ..healthy_probes() });
    facts
}

fn first_fault(diagnosis: &Diagnosis) -> &Check {
    diagnosis.faults().next().expect("a fault")
}

/// Asserts what the first fault is, that what was found contains `found`, and a command `mend`.
#[track_caller]
fn assert_first(facts: &Facts, subject: Subject, interface: Option<&str>, found: &str, mend: &str) {
    let diagnosis = judge(facts);
    let fault = first_fault(&diagnosis);
    assert_eq!((fault.check, fault.interface.as_deref()), (subject, interface), "{diagnosis:#?}");
    assert!(fault.found.contains(found), "{fault:#?}");
    assert!(fault.mend.iter().any(|line| line.contains(mend)), "{fault:#?}");
    assert!(!diagnosis.ok);
}

#[test]
fn healthy_host_has_no_fault() {
    let diagnosis = judge(&healthy());
    assert!(diagnosis.ok, "{diagnosis:#?}");
    assert!(diagnosis.checks.iter().all(|check| check.verdict == Verdict::Ok && check.mend.is_empty()));
}

#[test]
fn disabled_mptcp_is_first() {
    let mut facts = lacking();
    facts.host.mptcp = Mptcp::Disabled;
    facts.host.limits.subflows = 0;
    facts.connection = None;
    assert_first(&facts, Subject::Mptcp, None, "net.mptcp.enabled is 0", "sysctl -w net.mptcp.enabled=1");
}

#[test]
fn path_manager_in_user_space() {
    let mut facts = lacking();
    facts.host.kernel_path_manager = false;
    assert_first(&facts, Subject::PathManager, None, "pm_type", "sysctl -w net.mptcp.pm_type=0");
}

#[test]
fn refused_connection() {
    let mut facts = lacking();
    let failed = Connection { error: Some("Connection refused".into()), ..Connection::default() };
    facts.connection = Some(failed);
    assert_first(&facts, Subject::Connection, None, "Connection refused", "203.0.113.1:443");
}

#[test]
fn blackhole_detection() {
    let mut facts = fallen_back();
    connection(&mut facts).blackhole = true;
    assert_first(&facts, Subject::Blackhole, None, "MPTcpExtBlackhole", "blackhole_timeout");
}

#[test]
fn stripped_option_is_located_between_two_hops() {
    let mut facts = fallen_back();
    let hop = |distance, mptcp| Hop {
        distance,
        address: format!("10.0.{distance}.1").parse().unwrap(),
        mptcp: Some(mptcp),
    };
    let hops = vec![hop(1, true), hop(2, false)];
    facts.paths[0].trace = Some((SynKind::Capable, Trace { hops, destination: Some(3) }));
    let found = "arrives at hop 1 (10.0.1.1), and not at hop 2 (10.0.2.1)";
    assert_first(&facts, Subject::MpCapable, Some("eth"), found, "10.0.1.1");
}

#[test]
fn option_is_missing_after_the_handshake() {
    let mut facts = fallen_back();
    connection(&mut facts).stripped = Some(false);
    assert_first(&facts, Subject::MpCapable, Some("eth"), "missing in later segments", "in all segments");
}

#[test]
fn dropped_option() {
    let mut facts = fallen_back();
    connection(&mut facts).stripped = Some(true);
    facts.paths[0].probes = Some(Probes { capable: unanswered(), ..healthy_probes() });
    assert_first(&facts, Subject::MpCapable, Some("eth"), "SYNs with MP_CAPABLE have no answer", "option 30");
}

#[test]
fn service_without_mptcp_and_middlebox_beside_it_look_alike() {
    let facts = fallen_back();
    let found = "Either the service is no MPTCP socket, or a middlebox";
    assert_first(&facts, Subject::MpCapable, Some("eth"), found, "mptcpize run");
}

#[test]
fn single_path() {
    let mut facts = healthy();
    facts.paths.pop();
    facts.unused_interfaces.push("wlan".into());
    assert_first(&facts, Subject::Paths, None, "wlan has an address, but no route", "dev wlan");
    facts.down_interfaces.push("lte".into());
    assert_first(&facts, Subject::Paths, None, "lte has an address, and is down", "ip link set lte up");
    facts.chosen = true;
    assert!(judge(&facts).ok);
}

#[test]
fn limit_of_zero() {
    let mut facts = lacking();
    facts.host.limits.subflows = 0;
    assert_first(&facts, Subject::Limits, None, "0 additional subflows", "ip mptcp limits set subflows 8");
    assert_eq!(judge(&facts).faults().count(), 1);
    let mut satisfied = healthy();
    satisfied.host.limits.subflows = 0;
    assert!(judge(&satisfied).ok, "what works is no fault");
}

#[test]
fn announced_addresses_are_not_accepted() {
    let mut facts = lacking();
    facts.host.limits.add_addr_accepted = 0;
    connection(&mut facts).announced.push(address("203.0.113.2:443"));
    assert_first(&facts, Subject::Limits, None, "add_addr_accepted is 0", "add_addr_accepted 8");
}

#[test]
fn no_carrier() {
    let mut facts = lacking();
    facts.paths[1].running = false;
    assert_first(&facts, Subject::Carrier, Some("wlan"), "no carrier", "ip link set wlan up");
}

#[test]
fn no_route() {
    let mut facts = lacking();
    facts.paths[1].destinations.clear();
    facts.paths[1].leaves_by = Some("eth".into());
    assert_first(&facts, Subject::Route, Some("wlan"), "no route", "dev wlan table 1003");
}

#[test]
fn no_endpoint() {
    let mut facts = lacking();
    facts.paths[1].endpoint = None;
    let mend = "ip mptcp endpoint add 198.51.100.1 dev wlan subflow";
    assert_first(&facts, Subject::Endpoint, Some("wlan"), "no MPTCP endpoint", mend);
    facts.paths[1].endpoint = lacking().paths[1].endpoint;
    facts.paths[1].endpoint.as_mut().unwrap().if_index = 9;
    assert_first(
        &facts,
        Subject::Endpoint,
        Some("wlan"),
        "bound to another",
        "ip mptcp endpoint delete id 3",
    );
}

#[test]
fn no_source_rule() {
    let mut facts = healthy();
    facts.paths[1].endpoint.as_mut().unwrap().if_index = 0;
    facts.paths[1].leaves_by = Some("eth".into());
    // The subflow was established, by the interface of the other path.
    connection(&mut facts).joins[0].if_index = 2;
    let mend = "ip rule add from 198.51.100.1 table 1003";
    assert_first(&facts, Subject::SourceRule, Some("wlan"), "leave by eth", mend);
}

#[test]
fn strict_reverse_path_filter() {
    let mut facts = lacking();
    facts.paths[1].accepts_answers = false;
    facts.paths[1].rp_filter = 1;
    facts.paths[1].leaves_by = Some("eth".into());
    let mend = "sysctl -w net.ipv4.conf.wlan.rp_filter=2";
    assert_first(&facts, Subject::RpFilter, Some("wlan"), "strict", mend);
}

#[test]
fn firewall_of_this_host() {
    let rule = "table inet test { # handle 1\nchain output { # handle 2\ntcp option mptcp subtype 1 drop # handle 3\n}\n}";
    let mend = "nft delete rule inet test output handle 3";
    let mut facts = lacking();
    facts.host.firewall = Some(rule.into());
    let blocked = Outcome { blocked: true, ..Outcome::default() };
    facts.paths[1].probes = Some(Probes { join: blocked, ..healthy_probes() });
    assert_first(&facts, Subject::Firewall, Some("wlan"), "drops SYNs with MP_JOIN", mend);
    facts.paths[1].probes = Some(healthy_probes());
    connection(&mut facts).joins = vec![join(Some(JoinAnswer::Joined))];
    assert_first(&facts, Subject::Firewall, Some("wlan"), "dropped the answer", mend);
}

#[test]
fn silent_router() {
    let mut facts = lacking();
    facts.paths[1].probes = Some(Probes::default());
    facts.paths[1].next_hop_answers = Some(false);
    assert_first(
        &facts,
        Subject::NextHop,
        Some("wlan"),
        "192.0.2.254 does not answer ARP",
        "ip neigh show dev wlan",
    );
}

#[test]
fn dropped_on_the_way() {
    let mut facts = lacking();
    let all = Probes { tcp: unanswered(), capable: unanswered(), join: unanswered() };
    facts.paths[1].probes = Some(all);
    let hops = vec![Hop { distance: 1, address: "192.0.2.254".parse().unwrap(), mptcp: None }];
    facts.paths[1].trace = Some((SynKind::Tcp, Trace { hops, destination: None }));
    assert_first(&facts, Subject::Network, Some("wlan"), "hop 1 (192.0.2.254)", "masquerade");
    let from = "192.0.2.254".parse().unwrap();
    let refused = Answer::Icmp { from, kind: IcmpErrorKind::Unreachable, mptcp: None };
    facts.paths[1].probes = Some(Probes { tcp: Outcome { answer: Some(refused), ..unanswered() }, ..all });
    assert_first(&facts, Subject::Network, Some("wlan"), "is unreachable", "masquerade");
}

#[test]
fn join_is_stripped_dropped_or_refused_on_the_way() {
    let hop = |distance, mptcp| Hop { distance, address: "192.0.2.254".parse().unwrap(), mptcp: Some(mptcp) };
    let mut facts = lacking();
    connection(&mut facts).joins = vec![join(Some(JoinAnswer::Stripped))];
    facts.paths[1].trace =
        Some((SynKind::Join, Trace { hops: vec![hop(1, true), hop(2, false)], destination: Some(3) }));
    assert_first(&facts, Subject::MpJoin, Some("wlan"), "answered without it", "option 30");
    connection(&mut facts).joins = vec![join(None)];
    facts.paths[1].probes = Some(Probes { join: unanswered(), ..healthy_probes() });
    assert_first(
        &facts,
        Subject::MpJoin,
        Some("wlan"),
        "SYNs with MP_JOIN by wlan have no answer",
        "option 30",
    );
    connection(&mut facts).joins = vec![join(Some(JoinAnswer::Reset { mptcp: true }))];
    facts.paths[1].probes = Some(healthy_probes());
    assert_first(&facts, Subject::MpJoin, Some("wlan"), "MP_TCPRST", "ip mptcp limits set");
    connection(&mut facts).joins = vec![join(Some(JoinAnswer::Reset { mptcp: false }))];
    assert_first(&facts, Subject::MpJoin, Some("wlan"), "by a middlebox", "option 30");
}

#[test]
fn initial_address_is_closed() {
    let mut facts = lacking();
    connection(&mut facts).initial_address_closed = true;
    assert_first(&facts, Subject::MpJoin, Some("wlan"), "first address", "allow_join_initial_addr_port=1");
}

#[test]
fn announced_address_without_listener() {
    let mut facts = healthy();
    let announced = address("203.0.113.2:443");
    connection(&mut facts).announced.push(announced);
    facts.paths[0].listeners.push((announced, reset(false)));
    facts.paths[1].listeners.push((announced, reset(false)));
    assert_first(&facts, Subject::Listener, None, "nothing listens at 203.0.113.2:443", "[::]:443");
    facts.paths[1].listeners[0].1 = accepted(false);
    assert!(judge(&facts).ok, "one path is enough");
}

#[test]
fn long_packets_vanish() {
    let mut facts = healthy();
    facts.paths[1].path_mtu = Some(PathMtu::BlackHole(1280));
    assert_first(
        &facts,
        Subject::Mtu,
        Some("wlan"),
        "more than 1280 bytes vanish",
        "ip link set wlan mtu 1280",
    );
    for harmless in [PathMtu::Reported(1280), PathMtu::Unknown] {
        facts.paths[1].path_mtu = Some(harmless);
        assert!(judge(&facts).ok);
    }
}

#[test]
fn bbr() {
    let mut facts = healthy();
    facts.host.congestion_control = "bbr".into();
    let mend = "sysctl -w net.ipv4.tcp_congestion_control=cubic";
    assert_first(&facts, Subject::CongestionControl, None, "bbr", mend);
}

#[test]
fn no_reason() {
    assert_first(&lacking(), Subject::Subflow, Some("wlan"), "no reason was found", "nstat");
    let mut old_kernel = lacking();
    connection(&mut old_kernel).keepalive = false;
    assert_first(&old_kernel, Subject::Subflow, Some("wlan"), "no keepalive probes", ":22");
}
