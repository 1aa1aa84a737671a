//! Actors between two hosts, verified by the counters of their kernels.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::counters::counters;
use plait_linux::mptcp::{FullInfo, Info};
use plait_linux::netns::Named;
use plait_policy::engine::{AttachMode, FourTuple};
use plait_policy::{Engine, Hook, InjectError, Injector, Policy};
use socket2::{Domain, Socket, TcpKeepalive};

use crate::packets::{self, opposite};
use crate::topology::{Topology, connect, dial, host, ip, listen};

/// Addresses of the client and the server on both links.
struct Family {
    domain: Domain,
    client: [&'static str; 2],
    server: [&'static str; 2],
}

const FAMILIES: [Family; 2] = [
    Family { domain: Domain::IPV4, client: ["10.1.0.1", "10.2.0.1"], server: ["10.1.0.2", "10.2.0.2"] },
    Family { domain: Domain::IPV6, client: ["fd00:1::1", "fd00:2::1"], server: ["fd00:1::2", "fd00:2::2"] },
];

const WITHOUT_XDP: [AttachMode; 2] = [AttachMode::Native, AttachMode::Generic];

/// Where announcements pass: sent by the server, or received by the client.
const HOOKS: [(Hook, &[AttachMode]); 3] =
    [(Hook::Egress, &[]), (Hook::Ingress, &[]), (Hook::Ingress, &WITHOUT_XDP)];

/// Calls `check` for each family and hook; those of a family at the same time, between hosts of their own.
fn for_each_hook(test: &str, check: impl Fn(&Topology, &Family, Hook, &[AttachMode]) + Sync) {
    for family in &FAMILIES {
        thread::scope(|scope| {
            for (hook, avoided) in HOOKS {
                let Some(net) = Topology::new(test) else { return };
                let check = &check;
                scope.spawn(move || {
                    check(&net, family, hook, avoided);
                    assert_no_wrong_checksums(&net);
                });
            }
        });
    }
}

/// The host and interface of a hook.
fn host_at(net: &Topology, hook: Hook) -> (&Named, &'static str) {
    if hook == Hook::Egress { (&net.server, "b0") } else { (&net.client, "a0") }
}

/// A policy with one chain per tuple of interface, hook, selector and actors.
fn policy(chains: &[(&str, Hook, &str, &str)]) -> Policy {
    packets::policy("", chains)
}

/// An engine whose policies are unloaded on drop.
struct LoadedEngine(Engine);

impl LoadedEngine {
    fn new(host: &Named, avoided: &[AttachMode], policy: &Policy) -> LoadedEngine {
        let engine = host.run(Engine::current).expect("inside").expect("an engine").prefer_xdp();
        let engine = engine.avoid_modes(avoided);
        engine.load(policy).expect("a loaded policy");
        LoadedEngine(engine)
    }

    /// The hits of the only actor of the first chain.
    fn hits(&self) -> u64 {
        self.0.statistics().expect("statistics").policies[0].chains[0].actors[0].count.hits
    }
}

impl Drop for LoadedEngine {
    fn drop(&mut self) {
        let unloaded = self.0.unload_all();
        if !thread::panicking() {
            unloaded.expect("nothing is left");
        }
    }
}

fn count(host: &Named, name: &str) -> i64 {
    let counters = host.run(counters).expect("inside").expect("counters");
    *counters.get(name).unwrap_or_else(|| panic!("the kernel has no counter {name}"))
}

/// Asserts that there were no TCP or MPTCP checksum errors.
fn assert_no_wrong_checksums(net: &Topology) {
    for host in [&net.client, &net.server] {
        assert_eq!(count(host, "TcpInCsumErrors"), 0);
        assert_eq!(count(host, "MPTcpExtDataCsumErr"), 0);
    }
}

#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within 60 s");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends bytes that depend on their offset, and verifies them at the receiver.
fn transfer(from: &mut Socket, to: &mut Socket, bytes: usize) {
    let sent: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
    let mut received = vec![0; bytes];
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).expect("a write"));
        to.read_exact(&mut received).expect("a read");
    });
    assert!(sent == received, "what arrived is not what was sent");
}

fn exchange(client: &mut Socket, server: &mut Socket) {
    transfer(client, server, 2000);
    transfer(server, client, 2000);
}

/// The addresses of a subflow, as seen by the owner of the socket.
fn tuple(socket: &Socket, number: usize) -> FourTuple {
    let subflow = &FullInfo::of(socket).expect("information").subflows[number];
    FourTuple { local: subflow.local, remote: subflow.remote }
}

