//! Interfaces with a role that do not exist.

use plait_linux::interfaces::{Interface, interfaces};
use tracing::warn;

use super::path_name::PathName;
use super::roles::Roles;

/// Warns of each interface or address with a role that this host does not have: it is waited for, as it may appear later, but its
/// name may also be a mistake.
pub fn warn_of_missing_interfaces(roles: &Roles) {
    let Ok(interfaces) = interfaces() else { return };
    for warning in missing(roles, &interfaces) {
        warn!("{warning}");
    }
}

fn missing(roles: &Roles, interfaces: &[Interface]) -> Vec<String> {
    let others = interfaces.iter().filter(|interface| !interface.loopback);
    let present = others.map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    let present = if present.is_empty() { "none but loopback" } else { &present };
    let is_missing = |name: &PathName| !interfaces.iter().any(|interface| name.is_of(interface));
    let warning = |name: PathName| match name {
        PathName::Interface(name) => {
            format!(
                "there is no interface {name}: until there is, no connection leaves through it (interfaces: {present})"
            )
        }
        PathName::Address(address) => format!(
            "no interface has the address {address}: until one has, no connection leaves from it (interfaces: {present})"
        ),
    };
    roles.names().filter(is_missing).map(warning).collect()
}

#[cfg(test)]
mod tests {
    use plait_config::Role;

    use super::*;

    fn interface(name: &str, loopback: bool) -> Interface {
        Interface {
            index: 1,
            name: name.into(),
            up: true,
            running: true,
            loopback,
            ethernet: true,
            software: true,
            bridge: false,
            port: false,
            mtu: 1500,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn warnings_name_the_interfaces_that_exist() {
        let mut roles = Roles::default();
        for name in ["eth0", "eth9", "192.0.2.1"] {
            roles.set(name, Role::Trusted);
        }
        let present = [interface("lo", true), interface("eth0", false), interface("wlan0", false)];
        let warnings = missing(&roles, &present);
        assert_eq!(
            warnings,
            [
                "there is no interface eth9: until there is, no connection leaves through it (interfaces: eth0, wlan0)",
                "no interface has the address 192.0.2.1: until one has, no connection leaves from it (interfaces: eth0, wlan0)",
            ]
        );
        assert_eq!(missing(&roles, &present[..1]).len(), 3);
    }
}
