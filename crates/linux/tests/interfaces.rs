//! Interfaces and routes of namespaces with known ones.

mod topology;

use std::net::IpAddr;

use plait_linux::interfaces::{Address, Interface, Route, Scope, interfaces, route, route_via};
use topology::{Topology, interface_index, ip};

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn the_loopback_interface_is_there_for_any_user() {
    let list = interfaces().expect("interfaces");
    let loopback = list.iter().find(|interface| interface.loopback).expect("a loopback interface");
    assert_eq!(loopback.name, "lo");
    if loopback.up {
        let own = Address { ip: address("127.0.0.1"), prefix: 8, scope: Scope::Host, usable: true };
        assert!(loopback.addresses.contains(&own), "{loopback:?}");
    }
}

#[test]
fn interfaces_are_as_they_were_made() {
    let Some(net) = Topology::new("interfaces_are_as_they_were_made") else { return };
    ip(&format!("-n {} link set a1 mtu 1400", net.client.name()));
    ip(&format!("-n {} link set b1 down", net.server.name()));
    let list = net.client.run(interfaces).expect("the namespace").expect("interfaces");
    let find =
        |name: &str| list.iter().find(|interface| interface.name == name).expect("an interface").clone();
    let Interface { up, running, loopback, mtu, addresses, .. } = find("a0");
    assert_eq!((up, running, loopback, mtu), (true, true, false, 1500));
    let v4 = Address { ip: address("10.1.0.1"), prefix: 24, scope: Scope::Global, usable: true };
    let v6 = Address { ip: address("fd00:1::1"), prefix: 64, scope: Scope::Global, usable: true };
    assert!(addresses.contains(&v4) && addresses.contains(&v6), "{addresses:?}");
    assert!(addresses.iter().any(|address| address.scope == Scope::Link && address.prefix == 64));
    let Interface { up, running, mtu, .. } = find("a1");
    assert_eq!((up, running, mtu), (true, false, 1400), "switched on, but the other end is not");
}

#[test]
fn routes_are_those_of_the_tables() {
    let Some(net) = Topology::new("routes_are_those_of_the_tables") else { return };
    let c = net.client.name();
    net.client
        .run(|| {
            let (a0, a1) = (interface_index("a0"), interface_index("a1"));
            for (to, from0, from1) in
                [("10.1.0.2", "10.1.0.1", "10.2.0.1"), ("fd00:1::2", "fd00:1::1", "fd00:2::1")]
            {
                let direct = Route { if_index: a0, source: address(from0) };
                assert_eq!(route(address(to)).expect("an answer"), Some(direct));
                assert_eq!(route_via(address(to), a0).expect("an answer"), Some(address(from0)));
                assert_eq!(route_via(address(to), a1).expect("an answer"), Some(address(from1)));
                assert_eq!(route_via(address(to), 999).expect("an answer"), None);
            }
            for to in ["203.0.113.1", "2001:db8::1"] {
                assert_eq!(route(address(to)).expect("an answer"), None);
                assert_eq!(route_via(address(to), a0).expect("an answer"), None, "no guess: {to}");
            }

            // A table that only packets from the second interface's address use.
            ip(&format!("-n {c} route add default via 10.2.0.2 dev a1 table 7"));
            ip(&format!("-n {c} rule add from 10.2.0.1 lookup 7"));
            ip(&format!("-n {c} -6 route add default via fd00:2::2 dev a1 table 7"));
            ip(&format!("-n {c} -6 rule add from fd00:2::1 lookup 7"));
            for (to, from) in [("203.0.113.1", "10.2.0.1"), ("2001:db8::1", "fd00:2::1")] {
                assert_eq!(route(address(to)).expect("an answer"), None);
                assert_eq!(route_via(address(to), a0).expect("an answer"), None);
                assert_eq!(route_via(address(to), a1).expect("an answer"), Some(address(from)));
            }

            ip(&format!("-n {c} route add blackhole 198.51.100.0/24"));
            ip(&format!("-n {c} route add unreachable 2001:db8:1::/48"));
            for to in ["198.51.100.1", "2001:db8:1::1"] {
                assert_eq!(route(address(to)).expect("an answer"), None);
                assert_eq!(route_via(address(to), a0).expect("an answer"), None);
            }
        })
        .expect("the namespace");
}