#[test]
fn hosts_process_added_mp_prio() {
    let test = "hosts_process_added_mp_prio";
    let Some(net) = Topology::new(test) else { return };
    for (hook, avoided) in [
        (Hook::Egress, &[][..]),
        (Hook::Ingress, &[]),
        (Hook::Ingress, &WITHOUT_XDP[..1]),
        (Hook::Ingress, &WITHOUT_XDP),
    ] {
        for family in &FAMILIES {
            let loaded = LoadedEngine::new(
                &net.client,
                avoided,
                &policy(&[("a1", hook, "packet(pure_ack)", "\"set_backup\"")]),
            );
            // The receiver of the acknowledgments counts.
            let host = if hook == Hook::Egress { &net.server } else { &net.client };
            let before = count(host, "MPTcpExtMPPrioRx");
            let (mut client, mut server) =
                connect(&net, family.domain, family.server, family.client[1], false);
            transfer(&mut client, &mut server, 4 << 20);
            transfer(&mut server, &mut client, 4 << 20);
            wait_for("MP_PRIO", || count(host, "MPTcpExtMPPrioRx") > before);
            // At most the documented number of times.
            assert!(loaded.hits() >= 1 && loaded.hits() <= 4, "{}", loaded.hits());
            exchange(&mut client, &mut server);
            for socket in [&client, &server] {
                assert!(!Info::of(socket).expect("information").fallback);
            }
        }
    }
    assert_no_wrong_checksums(&net);
}

/// Injects MP_PRIO until a host has received it. After a transfer, the sender may still retransmit on the subflow; the
/// receiver discards a packet that was injected before that (PAWS).
fn inject_priority(injector: &Injector, tuple: FourTuple, hook: Hook, backup: bool, host: &Named) {
    let before = count(host, "MPTcpExtMPPrioRx");
    wait_for("MP_PRIO", || {
        injector.set_backup(tuple, hook, backup).expect("a packet");
        thread::sleep(Duration::from_millis(20));
        count(host, "MPTcpExtMPPrioRx") > before
    });
}

#[test]
fn mp_prio_is_injected_into_idle_subflows() {
    let Some(net) = Topology::new("mp_prio_is_injected_into_idle_subflows") else { return };
    let remembering = policy(&[
        ("a1", Hook::Egress, "packet(fin)", "\"set_backup\""),
        ("a1", Hook::Ingress, "packet(fin)", "\"set_backup\""),
    ]);
    for family in &FAMILIES {
        let loaded = LoadedEngine::new(&net.client, &[], &remembering);
        let (mut client, mut server) = connect(&net, family.domain, family.server, family.client[1], false);
        transfer(&mut server, &mut client, 1 << 20);
        transfer(&mut client, &mut server, 1 << 20);
        let injector = Injector::new(&loaded.0);
        let tuple = tuple(&client, 1);
        for (hook, host) in [(Hook::Egress, &net.server), (Hook::Ingress, &net.client)] {
            for backup in [true, false] {
                inject_priority(&injector, tuple, hook, backup, host);
            }
        }
        exchange(&mut client, &mut server);
        let unknown = FourTuple { local: tuple.remote, remote: tuple.local };
        let refused = injector.set_backup(unknown, Hook::Egress, true);
        assert!(matches!(refused, Err(InjectError::Unknown(_))), "{refused:?}");
    }
    assert_no_wrong_checksums(&net);
}

/// A connection over the first link; with `announces`, the server announces its address on the second. The in-kernel
/// path manager creates subflows.
fn announced(net: &Topology, family: &Family, announces: bool) -> Pair {
    for host in [&net.client, &net.server] {
        ip(&format!("-n {} mptcp limits set subflows 4 add_addr_accepted 4", host.name()));
        ip(&format!("-n {} mptcp endpoint flush", host.name()));
    }
    if announces {
        ip(&format!("-n {} mptcp endpoint add {} id 7 signal", net.server.name(), family.server[1]));
    }
    // It repeats announcements every second.
    let set = || std::fs::write("/proc/sys/net/mptcp/add_addr_timeout", "1").expect("a setting");
    net.server.run(set).expect("inside");
    Pair::new(&net.client, &net.server, family.domain, family.server[0])
}

/// Both ends of a connection.
struct Pair {
    client: Socket,
    server: Socket,
    /// Joins need the listener of the initial subflow.
    _listener: Socket,
}

