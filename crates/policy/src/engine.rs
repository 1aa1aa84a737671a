//! The engine of a network namespace: loads policies into the packet path, replaces and unloads them without losing a
//! packet, and reads their statistics and events.
//!
//! The state lives in the kernel and in the run directory, not in a process: an [`Engine`] is only a handle. Any
//! number of processes may have one; changes are serialized by a lock. Every packet passes either all chains from
//! before a change or all chains from after it; a change that fails leaves the previous state in force; what a killed
//! process leaves half done is recovered by the next one. Unloading the last policy removes every program, map, pin,
//! filter, file and mount.
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
mod custom;
mod custom_file;
mod dry_run;
mod error;
mod events;
mod flows;
mod namespace;
mod objects;
mod pace;
mod plan;
mod request;
mod state;
mod statistics;
mod swap;
mod sys;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plait_linux::bpf_files::BpfFiles;
use plait_linux::interfaces;
use plait_wire::Role;
use serde::Serialize;

pub use attach::{AttachFailures, AttachMode};
pub use dry_run::{DryRun, TestPacket, TestRun};
pub use error::EngineError;
pub use events::{ChainMatch, Event, EventKind, Events, Keys, Verdict};
pub use flows::{Flow, FlowDirection, FourTuple, Rtt};
pub use request::Timing;
pub use statistics::{
    ActorStatistics, ChainStatistics, Counters, PolicyStatistics, SkipCounters, Statistics,
};

use crate::bindings::plait_flow;
use crate::{Hook, Interface, Policy};
use namespace::{Directories, Namespace};
use request::{Feature, FeatureRequest};
use state::State;
use swap::{Leased, Live, Swap, policies};

/// A handle to the policies of a network namespace.
#[derive(Debug)]
pub struct Engine {
    namespace: Arc<Namespace>,
    avoided_modes: Vec<AttachMode>,
    prefer_xdp: bool,
    roles: Option<BTreeMap<String, Role>>,
}

/// A loaded policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Policy,
    /// The time until it expires, if it was loaded with an expiry; zero: it has no effect any more, and the next
    /// change removes it.
    pub remaining: Option<Duration>,
    /// Interfaces and control groups that it refers to and that do not exist; terms and actors that need one do not
    /// match. Replacing a policy looks for them again.
    pub absent: Vec<String>,
}

/// A hook of an interface at which packets pass the policies, or should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// The interface.
    pub interface: String,
    /// Its index; `None` if the interface does not exist.
    pub index: Option<u32>,
    /// The hook.
    pub hook: Hook,
    /// How the programs are attached; `None` if they are not: the interface does not exist, or another process
    /// detached them. Replacing a policy attaches them again.
    pub mode: Option<AttachMode>,
}

impl Engine {
    /// The engine of the calling thread's network namespace; other threads may use it. Creates nothing until a policy
    /// is loaded.
    ///
    /// # Errors
    /// The run directory cannot be used, or `/proc` is not mounted.
    pub fn current() -> Result<Engine, EngineError> {
        Ok(Engine {
            namespace: Arc::new(Namespace::current()?),
            avoided_modes: Vec::new(),
            prefer_xdp: false,
            roles: None,
        })
    }

    /// Avoids these modes where another one works, for example for a driver that resets its interface when an XDP
    /// program is attached.
    pub fn avoid_modes(self, modes: &[AttachMode]) -> Engine {
        Engine { avoided_modes: modes.to_vec(), ..self }
    }

    /// Uses XDP on software interfaces as well, where packets are then processed one by one, as on a wire. This makes
    /// connections over them much slower.
    pub fn prefer_xdp(self) -> Engine {
        Engine { prefer_xdp: true, ..self }
    }

    /// Assigns roles to interfaces, by name, from the next change on. They are stored with the policies.
    pub fn with_roles(self, roles: BTreeMap<String, Role>) -> Engine {
        Engine { roles: Some(roles), ..self }
    }

    /// Loads a policy in addition to those that are loaded.
    ///
    /// Interfaces that do not exist are not an error: see [`attachments`](Engine::attachments).
    ///
    /// # Errors
    /// [`EngineError::Exists`], or any reason why the policy cannot be loaded; nothing has changed then.
    pub fn load(&self, policy: &Policy) -> Result<(), EngineError> {
        self.change(|change| {
            if change.loaded.iter().any(|(other, _)| other.name == policy.name) {
                return Err(EngineError::Exists(policy.name.clone()));
            }
            change.add(policy, 0)
        })
    }

    /// Atomically loads policies, each replacing the loaded policy with the same name if there is one. Counters of
    /// unchanged chains and actors continue.
    ///
    /// # Errors
    /// Any reason why they cannot be loaded; nothing has changed then.
    pub fn replace(&self, policies: &[Policy]) -> Result<(), EngineError> {
        self.change(|change| policies.iter().try_for_each(|policy| change.add(policy, 0)))
    }

