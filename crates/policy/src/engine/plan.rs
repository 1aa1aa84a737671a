//! What the loaded policies require on this host: map entries, and attach points.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use bytemuck::Zeroable;
use libbpf_rs::{MapCore, MapFlags, num_possible_cpus};

use super::attach::{AttachPoint, Attacher};
use super::custom::{CustomSlots, NewPrograms, slots_of};
use super::error::EngineError;
use super::objects::Objects;
use super::state::{CounterOwner, State};
use crate::bindings::{
    PLAIT_ACTOR_PACE, PLAIT_ACTOR_REDIRECT, PLAIT_MATCH_EGRESS, PLAIT_MATCH_INGRESS, plait_actor,
    plait_chain, plait_counter,
};
use crate::compile::{self, Host, ProgramKind, Resolved};
use crate::model::{Hook, Policy};
use plait_linux::interfaces::Interface;

/// The interfaces and control groups that a policy refers to and that do not exist.
pub(super) fn absent(policy: &Policy, host: &Host, state: &State) -> Result<Vec<String>, EngineError> {
    let host = Host { custom: slots_of(&state.custom, &policy.name), ..host.clone() };
    let mut absent = BTreeSet::new();
    for chain in &policy.chains {
        let found = compile::resolve(chain, &host);
        absent.extend(found.map_err(|reason| EngineError::chain(&policy.name, &chain.name, &reason))?.absent);
    }
    Ok(absent.into_iter().collect())
}

/// What the loaded policies require.
pub(super) struct Plan {
    chains: Vec<Resolved>,
    /// The entries of the map of chains, in the same order.
    records: Vec<plait_chain>,
    new_counters: Vec<u32>,
    /// Interface indexes and hooks.
    attach_points: BTreeSet<(u32, Hook)>,
    custom: CustomSlots,
    policies: Vec<Policy>,
}

impl Plan {
    /// Resolves the chains, and assigns map entries to them and their actors.
    pub(super) fn make(policies: &[Policy], host: &Host, state: &mut State) -> Result<Plan, EngineError> {
        let custom = CustomSlots::assign(policies, &state.custom)?;
        state.custom = custom.taken.clone();
        let mut resolved = Vec::new();
        for policy in policies {
            let host = &Host { custom: slots_of(&custom.taken, &policy.name), ..host.clone() };
            for chain in &policy.chains {
                let found = compile::resolve(chain, host);
                let found = found.map_err(|reason| EngineError::chain(&policy.name, &chain.name, &reason))?;
                resolved.push((policy, chain, found));
            }
        }
        let mut owners = Vec::new();
        for (policy, chain, found) in &resolved {
            let owner =
                |actor| CounterOwner { policy: policy.name.clone(), chain: chain.name.clone(), actor };
            owners.push(owner(None));
            let actors = found.actors.iter().enumerate();
            owners.extend(actors.map(|(index, actor)| owner(Some((index, actor.kind)))));
        }
        let new_counters = state.assign_counters(owners)?;
        let entries = state.chain_entries(resolved.len())?;
        let mut plan = Plan {
            chains: Vec::new(),
            records: Vec::new(),
            new_counters,
            attach_points: BTreeSet::new(),
            custom,
            policies: policies.to_vec(),
        };
        for ((policy, chain, mut found), entry) in resolved.into_iter().zip(entries) {
            found.slot = entry;
            let counter = |actor| {
                let counter = state.counter(&policy.name, &chain.name, actor);
                counter.expect("every chain and actor was given a counter above")
            };
            let mut record = plait_chain {
                counter: counter(None),
                lease: state.lease(&policy.name),
                ..Zeroable::zeroed()
            };
            for (place, (to, from)) in record.actors.iter_mut().zip(&found.actors).enumerate() {
                *to = plait_actor { counter: counter(Some(place)), ..*from };
                record.actor_count += 1;
            }
            for hook in [Hook::Ingress, Hook::Egress] {
                if hook == found.hook || found.needs_both_directions() {
                    plan.attach_points.extend(found.interfaces.iter().map(|index| (*index, hook)));
                }
            }
            plan.chains.push(found);
            plan.records.push(record);
        }
        Ok(plan)
    }

    /// Whether programs must be attached there.
    pub(super) fn needs(&self, attached: &AttachPoint) -> bool {
        self.attach_points.contains(&(attached.index, attached.hook))
    }

    /// Adds attach points that are not recorded yet.
    pub(super) fn add_attach_points(
        &self,
        interfaces: &[Interface],
        attached: &mut Vec<AttachPoint>,
    ) -> Result<(), EngineError> {
        for (index, hook) in &self.attach_points {
            let known = attached.iter().any(|other| other.index == *index && other.hook == *hook);
            let interface = interfaces.iter().find(|interface| interface.index == *index);
            if let Some(interface) = interface.filter(|_| !known) {
                attached.push(Attacher::plan(interface, *hook, attached)?);
            }
        }
        Ok(())
    }