impl Pair {
    /// Connects, and sends data in both directions.
    fn new(client: &Named, server: &Named, domain: Domain, to: &str) -> Pair {
        let (listener, port) = listen(server, domain);
        let mut client = dial(client, to, port);
        let (mut server, _) = listener.accept().expect("a connection");
        exchange(&mut client, &mut server);
        Pair { client, server, _listener: listener }
    }
}

fn subflows(socket: &Socket) -> usize {
    let full = FullInfo::of(socket).expect("information");
    assert!(!full.info.fallback, "it fell back to TCP");
    full.subflows.len()
}

/// Makes both ends send pure acknowledgments: after 40 ms, they are not piggybacked on data.
fn acknowledge(pair: &mut Pair) {
    transfer(&mut pair.client, &mut pair.server, 2000);
    thread::sleep(Duration::from_millis(60));
    transfer(&mut pair.server, &mut pair.client, 2000);
    thread::sleep(Duration::from_millis(60));
}

/// Asserts that announcements are repeated without creating a subflow.
fn assert_withheld(loaded: &LoadedEngine, pair: &mut Pair) {
    wait_for("two announcements", || loaded.hits() >= 2);
    exchange(&mut pair.client, &mut pair.server);
    assert_eq!((subflows(&pair.client), subflows(&pair.server)), (1, 1));
}

fn assert_joined(what: &str, family: &Family, pair: &mut Pair) {
    wait_for(what, || {
        exchange(&mut pair.client, &mut pair.server);
        subflows(&pair.client) == 2 && subflows(&pair.server) == 2
    });
    let joined = tuple(&pair.client, 1).remote.ip();
    assert_eq!(joined, family.server[1].parse::<std::net::IpAddr>().expect("an address"));
}

#[test]
fn blocked_announcements_create_a_subflow_once_added() {
    for_each_hook("blocked_announcements_create_a_subflow_once_added", |net, family, hook, avoided| {
        let mut pair = announced(net, family, true);
        assert_joined("without any policy", family, &mut pair);
        drop(pair);

        let (host, interface) = host_at(net, hook);
        let chain = |select, actors| policy(&[(interface, hook, select, actors)]);
        let loaded = LoadedEngine::new(host, avoided, &chain("packet(add_addr)", "\"block_subflow\""));
        let before = count(&net.client, "MPTcpExtAddAddr");
        let mut pair = announced(net, family, true);
        assert_withheld(&loaded, &mut pair);
        assert_eq!(count(&net.client, "MPTcpExtAddAddr"), before, "none arrived");
        loaded.0.replace(&[chain("packet(pure_ack)", "\"add_subflow\"")]).expect("another policy");
        assert_joined("by add_subflow", family, &mut pair);
        assert!(count(&net.client, "MPTcpExtAddAddr") > before);
        assert!(count(&net.server, "MPTcpExtEchoAdd") > 0);
    });
}

#[test]
fn echoed_announcements_are_not_repeated() {
    for_each_hook("echoed_announcements_are_not_repeated", |net, family, hook, avoided| {
        let (host, interface) = host_at(net, hook);
        // The echo carries the window of the other direction.
        let blocking = policy(&[
            (interface, hook, "packet(add_addr)", "{ block_subflow = { echo = true } }"),
            (interface, opposite(hook), "packet(fin)", "\"record\""),
        ]);
        let loaded = LoadedEngine::new(host, avoided, &blocking);
        // A veth interface accepts XDP_TX packets only if its peer has an XDP program.
        let by_xdp = hook == Hook::Ingress && avoided.is_empty();
        let idle = policy(&[("b0", Hook::Ingress, "packet(fin)", "\"record\"")]);
        let _taking = by_xdp.then(|| LoadedEngine::new(&net.server, &[], &idle));
        let before = count(&net.server, "MPTcpExtEchoAdd");
        let mut pair = announced(net, family, true);
        wait_for("the echo", || count(&net.server, "MPTcpExtEchoAdd") > before);
        let hits = loaded.hits();
        thread::sleep(Duration::from_millis(2500));
        assert_eq!(loaded.hits(), hits, "it would announce again after a second");
        exchange(&mut pair.client, &mut pair.server);
        assert_eq!(subflows(&pair.client), 1);
    });
}

