//! Which of this host's paths are trusted.
//!
//! A path's role comes from the interface it leaves through, which the command line or the configuration file names, or one of
//! whose addresses they name.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use plait_config::Role;
use plait_linux::interfaces::{Interface, interfaces};

use super::path_name::PathName;
use super::quota_file::{QuotaFile, QuotaUses};
use super::rule_status::{QuotaStatus, RuleStatus};
use super::rules::PathRule;

/// The roles of this host's paths: by name, and for the others by rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    named: BTreeMap<PathName, Role>,
    rules: Arc<[PathRule]>,
    only_named: bool,
    /// Interfaces that are no paths.
    excluded: BTreeSet<String>,
}

impl Roles {
    /// Sets the role of an interface, given by its name or one of its addresses.
    pub fn set(&mut self, path: &str, role: Role) {
        self.named.insert(path.into(), role);
    }

    /// The role that is configured for this name.
    pub fn role_of_name(&self, name: &str) -> Option<Role> {
        self.named.get(&name.into()).copied()
    }

    /// Makes an interface no path, as hosts of this network are behind it, not peers.
    pub fn exclude(&mut self, interface: &str) {
        self.excluded.insert(interface.to_owned());
    }

    /// Sets the rules of interfaces.
    pub fn set_rules(&mut self, rules: Vec<PathRule>) {
        self.rules = rules.into();
    }

    /// The rules of interfaces.
    pub fn rules(&self) -> &Arc<[PathRule]> {
        &self.rules
    }

