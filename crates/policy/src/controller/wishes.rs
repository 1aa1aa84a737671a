//! From what a controller wishes to the chains of its policy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Action, Subflow, View};
use crate::engine::Ends;
use crate::selector::{self, Ports, Prefix, Selector};
use crate::{Actor, Chain, Hook, Interface, Limit, Policy};

/// What was wished before, as far as it matters still.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// Until when a subflow that was a backup is told to be none.
    cleared: BTreeMap<Ends, Instant>,
    backups: BTreeSet<Ends>,
    turned: Vec<(Ends, bool)>,
    /// The subflows there are.
    subflows: BTreeMap<Ends, Known>,
}

/// What is known of a subflow.
#[derive(Debug, Default)]
pub(super) struct Known {
    interface: Option<String>,
    /// The peer wants it as a backup, as far as this host has heard.
    pub(super) backup_remote: Option<bool>,
}

impl Wishes {
    /// Takes in which subflows there are.
    pub(super) fn see(&mut self, view: &View) {
        let known = |subflow: &Subflow| Known {
            interface: subflow.interface.clone(),
            backup_remote: subflow.backup_remote,
        };
        self.remember(view.subflows().map(|subflow| (Ends::from(subflow), known(subflow))).collect());
    }

    fn remember(&mut self, subflows: BTreeMap<Ends, Known>) {
        self.subflows = subflows;
        self.cleared.retain(|ends, _| self.subflows.contains_key(ends));
        self.backups.retain(|ends| self.subflows.contains_key(ends));
    }

    /// The policy that does what is wished. What no longer is a backup is told so until `expiry` from now.
    pub(super) fn policy(
        &mut self,
        name: &str,
        actions: &[Action],
        now: Instant,
        expiry: Duration,
    ) -> Policy {
        let backups: BTreeSet<Ends> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Backup { subflow } => Some(*subflow),
                _ => None,
            })
            .collect();
        self.cleared.retain(|ends, until| *until > now && !backups.contains(ends));
        let ceased: Vec<Ends> = self.backups.difference(&backups).copied().collect();
        self.turned.extend(backups.difference(&self.backups).map(|ends| (*ends, true)));
        self.turned.extend(ceased.iter().map(|ends| (*ends, false)));
        self.cleared.extend(ceased.into_iter().map(|ends| (ends, now + expiry)));
        self.backups = backups;
        let mut chains: Vec<Chain> = Vec::new();
        for action in actions {
            match action {
                Action::Chain(chain) => chains.push(chain.clone()),
                Action::Pace { subflow, rate } => {
                    chains.push(self.chain("pace", *subflow, Hook::Egress, Actor::Pace(*rate)));
                }
                Action::Limit { subflow, rate } => {
                    let actor = Actor::RateLimit(Limit::Rate(*rate));
                    chains.push(self.chain("limit", *subflow, Hook::Egress, actor));
                }
                Action::Backup { .. } | Action::Create { .. } | Action::Remove { .. } | Action::Log(_) => {}
            }
        }
        let backups = self.backups.iter().map(|ends| (*ends, "backup", SET));
        let cleared = self.cleared.keys().map(|ends| (*ends, "clear", CLEAR));
        for (ends, word, actor) in backups.chain(cleared) {
            chains.push(self.chain(&format!("{word}-in"), ends, Hook::Ingress, actor.clone()));
            chains.push(self.chain(&format!("{word}-out"), ends, Hook::Egress, actor));
        }
        make_unique(&mut chains);
        Policy { name: name.into(), own: BTreeMap::new(), chains }
    }

    /// Takes over what another of the same name wished: what it had made backups ceases to be, unless that is wished again.
    pub(super) fn take_over(&mut self, policy: &Policy) {
        let backups =
            policy.chains.iter().filter(|chain| chain.hook == Hook::Egress && chain.actors == [SET]);
        self.backups.extend(backups.filter_map(|chain| only_subflow(&chain.select)));
    }

    /// No subflow is a backup any more, whatever was said.
    pub(super) fn begin_anew(&mut self) {
        self.backups.clear();
    }

    /// Some subflow shall be a backup.
    pub(super) fn has_backups(&self) -> bool {
        !self.backups.is_empty()
    }

    /// The subflows that became backups, or ceased to be, since this was last called.
    pub(super) fn take_turned(&mut self) -> Vec<(Ends, bool)> {
        std::mem::take(&mut self.turned)
    }

    /// What is known of a subflow, if there is such a one.
    pub(super) fn known(&self, ends: &Ends) -> Option<&Known> {
        self.subflows.get(ends)
    }

    /// A chain for one subflow. It is named after the ports, so that its counters go on from tick to tick.
    fn chain(&self, word: &str, ends: Ends, hook: Hook, actor: Actor) -> Chain {
        let (source, destination) = match hook {
            Hook::Egress => (ends.local, ends.remote),
            Hook::Ingress => (ends.remote, ends.local),
        };
        let known = self.subflows.get(&ends).and_then(|known| known.interface.clone());
        Chain {
            name: format!("{word}-{}-{}", ends.local.port(), ends.remote.port()),
            hook,
            interfaces: vec![known.map_or(Interface::All, Interface::Named)],
            priority: crate::specification::PRIORITY,
            select: one_way(source, destination),
            actors: vec![actor],
        }
    }
}

const SET: Actor = Actor::SetBackup { address_id: None };
const CLEAR: Actor = Actor::ClearBackup { address_id: None };

