//! Replaces the loaded policies while packets pass.
//!
//! The order of steps keeps two guarantees. A packet passes either all old chains or all new ones: new chains are
//! written to unused entries first, and then one program per hook, which decides which chains apply, is replaced. And
//! a process killed at any moment leaves one or the other: each step is recorded (state.rs) before it is taken, and
//! what is no longer needed is removed last.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

use plait_config::Role;
use plait_linux::cgroup;
use plait_linux::interfaces::{self, Interface};

use super::attach::{AttachPoint, Attacher, detach, unlink_all};
use super::attach_mode::AttachMode;
use super::error::EngineError;
use super::namespace::Namespace;
use super::objects::{CONTRACT, Objects};
use super::pace;
use super::plan::{MatchPrograms, Plan};
use super::state::{State, StoredPolicy};
use super::sys;
use crate::bindings::plait_settings;
use crate::compile::{Host, HostInterface};
use crate::model::Policy;

/// The current state and its objects in the kernel.
pub(super) struct Live {
    pub(super) state: State,
    pub(super) objects: Objects,
}

impl Live {
    /// Opens what is loaded, unless recovery is needed or another command is at work.
    pub(super) fn open(namespace: &Namespace) -> Result<Option<Live>, EngineError> {
        let directory = namespace.state();
        let Some(state) = State::loaded(&directory)? else { return Ok(None) };
        let is_ours = state.namespace == namespace.id && state.contract == *CONTRACT;
        if !is_ours || !state.settled || State::next(&directory)?.is_some() {
            return Ok(None);
        }
        Ok(Objects::open(&namespace.pins(), state.frags).map(|objects| Live { state, objects }))
    }
}

/// A policy and its entry of the map of leases; 0: none.
pub(super) type Leased = (Policy, u32);

/// The policies of a state.
pub(super) fn policies(state: &State) -> Result<Vec<Leased>, EngineError> {
    let parse = |stored: &StoredPolicy| Ok((Policy::parse(&stored.text, &stored.name)?, stored.lease));
    state.policies.iter().map(parse).collect()
}

/// The properties of this host that these policies depend on.
pub(super) fn host(
    policies: &[Policy],
    interfaces: &[Interface],
    roles: &BTreeMap<String, Role>,
) -> Result<Host, EngineError> {
    let interfaces = interfaces.iter().map(|interface| HostInterface {
        index: interface.index,
        name: interface.name.clone(),
        loopback: interface.loopback,
    });
    Ok(Host {
        interfaces: interfaces.collect(),
        roles: roles.clone(),
        cgroups: cgroups(policies)?,
        custom: BTreeMap::new(),
    })
}

/// The IDs of the control groups that policies refer to.
pub(super) fn cgroups(policies: &[Policy]) -> Result<BTreeMap<String, u64>, EngineError> {
    let mut found = BTreeMap::new();
    for path in policies.iter().flat_map(|policy| &policy.chains).flat_map(|chain| chain.select.cgroups()) {
        if let Some(id) = cgroup::id(path).map_err(EngineError::Cgroups)? {
            found.insert(path.to_owned(), id);
        }
    }
    Ok(found)
}

/// Changes what is loaded; requires the lock.
pub(super) struct Swap<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) avoided_modes: &'a [AttachMode],
    pub(super) prefer_xdp: bool,
    /// The lease of the new policies.
    pub(super) lease: Option<(u32, Duration)>,
}