#[test]
fn mp_prio_is_added_at_most_four_times() {
    let Some(net) = Topology::new("mp_prio_is_added_at_most_four_times") else { return };
    let setting = policy(&[("a0", Hook::Ingress, "packet(pure_ack)", "\"set_backup\"")]);
    let loaded = LoadedEngine::new(&net.client, &[], &setting);
    let before = count(&net.client, "MPTcpExtMPPrioRx");
    let mut pair = announced(&net, &FAMILIES[0], false);
    wait_for("four times MP_PRIO", || {
        exchange(&mut pair.client, &mut pair.server);
        loaded.hits() == 4
    });
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        exchange(&mut pair.client, &mut pair.server);
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(loaded.hits(), 4);
    assert_eq!(count(&net.client, "MPTcpExtMPPrioRx"), before + 4);
}

#[test]
fn hosts_process_announcements_of_a_given_address() {
    for_each_hook("hosts_process_announcements_of_a_given_address", |net, family, hook, avoided| {
        let (host, interface) = host_at(net, hook);
        let chains = |given: &str| {
            policy(&[
                (interface, hook, "packet(pure_ack)", given),
                (interface, opposite(hook), "packet(fin)", "\"record\""),
            ])
        };
        let address = family.server[1];
        let loaded = LoadedEngine::new(host, avoided, &chains("\"record\""));
        for with_port in [false, true] {
            let before = count(&net.client, "MPTcpExtAddAddr");
            let mut pair = announced(net, family, false);
            let port = match with_port {
                true => format!(", port = {}", tuple(&pair.server, 0).local.port()),
                false => String::new(),
            };
            let given = format!("{{ add_subflow = {{ address = \"{address}\", id = 9{port} }} }}");
            loaded.0.replace(&[chains(&given)]).expect("another policy");
            // The kernel only counts announcements with a valid HMAC.
            wait_for("an announcement", || {
                acknowledge(&mut pair);
                count(&net.client, "MPTcpExtAddAddr") > before
            });
            assert_joined("what was given", family, &mut pair);
            let arrived = count(&net.client, "MPTcpExtAddAddr");
            thread::sleep(Duration::from_millis(1200));
            acknowledge(&mut pair);
            assert_eq!(count(&net.client, "MPTcpExtAddAddr"), arrived, "its echo has passed");
        }
    });
}

#[test]
fn each_of_several_given_addresses_is_announced() {
    let Some(net) = Topology::new("each_of_several_given_addresses_is_announced") else { return };
    let given = |address| format!("{{ add_subflow = {{ address = \"{address}\" }} }}");
    let adding = policy(&[
        ("b0", Hook::Egress, "packet(pure_ack)", &[given("10.2.0.2"), given("10.2.0.9")].join(", ")),
        ("b0", Hook::Egress, "packet(pure_ack)", &given("10.2.0.66")),
    ]);
    let _loaded = LoadedEngine::new(&net.server, &[], &adding);
    let before = count(&net.client, "MPTcpExtAddAddr");
    let mut pair = announced(&net, &FAMILIES[0], false);
    wait_for("three announcements", || {
        acknowledge(&mut pair);
        count(&net.client, "MPTcpExtAddAddr") >= before + 3
    });
    thread::sleep(Duration::from_millis(1200));
    acknowledge(&mut pair);
    assert_eq!(count(&net.client, "MPTcpExtAddAddr"), before + 3);
}

#[test]
fn expired_backups_are_cleared_by_keepalives() {
    let Some(net) = Topology::new("expired_backups_are_cleared_by_keepalives") else { return };
    for (hook, host) in [(Hook::Egress, &net.server), (Hook::Ingress, &net.client)] {
        let setting = policy(&[("a1", hook, "packet(pure_ack)", "\"set_backup\"")]);
        let loaded = LoadedEngine(net.client.run(Engine::current).expect("inside").expect("an engine"));
        loaded.0.load_leased(&setting, Duration::from_secs(1000)).expect("a loaded policy");
        let before = count(host, "MPTcpExtMPPrioRx");
        let family = &FAMILIES[0];
        let (mut client, mut server) = connect(&net, family.domain, family.server, family.client[1], false);
        let own = tuple(&client, 1);
        let is_backup = || {
            let flows = loaded.0.flows().expect("subflows");
            let flow = flows.into_iter().find(|flow| flow.tuple == own).expect("the subflow");
            if hook == Hook::Egress { flow.sent.backup } else { flow.received.backup }
        };
        wait_for("a backup", || {
            transfer(&mut client, &mut server, 1 << 20);
            transfer(&mut server, &mut client, 1 << 20);
            is_backup()
        });
        let (received, hits) = (count(host, "MPTcpExtMPPrioRx"), loaded.hits());
        assert!(received > before);
        // An idle subflow only has keepalive packets, whose answers are acknowledged.
        let asking = if hook == Hook::Egress { &server } else { &client };
        asking.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(1))).expect("an option");
        assert!(loaded.0.renew("test", Duration::ZERO).expect("a lease"));
        wait_for("its end", || !is_backup());
        wait_for("its announcement", || count(host, "MPTcpExtMPPrioRx") > received);
        assert_eq!(loaded.hits(), hits, "what is taken back is no hit");
        exchange(&mut client, &mut server);
    }
    assert_no_wrong_checksums(&net);
}

