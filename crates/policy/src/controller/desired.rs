//! From what a controller desired to the chains of its policy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::action::Action;
use super::view::{SubflowView, View};
use crate::engine::FourTuple;
use crate::model::{
    Actor, Chain, DEFAULT_PRIORITY, Hook, Interface, Limit, Policy, Ports, Prefix, Selector, SubflowPattern,
};

/// The state that earlier ticks requested, as far as it affects the next policy.
#[derive(Debug, Default)]
pub(super) struct DesiredState {
    /// Former backups, and until when the peers are told that they are regular subflows.
    cleared: BTreeMap<FourTuple, Instant>,
    backups: BTreeSet<FourTuple>,
    changed: Vec<(FourTuple, bool)>,
    /// The subflows of the last view.
    subflows: BTreeMap<FourTuple, SubflowInfo>,
}

/// The last view of a subflow.
#[derive(Debug, Default)]
pub(super) struct SubflowInfo {
    interface: Option<String>,
    /// The backup flag that this host received from the peer.
    pub(super) backup_remote: Option<bool>,
}

impl DesiredState {
    /// Updates the list of subflows.
    pub(super) fn observe(&mut self, view: &View) {
        let info = |subflow: &SubflowView| SubflowInfo {
            interface: subflow.interface.clone(),
            backup_remote: subflow.backup_remote,
        };
        self.set_subflows(view.subflows().map(|subflow| (FourTuple::from(subflow), info(subflow))).collect());
    }

    fn set_subflows(&mut self, subflows: BTreeMap<FourTuple, SubflowInfo>) {
        self.subflows = subflows;
        self.cleared.retain(|tuple, _| self.subflows.contains_key(tuple));
        self.backups.retain(|tuple| self.subflows.contains_key(tuple));
    }

    /// The policy that puts the actions in force. Former backups are cleared for as long as `expiry` from now.
    pub(super) fn policy(
        &mut self,
        name: &str,
        actions: &[Action],
        now: Instant,
        expiry: Duration,
    ) -> Policy {
        let backups: BTreeSet<FourTuple> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Backup { subflow } => Some(*subflow),
                _ => None,
            })
            .collect();
        self.cleared.retain(|tuple, until| *until > now && !backups.contains(tuple));
        let cleared: Vec<FourTuple> = self.backups.difference(&backups).copied().collect();
        self.changed.extend(backups.difference(&self.backups).map(|tuple| (*tuple, true)));
        self.changed.extend(cleared.iter().map(|tuple| (*tuple, false)));
        self.cleared.extend(cleared.into_iter().map(|tuple| (tuple, now + expiry)));
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
        let backups = self.backups.iter().map(|tuple| (*tuple, "backup", SET));
        let cleared = self.cleared.keys().map(|tuple| (*tuple, "clear", CLEAR));
        for (tuple, prefix, actor) in backups.chain(cleared) {
            chains.push(self.chain(&format!("{prefix}-in"), tuple, Hook::Ingress, actor.clone()));
            chains.push(self.chain(&format!("{prefix}-out"), tuple, Hook::Egress, actor));
        }
        make_unique(&mut chains);
        Policy { name: name.into(), custom: BTreeMap::new(), chains }
    }

    /// Adopts the backups of another session's policy, so that they are cleared unless they are requested again, and those
    /// that it was clearing.
    pub(super) fn adopt(&mut self, policy: &Policy) {
        let is_backup = |actors: &[Actor]| actors == [SET] || actors == [CLEAR];
        let backups =
            policy.chains.iter().filter(|chain| chain.hook == Hook::Egress && is_backup(&chain.actors));
        self.backups.extend(backups.filter_map(|chain| only_subflow(&chain.select)));
    }

    /// Clears a former backup for as long as `expiry` from now.
    pub(super) fn keep_clearing(&mut self, tuple: FourTuple, now: Instant, expiry: Duration) {
        if !self.backups.contains(&tuple) {
            self.cleared.insert(tuple, now + expiry);
        }
    }

    /// Forgets all backups, because the guard may have reverted them.
    pub(super) fn reset(&mut self) {
        self.backups.clear();
    }

    /// Whether any subflow is a backup.
    pub(super) fn has_backups(&self) -> bool {
        !self.backups.is_empty()
    }

    /// The subflows whose backup flag changed since the last call, with the new flag.
    pub(super) fn take_changed(&mut self) -> Vec<(FourTuple, bool)> {
        std::mem::take(&mut self.changed)
    }

    /// A subflow of the last view.
    pub(super) fn subflow(&self, tuple: &FourTuple) -> Option<&SubflowInfo> {
        self.subflows.get(tuple)
    }

    /// A chain for one subflow. Its name derives from the ports, so that its counters continue from tick to tick.
    fn chain(&self, prefix: &str, tuple: FourTuple, hook: Hook, actor: Actor) -> Chain {
        let (source, destination) = match hook {
            Hook::Egress => (tuple.local, tuple.remote),
            Hook::Ingress => (tuple.remote, tuple.local),
        };
        let interface = self.subflows.get(&tuple).and_then(|info| info.interface.clone());
        Chain {
            name: format!("{prefix}-{}-{}", tuple.local.port(), tuple.remote.port()),
            hook,
            interfaces: vec![interface.map_or(Interface::All, Interface::Named)],
            priority: DEFAULT_PRIORITY,
            select: one_direction(source, destination),
            actors: vec![actor],
        }
    }
}