impl Swap<'_> {
    /// What is loaded, after recovering from a killed command or another version of this program.
    pub(super) fn recover(&self) -> Result<Option<Live>, EngineError> {
        let directory = self.namespace.state();
        let (loaded, next) = (State::loaded(&directory)?, State::next(&directory)?);
        if [&loaded, &next].into_iter().flatten().any(|state| state.namespace != self.namespace.id) {
            // The state is of a deleted namespace with the same inode number.
            self.namespace.remove()?;
            return Ok(None);
        }
        let removing = next.as_ref().is_some_and(|next| next.policies.is_empty());
        let Some(mut state) = loaded.filter(|_| !removing) else {
            self.remove(next.map(|next| next.attached).as_deref())?;
            return Ok(None);
        };
        let interrupted = next.is_some() || !state.settled;
        if let Some(next) = next {
            state.next_chain = next.next_chain;
            let is_new = |planned: &AttachPoint| {
                let same = |other: &AttachPoint| other.index == planned.index && other.hook == planned.hook;
                !state.attached.iter().any(same)
            };
            let new: Vec<_> = next.attached.into_iter().filter(is_new).collect();
            state.attached.extend(new);
        }
        let (policies, roles) = (policies(&state)?, state.roles.clone());
        let is_ours = state.contract == *CONTRACT;
        match Objects::open(&self.namespace.pins(), state.frags).filter(|_| is_ours) {
            Some(objects) if !interrupted => Ok(Some(Live { state, objects })),
            Some(objects) => self.apply(Some(Live { state, objects }), policies, roles).map(Some),
            // The pins were removed, and with them all objects; or another version of this program loaded them.
            None => {
                self.remove(Some(&state.attached))?;
                self.apply(None, policies, roles).map(Some)
            }
        }
    }

    /// Replaces the loaded policies by these. If that fails, the previous ones stay in force.
    pub(super) fn apply(
        &self,
        before: Option<Live>,
        policies: Vec<Leased>,
        roles: BTreeMap<String, Role>,
    ) -> Result<Live, EngineError> {
        let interfaces = interfaces::interfaces().map_err(EngineError::Interfaces)?;
        let mut next = before.as_ref().map(|live| live.state.clone()).unwrap_or_default();
        next.namespace = self.namespace.id.clone();
        next.settled = false;
        let store = |(policy, lease): &Leased| StoredPolicy {
            name: policy.name.clone(),
            text: policy.to_string(),
            lease: *lease,
        };
        next.policies = policies.iter().map(store).collect();
        let policies: Vec<_> = policies.into_iter().map(|(policy, _)| policy).collect();
        let plan = Plan::make(&policies, &host(&policies, &interfaces, &roles)?, &mut next)?;
        next.roles = roles;
        plan.add_attach_points(&interfaces, &mut next.attached)?;
        let Some(Live { state, objects }) = before else {
            return self.first_load(next, &plan, &interfaces).inspect_err(|_| self.abort_first_load());
        };
        let (old_matches, settings) = (MatchPrograms::current(&objects)?, objects.settings()?);
        let was_paced = pace::is_attached(&self.namespace.pins());
        next.write_next(&self.namespace.state())?;
        match self.switch(&objects, &mut next, &plan, &interfaces) {
            Ok(matches) => Ok(Live { state: self.clean_up(&objects, next, &plan, &matches), objects }),
            Err(error) => {
                let undo = || {
                    old_matches.install(&objects)?;
                    objects.set_settings(&settings)?;
                    if !was_paced {
                        pace::detach(&self.namespace.pins()).map_err(EngineError::Pace)?;
                    }
                    for attached in next.attached.iter().filter(|attached| !state.attached.contains(attached))
                    {
                        detach(&self.namespace.links(), attached, &state.attached)?;
                    }
                    self.reattach(&objects, &state.attached, &interfaces)?;
                    State::remove_next(&self.namespace.state())
                };
                if let Err(undoing) = undo() {
                    tracing::warn!("{undoing}: the next command recovers");
                }
                Err(error)
            }
        }
    }

    /// Removes everything, even if the state is unreadable; returns whether any policy was loaded.
    pub(super) fn remove_all(&self) -> Result<bool, EngineError> {
        let directory = self.namespace.state();
        if !self.namespace.exists() {
            return Ok(false);
        }
        let mut known = Vec::new();
        let mut loaded = false;
        for state in [State::loaded(&directory), State::next(&directory)] {
            match state {
                Ok(None) => {}
                Ok(Some(state)) => {
                    loaded |= !state.policies.is_empty();
                    if state.namespace == self.namespace.id {
                        known.extend(state.attached);
                    }
                }
                // Links are found by their pins; filters must be looked for on all interfaces.
                Err(_) => {
                    loaded = true;
                    let interfaces = interfaces::interfaces().map_err(EngineError::Interfaces)?;
                    known.extend(interfaces.iter().flat_map(AttachPoint::anywhere));
                }
            }
        }
        self.remove(Some(&known))?;
        Ok(loaded)
    }

    /// Removes everything from the kernel and the file system. `attached` is `None` if nothing is recorded.
    pub(super) fn remove(&self, attached: Option<&[AttachPoint]>) -> Result<(), EngineError> {
        if let Some(mut left) = attached {
            let namespace = self.namespace.id.clone();
            let state = State { namespace, attached: left.to_vec(), ..State::default() };
            self.namespace.create_state()?;
            state.write_next(&self.namespace.state())?;
            while let Some((first, others)) = left.split_first() {
                detach(&self.namespace.links(), first, others)?;
                left = others;
            }
        }
        pace::detach(&self.namespace.pins()).map_err(EngineError::Pace)?;
        let links = self.namespace.links();
        unlink_all(&links).map_err(EngineError::directory("remove the links in", &links))?;
        self.namespace.remove()?;
        Ok(())
    }

    /// Loads the first policies of the namespace.
    fn first_load(
        &self,
        mut next: State,
        plan: &Plan,
        interfaces: &[Interface],
    ) -> Result<Live, EngineError> {
        let mut objects = Objects::new()?;
        (next.frags, next.contract) = (objects.frags, *CONTRACT);
        self.namespace.create_state()?;
        next.write_next(&self.namespace.state())?;
        self.namespace.create()?;
        objects.pin(&self.namespace.pins())?;
        let matches = self.switch(&objects, &mut next, plan, interfaces)?;
        Ok(Live { state: self.clean_up(&objects, next, plan, &matches), objects })
    }

    /// Reverts a failed first load.
    fn abort_first_load(&self) {
        let attached = State::next(&self.namespace.state()).ok().flatten().map(|next| next.attached);
        if let Err(error) = self.remove(attached.as_deref()) {
            tracing::warn!("{error}: the next command recovers");
        }
    }

    /// All steps until the new policies are in force. Returns their match programs.
    fn switch(
        &self,
        objects: &Objects,
        next: &mut State,
        plan: &Plan,
        interfaces: &[Interface],
    ) -> Result<MatchPrograms, EngineError> {
        if self.lease.is_some() {
            // A controller's actions should take effect at once, not after the verifier's 0.1 s for each program.
            objects.load_all()?;
        }
        let matches = plan.load(objects)?;
        let attacher = self.attacher(objects);
        for index in 0..next.attached.len() {
            let mut attached = next.attached[index].clone();
            let interface = interfaces.iter().find(|interface| interface.index == attached.index);
            let Some(interface) = interface.filter(|_| plan.needs(&attached)) else { continue };
            let only_tc = plan.redirects(&attached);
            if attacher.is_alive(&attached, interfaces) && !(only_tc && attached.uses_xdp()) {
                continue;
            }
            // The index may now belong to another interface.
            (attached.name, attached.ethernet) = (interface.name.clone(), interface.ethernet);
            detach(&self.namespace.links(), &attached, &next.attached)?;
            attacher.attach(&mut attached, only_tc)?;
            next.attached[index] = attached;
        }
        plan.write(objects)?;
        if let Some((entry, time)) = self.lease {
            renew_lease(objects, entry, time)?;
        }
        let settings = objects.settings()?;
        let [ingress, egress] = settings.custom_selectors;
        objects.set_settings(&plait_settings {
            needs: settings.needs | matches.needs,
            custom_selectors: [ingress | matches.custom_selectors[0], egress | matches.custom_selectors[1]],
            ..settings
        })?;
        if plan.paces() && !pace::is_attached(&self.namespace.pins()) {
            let flows = objects.map("flows")?.as_fd();
            pace::attach(flows, self.namespace.cookie, &self.namespace.pins()).map_err(EngineError::Pace)?;
        }
        matches.install(objects)?;
        next.commit(&self.namespace.state())?;
        Ok(matches)
    }

    /// Attaches again what the failed change had detached.
    fn reattach(
        &self,
        objects: &Objects,
        attached: &[AttachPoint],
        interfaces: &[Interface],
    ) -> Result<(), EngineError> {
        let attacher = self.attacher(objects);
        let is_there = |attached: &&AttachPoint| interfaces.iter().any(|there| there.index == attached.index);
        let gone = attached.iter().filter(is_there).filter(|other| !attacher.is_alive(other, interfaces));
        gone.cloned().try_for_each(|mut attached| {
            let only_tc = !attached.uses_xdp();
            attacher.attach(&mut attached, only_tc)
        })
    }

    /// Removes what only the old policies needed. A failure is left to the next command.
    fn clean_up(&self, objects: &Objects, mut state: State, plan: &Plan, matches: &MatchPrograms) -> State {
        let mut clean_up = || {
            let (kept, gone): (Vec<_>, Vec<_>) =
                state.attached.clone().into_iter().partition(|attached| plan.needs(attached));
            for attached in &gone {
                detach(&self.namespace.links(), attached, &kept)?;
            }
            state.attached = kept;
            let settings = objects.settings()?;
            objects.set_settings(&plait_settings {
                needs: matches.needs,
                custom_selectors: matches.custom_selectors,
                generation: settings.generation.wrapping_add(1),
                ..settings
            })?;
            plan.remove_unused(objects)?;
            if !plan.paces() {
                pace::detach(&self.namespace.pins()).map_err(EngineError::Pace)?;
            }
            state.settled = true;
            state.commit(&self.namespace.state())
        };
        if let Err(error) = clean_up() {
            tracing::warn!("{error}: the policies are loaded, and the next command recovers");
            state.settled = false;
        }
        state
    }

    pub(super) fn attacher<'a>(&'a self, objects: &'a Objects) -> Attacher<'a> {
        Attacher {
            objects,
            links: self.namespace.links(),
            avoided_modes: self.avoided_modes,
            prefer_xdp: self.prefer_xdp,
        }
    }
}

/// Sets the expiry of a lease.
pub(super) fn renew_lease(objects: &Objects, lease: u32, time: Duration) -> Result<(), EngineError> {
    let until = sys::now().saturating_add(time).as_nanos();
    objects.write("leases", lease, &u64::try_from(until).unwrap_or(u64::MAX))
}

/// The time until a lease expires; `None`: never.
pub(super) fn remaining(objects: &Objects, lease: u32) -> Result<Option<Duration>, EngineError> {
    if lease == 0 {
        return Ok(None);
    }
    let until = Duration::from_nanos(objects.read("leases", lease)?.unwrap_or(0));
    Ok(Some(until.saturating_sub(sys::now())))
}
