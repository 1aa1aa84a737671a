//! Interfaces of tests.

use plait_linux::interfaces::{Address, Interface, Scope};

/// An interface that is up, with these addresses of 24 bits of network.
pub(super) fn interface(name: &str, addresses: &[&str]) -> Interface {
    let address = |text: &&str| Address {
        ip: text.parse().expect("an address"),
        prefix: 24,
        scope: Scope::Global,
        usable: true,
    };
    Interface {
        index: 1,
        name: name.into(),
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
