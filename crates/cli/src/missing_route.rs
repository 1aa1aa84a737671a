//! Why an interface has no route to a peer, and the command that adds it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use plait_linux::interfaces::{Interface, Scope};

/// The metric of the route of the first interface: further ones do not take traffic from routes that exist, which rarely have such a
/// metric, and differ from each other.
const METRIC: u32 = 1000;

/// What is missing for connections to leave through an interface.
pub(crate) struct MissingRoute {
    /// The reason.
    pub(crate) reason: String,
    /// The command that mends it, if one does.
    pub(crate) command: Option<String>,
}

/// Why `interface` has no route to `peer`; `None`: to any public address.
pub(crate) fn missing_route(interface: &Interface, peer: Option<IpAddr>) -> MissingRoute {
    explain(interface, peer, &routers(&interface.name))
}

fn explain(interface: &Interface, peer: Option<IpAddr>, routers: &[IpAddr]) -> MissingRoute {
    let Interface { name, index, .. } = interface;
    if !interface.up {
        let reason = format!("{name} is down");
        return MissingRoute { reason, command: Some(format!("ip link set {name} up")) };
    }
    if !interface.running {
        return MissingRoute {
            reason: format!("{name} has no carrier: plug it in, or connect it to a network"),
            command: None,
        };
    }
    let of_family = |ip: &IpAddr| peer.is_none_or(|peer| ip.is_ipv4() == peer.is_ipv4());
    let own = interface.addresses.iter().filter(|own| own.scope == Scope::Global).map(|own| own.ip);
    let Some(own) = own.into_iter().find(of_family) else {
        let family = match peer {
            Some(IpAddr::V4(_)) => "IPv4 ",
            Some(IpAddr::V6(_)) => "IPv6 ",
            None => "",
        };
        return MissingRoute {
            reason: format!("{name} has no {family}address: configure it, as by DHCP"),
            command: None,
        };
    };
    let reason = match peer {
        Some(peer) => format!("no route to {peer} by {name}"),
        None => format!("no default route by {name}"),
    };
    let router = routers.iter().find(|router| router.is_ipv4() == own.is_ipv4());
    let router = router.map_or_else(|| "ROUTER".to_owned(), ToString::to_string);
    let ip = if own.is_ipv4() { "ip" } else { "ip -6" };
    let metric = METRIC + index;
    let command = format!("{ip} route add default via {router} dev {name} metric {metric}");
    MissingRoute { reason, command: Some(command) }
}

/// The routers that routes by this interface lead to.
fn routers(interface: &str) -> Vec<IpAddr> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let ipv4 = read("/proc/net/route");
    let ipv6 = read("/proc/net/ipv6_route");
    ipv4_routers(&ipv4, interface).chain(ipv6_routers(&ipv6, interface)).collect()
}

/// From /proc/net/route: interface, destination, router, ..., in hexadecimal as on the wire.
fn ipv4_routers<'a>(table: &'a str, interface: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
    table.lines().filter_map(move |line| {
        let mut fields = line.split_whitespace();
        let router = fields.next().filter(|name| *name == interface).and_then(|_| fields.nth(1))?;
        let router = Ipv4Addr::from(u32::from_str_radix(router, 16).ok()?.to_ne_bytes());
        (!router.is_unspecified()).then_some(router.into())
    })
}

/// From /proc/net/ipv6_route: destination, its length, source, its length, router, ..., interface.
fn ipv6_routers<'a>(table: &'a str, interface: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
    table.lines().filter_map(move |line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let router = fields.last().filter(|name| **name == interface).and_then(|_| fields.get(4))?;
        let router = Ipv6Addr::from_bits(u128::from_str_radix(router, 16).ok()?);
        (!router.is_unspecified()).then_some(router.into())
    })
}

#[cfg(test)]
mod tests {
    use plait_linux::interfaces::Address;

    use super::*;

    fn interface(addresses: &[&str]) -> Interface {
        let address = |text: &&str| Address {
            ip: text.parse().expect("an address"),
            prefix: 24,
            scope: Scope::Global,
            usable: true,
        };
        Interface {
            index: 3,
            name: "wlan0".into(),
            up: true,
            running: true,
            loopback: false,
            ethernet: true,
            software: true,
            bridge: false,
            port: false,
            mtu: 1500,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    fn explained(interface: &Interface, peer: &str, routers: &[&str]) -> (String, Option<String>) {
        let routers: Vec<IpAddr> = routers.iter().map(|text| text.parse().expect("an address")).collect();
        let MissingRoute { reason, command } = explain(interface, peer.parse().ok(), &routers);
        (reason, command)
    }

    #[test]
    fn the_first_thing_that_is_missing_is_named_with_its_command() {
        let both = interface(&["192.0.2.1", "2001:db8::1"]);
        let routers = ["192.0.2.254", "fe80::1"];
        assert_eq!(
            explained(&both, "198.51.100.7", &routers),
            (
                "no route to 198.51.100.7 by wlan0".into(),
                Some("ip route add default via 192.0.2.254 dev wlan0 metric 1003".into())
            )
        );
        assert_eq!(
            explained(&both, "2001:db8:1::7", &routers).1.as_deref(),
            Some("ip -6 route add default via fe80::1 dev wlan0 metric 1003")
        );
        let (reason, command) = explained(&both, "", &[]);
        assert_eq!(reason, "no default route by wlan0");
        assert!(command.is_some_and(|command| command.contains("via ROUTER dev")));
        let (reason, command) = explained(&interface(&["192.0.2.1"]), "2001:db8:1::7", &[]);
        assert!(reason.starts_with("wlan0 has no IPv6 address") && command.is_none());
        let down = Interface { up: false, running: false, ..both.clone() };
        assert_eq!(explained(&down, "", &[]).1.as_deref(), Some("ip link set wlan0 up"));
        let unplugged = Interface { running: false, ..both };
        assert!(explained(&unplugged, "", &[]).0.starts_with("wlan0 has no carrier"));
    }

    #[test]
    fn routers_are_read_from_the_kernels_tables() {
        let little_endian = u32::from_ne_bytes([10, 77, 2, 2]);
        let ipv4 = format!(
            "Iface\tDestination\tGateway \tFlags\neth0\t00000000\t{little_endian:08X}\t0003\nwlan0\t00024D0A\t00000000\t0001\n\
             wlan0\t00000000\t{little_endian:08X}\t0003\n"
        );
        let found: Vec<_> = ipv4_routers(&ipv4, "wlan0").collect();
        assert_eq!(found, ["10.77.2.2".parse::<IpAddr>().expect("an address")]);
        let zero = "0".repeat(32);
        let router = "fe800000000000000000000000000001";
        let ipv6 = format!(
            "{zero} 00 {zero} 00 {router} 00000400 00000001 00000000 00000003 wlan0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 wlan0\n"
        );
        let found: Vec<_> = ipv6_routers(&ipv6, "wlan0").collect();
        assert_eq!(found, ["fe80::1".parse::<IpAddr>().expect("an address")]);
        assert_eq!(ipv6_routers(&ipv6, "eth0").count(), 0);
    }
}
