//! The engine of a network namespace: loads policies into the packet path, replaces and removes them while packets
//! pass, and reads what they have counted.
//!
//! What is loaded lives in the kernel and in the run directory, not in a process: an [`Engine`] is only a way to it. Any
//! number of processes may have one; changes happen one after the other. A packet meets all chains of before a change
//! or all of after; a change that fails leaves everything as it was; and what a process that is killed in the middle
//! leaves is mended by the next one that looks. When the last policy is unloaded, nothing stays: no program, map, pin,
//! filter, file or mount.
//!
//! ```no_run
//! use plait_policy::{Engine, Policy};
//!
//! let engine = Engine::current()?;
//! engine.load(&Policy::read("policies/never-on.toml".as_ref())?)?;
//! for policy in engine.statistics()?.policies {
//!     println!("{}: {} chains", policy.name, policy.chains.len());
//! }
//! engine.unload("never-on")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attach;
mod error;
mod events;
mod flows;
mod objects;
mod own;
mod place;
mod plan;
mod request;
mod state;
mod statistics;
mod swap;
mod sys;
mod trial;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plait_linux::bpf_files::BpfFiles;
use plait_linux::interfaces;
use plait_linux::mptcp::Token;
use plait_wire::Role;
use serde::Serialize;

pub use attach::{Mode, Tried};
pub use error::Error;
pub use events::{Event, Events, Keys, Matched, Verdict, What};
pub use flows::{Ends, Flow, Half, Rtt};
pub use request::Timing;
pub use statistics::{ActorStatistics, ChainStatistics, Count, LeftAlone, PolicyStatistics, Statistics};
pub use trial::{Frame, Ran, Trial};

use crate::bindings::plait_flow;
use crate::{Hook, Interface, Policy};
use place::{Home, Place};
use request::{Request, Wanted};
use state::State;
use swap::{Leased, Live, Swap, policies};

/// A way to what is loaded in a network namespace.
#[derive(Debug)]
pub struct Engine {
    place: Arc<Place>,
    avoided: Vec<Mode>,
    by_xdp: bool,
    roles: Option<BTreeMap<String, Role>>,
}

/// A loaded policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The policy.
    pub policy: Policy,
    /// For how long it will still act, if it was loaded for a time; zero: it acts no more, and the next change of what
    /// is loaded removes it.
    pub remaining: Option<Duration>,
    /// Interfaces and control groups that it names and that are not there: what asks for one does not hold.
    /// [`refresh`](Engine::refresh) finds those that have appeared.
    pub absent: Vec<String>,
}

/// Where packets meet the policies, or should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// The interface's name.
    pub interface: String,
    /// Its index; `None` if there is no such interface.
    pub index: Option<u32>,
    /// The hook.
    pub hook: Hook,
    /// How programs are attached; `None` if they are not: the interface is gone, or somebody removed them.
    /// [`refresh`](Engine::refresh) attaches where there is an interface.
    pub mode: Option<Mode>,
}

impl Engine {
    /// The engine of the calling thread's network namespace; it can be used by threads in others. Nothing is made
    /// before a policy is loaded.
    ///
    /// # Errors
    /// The run directory cannot be used, or `/proc` is not there.
    pub fn current() -> Result<Engine, Error> {
        Ok(Engine { place: Arc::new(Place::current()?), avoided: Vec::new(), by_xdp: false, roles: None })
    }

    /// Does without these ways of attaching, where another works: for a driver that resets its interface when XDP is
    /// attached, say.
    pub fn avoiding(self, modes: &[Mode]) -> Engine {
        Engine { avoided: modes.to_vec(), ..self }
    }

    /// Attaches by XDP, where it works, also to interfaces that are made by software: packets are then met one by one, and
    /// as they are on a wire. Connections over such an interface are much slower for it.
    pub fn by_xdp(self) -> Engine {
        Engine { by_xdp: true, ..self }
    }

    /// From the next change on, interfaces have these roles, by name; they are kept with what is loaded.
    pub fn with_roles(self, roles: BTreeMap<String, Role>) -> Engine {
        Engine { roles: Some(roles), ..self }
    }

