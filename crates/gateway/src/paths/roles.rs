//! Which of this host's interfaces are trusted paths.
//!
//! A path's role comes from the interface it leaves through, given on the command line or in the configuration file.

use std::collections::BTreeMap;

use plait_config::Role;

/// The roles of this host's interfaces, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    named: BTreeMap<String, Role>,
    only_named: bool,
}

impl Roles {
    /// Sets an interface's role.
    pub fn set(&mut self, interface: &str, role: Role) {
        self.named.insert(interface.to_owned(), role);
    }

    /// These roles, with no other interface used than those named.
    #[must_use]
    pub(crate) fn only_named(self) -> Roles {
        Roles { only_named: true, ..self }
    }

    /// The interfaces with role trusted, by name.
    pub fn trusted(&self) -> impl Iterator<Item = &str> {
        self.named.iter().filter(|(_, role)| **role == Role::Trusted).map(|(name, _)| name.as_str())
    }

    /// The interfaces with a configured role.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// The role of an interface. Without any configured untrusted interface, all that are not trusted are untrusted; else,
    /// and where all paths are required, interfaces without a configured role are not used (`None`).
    pub fn of(&self, interface: &str) -> Option<Role> {
        let configured = self.named.get(interface).copied();
        let only_named = self.only_named || self.named.values().any(|role| *role == Role::Untrusted);
        configured.or((!only_named).then_some(Role::Untrusted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_interfaces_are_untrusted_unless_some_are_configured_untrusted() {
        let mut roles = Roles::default();
        roles.set("eth0", Role::Trusted);
        assert_eq!(roles.of("eth0"), Some(Role::Trusted));
        assert_eq!(roles.of("wlan0"), Some(Role::Untrusted));
        roles.set("wlan0", Role::Untrusted);
        assert_eq!(roles.of("docker0"), None);
        assert_eq!(roles.trusted().collect::<Vec<_>>(), ["eth0"]);
    }

    #[test]
    fn where_all_paths_are_required_only_named_interfaces_are_used() {
        let mut roles = Roles::default();
        roles.set("eth0", Role::Trusted);
        roles.set("eth1", Role::Trusted);
        assert_eq!(roles.of("tun0"), Some(Role::Untrusted));
        let roles = roles.only_named();
        assert_eq!((roles.of("eth1"), roles.of("tun0")), (Some(Role::Trusted), None));
    }
}
