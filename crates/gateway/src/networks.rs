//! Sets of networks that BPF programs look addresses up in (`bpf/networks.h`).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapHandle};
use plait_linux::interfaces::{Changes, Interface, interfaces};

use crate::bindings::{plait_net_v4, plait_net_v6};
use crate::bpf::{self, BpfError};
use crate::socket::watch_readable;

/// Link-local and multicast networks, and the broadcast address: never beyond a router, or only on purpose.
const LINK: [&str; 6] =
    ["169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "fe80::/10", "ff00::/8", "::/128"];

/// Changes of interfaces come in groups.
const SETTLE: Duration = Duration::from_millis(50);

/// The networks in two maps of BPF programs, one per address family.
pub(crate) struct Networks {
    v4: MapHandle,
    v6: MapHandle,
    present: Mutex<BTreeSet<IpNet>>,
}

impl Networks {
    /// Those in maps, which another process may have filled.
    pub(crate) fn of(v4: MapHandle, v6: MapHandle) -> Networks {
        let present = Mutex::new(read(&v4, &v6));
        Networks { v4, v6, present }
    }

    /// The maps, of IPv4 and IPv6.
    pub(crate) fn maps(&self) -> [&MapHandle; 2] {
        [&self.v4, &self.v6]
    }

    /// Replaces the networks. At no moment one is missing that is in both sets.
    pub(crate) fn set(&self, wanted: &BTreeSet<IpNet>) -> Result<(), BpfError> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        for network in wanted.difference(&present) {
            match Key::of(*network) {
                Key::V4(key) => bpf::update(&self.v4, bytemuck::bytes_of(&key), &1u8)?,
                Key::V6(key) => bpf::update(&self.v6, bytemuck::bytes_of(&key), &1u8)?,
            }
        }
        for network in present.difference(wanted) {
            // One that is not there need not be deleted.
            let _ = match Key::of(*network) {
                Key::V4(key) => self.v4.delete(bytemuck::bytes_of(&key)),
                Key::V6(key) => self.v6.delete(bytemuck::bytes_of(&key)),
            };
        }
        present.clone_from(wanted);
        Ok(())
    }
}

fn read(v4: &MapHandle, v6: &MapHandle) -> BTreeSet<IpNet> {
    let v4 = v4.keys().filter_map(|key| {
        let key: plait_net_v4 = bytemuck::try_pod_read_unaligned(&key).ok()?;
        IpNet::new(key.address.to_ne_bytes().into(), u8::try_from(key.prefix_length).ok()?).ok()
    });
    let v6 = v6.keys().filter_map(|key| {
        let key: plait_net_v6 = bytemuck::try_pod_read_unaligned(&key).ok()?;
        let octets: [u8; 16] = bytemuck::cast(key.address);
        IpNet::new(octets.into(), u8::try_from(key.prefix_length).ok()?).ok()
    });
    v4.chain(v6).collect()
}

/// A network as a map has it.
enum Key {
    V4(plait_net_v4),
    V6(plait_net_v6),
}

impl Key {
    fn of(network: IpNet) -> Key {
        let prefix_length = network.prefix_len().into();
        match network.trunc() {
            IpNet::V4(network) => {
                Key::V4(plait_net_v4 { prefix_length, address: u32::from_ne_bytes(network.addr().octets()) })
            }
            IpNet::V6(network) => {
                Key::V6(plait_net_v6 { prefix_length, address: bytemuck::cast(network.addr().octets()) })
            }
        }
    }
}

/// The networks that a host reaches without plait: its own addresses and, with `lan`, what its interfaces are connected to, the
/// broadcast address and multicast included.
pub(crate) fn connected(lan: bool) -> BTreeSet<IpNet> {
    let interfaces = interfaces().unwrap_or_default();
    let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
    let mut networks = own_addresses(&interfaces);
    for address in addresses {
        // Of a point-to-point link, which has no network, and of a default route, which is none.
        if let Some(network) =
            IpNet::new(address.ip, address.prefix).ok().filter(|net| lan && net.prefix_len() > 0)
        {
            networks.insert(network.trunc());
        }
    }
    if lan {
        networks.extend(link_networks());
    }
    networks
}

/// The addresses of a host, as networks.
pub(crate) fn own_addresses(interfaces: &[Interface]) -> BTreeSet<IpNet> {
    interfaces.iter().flat_map(|interface| &interface.addresses).map(|address| address.ip.into()).collect()
}

/// The networks of links, broadcast and multicast.
pub(crate) fn link_networks() -> impl Iterator<Item = IpNet> {
    LINK.iter().filter_map(|network| network.parse().ok())
}

/// Calls `act` now, and whenever interfaces or their addresses have changed, until it fails.
pub(crate) async fn on_interface_changes(act: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let mut changes = Changes::open()?;
    let readable = watch_readable(changes.as_fd())?;
    loop {
        // What has changed before.
        act()?;
        readable.readable().await?.clear_ready();
        tokio::time::sleep(SETTLE).await;
        changes.take()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_network_order() {
        let Key::V4(key) = Key::of("10.1.2.3/8".parse().expect("a network")) else { panic!("expected IPv4") };
        assert_eq!((key.prefix_length, key.address.to_ne_bytes()), (8, [10, 0, 0, 0]));
        let Key::V6(key) = Key::of("2001:db8::1/128".parse().expect("a network")) else {
            panic!("expected IPv6")
        };
        let octets: [u8; 16] = bytemuck::cast(key.address);
        assert_eq!((key.prefix_length, &octets[..4], octets[15]), (128, &[0x20, 0x01, 0x0d, 0xb8][..], 1));
    }

    #[test]
    fn own_addresses_are_always_connected_and_their_networks_with_lan() {
        let loopback = "127.0.0.1/32".parse().expect("a network");
        let network = "127.0.0.0/8".parse().expect("a network");
        let broadcast = "255.255.255.255/32".parse().expect("a network");
        let (own, lan) = (connected(false), connected(true));
        assert!(lan.is_superset(&own) && lan.contains(&broadcast) && !own.contains(&broadcast));
        // Loopback may be down.
        assert_eq!(own.contains(&loopback), lan.contains(&network));
        assert!(!own.contains(&network));
    }
}