    /// Loads a policy beside those that are loaded.
    ///
    /// Interfaces that it names and that are not there are no error: see [`attachments`](Engine::attachments).
    ///
    /// # Errors
    /// [`Error::Exists`], and whatever keeps it from being loaded; then nothing has changed.
    pub fn load(&self, policy: &Policy) -> Result<(), Error> {
        self.change(|change| {
            if change.loaded.iter().any(|(other, _)| other.name == policy.name) {
                return Err(Error::Exists(policy.name.clone()));
            }
            change.put(policy, 0)
        })
    }

    /// Loads policies, all at once, each in place of the one of the same name if there is one. Chains and actors that
    /// stay where they were go on counting.
    ///
    /// # Errors
    /// Whatever keeps them from being loaded; then nothing has changed.
    pub fn replace(&self, policies: &[Policy]) -> Result<(), Error> {
        self.change(|change| policies.iter().try_for_each(|policy| change.put(policy, 0)))
    }

    /// As [`replace`](Engine::replace), but the policy acts for this time only, unless it is
    /// [renewed](Engine::renew): for who might die.
    ///
    /// # Errors
    /// As [`replace`](Engine::replace); or too many policies are loaded for a time.
    pub fn load_for(&self, policy: &Policy, time: Duration) -> Result<(), Error> {
        self.change(|change| {
            let lease = match change.before.lease(&policy.name) {
                0 => change.before.free_lease()?,
                kept => kept,
            };
            change.lease = Some((lease, time));
            change.put(policy, lease)
        })
    }