    /// As [`replace`](Engine::replace), but the policy expires after this time unless it is [renewed](Engine::renew).
    /// For processes that may be killed.
    ///
    /// # Errors
    /// As [`replace`](Engine::replace); or too many policies with an expiry are loaded.
    pub fn load_leased(&self, policy: &Policy, time: Duration) -> Result<(), EngineError> {
        self.change(|change| {
            let lease = match change.before.lease(&policy.name) {
                0 => change.before.free_lease()?,
                kept => kept,
            };
            change.lease = Some((lease, time));
            change.add(policy, lease)
        })
    }

    /// Restarts the expiry of a policy. `false`: it is not loaded, or has no expiry.
    ///
    /// # Errors
    /// The kernel rejected a request.
    pub fn renew(&self, name: &str, time: Duration) -> Result<bool, EngineError> {
        let Some(live) = self.live()? else { return Ok(false) };
        let lease = live.state.lease(name);
        if lease != 0 {
            swap::renew_lease(&live.objects, lease, time)?;
        }
        Ok(lease != 0)
    }

    /// Unloads a policy. `false`: it had expired.
    ///
    /// # Errors
    /// [`EngineError::Unknown`], or something cannot be removed.
    pub fn unload(&self, name: &str) -> Result<bool, EngineError> {
        let mut was_active = false;
        self.change(|change| {
            let number = change.loaded.len();
            change.loaded.retain(|(policy, _)| policy.name != name);
            was_active = change.loaded.len() < number;
            if was_active || change.lapsed.iter().any(|lapsed| lapsed == name) {
                return Ok(());
            }
            let loaded = change.loaded.iter().map(|(policy, _)| policy.name.clone()).collect();
            Err(EngineError::Unknown { name: name.into(), loaded })
        })?;
        Ok(was_active)
    }

