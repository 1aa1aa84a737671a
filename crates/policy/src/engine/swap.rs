//! From the policies that are loaded to those that shall be, while packets pass.
//!
//! The order makes two promises hold. A packet meets the chains of before or those of after: new chains are written to
//! entries that nothing uses, and then one program of each hook, which says which chains apply, takes the place of
//! another. And whoever is killed here, at whatever moment, leaves one or the other: what is about to be done is on
//! record (state.rs) before it is done, and what is no longer needed goes last.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

use plait_linux::cgroup;
use plait_linux::interfaces::{self, Interface};
use plait_wire::Role;

use super::attach::{Attached, Attacher, Mode, detach, unlink_all};
use super::objects::{CONTRACT, Objects};
use super::place::Place;
use super::plan::{Matches, Plan};
use super::state::{State, Stored};
use super::{Error, sys};
use crate::bindings::plait_settings;
use crate::compile::{Host, HostInterface};
use crate::{Policy, pace};

/// What is loaded.
pub(super) struct Live {
    pub(super) state: State,
    pub(super) objects: Objects,
}

impl Live {
    /// What is loaded in a place, unless a killed command or another version left something to mend, or another command
    /// is at work.
    pub(super) fn open(place: &Place) -> Result<Option<Live>, Error> {
        let directory = place.state();
        let Some(state) = State::loaded(&directory)? else { return Ok(None) };
        let is_ours = state.namespace == place.mark && state.contract == *CONTRACT;
        if !is_ours || !state.settled || State::next(&directory)?.is_some() {
            return Ok(None);
        }
        Ok(Objects::open(&place.pins(), state.frags).map(|objects| Live { state, objects }))
    }
}

/// A policy and its entry of the map of leases; 0: none.
pub(super) type Leased = (Policy, u32);

/// The policies of a state.
pub(super) fn policies(state: &State) -> Result<Vec<Leased>, Error> {
    let parse = |stored: &Stored| Ok((Policy::parse(&stored.text, &stored.name)?, stored.lease));
    state.policies.iter().map(parse).collect()
}

/// This host as these policies see it.
pub(super) fn host(
    policies: &[Policy],
    interfaces: &[Interface],
    roles: &BTreeMap<String, Role>,
) -> Result<Host, Error> {
    let interfaces = interfaces.iter().map(|interface| HostInterface {
        index: interface.index,
        name: interface.name.clone(),
        loopback: interface.loopback,
    });
    Ok(Host {
        interfaces: interfaces.collect(),
        roles: roles.clone(),
        cgroups: cgroups(policies)?,
        own: BTreeMap::new(),
    })
}

/// The numbers of the control groups that policies name.
pub(super) fn cgroups(policies: &[Policy]) -> Result<BTreeMap<String, u64>, Error> {
    let mut found = BTreeMap::new();
    for path in policies.iter().flat_map(|policy| &policy.chains).flat_map(|chain| chain.select.cgroups()) {
        if let Some(id) = cgroup::id(path).map_err(Error::Cgroups)? {
            found.insert(path.to_owned(), id);
        }
    }
    Ok(found)
}

/// Changes what is loaded; used under the lock.
pub(super) struct Swap<'a> {
    pub(super) place: &'a Place,
    pub(super) avoided: &'a [Mode],
    pub(super) by_xdp: bool,
    /// A lease that the new policies get.
    pub(super) lease: Option<(u32, Duration)>,
}