    /// Lets a policy that was loaded for a time act for this time from now on. `false`: there is none, or it was not
    /// loaded for a time.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn renew(&self, name: &str, time: Duration) -> Result<bool, Error> {
        let Some(live) = self.live()? else { return Ok(false) };
        let lease = live.state.lease(name);
        if lease != 0 {
            swap::lease(&live.objects, lease, time)?;
        }
        Ok(lease != 0)
    }

    /// Unloads a policy. `false`: its time was over, and it did nothing any more.
    ///
    /// # Errors
    /// [`Error::Unknown`], or something cannot be removed.
    pub fn unload(&self, name: &str) -> Result<bool, Error> {
        let mut acted = false;
        self.change(|change| {
            let number = change.loaded.len();
            change.loaded.retain(|(policy, _)| policy.name != name);
            acted = change.loaded.len() < number;
            if acted || change.lapsed.iter().any(|lapsed| lapsed == name) {
                return Ok(());
            }
            let loaded = change.loaded.iter().map(|(policy, _)| policy.name.clone()).collect();
            Err(Error::Unknown { name: name.into(), loaded })
        })?;
        Ok(acted)
    }

    /// Unloads all policies; whether there were any.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn unload_all(&self) -> Result<bool, Error> {
        self.place.inside(|| {
            let _lock = self.place.lock()?;
            self.swap().remove_all()
        })
    }

    /// Brings what is loaded up to date with the interfaces, roles and control groups that there are: attaches to
    /// interfaces that have appeared, and forgets those that are gone.
    ///
    /// # Errors
    /// As [`replace`](Engine::replace).
    pub fn refresh(&self) -> Result<(), Error> {
        self.change(|_| Ok(()))
    }

    /// The loaded policy of this name, if there is one.
    ///
    /// # Errors
    /// As those of [`policies`](Engine::policies).
    pub fn policy(&self, name: &str) -> Result<Option<Loaded>, Error> {
        Ok(self.policies()?.into_iter().find(|loaded| loaded.policy.name == name))
    }

    /// The loaded policies, in the order in which they were first loaded.
    ///
    /// # Errors
    /// What is loaded cannot be read.
    pub fn policies(&self) -> Result<Vec<Loaded>, Error> {
        let Some(live) = self.live()? else { return Ok(Vec::new()) };
        self.place.inside(|| {
            let interfaces = interfaces::interfaces().map_err(Error::Interfaces)?;
            let leased = policies(&live.state)?;
            let policies: Vec<_> = leased.iter().map(|(policy, _)| policy.clone()).collect();
            let host = swap::host(&policies, &interfaces, &live.state.roles)?;
            let loaded = |(policy, lease)| {
                let absent = plan::absent(&policy, &host, &live.state)?;
                Ok(Loaded { remaining: swap::remaining(&live.objects, lease)?, absent, policy })
            };
            leased.into_iter().map(loaded).collect()
        })
    }

    /// Where packets meet the policies, and where they should: interfaces that policies name, and that are gone or not
    /// there yet, are without index and mode.
    ///
    /// # Errors
    /// What is loaded, or the interfaces, cannot be read.
    pub fn attachments(&self) -> Result<Vec<Attachment>, Error> {
        let Some(live) = self.live()? else { return Ok(Vec::new()) };
        self.place.inside(|| {
            let interfaces = interfaces::interfaces().map_err(Error::Interfaces)?;
            let swap = self.swap();
            let attacher = swap.attacher(&live.objects);
            let mut found: Vec<_> = live
                .state
                .attached
                .iter()
                .map(|attached| {
                    let interface = interfaces.iter().find(|interface| interface.index == attached.index);
                    Attachment {
                        interface: interface.map_or(&attached.name, |interface| &interface.name).clone(),
                        index: interface.map(|interface| interface.index),
                        hook: attached.hook,
                        mode: attached.mode.filter(|_| attacher.is_alive(attached, &interfaces)),
                    }
                })
                .collect();
            for chain in policies(&live.state)?.iter().flat_map(|(policy, _)| &policy.chains) {
                for interface in &chain.interfaces {
                    let Interface::Named(name) = interface else { continue };
                    let known = |other: &Attachment| other.interface == *name && other.hook == chain.hook;
                    if !found.iter().any(known) {
                        let index =
                            interfaces.iter().find(|there| there.name == *name).map(|there| there.index);
                        found.push(Attachment {
                            interface: name.clone(),
                            index,
                            hook: chain.hook,
                            mode: None,
                        });
                    }
                }
            }
            Ok(found)
        })
    }

    /// What the loaded policies have counted.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        let Some(live) = self.live()? else { return Ok(Statistics::default()) };
        let policies: Vec<_> = policies(&live.state)?.into_iter().map(|(policy, _)| policy).collect();
        Statistics::read(&live.objects, &live.state, &policies)
    }

    /// The subflows that are remembered, in no order: those of which packets passed since a policy was loaded that
    /// asks for what is remembered, such as by the actor `record`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn flows(&self) -> Result<Vec<Flow>, Error> {
        self.live()?.map_or(Ok(Vec::new()), |live| flows::read(live.objects.map("flows")?))
    }

    /// Says of which connection a subflow is, where programs could not learn it. `false`: the subflow is not
    /// remembered. What a packet adds to its counts in the same moment is lost.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_token(&self, ends: Ends, token: Token) -> Result<bool, Error> {
        self.change_flow(ends, |flow| flow.token = token.0)
    }

    /// Adds an option of MPTCP, such as ADD_ADDR, to the next pure acknowledgment of a subflow in this direction.
    /// `false`: the subflow is not remembered, or the option is longer than 32 bytes. What a packet adds to its counts
    /// in the same moment is lost.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn announce(&self, ends: Ends, hook: Hook, option: &[u8]) -> Result<bool, Error> {
        let direction = hook as usize;
        let Some(length) = u8::try_from(option.len()).ok().filter(|length| *length <= 32) else {
            return Ok(false);
        };
        self.change_flow(ends, |flow| {
            flow.pending[direction][..option.len()].copy_from_slice(option);
            flow.pending_length[direction] = length;
            flow.announced[direction] = 0;
        })
    }

    /// What chains tell: connections, subflows, announcements that were withheld. `None` if nothing is loaded.
    ///
    /// # Errors
    /// [`Error::EventsTaken`], or what the kernel says.
    pub fn events(&self) -> Result<Option<Events>, Error> {
        self.live()?.map(|live| Events::open(&self.place, live.objects, false)).transpose()
    }

    /// As [`events`](Engine::events), and as long as the result lives every packet that a chain matches is told, too.
    ///
    /// # Errors
    /// As [`events`](Engine::events).
    pub fn trace(&self) -> Result<Option<Events>, Error> {
        self.live()?.map(|live| Events::open(&self.place, live.objects, true)).transpose()
    }

    /// Measures the time that chains and actors take, as long as the result lives; it is part of the
    /// [statistics](Engine::statistics). `None` if nothing is loaded.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn time(&self) -> Result<Option<Timing>, Error> {
        let Some(live) = self.live()? else { return Ok(None) };
        let request = Request::start(Wanted::Timing, Arc::clone(&self.place), live.objects)?;
        Ok(Some(Timing(request)))
    }

    /// What is remembered of a subflow.
    pub(crate) fn flow(&self, ends: Ends) -> Result<Option<plait_flow>, Error> {
        self.live()?.map_or(Ok(None), |live| flows::look_up(live.objects.map("flows")?, ends))
    }

    /// Calls `work` in the engine's network namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.place.inside(|| Ok(work()))
    }

    /// What is loaded, mended if need be.
    fn live(&self) -> Result<Option<Live>, Error> {
        if let Some(live) = Live::open(&self.place)? {
            request::end_abandoned(&self.place, &live.objects)?;
            return Ok(Some(live));
        }
        if !self.place.exists() {
            return Ok(None);
        }
        self.place.inside(|| {
            let _lock = self.place.lock()?;
            self.swap().mend()
        })
    }

    /// Changes which policies are loaded.
    fn change(&self, change: impl FnOnce(&mut Change) -> Result<(), Error> + Send) -> Result<(), Error> {
        if !self.place.exists()
            && let Err(error) = clean_leftovers()
        {
            tracing::warn!("{error}: something of a namespace that is gone is left; `plait doctor --clean`");
        }
        self.place.inside(|| {
            let _lock = self.place.lock()?;
            let mut swap = self.swap();
            let live = swap.mend()?;
            let state = live.as_ref().map(|live| live.state.clone()).unwrap_or_default();
            let (mut loaded, mut lapsed) = (Vec::new(), Vec::new());
            if let Some(live) = &live {
                for (policy, lease) in policies(&state)? {
                    match swap::remaining(&live.objects, lease)? {
                        Some(Duration::ZERO) => lapsed.push(policy.name),
                        _ => loaded.push((policy, lease)),
                    }
                }
            }
            let mut asked = Change { before: &state, loaded, lapsed, lease: None };
            change(&mut asked)?;
            swap.lease = asked.lease;
            let loaded = asked.loaded;
            match live {
                None if loaded.is_empty() => Ok(()),
                Some(live) if loaded.is_empty() => swap.remove(Some(&live.state.attached)),
                live => {
                    let roles = self.roles.as_ref().unwrap_or(&state.roles).clone();
                    swap.apply(live, loaded, roles).map(|_| ())
                }
            }
        })
    }

    /// Changes what is remembered of a subflow; `false` if it is not. What a packet adds to its counts in the same moment
    /// is lost.
    pub(crate) fn change_flow(
        &self,
        ends: Ends,
        change: impl FnOnce(&mut plait_flow),
    ) -> Result<bool, Error> {
        self.live()?.map_or(Ok(false), |live| flows::change(live.objects.map("flows")?, ends, change))
    }

    fn swap(&self) -> Swap<'_> {
        Swap { place: &self.place, avoided: &self.avoided, by_xdp: self.by_xdp, lease: None }
    }
}