    /// Unloads all policies; returns whether any was loaded.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn unload_all(&self) -> Result<bool, EngineError> {
        self.namespace.enter(|| {
            let _lock = self.namespace.lock()?;
            self.swap().remove_all()
        })
    }

    /// The loaded policy with this name.
    ///
    /// # Errors
    /// As for [`policies`](Engine::policies).
    pub fn policy(&self, name: &str) -> Result<Option<LoadedPolicy>, EngineError> {
        Ok(self.policies()?.into_iter().find(|loaded| loaded.policy.name == name))
    }

    /// The loaded policies, in the order in which they were first loaded.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn policies(&self) -> Result<Vec<LoadedPolicy>, EngineError> {
        let Some(live) = self.live()? else { return Ok(Vec::new()) };
        self.namespace.enter(|| {
            let interfaces = interfaces::interfaces().map_err(EngineError::Interfaces)?;
            let leased = policies(&live.state)?;
            let policies: Vec<_> = leased.iter().map(|(policy, _)| policy.clone()).collect();
            let host = swap::host(&policies, &interfaces, &live.state.roles)?;
            let loaded = |(policy, lease)| {
                let absent = plan::absent(&policy, &host, &live.state)?;
                Ok(LoadedPolicy { remaining: swap::remaining(&live.objects, lease)?, absent, policy })
            };
            leased.into_iter().map(loaded).collect()
        })
    }

    /// Where packets pass the policies, and where they should: interfaces that policies refer to and that do not
    /// exist have neither index nor mode.
    ///
    /// # Errors
    /// The state or the interfaces cannot be read.
    pub fn attachments(&self) -> Result<Vec<Attachment>, EngineError> {
        let Some(live) = self.live()? else { return Ok(Vec::new()) };
        self.namespace.enter(|| {
            let interfaces = interfaces::interfaces().map_err(EngineError::Interfaces)?;
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

    /// The counters of the loaded policies.
    ///
    /// # Errors
    /// The kernel rejected a request.
    pub fn statistics(&self) -> Result<Statistics, EngineError> {
        let Some(live) = self.live()? else { return Ok(Statistics::default()) };
        let policies: Vec<_> = policies(&live.state)?.into_iter().map(|(policy, _)| policy).collect();
        Statistics::read(&live.objects, &live.state, &policies)
    }

    /// The tracked subflows, in no order: those with packets since a policy was loaded that needs tracking, for
    /// example with the actor `record`.
    ///
    /// # Errors
    /// The kernel rejected a request.
    pub fn flows(&self) -> Result<Vec<Flow>, EngineError> {
        self.live()?.map_or(Ok(Vec::new()), |live| flows::read(live.objects.map("flows")?))
    }

    /// The events of the chains: connections, subflows, blocked announcements. `None` if nothing is loaded.
    ///
    /// # Errors
    /// [`EngineError::EventsTaken`], or the kernel rejected a request.
    pub fn events(&self) -> Result<Option<Events>, EngineError> {
        self.live()?.map(|live| Events::open(&self.namespace, live.objects, false)).transpose()
    }

    /// As [`events`](Engine::events), with an additional event for every packet that a chain matches.
    ///
    /// # Errors
    /// As [`events`](Engine::events).
    pub fn trace(&self) -> Result<Option<Events>, EngineError> {
        self.live()?.map(|live| Events::open(&self.namespace, live.objects, true)).transpose()
    }

    /// Measures the time that chains and actors take, until the result is dropped; it is part of the
    /// [statistics](Engine::statistics). `None` if nothing is loaded.
    ///
    /// # Errors
    /// The kernel rejected a request.
    pub fn measure_time(&self) -> Result<Option<Timing>, EngineError> {
        let Some(live) = self.live()? else { return Ok(None) };
        let request = FeatureRequest::start(Feature::Timing, Arc::clone(&self.namespace), live.objects)?;
        Ok(Some(Timing(request)))
    }

    /// The record of a tracked subflow.
    pub(crate) fn flow(&self, tuple: FourTuple) -> Result<Option<plait_flow>, EngineError> {
        self.live()?.map_or(Ok(None), |live| flows::look_up(live.objects.map("flows")?, tuple))
    }

    /// Calls `work` in the engine's network namespace.
    pub(crate) fn run_in_namespace<T: Send>(
        &self,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, EngineError> {
        self.namespace.enter(|| Ok(work()))
    }

    /// What is loaded, after recovery if a command was interrupted.
    fn live(&self) -> Result<Option<Live>, EngineError> {
        if let Some(live) = Live::open(&self.namespace)? {
            request::disable_abandoned(&self.namespace, &live.objects)?;
            return Ok(Some(live));
        }
        if !self.namespace.exists() {
            return Ok(None);
        }
        self.namespace.enter(|| {
            let _lock = self.namespace.lock()?;
            self.swap().recover()
        })
    }

    /// Changes which policies are loaded.
    fn change(
        &self,
        change: impl FnOnce(&mut Change) -> Result<(), EngineError> + Send,
    ) -> Result<(), EngineError> {
        if !self.namespace.exists()
            && let Err(error) = clean_leftovers()
        {
            tracing::warn!(
                "{error}: cannot clean up after a deleted network namespace; run `plait doctor --clean`"
            );
        }
        self.namespace.enter(|| {
            let _lock = self.namespace.lock()?;
            let mut swap = self.swap();
            let live = swap.recover()?;
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

    /// Changes the record of a subflow; `false`: it is not tracked. A concurrent update by a packet is lost.
    pub(crate) fn change_flow(
        &self,
        tuple: FourTuple,
        change: impl FnOnce(&mut plait_flow),
    ) -> Result<bool, EngineError> {
        self.live()?.map_or(Ok(false), |live| flows::change(live.objects.map("flows")?, tuple, change))
    }

    fn swap(&self) -> Swap<'_> {
        Swap {
            namespace: &self.namespace,
            avoided_modes: &self.avoided_modes,
            prefer_xdp: self.prefer_xdp,
            lease: None,
        }
    }
}

/// A change of the set of loaded policies.
struct Change<'a> {
    /// The current state.
    before: &'a State,
    /// The policies to load: initially all that are loaded and have not expired.
    loaded: Vec<Leased>,
    /// Expired policies, which the change removes.
    lapsed: Vec<String>,
    /// The lease to renew.
    lease: Option<(u32, Duration)>,
}

impl Change<'_> {
    fn add(&mut self, policy: &Policy, lease: u32) -> Result<(), EngineError> {
        policy.check()?;
        let leased = (policy.clone(), lease);
        match self.loaded.iter_mut().find(|(other, _)| other.name == policy.name) {
            Some(other) => *other = leased,
            None => self.loaded.push(leased),
        }
        Ok(())
    }
}

/// Removes what policies of deleted network namespaces have left; returns the removed directories.
///
/// # Errors
/// Something cannot be removed.
pub fn clean_leftovers() -> Result<Vec<PathBuf>, EngineError> {
    let files = Arc::new(BpfFiles::find()?);
    let mut removed = Vec::new();
    for inode in namespace::namespaces(&files)? {
        let directories = Directories { files: Arc::clone(&files), inode };
        let _lock = directories.lock()?;
        // A state that cannot be read was left by another version of this program.
        let states = [State::loaded(&directories.state()), State::next(&directories.state())];
        let known = states.into_iter().flatten().flatten().map(|state| state.namespace).next();
        let living = namespace::living(inode);
        // A namespace without a name and a process may still be kept alive by an open descriptor.
        let held_open = living.is_none() && attach::any_attached(&directories.links());
        let is_gone = living.is_none() || (known.is_some() && known != living);
        if is_gone && !held_open {
            removed.extend(directories.remove()?);
        }
    }
    Ok(removed)
}