/// A client (`c0`, 10.8.0.1), a router (`r0`, `r1`) and a server (`s0`, 10.9.0.2).
struct Routed {
    client: Named,
    router: Named,
    server: Named,
}

impl Routed {
    fn new() -> Routed {
        let routed = Routed { client: host("client"), router: host("router"), server: host("server") };
        let (c, r, s) = (routed.client.name(), routed.router.name(), routed.server.name());
        for (near, own, far, other, subnet) in [(c, "c0", r, "r0", 8), (s, "s0", r, "r1", 9)] {
            let end = if near == c { 1 } else { 2 };
            ip(&format!("link add {own} netns {near} type veth peer name {other} netns {far}"));
            ip(&format!("-n {near} address add 10.{subnet}.0.{end}/24 dev {own}"));
            ip(&format!("-n {far} address add 10.{subnet}.0.9/24 dev {other}"));
            ip(&format!("-n {near} link set {own} up"));
            ip(&format!("-n {far} link set {other} up"));
            ip(&format!("-n {near} route add default via 10.{subnet}.0.9"));
            // Checksum offload is off at the router, so that it completes checksums and the hosts verify them.
            ip(&format!("netns exec {far} ethtool -K {other} tx off"));
            ip(&format!("netns exec {near} ethtool -K {own} rx off"));
        }
        let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        routed.router.run(forward).expect("inside").expect("a setting");
        routed
    }
}

#[test]
fn a_router_modifies_and_injects_mp_prio() {
    // Whether tests can run here.
    let Some(_) = Topology::new("a_router_modifies_and_injects_mp_prio") else { return };
    let net = Routed::new();
    for (interface, hook, avoided) in [
        ("r0", Hook::Ingress, &[][..]),
        ("r0", Hook::Ingress, &WITHOUT_XDP[..1]),
        ("r0", Hook::Ingress, &WITHOUT_XDP),
        ("r1", Hook::Egress, &[]),
    ] {
        let other = opposite(hook);
        // The client's acknowledgments.
        let setting = policy(&[
            (interface, hook, "packet(pure_ack)", "\"set_backup\""),
            (interface, other, "packet(fin)", "\"record\""),
        ]);
        let loaded = LoadedEngine::new(&net.router, avoided, &setting);
        let before = count(&net.server, "MPTcpExtMPPrioRx");
        let mut pair = Pair::new(&net.client, &net.server, Domain::IPV4, "10.9.0.2");
        transfer(&mut pair.server, &mut pair.client, 4 << 20);
        wait_for("MP_PRIO", || count(&net.server, "MPTcpExtMPPrioRx") > before);

        let idle = policy(&[
            (interface, hook, "packet(fin)", "\"set_backup\""),
            (interface, other, "packet(fin)", "\"record\""),
        ]);
        loaded.0.replace(&[idle]).expect("another policy");
        // Egress at the router is towards the host behind the interface.
        let at_client = tuple(&pair.client, 0);
        let tuple = match interface {
            "r1" => at_client,
            _ => FourTuple { local: at_client.remote, remote: at_client.local },
        };
        let injector = Injector::new(&loaded.0);
        for (hook, host) in match interface {
            "r1" => [(Hook::Egress, &net.server), (Hook::Ingress, &net.client)],
            _ => [(Hook::Egress, &net.client), (Hook::Ingress, &net.server)],
        } {
            inject_priority(&injector, tuple, hook, false, host);
        }
        exchange(&mut pair.client, &mut pair.server);
        assert_eq!(subflows(&pair.client), 1);
    }
    for host in [&net.client, &net.server] {
        assert_eq!(count(host, "TcpInCsumErrors"), 0);
    }
}