    /// The first rule that matches an interface, and its place in [`rules`](Self::rules).
    pub fn rule_of(&self, interface: &Interface) -> Option<(usize, &PathRule)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.pattern.matches(interface))
    }

    /// These roles, with no other interface used than those named.
    #[must_use]
    pub(crate) fn only_named(self) -> Roles {
        Roles { only_named: true, ..self }
    }

    /// The trusted paths that are named, interfaces before addresses. Rules may make further ones trusted.
    pub fn trusted(&self) -> impl Iterator<Item = &PathName> {
        self.named.iter().filter(|(_, role)| **role == Role::Trusted).map(|(name, _)| name)
    }

    /// Whether a name or a rule makes paths trusted, present or not.
    pub(crate) fn has_trusted(&self) -> bool {
        self.trusted().next().is_some() || self.rules.iter().any(|rule| rule.role == Some(Role::Trusted))
    }

    /// The trusted paths: those named, present or not, and then those of interfaces that rules make trusted, in the order of the rules.
    pub(crate) fn trusted_among<'a>(
        &'a self,
        interfaces: &'a [Interface],
    ) -> impl Iterator<Item = PathName> + 'a {
        let of_rule = move |(number, rule): (usize, &'a PathRule)| {
            let is_own = move |interface: &&Interface| {
                self.rule_of(interface).is_some_and(|(first, _)| first == number)
                    && self.of(interface) == Some(Role::Trusted)
                    && !self.named.keys().any(|name| name.is_of(interface))
            };
            let present = interfaces.iter().filter(|interface| interface.up && !interface.loopback);
            present.filter(is_own).map(|interface| rule.path_of(interface))
        };
        self.trusted().cloned().chain(self.rules.iter().enumerate().flat_map(of_rule))
    }

    /// The paths with a configured role that have one name.
    pub(crate) fn names(&self) -> impl Iterator<Item = PathName> + '_ {
        let of_rules =
            self.rules.iter().filter_map(PathRule::name).filter(|name| !self.named.contains_key(name));
        self.named.keys().cloned().chain(of_rules)
    }

    /// The role of an interface. Its name takes precedence over its addresses, these over rules, and of addresses with different
    /// roles the untrusted one. Ports of bridges are not used unless they are named: the bridge is the path. Without any configured untrusted path, all that are not trusted are untrusted; else, and where all
    /// paths are required, interfaces without a configured role are not used (`None`).
    pub fn of(&self, interface: &Interface) -> Option<Role> {
        if self.excluded.contains(&interface.name) {
            return None;
        }
        let by_name = self.named.get(&PathName::Interface(interface.name.clone())).copied();
        let of_addresses = || {
            let roles = self.named.iter().filter(|(name, _)| name.is_of(interface)).map(|(_, role)| *role);
            roles.reduce(|one, other| if one == other { one } else { Role::Untrusted })
        };
        if let Some(role) = by_name.or_else(of_addresses) {
            return Some(role);
        }
        if interface.port {
            return None;
        }
        if let Some((_, rule)) = self.rule_of(interface) {
            return rule.role;
        }
        let is_untrusted = |role: &Role| *role == Role::Untrusted;
        let only_named = self.only_named
            || self.named.values().any(is_untrusted)
            || self.rules.iter().any(|rule| rule.role.as_ref().is_some_and(is_untrusted));
        (!only_named).then_some(Role::Untrusted)
    }

    /// The roles of the interfaces that are up and used, by name, without loopback; none while the kernel does not list interfaces.
    pub fn by_interface(&self) -> BTreeMap<String, Role> {
        let interfaces = interfaces().unwrap_or_default().into_iter();
        let up = interfaces.filter(|interface| interface.up && !interface.loopback);
        up.filter_map(|interface| Some((interface.name.clone(), self.of(&interface)?))).collect()
    }

    /// The rules now, with what this user's gateways used of their quotas.
    ///
    /// # Errors
    /// The file of quotas cannot be read.
    pub fn rule_statuses(&self) -> io::Result<Vec<RuleStatus>> {
        let uses = self.quota_uses()?;
        Ok(self.rules.iter().map(|rule| RuleStatus::now(rule, &uses)).collect())
    }

    /// What is left of the quotas of interfaces, by name; nothing while the kernel does not list interfaces.
    ///
    /// # Errors
    /// The file of quotas cannot be read.
    pub fn quotas_by_interface(&self) -> io::Result<BTreeMap<String, QuotaStatus>> {
        if !self.has_quota() {
            return Ok(BTreeMap::new());
        }
        let uses = self.quota_uses()?;
        let interfaces = interfaces().unwrap_or_default().into_iter();
        let quota = |interface: &Interface| RuleStatus::now(self.rule_of(interface)?.1, &uses).quota;
        Ok(interfaces.filter_map(|interface| Some((interface.name.clone(), quota(&interface)?))).collect())
    }

    /// Whether a rule has a quota.
    pub(crate) fn has_quota(&self) -> bool {
        self.rules.iter().any(|rule| rule.quota.is_some())
    }

    /// What this user's gateways used; the file is not read without need.
    fn quota_uses(&self) -> io::Result<QuotaUses> {
        let file = QuotaFile::of_user().filter(|_| self.has_quota());
        file.map_or(Ok(QuotaUses::default()), |file| file.read())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::interface;
    use super::*;

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
    fn a_port_of_a_bridge_is_no_path() {
        let roles = Roles::default();
        let port = Interface { port: true, ..interface("lan1", &[]) };
        assert_eq!((roles.of(&port), roles.of(&interface("br0", &[]))), (None, Some(Role::Untrusted)));
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

    fn rule(pattern: &str, role: Option<Role>) -> PathRule {
        let pattern = pattern.parse().expect("a pattern");
        PathRule { pattern, role, tier: None, weight: None, cap: None, quota: None, schedule: None }
    }

    #[test]
    fn first_rule_that_matches_applies() {
        let mut roles = Roles::default();
        roles.set_rules(vec![
            rule("wlan9", None),
            rule("wlan*", Some(Role::Trusted)),
            rule("10.0.0.0/8", Some(Role::Trusted)),
        ]);
        let of = |roles: &Roles, name: &str, addresses: &[&str]| roles.of(&interface(name, addresses));
        assert_eq!(of(&roles, "wlan9", &["10.0.0.1"]), None);
        assert_eq!(of(&roles, "wlan0", &[]), Some(Role::Trusted));
        assert_eq!(of(&roles, "eth0", &["10.0.0.1"]), Some(Role::Trusted));
        assert_eq!(of(&roles, "eth0", &[]), Some(Role::Untrusted), "no path is configured untrusted");
        roles.set("wlan9", Role::Untrusted);
        assert_eq!(of(&roles, "wlan9", &[]), Some(Role::Untrusted), "a name takes precedence");
        assert_eq!(of(&roles, "eth0", &[]), None);
    }

    #[test]
    fn trusted_paths_are_in_the_order_of_rules() {
        let mut roles = Roles::default();
        roles.set("eth9", Role::Trusted);
        roles.set_rules(vec![rule("10.0.0.0/8", Some(Role::Trusted)), rule("eth*", Some(Role::Trusted))]);
        assert!(roles.has_trusted());
        let present = [interface("eth0", &[]), interface("wlan0", &["10.0.0.7"]), interface("eth9", &[])];
        let trusted: Vec<String> = roles.trusted_among(&present).map(|name| name.to_string()).collect();
        assert_eq!(trusted, ["eth9", "10.0.0.7", "eth0"]);
    }
}
