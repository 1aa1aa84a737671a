//! Lists interfaces and looks up routes in namespaces with a known configuration.

mod topology;

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::interfaces::{
    Address, Changes, Interface, Route, Scope, accepts, interfaces, route, route_of, route_via,
};
use topology::{Topology, interface_index, ip};

fn address(text: &str) -> IpAddr {
    text.parse().expect("address is valid")
}

#[test]
fn lists_the_loopback_interface_without_privileges() {
    let list = interfaces().expect("interfaces are listed");
    let loopback = list.iter().find(|interface| interface.loopback).expect("loopback interface exists");
    assert_eq!(loopback.name, "lo");
    if loopback.up {
        let own = Address { ip: address("127.0.0.1"), prefix: 8, scope: Scope::Host, usable: true };
        assert!(loopback.addresses.contains(&own), "{loopback:?}");
    }
}

#[test]
fn lists_interfaces_with_their_properties() {
    let Some(net) = Topology::new("lists_interfaces_with_their_properties") else { return };
    ip(&format!("-n {} link set a1 mtu 1400", net.client.name()));
    ip(&format!("-n {} link set b1 down", net.server.name()));
    ip(&format!("-n {} link add br0 type bridge", net.client.name()));
    ip(&format!("-n {} link set a1 master br0", net.client.name()));
    let list = net.client.run(interfaces).expect("namespace can be entered").expect("interfaces are listed");
    let find =
        |name: &str| list.iter().find(|interface| interface.name == name).expect("interface exists").clone();
    let Interface { up, running, loopback, mtu, addresses, .. } = find("a0");
    assert_eq!((up, running, loopback, mtu), (true, true, false, 1500));
    let v4 = Address { ip: address("10.1.0.1"), prefix: 24, scope: Scope::Global, usable: true };
    let v6 = Address { ip: address("fd00:1::1"), prefix: 64, scope: Scope::Global, usable: true };
    assert!(addresses.contains(&v4) && addresses.contains(&v6), "{addresses:?}");
    assert!(addresses.iter().any(|address| address.scope == Scope::Link && address.prefix == 64));
    assert!(find("a1").port && !find("a0").port && !find("br0").port);
    let Interface { up, running, mtu, .. } = find("a1");
    assert_eq!((up, running, mtu), (true, false, 1400), "up, but the other end is down");
}

#[test]
fn looks_up_routes_by_interface() {
    let Some(net) = Topology::new("looks_up_routes_by_interface") else { return };
    let c = net.client.name();
    net.client
        .run(|| {
            let (a0, a1) = (interface_index("a0"), interface_index("a1"));
            for (to, from0, from1) in
                [("10.1.0.2", "10.1.0.1", "10.2.0.1"), ("fd00:1::2", "fd00:1::1", "fd00:2::1")]
            {
                let direct = Route { if_index: a0, source: address(from0), gateway: None };
                assert_eq!(route(address(to)).expect("lookup succeeds"), Some(direct));
                assert_eq!(route_via(address(to), a0).expect("lookup succeeds"), Some(address(from0)));
                assert_eq!(route_via(address(to), a1).expect("lookup succeeds"), Some(address(from1)));
                assert_eq!(route_via(address(to), 999).expect("lookup succeeds"), None);
            }
            for to in ["203.0.113.1", "2001:db8::1"] {
                assert_eq!(route(address(to)).expect("lookup succeeds"), None);
                assert_eq!(
                    route_via(address(to), a0).expect("lookup succeeds"),
                    None,
                    "{to} is not assumed to be on the link"
                );
            }

            // A table that applies only to packets from the second interface's address.
            ip(&format!("-n {c} route add default via 10.2.0.2 dev a1 table 7"));
            ip(&format!("-n {c} rule add from 10.2.0.1 lookup 7"));
            ip(&format!("-n {c} -6 route add default via fd00:2::2 dev a1 table 7"));
            ip(&format!("-n {c} -6 rule add from fd00:2::1 lookup 7"));
            for (to, from) in [("203.0.113.1", "10.2.0.1"), ("2001:db8::1", "fd00:2::1")] {
                assert_eq!(route(address(to)).expect("lookup succeeds"), None);
                assert_eq!(route_via(address(to), a0).expect("lookup succeeds"), None);
                assert_eq!(route_via(address(to), a1).expect("lookup succeeds"), Some(address(from)));
            }

            ip(&format!("-n {c} route add blackhole 198.51.100.0/24"));
            ip(&format!("-n {c} route add unreachable 2001:db8:1::/48"));
            for to in ["198.51.100.1", "2001:db8:1::1"] {
                assert_eq!(route(address(to)).expect("lookup succeeds"), None);
                assert_eq!(route_via(address(to), a0).expect("lookup succeeds"), None);
            }
        })
        .expect("namespace can be entered");
}

#[test]
fn strict_reverse_path_filter_rejects_packets_by_another_interface() {
    let Some(net) = Topology::new("strict_reverse_path_filter_rejects_packets_by_another_interface") else {
        return;
    };
    let c = net.client.name();
    net.client
        .run(|| {
            let (a0, a1) = (interface_index("a0"), interface_index("a1"));
            let (own, peer) = (address("10.2.0.1"), address("10.1.0.2"));
            let filter = |value| {
                for key in ["all", "a1"] {
                    std::fs::write(format!("/proc/sys/net/ipv4/conf/{key}/rp_filter"), value)
                        .expect("a setting");
                }
            };
            filter("0");
            assert!(accepts(peer, own, a1).expect("lookup succeeds"));
            filter("1");
            assert!(!accepts(peer, own, a1).expect("lookup succeeds"));
            assert!(accepts(peer, address("10.1.0.1"), a0).expect("lookup succeeds"));
            // A route that applies only to packets from this address.
            ip(&format!("-n {c} route add default via 10.2.0.2 dev a1 table 7"));
            ip(&format!("-n {c} rule add from 10.2.0.1 lookup 7"));
            assert!(accepts(peer, own, a1).expect("lookup succeeds"));
            let found = route_of(peer, Some(own), None).expect("lookup succeeds");
            assert_eq!(found, Some(Route { if_index: a1, source: own, gateway: Some(address("10.2.0.2")) }));
        })
        .expect("namespace can be entered");
}

#[test]
fn changes_of_links_addresses_and_routes_are_reported() {
    let Some(net) = Topology::new("changes_of_links_addresses_and_routes_are_reported") else { return };
    let mut changes =
        net.client.run(Changes::open).expect("namespace can be entered").expect("subscription succeeds");
    let mut changed = || {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !changes.take().expect("changes are readable") {
            assert!(Instant::now() < deadline, "no change was reported");
            thread::sleep(Duration::from_millis(2));
        }
        // What else the change brought.
        thread::sleep(Duration::from_millis(100));
        changes.take().expect("changes are readable");
    };
    for change in ["addr add 10.9.0.1/32 dev a0", "route add 203.0.113.0/24 via 10.1.0.2", "link set a1 down"]
    {
        ip(&format!("-n {} {change}", net.client.name()));
        changed();
    }
}
