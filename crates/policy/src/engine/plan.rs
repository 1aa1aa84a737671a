//! What the loaded policies come to on this host: entries of maps, and where programs are to be attached.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use bytemuck::Zeroable;
use libbpf_rs::{MapCore, MapFlags, num_possible_cpus};

use super::Error;
use super::attach::{Attached, Attacher};
use super::objects::Objects;
use super::own::{Numbers, Programs, numbers_of};
use super::state::{Counted, State};
use crate::bindings::{
    PLAIT_ACTOR_PACE, PLAIT_ACTOR_REDIRECT, PLAIT_MATCH_EGRESS, PLAIT_MATCH_INGRESS, plait_actor,
    plait_chain, plait_counter,
};
use crate::compile::{self, Host, ProgramKind, Resolved};
use crate::{Hook, Policy};
use plait_linux::interfaces::Interface;

/// What a policy names that is not there: interfaces and control groups.
pub(super) fn absent(policy: &Policy, host: &Host, state: &State) -> Result<Vec<String>, Error> {
    let host = Host { own: numbers_of(&state.own, &policy.name), ..host.clone() };
    let mut absent = BTreeSet::new();
    for chain in &policy.chains {
        let found = compile::resolve(chain, &host);
        absent.extend(found.map_err(|reason| Error::chain(&policy.name, &chain.name, &reason))?.absent);
    }
    Ok(absent.into_iter().collect())
}

/// What the loaded policies come to.
pub(super) struct Plan {
    chains: Vec<Resolved>,
    /// What is written to the map of chains, in the same order.
    records: Vec<plait_chain>,
    new_counters: Vec<u32>,
    /// Indexes of interfaces, and hooks.
    places: BTreeSet<(u32, Hook)>,
    own: Numbers,
    policies: Vec<Policy>,
}

impl Plan {
    /// Resolves the chains, and gives them and their actors entries of maps.
    pub(super) fn make(policies: &[Policy], host: &Host, state: &mut State) -> Result<Plan, Error> {
        let own = Numbers::give(policies, &state.own)?;
        state.own = own.taken.clone();
        let mut resolved = Vec::new();
        for policy in policies {
            let host = &Host { own: numbers_of(&own.taken, &policy.name), ..host.clone() };
            for chain in &policy.chains {
                let found = compile::resolve(chain, host);
                let found = found.map_err(|reason| Error::chain(&policy.name, &chain.name, &reason))?;
                resolved.push((policy, chain, found));
            }
        }
        let mut counted = Vec::new();
        for (policy, chain, found) in &resolved {
            let of = |actor| Counted { policy: policy.name.clone(), chain: chain.name.clone(), actor };
            counted.push(of(None));
            let actors = found.actors.iter().enumerate();
            counted.extend(actors.map(|(place, actor)| of(Some((place, actor.kind)))));
        }
        let new_counters = state.count(counted)?;
        let entries = state.chain_entries(resolved.len())?;
        let mut plan = Plan {
            chains: Vec::new(),
            records: Vec::new(),
            new_counters,
            places: BTreeSet::new(),
            own,
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
                    plan.places.extend(found.interfaces.iter().map(|index| (*index, hook)));
                }
            }
            plan.chains.push(found);
            plan.records.push(record);
        }
        Ok(plan)
    }

    /// Whether programs are to be attached there.
    pub(super) fn needs(&self, attached: &Attached) -> bool {
        self.places.contains(&(attached.index, attached.hook))
    }

    /// Adds what is to be attached and is not yet on record.
    pub(super) fn record_places(
        &self,
        interfaces: &[Interface],
        attached: &mut Vec<Attached>,
    ) -> Result<(), Error> {
        for (index, hook) in &self.places {
            let known = attached.iter().any(|other| other.index == *index && other.hook == *hook);
            let interface = interfaces.iter().find(|interface| interface.index == *index);
            if let Some(interface) = interface.filter(|_| !known) {
                attached.push(Attacher::plan(interface, *hook, attached)?);
            }
        }
        Ok(())
    }

    /// Some chain lets what comes in there leave elsewhere. TC alone knows of the next hop.
    pub(super) fn redirects(&self, attached: &Attached) -> bool {
        let redirects =
            |chain: &Resolved| chain.actors.iter().any(|actor| actor.kind == PLAIT_ACTOR_REDIRECT);
        let comes_in = self.chains.iter().filter(|chain| chain.hook == Hook::Ingress);
        attached.hook == Hook::Ingress
            && comes_in
                .filter(|chain| redirects(chain))
                .any(|chain| chain.interfaces.contains(&attached.index))
    }

    /// Some chain paces subflows.
    pub(super) fn paces(&self) -> bool {
        self.chains.iter().flat_map(|chain| &chain.actors).any(|actor| actor.kind == PLAIT_ACTOR_PACE)
    }

    /// Writes the chains, to entries that nothing uses yet, and clears the counters that are new.
    pub(super) fn write(&self, objects: &Objects) -> Result<(), Error> {
        for (chain, record) in self.chains.iter().zip(&self.records) {
            objects.write("chains", chain.slot.into(), record)?;
        }
        let counters = objects.map("counters")?;
        let processors = num_possible_cpus().map_err(Error::kernel("count the processors"))?;
        let zero = vec![bytemuck::bytes_of(&plait_counter::zeroed()).to_vec(); processors];
        for counter in &self.new_counters {
            let cleared = counters.update_percpu(&counter.to_ne_bytes(), &zero, MapFlags::ANY);
            cleared.map_err(Error::kernel("clear a counter"))?;
        }
        Ok(())
    }

    /// Takes away what only earlier policies used.
    pub(super) fn remove_unused(&self, objects: &Objects) -> Result<(), Error> {
        self.own.remove_unused(objects)
    }

    /// Makes and loads the programs that find the chains of a packet; they do nothing yet.
    pub(super) fn load(&self, objects: &Objects) -> Result<Matches, Error> {
        let own = Some(self.own.load(&self.policies, objects)?);
        let mut matches = Matches { programs: Vec::new(), own, needs: 0, own_selectors: [0; 2] };
        for (kind, hook) in PLACES {
            let chains: Vec<Resolved> =
                self.chains.iter().filter(|chain| chain.hook == hook).cloned().collect();
            let program =
                if chains.is_empty() { None } else { Some(matches.load(objects, kind, hook, &chains)?) };
            matches.programs.push((kind, step(hook), program));
        }
        Ok(matches)
    }
}