/// The subflow of which alone a selector chooses packets, those that go out.
fn only_subflow(select: &Selector) -> Option<Ends> {
    let Selector::Subflow(subflow) = select else { return None };
    let end = |prefix: Option<Prefix>, ports: Option<Ports>| {
        let (prefix, ports) = (prefix?, ports?);
        let is_one = prefix == Prefix::from(prefix.address()) && ports.first == ports.last;
        is_one.then(|| SocketAddr::new(prefix.address(), ports.first))
    };
    let local = end(subflow.source, subflow.source_ports)?;
    Some(Ends { local, remote: end(subflow.destination, subflow.destination_ports)? })
}

/// Packets of a subflow in one direction.
fn one_way(source: SocketAddr, destination: SocketAddr) -> Selector {
    let one = |port| Some(Ports { first: port, last: port });
    Selector::Subflow(selector::Subflow {
        source: Some(Prefix::from(source.ip())),
        destination: Some(Prefix::from(destination.ip())),
        source_ports: one(source.port()),
        destination_ports: one(destination.port()),
    })
}

/// Subflows of different addresses can have the same ports.
fn make_unique(chains: &mut [Chain]) {
    let mut seen = BTreeSet::new();
    for chain in chains {
        let name = chain.name.clone();
        let mut number = 2;
        while !seen.insert(chain.name.clone()) {
            chain.name = format!("{name}-{number}");
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(5);

    fn ends(local: &str) -> Ends {
        let address = |text: &str| text.parse().expect("an address");
        Ends { local: address(local), remote: address("192.0.2.2:80") }
    }

    fn names(policy: &Policy) -> Vec<&str> {
        policy.chains.iter().map(|chain| chain.name.as_str()).collect()
    }

    #[test]
    fn a_pace_is_a_chain_on_the_interface_of_the_subflow() {
        let mut wishes = Wishes::default();
        let subflow = ends("10.0.0.1:4711");
        let known = Known { interface: Some("wlan0".into()), ..Known::default() };
        wishes.remember(BTreeMap::from([(subflow, known)]));
        let rate = "4mbit".parse().expect("a rate");
        let policy = wishes.policy("calm", &[Action::Pace { subflow, rate }], Instant::now(), EXPIRY);
        let text = "\
[[chains]]
name = \"pace-4711-80\"
hook = \"egress\"
interfaces = [\"wlan0\"]
select = \"subflow(src = 10.0.0.1, dst = 192.0.2.2, sport = 4711, dport = 80)\"
actors = [{ pace = \"4mbit\" }]
";
        assert_eq!(policy, Policy::parse(text, "calm").expect("a policy"));
    }

    #[test]
    fn what_is_no_longer_a_backup_is_told_so_for_a_while() {
        let mut wishes = Wishes::default();
        let subflow = ends("10.0.0.1:4711");
        let seen = || BTreeMap::from([(subflow, Known::default())]);
        let mut now = Instant::now();
        wishes.remember(seen());
        let policy = wishes.policy("calm", &[Action::Backup { subflow }], now, EXPIRY);
        assert_eq!(names(&policy), ["backup-in-4711-80", "backup-out-4711-80"]);
        now += Duration::from_secs(1);
        wishes.remember(seen());
        assert_eq!(
            names(&wishes.policy("calm", &[], now, EXPIRY)),
            ["clear-in-4711-80", "clear-out-4711-80"]
        );
        let again = wishes.policy("calm", &[Action::Backup { subflow }], now, EXPIRY);
        assert_eq!(names(&again), ["backup-in-4711-80", "backup-out-4711-80"]);
        wishes.policy("calm", &[], now, EXPIRY);
        let turns: Vec<bool> = wishes.take_turned().into_iter().map(|(_, backup)| backup).collect();
        assert_eq!(turns, [true, false, true, false]);
        now += EXPIRY;
        wishes.remember(seen());
        assert!(wishes.policy("calm", &[], now, EXPIRY).chains.is_empty());
    }

    #[test]
    fn a_subflow_that_is_gone_is_told_nothing() {
        let mut wishes = Wishes::default();
        let subflow = ends("10.0.0.1:4711");
        wishes.remember(BTreeMap::from([(subflow, Known::default())]));
        wishes.policy("calm", &[Action::Backup { subflow }], Instant::now(), EXPIRY);
        wishes.remember(BTreeMap::new());
        assert!(wishes.policy("calm", &[], Instant::now(), EXPIRY).chains.is_empty());
    }

    #[test]
    fn what_another_made_a_backup_ceases_to_be_one() {
        let mut wishes = Wishes::default();
        let [kept, dropped] = ["10.0.0.1:4711", "[fd00::1]:4712"].map(ends);
        let seen = || [kept, dropped].map(|subflow| (subflow, Known::default())).into();
        wishes.remember(seen());
        let actions = [kept, dropped].map(|subflow| Action::Backup { subflow });
        let before = wishes.policy("calm", &actions, Instant::now(), EXPIRY);
        let mut after = Wishes::default();
        after.remember(seen());
        after.take_over(&before);
        let policy = after.policy("calm", &actions[..1], Instant::now(), EXPIRY);
        let told = ["backup-in-4711-80", "backup-out-4711-80", "clear-in-4712-80", "clear-out-4712-80"];
        assert_eq!(names(&policy), told);
        assert_eq!(after.take_turned(), [(dropped, false)]);
    }

    #[test]
    fn chains_of_subflows_with_the_same_ports_have_names_of_their_own() {
        let mut wishes = Wishes::default();
        let rate = "4mbit".parse().expect("a rate");
        let limit = |local| Action::Limit { subflow: ends(local), rate };
        let actions = [limit("10.0.0.1:4711"), limit("10.0.0.2:4711"), limit("[fd00::1]:4711")];
        let policy = wishes.policy("calm", &actions, Instant::now(), EXPIRY);
        assert_eq!(names(&policy), ["limit-4711-80", "limit-4711-80-2", "limit-4711-80-3"]);
    }
}