    /// Whether a chain redirects ingress packets there. Only TC finds the next hop.
    pub(super) fn redirects(&self, attached: &AttachPoint) -> bool {
        let redirects =
            |chain: &Resolved| chain.actors.iter().any(|actor| actor.kind == PLAIT_ACTOR_REDIRECT);
        let ingress = self.chains.iter().filter(|chain| chain.hook == Hook::Ingress);
        attached.hook == Hook::Ingress
            && ingress
                .filter(|chain| redirects(chain))
                .any(|chain| chain.interfaces.contains(&attached.index))
    }

    /// Whether a chain paces subflows.
    pub(super) fn paces(&self) -> bool {
        self.chains.iter().flat_map(|chain| &chain.actors).any(|actor| actor.kind == PLAIT_ACTOR_PACE)
    }

    /// Writes the chains to unused entries, and clears the new counters.
    pub(super) fn write(&self, objects: &Objects) -> Result<(), EngineError> {
        for (chain, record) in self.chains.iter().zip(&self.records) {
            objects.write("chains", chain.slot.into(), record)?;
        }
        let counters = objects.map("counters")?;
        let cpus = num_possible_cpus().map_err(EngineError::kernel("count the CPUs"))?;
        let zero = vec![bytemuck::bytes_of(&plait_counter::zeroed()).to_vec(); cpus];
        for counter in &self.new_counters {
            let cleared = counters.update_percpu(&counter.to_ne_bytes(), &zero, MapFlags::ANY);
            cleared.map_err(EngineError::kernel("clear a counter"))?;
        }
        Ok(())
    }

    /// Removes what only earlier policies used.
    pub(super) fn remove_unused(&self, objects: &Objects) -> Result<(), EngineError> {
        self.custom.remove_unused(objects)
    }

    /// Compiles and loads the match programs, without installing them.
    pub(super) fn load(&self, objects: &Objects) -> Result<MatchPrograms, EngineError> {
        let custom = Some(self.custom.load(&self.policies, objects)?);
        let mut matches = MatchPrograms { programs: Vec::new(), custom, needs: 0, custom_selectors: [0; 2] };
        for (kind, hook) in MATCH_POINTS {
            let chains: Vec<Resolved> =
                self.chains.iter().filter(|chain| chain.hook == hook).cloned().collect();
            let program =
                if chains.is_empty() { None } else { Some(matches.load(objects, kind, hook, &chains)?) };
            matches.programs.push((kind, step(hook), program));
        }
        Ok(matches)
    }
}

/// The programs that find the chains of a packet, and what they need to know about it.
pub(super) struct MatchPrograms {
    /// `None` where there are no chains.
    programs: Vec<(ProgramKind, u32, Option<OwnedFd>)>,
    /// New custom programs.
    custom: Option<NewPrograms>,
    /// Bits of `enum plait_need`.
    pub(super) needs: u32,
    /// As in `struct plait_settings`.
    pub(super) custom_selectors: [u32; 2],
}

impl MatchPrograms {
    /// The programs that are installed now.
    pub(super) fn current(objects: &Objects) -> Result<MatchPrograms, EngineError> {
        let settings = objects.settings()?;
        let mut programs = Vec::new();
        for (kind, hook) in MATCH_POINTS {
            programs.push((kind, step(hook), objects.step(kind, step(hook))?));
        }
        Ok(MatchPrograms {
            programs,
            custom: None,
            needs: settings.needs,
            custom_selectors: settings.custom_selectors,
        })
    }

    /// Installs the programs: they apply to every packet from now on.
    pub(super) fn install(&self, objects: &Objects) -> Result<(), EngineError> {
        if let Some(custom) = &self.custom {
            custom.install(objects)?;
        }
        for (kind, step, program) in &self.programs {
            match program {
                Some(program) => objects.set_step(*kind, *step, program.as_fd())?,
                None => objects.clear_step(*kind, *step)?,
            }
        }
        Ok(())
    }

    fn load(
        &mut self,
        objects: &Objects,
        kind: ProgramKind,
        hook: Hook,
        chains: &[Resolved],
    ) -> Result<OwnedFd, EngineError> {
        let made = compile::match_program(kind, hook, chains, objects.map("packets")?.as_fd())
            .map_err(|reason| EngineError::Chains { hook, reason: reason.to_string() })?;
        self.needs |= made.needs;
        self.custom_selectors[hook as usize] |= made.custom_selectors;
        let name = if hook == Hook::Ingress { c"match_ingress" } else { c"match_egress" };
        made.load(name, objects.frags)
            .map_err(|reason| EngineError::Chains { hook, reason: reason.to_string() })
    }
}

/// Ingress packets are processed by XDP or by TC.
const MATCH_POINTS: [(ProgramKind, Hook); 3] =
    [(ProgramKind::Xdp, Hook::Ingress), (ProgramKind::Tc, Hook::Ingress), (ProgramKind::Tc, Hook::Egress)];

fn step(hook: Hook) -> u32 {
    match hook {
        Hook::Ingress => PLAIT_MATCH_INGRESS,
        Hook::Egress => PLAIT_MATCH_EGRESS,
    }
}