impl Swap<'_> {
    /// What is loaded, after what a killed command or another version of this program left is mended.
    pub(super) fn mend(&self) -> Result<Option<Live>, Error> {
        let directory = self.place.state();
        let (loaded, next) = (State::loaded(&directory)?, State::next(&directory)?);
        if [&loaded, &next].into_iter().flatten().any(|state| state.namespace != self.place.mark) {
            // Of a namespace that is gone, and whose inode number this one got.
            self.place.remove()?;
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
            let is_new = |planned: &Attached| {
                let same = |other: &Attached| other.index == planned.index && other.hook == planned.hook;
                !state.attached.iter().any(same)
            };
            let new: Vec<_> = next.attached.into_iter().filter(is_new).collect();
            state.attached.extend(new);
        }
        let (policies, roles) = (policies(&state)?, state.roles.clone());
        let is_ours = state.contract == *CONTRACT;
        match Objects::open(&self.place.pins(), state.frags).filter(|_| is_ours) {
            Some(objects) if !interrupted => Ok(Some(Live { state, objects })),
            Some(objects) => self.apply(Some(Live { state, objects }), policies, roles).map(Some),
            // Somebody removed the pins, and with them all that they kept; or a version of this program loaded them
            // that is not understood.
            None => {
                self.remove(Some(&state.attached))?;
                self.apply(None, policies, roles).map(Some)
            }
        }
    }

    /// Loads these policies in place of those before. On failure those before stay as they were.
    pub(super) fn apply(
        &self,
        before: Option<Live>,
        policies: Vec<Leased>,
        roles: BTreeMap<String, Role>,
    ) -> Result<Live, Error> {
        let interfaces = interfaces::interfaces().map_err(Error::Interfaces)?;
        let mut next = before.as_ref().map(|live| live.state.clone()).unwrap_or_default();
        next.namespace = self.place.mark.clone();
        next.settled = false;
        let store = |(policy, lease): &Leased| Stored {
            name: policy.name.clone(),
            text: policy.to_string(),
            lease: *lease,
        };
        next.policies = policies.iter().map(store).collect();
        let policies: Vec<_> = policies.into_iter().map(|(policy, _)| policy).collect();
        let plan = Plan::make(&policies, &host(&policies, &interfaces, &roles)?, &mut next)?;
        next.roles = roles;
        plan.record_places(&interfaces, &mut next.attached)?;
        let Some(Live { state, objects }) = before else {
            return self.begin(next, &plan, &interfaces).inspect_err(|_| self.give_up());
        };
        let (matches, settings) = (Matches::current(&objects)?, objects.settings()?);
        let paced = pace::is_attached(&self.place.pins());
        next.announce(&self.place.state())?;
        match self.switch(&objects, &mut next, &plan, &interfaces) {
            Ok(needs) => Ok(Live { state: self.tidy(&objects, next, &plan, &needs), objects }),
            Err(error) => {
                let undo = || {
                    matches.install(&objects)?;
                    objects.set_settings(&settings)?;
                    if !paced {
                        pace::detach(&self.place.pins()).map_err(Error::Pace)?;
                    }
                    for attached in next.attached.iter().filter(|attached| !state.attached.contains(attached))
                    {
                        detach(&self.place.links(), attached, &state.attached)?;
                    }
                    self.attach_again(&objects, &state.attached, &interfaces)?;
                    State::withdraw(&self.place.state())
                };
                if let Err(undoing) = undo() {
                    tracing::warn!("{undoing}: the next command will mend that");
                }
                Err(error)
            }
        }
    }

    /// Removes everything, whatever state it is in; whether any policy was loaded.
    pub(super) fn remove_all(&self) -> Result<bool, Error> {
        let directory = self.place.state();
        if !self.place.exists() {
            return Ok(false);
        }
        let mut known = Vec::new();
        let mut loaded = false;
        for state in [State::loaded(&directory), State::next(&directory)] {
            match state {
                Ok(None) => {}
                Ok(Some(state)) => {
                    loaded |= !state.policies.is_empty();
                    if state.namespace == self.place.mark {
                        known.extend(state.attached);
                    }
                }
                // Links are known by their pins; filters are looked for everywhere.
                Err(_) => {
                    loaded = true;
                    let interfaces = interfaces::interfaces().map_err(Error::Interfaces)?;
                    known.extend(interfaces.iter().flat_map(Attached::anywhere));
                }
            }
        }
        self.remove(Some(&known))?;
        Ok(loaded)
    }

    /// Removes everything from the kernel and the file system. What is attached is `None` if nobody knows.
    pub(super) fn remove(&self, attached: Option<&[Attached]>) -> Result<(), Error> {
        if let Some(mut left) = attached {
            let namespace = self.place.mark.clone();
            let state = State { namespace, attached: left.to_vec(), ..State::default() };
            self.place.make_state()?;
            state.announce(&self.place.state())?;
            while let Some((first, others)) = left.split_first() {
                detach(&self.place.links(), first, others)?;
                left = others;
            }
        }
        pace::detach(&self.place.pins()).map_err(Error::Pace)?;
        let links = self.place.links();
        unlink_all(&links).map_err(Error::directory("remove the links in", &links))?;
        self.place.remove()?;
        Ok(())
    }

    /// Loads the first policies.
    fn begin(&self, mut next: State, plan: &Plan, interfaces: &[Interface]) -> Result<Live, Error> {
        let mut objects = Objects::new()?;
        // What the kernel refuses is told now, and not when an interface appears that needs it.
        objects.load_all()?;
        (next.frags, next.contract) = (objects.frags, *CONTRACT);
        self.place.make_state()?;
        next.announce(&self.place.state())?;
        self.place.make()?;
        objects.pin(&self.place.pins())?;
        let needs = self.switch(&objects, &mut next, plan, interfaces)?;
        Ok(Live { state: self.tidy(&objects, next, plan, &needs), objects })
    }

    /// Removes what was begun.
    fn give_up(&self) {
        let attached = State::next(&self.place.state()).ok().flatten().map(|next| next.attached);
        if let Err(error) = self.remove(attached.as_deref()) {
            tracing::warn!("{error}: the next command will mend that");
        }
    }

    /// Everything up to the moment from which the new policies are loaded. What they need to know of packets.
    fn switch(
        &self,
        objects: &Objects,
        next: &mut State,
        plan: &Plan,
        interfaces: &[Interface],
    ) -> Result<Matches, Error> {
        let matches = plan.load(objects)?;
        let attacher = self.attacher(objects);
        for place in 0..next.attached.len() {
            let mut attached = next.attached[place].clone();
            let interface = interfaces.iter().find(|interface| interface.index == attached.index);
            let Some(interface) = interface.filter(|_| plan.needs(&attached)) else { continue };
            let by_tc = plan.redirects(&attached);
            if attacher.is_alive(&attached, interfaces) && !(by_tc && attached.by_xdp()) {
                continue;
            }
            // Another may have got the index of one that is gone.
            (attached.name, attached.ethernet) = (interface.name.clone(), interface.ethernet);
            detach(&self.place.links(), &attached, &next.attached)?;
            attacher.attach(&mut attached, by_tc)?;
            next.attached[place] = attached;
        }
        plan.write(objects)?;
        if let Some((entry, time)) = self.lease {
            lease(objects, entry, time)?;
        }
        let settings = objects.settings()?;
        let [ingress, egress] = settings.own_selectors;
        objects.set_settings(&plait_settings {
            needs: settings.needs | matches.needs,
            own_selectors: [ingress | matches.own_selectors[0], egress | matches.own_selectors[1]],
            ..settings
        })?;
        if plan.paces() && !pace::is_attached(&self.place.pins()) {
            let flows = objects.map("flows")?.as_fd();
            pace::attach(flows, self.place.cookie, &self.place.pins()).map_err(Error::Pace)?;
        }
        matches.install(objects)?;
        next.commit(&self.place.state())?;
        Ok(matches)
    }

    /// Attaches what was before it was to be attached in another way.
    fn attach_again(
        &self,
        objects: &Objects,
        attached: &[Attached],
        interfaces: &[Interface],
    ) -> Result<(), Error> {
        let attacher = self.attacher(objects);
        let is_there = |attached: &&Attached| interfaces.iter().any(|there| there.index == attached.index);
        let gone = attached.iter().filter(is_there).filter(|other| !attacher.is_alive(other, interfaces));
        gone.cloned().try_for_each(|mut attached| {
            let by_tc = !attached.by_xdp();
            attacher.attach(&mut attached, by_tc)
        })
    }

    /// Removes what only the policies before needed. What fails is left to the next command.
    fn tidy(&self, objects: &Objects, mut state: State, plan: &Plan, matches: &Matches) -> State {
        let mut tidy = || {
            let (kept, gone): (Vec<_>, Vec<_>) =
                state.attached.clone().into_iter().partition(|attached| plan.needs(attached));
            for attached in &gone {
                detach(&self.place.links(), attached, &kept)?;
            }
            state.attached = kept;
            let settings = objects.settings()?;
            objects.set_settings(&plait_settings {
                needs: matches.needs,
                own_selectors: matches.own_selectors,
                generation: settings.generation.wrapping_add(1),
                ..settings
            })?;
            plan.remove_unused(objects)?;
            if !plan.paces() {
                pace::detach(&self.place.pins()).map_err(Error::Pace)?;
            }
            state.settled = true;
            state.commit(&self.place.state())
        };
        if let Err(error) = tidy() {
            tracing::warn!("{error}: the policies are loaded, and the next command will mend that");
            state.settled = false;
        }
        state
    }

    pub(super) fn attacher<'a>(&'a self, objects: &'a Objects) -> Attacher<'a> {
        Attacher { objects, links: self.place.links(), avoided: self.avoided, by_xdp: self.by_xdp }
    }
}

/// From now on, chains of this lease act for this time.
pub(super) fn lease(objects: &Objects, lease: u32, time: Duration) -> Result<(), Error> {
    let until = sys::now().saturating_add(time).as_nanos();
    objects.write("leases", lease, &u64::try_from(until).unwrap_or(u64::MAX))
}

/// For how long chains of this lease will still act; `None`: as long as they are loaded.
pub(super) fn remaining(objects: &Objects, lease: u32) -> Result<Option<Duration>, Error> {
    if lease == 0 {
        return Ok(None);
    }
    let until = Duration::from_nanos(objects.read("leases", lease)?.unwrap_or(0));
    Ok(Some(until.saturating_sub(sys::now())))
}
