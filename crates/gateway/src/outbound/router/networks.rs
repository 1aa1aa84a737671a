//! The destinations that a router does not carry: this host, its links, what is local by its nature, and what is excluded.

use std::collections::BTreeMap;

use ipnet::IpNet;
use plait_linux::interfaces::{Address, Interface, Scope};

use crate::bindings::{PLAIT_NETWORK_EXCLUDED, PLAIT_NETWORK_OWN};

/// Loopback, link-local, multicast and broadcast addresses. The kernel judges packets to them.
const LOCAL: [&str; 8] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "::/127",
    "fe80::/10",
    "ff00::/8",
];

/// Why a network is not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetworkKind {
    /// An address of this host, to which DNS queries may be answered.
    Own,
    /// What the kernel forwards.
    Excluded,
}

impl NetworkKind {
    /// As `bpf/router.bpf.c` has it.
    pub(super) fn number(self) -> u32 {
        match self {
            NetworkKind::Own => PLAIT_NETWORK_OWN,
            NetworkKind::Excluded => PLAIT_NETWORK_EXCLUDED,
        }
    }
}

/// The networks that are not carried. `lan`: the names of the interfaces behind which the hosts are.
pub(super) fn networks(
    interfaces: &[Interface],
    lan: &[String],
    exclude: &[IpNet],
) -> BTreeMap<IpNet, NetworkKind> {
    let local = LOCAL.iter().filter_map(|network| network.parse::<IpNet>().ok());
    let between_lans = interfaces
        .iter()
        .filter(|interface| lan.contains(&interface.name))
        .flat_map(|interface| &interface.addresses)
        .filter(|address| address.scope == Scope::Global)
        .filter_map(network_of);
    let excluded = local.chain(between_lans).chain(exclude.iter().map(IpNet::trunc));
    let own = interfaces.iter().flat_map(|interface| &interface.addresses);
    let own = own.map(|address| (IpNet::from(address.ip), NetworkKind::Own));
    // An address of this host that is excluded is one of this host.
    excluded.map(|network| (network, NetworkKind::Excluded)).chain(own).collect()
}

fn network_of(address: &Address) -> Option<IpNet> {
    IpNet::new(address.ip, address.prefix).ok().map(|network| network.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_and_links_of_the_lan_are_not_carried() {
        let interface = |name: &str, ip: &str| Interface {
            index: 1,
            name: name.into(),
            up: true,
            running: true,
            loopback: false,
            ethernet: true,
            software: false,
            bridge: false,
            port: false,
            mtu: 1500,
            addresses: vec![Address {
                ip: ip.parse().expect("an address"),
                prefix: 24,
                scope: Scope::Global,
                usable: true,
            }],
        };
        let interfaces = [interface("lan0", "10.1.0.1"), interface("eth0", "192.0.2.2")];
        let exclude = ["198.51.100.7/24".parse().expect("a network")];
        let networks = networks(&interfaces, &["lan0".into()], &exclude);
        let of = |network: &str| networks.get(&network.parse::<IpNet>().expect("a network")).copied();
        assert_eq!(of("10.1.0.1/32"), Some(NetworkKind::Own));
        assert_eq!(of("192.0.2.2/32"), Some(NetworkKind::Own));
        assert_eq!(of("10.1.0.0/24"), Some(NetworkKind::Excluded));
        assert_eq!(of("192.0.2.0/24"), None, "an uplink's neighbours are carried");
        assert_eq!(of("198.51.100.0/24"), Some(NetworkKind::Excluded));
        assert_eq!(networks.len(), LOCAL.len() + 4, "all of LOCAL are networks");
    }
}
