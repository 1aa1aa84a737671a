//! Which of this host's interfaces lead to a trusted path.
//!
//! A path's role comes from the interface it leaves by: named on the command line, or in the configuration file.

use std::collections::BTreeMap;

use plait_wire::Role;

/// The roles of this host's interfaces, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    named: BTreeMap<String, Role>,
}

impl Roles {
    /// Gives an interface a role, in place of what was said of it before.
    pub fn name(&mut self, interface: &str, role: Role) {
        self.named.insert(interface.to_owned(), role);
    }

    /// The interfaces with role trusted, by name.
    pub fn trusted(&self) -> impl Iterator<Item = &str> {
        self.named.iter().filter(|(_, role)| **role == Role::Trusted).map(|(name, _)| name.as_str())
    }

    /// The interfaces of which a role was said.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// The role of an interface: what was said of it. When no interface was called untrusted, every one that was not
    /// called trusted is; else the ones that were not named are not used (`None`).
    pub fn of(&self, interface: &str) -> Option<Role> {
        let spoken_for = self.named.get(interface).copied();
        let names_untrusted = self.named.values().any(|role| *role == Role::Untrusted);
        spoken_for.or((!names_untrusted).then_some(Role::Untrusted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_untrusted_unless_the_untrusted_are_named() {
        let mut roles = Roles::default();
        roles.name("eth0", Role::Trusted);
        assert_eq!(roles.of("eth0"), Some(Role::Trusted));
        assert_eq!(roles.of("wlan0"), Some(Role::Untrusted));
        roles.name("wlan0", Role::Untrusted);
        assert_eq!(roles.of("docker0"), None);
        assert_eq!(roles.trusted().collect::<Vec<_>>(), ["eth0"]);
    }
}