/// The programs that find the chains of a packet, and what they need to know of it.
pub(super) struct Matches {
    /// `None` where there is nothing to find.
    programs: Vec<(ProgramKind, u32, Option<OwnedFd>)>,
    /// Of the user's own, that are new.
    own: Option<Programs>,
    /// Bits of `enum plait_need`.
    pub(super) needs: u32,
    /// As in `struct plait_settings`.
    pub(super) own_selectors: [u32; 2],
}

impl Matches {
    /// Those that work now.
    pub(super) fn current(objects: &Objects) -> Result<Matches, Error> {
        let settings = objects.settings()?;
        let mut programs = Vec::new();
        for (kind, hook) in PLACES {
            programs.push((kind, step(hook), objects.step(kind, step(hook))?));
        }
        Ok(Matches { programs, own: None, needs: settings.needs, own_selectors: settings.own_selectors })
    }

    /// From now on, these find the chains of every packet that comes.
    pub(super) fn install(&self, objects: &Objects) -> Result<(), Error> {
        if let Some(own) = &self.own {
            own.install(objects)?;
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
    ) -> Result<OwnedFd, Error> {
        let made = compile::match_program(kind, hook, chains, objects.map("packets")?.as_fd())
            .map_err(|reason| Error::Chains { hook, reason: reason.to_string() })?;
        self.needs |= made.needs;
        self.own_selectors[hook as usize] |= made.own_selectors;
        let name = if hook == Hook::Ingress { c"match_ingress" } else { c"match_egress" };
        made.load(name, objects.frags).map_err(|reason| Error::Chains { hook, reason: reason.to_string() })
    }
}

/// Where chains are looked for: what comes in is met by XDP or by TC.
const PLACES: [(ProgramKind, Hook); 3] =
    [(ProgramKind::Xdp, Hook::Ingress), (ProgramKind::Tc, Hook::Ingress), (ProgramKind::Tc, Hook::Egress)];

fn step(hook: Hook) -> u32 {
    match hook {
        Hook::Ingress => PLAIT_MATCH_INGRESS,
        Hook::Egress => PLAIT_MATCH_EGRESS,
    }
}