const SET: Actor = Actor::SetBackup { address_id: None };
const CLEAR: Actor = Actor::ClearBackup { address_id: None };

/// The subflow, if a selector matches exactly the egress packets of one.
fn only_subflow(select: &Selector) -> Option<FourTuple> {
    let Selector::Subflow(subflow) = select else { return None };
    let end = |prefix: Option<Prefix>, ports: Option<Ports>| {
        let (prefix, ports) = (prefix?, ports?);
        let is_one = prefix == Prefix::from(prefix.address()) && ports.first == ports.last;
        is_one.then(|| SocketAddr::new(prefix.address(), ports.first))
    };
    let local = end(subflow.source, subflow.source_ports)?;
    Some(FourTuple { local, remote: end(subflow.destination, subflow.destination_ports)? })
}

/// The packets of a subflow in one direction.
fn one_direction(source: SocketAddr, destination: SocketAddr) -> Selector {
    let one = |port| Some(Ports { first: port, last: port });
    Selector::Subflow(SubflowPattern {
        source: Some(Prefix::from(source.ip())),
        destination: Some(Prefix::from(destination.ip())),
        source_ports: one(source.port()),
        destination_ports: one(destination.port()),
    })
}

/// Subflows with different addresses can have the same ports.
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

    fn tuple(local: &str) -> FourTuple {
        let address = |text: &str| text.parse().expect("an address");
        FourTuple { local: address(local), remote: address("192.0.2.2:80") }
    }

    fn names(policy: &Policy) -> Vec<&str> {
        policy.chains.iter().map(|chain| chain.name.as_str()).collect()
    }

    #[test]
    fn pace_becomes_a_chain_on_the_interface_of_the_subflow() {
        let mut desired = DesiredState::default();
        let subflow = tuple("10.0.0.1:4711");
        let info = SubflowInfo { interface: Some("wlan0".into()), ..SubflowInfo::default() };
        desired.set_subflows(BTreeMap::from([(subflow, info)]));
        let rate = "4mbit".parse().expect("a rate");
        let policy = desired.policy("calm", &[Action::Pace { subflow, rate }], Instant::now(), EXPIRY);
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
    fn former_backups_are_cleared_until_the_expiry() {
        let mut desired = DesiredState::default();
        let subflow = tuple("10.0.0.1:4711");
        let subflows = || BTreeMap::from([(subflow, SubflowInfo::default())]);
        let mut now = Instant::now();
        desired.set_subflows(subflows());
        let policy = desired.policy("calm", &[Action::Backup { subflow }], now, EXPIRY);
        assert_eq!(names(&policy), ["backup-in-4711-80", "backup-out-4711-80"]);
        now += Duration::from_secs(1);
        desired.set_subflows(subflows());
        assert_eq!(
            names(&desired.policy("calm", &[], now, EXPIRY)),
            ["clear-in-4711-80", "clear-out-4711-80"]
        );
        let again = desired.policy("calm", &[Action::Backup { subflow }], now, EXPIRY);
        assert_eq!(names(&again), ["backup-in-4711-80", "backup-out-4711-80"]);
        desired.policy("calm", &[], now, EXPIRY);
        let changes: Vec<bool> = desired.take_changed().into_iter().map(|(_, backup)| backup).collect();
        assert_eq!(changes, [true, false, true, false]);
        now += EXPIRY;
        desired.set_subflows(subflows());
        assert!(desired.policy("calm", &[], now, EXPIRY).chains.is_empty());
    }

    #[test]
    fn closed_subflows_get_no_chains() {
        let mut desired = DesiredState::default();
        let subflow = tuple("10.0.0.1:4711");
        desired.set_subflows(BTreeMap::from([(subflow, SubflowInfo::default())]));
        desired.policy("calm", &[Action::Backup { subflow }], Instant::now(), EXPIRY);
        desired.set_subflows(BTreeMap::new());
        assert!(desired.policy("calm", &[], Instant::now(), EXPIRY).chains.is_empty());
    }

    #[test]
    fn backups_of_an_adopted_policy_are_cleared() {
        let mut desired = DesiredState::default();
        let [kept, dropped] = ["10.0.0.1:4711", "[fd00::1]:4712"].map(tuple);
        let subflows = || [kept, dropped].map(|subflow| (subflow, SubflowInfo::default())).into();
        desired.set_subflows(subflows());
        let actions = [kept, dropped].map(|subflow| Action::Backup { subflow });
        let before = desired.policy("calm", &actions, Instant::now(), EXPIRY);
        let mut after = DesiredState::default();
        after.set_subflows(subflows());
        after.adopt(&before);
        let policy = after.policy("calm", &actions[..1], Instant::now(), EXPIRY);
        let expected = ["backup-in-4711-80", "backup-out-4711-80", "clear-in-4712-80", "clear-out-4712-80"];
        assert_eq!(names(&policy), expected);
        assert_eq!(after.take_changed(), [(dropped, false)]);
    }

    #[test]
    fn an_adopter_continues_to_clear() {
        let subflow = tuple("10.0.0.1:4711");
        let subflows = || BTreeMap::from([(subflow, SubflowInfo::default())]);
        let mut former = DesiredState::default();
        former.set_subflows(subflows());
        former.policy("calm", &[Action::Backup { subflow }], Instant::now(), EXPIRY);
        let clearing = former.policy("calm", &[], Instant::now(), EXPIRY);
        let mut after = DesiredState::default();
        after.set_subflows(subflows());
        after.adopt(&clearing);
        assert_eq!(after.policy("calm", &[], Instant::now(), EXPIRY), clearing);
        assert_eq!(after.take_changed(), [(subflow, false)]);
    }

    #[test]
    fn clears_as_long_as_it_is_told_to_and_no_requested_backup() {
        let mut desired = DesiredState::default();
        let subflow = tuple("10.0.0.1:4711");
        let mut now = Instant::now();
        desired.set_subflows(BTreeMap::from([(subflow, SubflowInfo::default())]));
        desired.policy("calm", &[Action::Backup { subflow }], now, EXPIRY);
        desired.policy("calm", &[], now, EXPIRY);
        now += EXPIRY;
        desired.keep_clearing(subflow, now, EXPIRY);
        let policy = desired.policy("calm", &[], now, EXPIRY);
        assert_eq!(names(&policy), ["clear-in-4711-80", "clear-out-4711-80"]);
        desired.policy("calm", &[Action::Backup { subflow }], now, EXPIRY);
        desired.keep_clearing(subflow, now, EXPIRY);
        let policy = desired.policy("calm", &[Action::Backup { subflow }], now, EXPIRY);
        assert_eq!(names(&policy), ["backup-in-4711-80", "backup-out-4711-80"]);
    }

    #[test]
    fn chains_of_subflows_with_equal_ports_get_unique_names() {
        let mut desired = DesiredState::default();
        let rate = "4mbit".parse().expect("a rate");
        let limit = |local| Action::Limit { subflow: tuple(local), rate };
        let actions = [limit("10.0.0.1:4711"), limit("10.0.0.2:4711"), limit("[fd00::1]:4711")];
        let policy = desired.policy("calm", &actions, Instant::now(), EXPIRY);
        assert_eq!(names(&policy), ["limit-4711-80", "limit-4711-80-2", "limit-4711-80-3"]);
    }
}
