//! Which of this host's paths are trusted.
//!
//! A path's role comes from the interface it leaves through, which the command line or the configuration file names, or one of
//! whose addresses they name.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use plait_config::Role;
use plait_linux::interfaces::Interface;

/// How a path is named: by its interface, or by an address that the interface has, now or later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathName {
    /// The name of the interface.
    Interface(String),
    /// An address of the interface, from which connections to the same family start.
    Address(IpAddr),
}

impl PathName {
    /// Whether it names this interface, which may change when the interface's addresses do.
    pub fn is_of(&self, interface: &Interface) -> bool {
        match self {
            PathName::Interface(name) => interface.name == *name,
            PathName::Address(ip) => interface.addresses.iter().any(|address| address.ip == *ip),
        }
    }
}

impl From<&str> for PathName {
    /// What looks like an IPv4 or IPv6 address is one.
    fn from(text: &str) -> PathName {
        match text.parse::<IpAddr>() {
            Ok(address) => PathName::Address(address.to_canonical()),
            Err(_) => PathName::Interface(text.to_owned()),
        }
    }
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathName::Interface(name) => f.write_str(name),
            PathName::Address(address) => address.fmt(f),
        }
    }
}

/// The roles of this host's paths, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    named: BTreeMap<PathName, Role>,
    only_named: bool,
}

impl Roles {
    /// Sets the role of an interface, given by its name or one of its addresses.
    pub fn set(&mut self, path: &str, role: Role) {
        self.named.insert(path.into(), role);
    }

    /// These roles, with no other interface used than those named.
    #[must_use]
    pub(crate) fn only_named(self) -> Roles {
        Roles { only_named: true, ..self }
    }

    /// The trusted paths, interfaces before addresses.
    pub fn trusted(&self) -> impl Iterator<Item = &PathName> {
        self.named.iter().filter(|(_, role)| **role == Role::Trusted).map(|(name, _)| name)
    }

    /// The paths with a configured role.
    pub(crate) fn names(&self) -> impl Iterator<Item = &PathName> {
        self.named.keys()
    }

    /// The role of an interface. Its name takes precedence over its addresses, and of addresses with different roles the
    /// untrusted one. Without any configured untrusted path, all that are not trusted are untrusted; else, and where all
    /// paths are required, interfaces without a configured role are not used (`None`).
    pub fn of(&self, interface: &Interface) -> Option<Role> {
        let by_name = self.named.get(&PathName::Interface(interface.name.clone())).copied();
        let of_addresses = || {
            let roles = self.named.iter().filter(|(name, _)| name.is_of(interface)).map(|(_, role)| *role);
            roles.reduce(|one, other| if one == other { one } else { Role::Untrusted })
        };
        let only_named = self.only_named || self.named.values().any(|role| *role == Role::Untrusted);
        by_name.or_else(of_addresses).or((!only_named).then_some(Role::Untrusted))
    }
}

#[cfg(test)]
mod tests {
    use plait_linux::interfaces::{Address, Scope};

    use super::*;

    fn interface(name: &str, addresses: &[&str]) -> Interface {
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
            mtu: 1500,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    #[test]
    fn other_interfaces_are_untrusted_unless_some_are_configured_untrusted() {
        let mut roles = Roles::default();
        roles.set("eth0", Role::Trusted);
        assert_eq!(roles.of(&interface("eth0", &[])), Some(Role::Trusted));
        assert_eq!(roles.of(&interface("wlan0", &[])), Some(Role::Untrusted));
        roles.set("wlan0", Role::Untrusted);
        assert_eq!(roles.of(&interface("docker0", &[])), None);
        assert_eq!(roles.trusted().collect::<Vec<_>>(), [&PathName::Interface("eth0".into())]);
    }

    #[test]
    fn where_all_paths_are_required_only_named_interfaces_are_used() {
        let mut roles = Roles::default();
        roles.set("eth0", Role::Trusted);
        roles.set("10.0.0.2", Role::Trusted);
        assert_eq!(roles.of(&interface("tun0", &[])), Some(Role::Untrusted));
        let roles = roles.only_named();
        assert_eq!(roles.of(&interface("eth1", &["10.0.0.2"])), Some(Role::Trusted));
        assert_eq!(roles.of(&interface("tun0", &["10.0.0.3"])), None);
    }

    #[test]
    fn an_address_names_the_interface_that_has_it() {
        let mut roles = Roles::default();
        roles.set("10.0.0.1", Role::Trusted);
        roles.set("2001:0db8::0001", Role::Trusted);
        roles.set("10.0.0.2", Role::Untrusted);
        let of = |name: &str, addresses: &[&str]| roles.of(&interface(name, addresses));
        assert_eq!(of("eth0", &["192.0.2.1", "10.0.0.1"]), Some(Role::Trusted));
        assert_eq!(of("eth0", &["2001:db8::1"]), Some(Role::Trusted));
        assert_eq!(of("eth0", &["10.0.0.11"]), None);
        assert_eq!(of("10.0.0.1", &[]), None, "an interface may have a name like this");
        assert_eq!(of("eth0", &["10.0.0.1", "10.0.0.2"]), Some(Role::Untrusted));
        let mut named = roles.clone();
        named.set("eth0", Role::Trusted);
        assert_eq!(named.of(&interface("eth0", &["10.0.0.2"])), Some(Role::Trusted));
    }
}