/// What is asked to be loaded from now on.
struct Change<'a> {
    /// What is loaded.
    before: &'a State,
    /// What shall be: at first, all that is loaded and has not lapsed.
    loaded: Vec<Leased>,
    /// Those that have lapsed, and are removed.
    lapsed: Vec<String>,
    /// A lease that is given anew.
    lease: Option<(u32, Duration)>,
}

impl Change<'_> {
    fn put(&mut self, policy: &Policy, lease: u32) -> Result<(), Error> {
        policy.check()?;
        let leased = (policy.clone(), lease);
        match self.loaded.iter_mut().find(|(other, _)| other.name == policy.name) {
            Some(other) => *other = leased,
            None => self.loaded.push(leased),
        }
        Ok(())
    }
}

/// Removes what policies of network namespaces that are gone have left; the directories that were removed.
///
/// # Errors
/// Something cannot be removed.
pub fn clean_leftovers() -> Result<Vec<PathBuf>, Error> {
    let files = Arc::new(BpfFiles::find()?);
    let mut removed = Vec::new();
    for inode in place::namespaces(&files)? {
        let home = Home { files: Arc::clone(&files), inode };
        let _lock = home.lock()?;
        // What cannot be read was left by another version of this program.
        let states = [State::loaded(&home.state()), State::next(&home.state())];
        let known = states.into_iter().flatten().flatten().map(|state| state.namespace).next();
        let living = place::living(inode);
        // A namespace without a name or a process lives as long as somebody has it open.
        let unseen = living.is_none() && attach::any_attached(&home.links());
        let is_gone = living.is_none() || (known.is_some() && known != living);
        if is_gone && !unseen {
            removed.extend(home.remove()?);
        }
    }
    Ok(removed)
}
