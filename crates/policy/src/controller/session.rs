//! Applies a controller's actions to the host, and takes the views it decides on.

use std::mem;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::pm;

use super::action::Action;
use super::backfill::Backfill;
use super::desired::DesiredState;
use super::error::ControllerError;
use super::guard_process::GuardProcess;
use super::view::{Sampler, View};
use crate::engine::{Engine, FourTuple};
use crate::inject::{InjectError, Injector};
use crate::model::{Hook, Policy};

/// A controller at work in the network namespace of the thread that started it. Dropping it reverts what it applied.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    sampler: Sampler,
    manager: Option<pm::PathManager>,
    name: String,
    expiry: Duration,
    desired: DesiredState,
    backfill: Backfill,
    pending_priorities: Vec<PendingPriority>,
    /// The policy this session loaded last.
    loaded: Option<Policy>,
    /// When this session last began to load or renew it.
    renewed: Instant,
    guard: GuardProcess,
}

impl Session {
    /// Starts a session whose policy has this name. A loaded policy with this name stays in force until the first
    /// [`apply`](Session::apply) replaces it.
    ///
    /// # Errors
    /// The name is invalid as a policy name, or a system call failed.
    pub fn start(name: &str, expiry: Duration) -> Result<Session, ControllerError> {
        Session::with_engine(Engine::current()?, name, expiry)
    }

    /// As [`start`](Session::start), with an engine of the current network namespace.
    pub(super) fn with_engine(
        engine: Engine,
        name: &str,
        expiry: Duration,
    ) -> Result<Session, ControllerError> {
        let mut desired = DesiredState::default();
        desired.policy(name, &[], Instant::now(), expiry).check()?;
        Ok(Session {
            engine,
            sampler: Sampler::open()?,
            manager: None,
            name: name.into(),
            expiry,
            desired,
            backfill: Backfill::default(),
            pending_priorities: Vec::new(),
            loaded: None,
            renewed: Instant::now(),
            guard: GuardProcess::default(),
        })
    }

    /// From the first [`Action::Backup`] on, runs a command that calls [`guard`](super::guard()) with the name. Without
    /// it, subflows stay backups if this process is killed.
    pub fn with_guard(mut self, command: Command) -> Session {
        self.guard = GuardProcess::new(command);
        self
    }

    /// The current state of this host's connections.
    ///
    /// # Errors
    /// Connections or interfaces cannot be listed.
    pub fn view(&mut self) -> Result<View, ControllerError> {
        let view = self.sampler.view(self.engine.flows()?)?;
        self.backfill.update(&self.engine, &view)?;
        self.desired.observe(&view);
        Ok(view)
    }

    /// Puts exactly these actions in force until the next call or the expiry. Returns the operations that the path manager
    /// rejected; connections may have ended since the view.
    ///
    /// # Errors
    /// The actions form an invalid policy, or another process took the name; earlier actions stay in force until they
    /// expire.
    pub fn apply(&mut self, actions: &[Action]) -> Result<Vec<pm::Error>, ControllerError> {
        let found = self.engine.policy(&self.name)?;
        let expired = found.as_ref().is_none_or(|found| found.remaining == Some(Duration::ZERO));
        // This process may be stalled anywhere, also after the check and before it renews the policy.
        let may_have_expired = expired || self.renewed.elapsed() >= self.expiry;
        self.renewed = Instant::now();
        let found = found.map(|found| found.policy);
        match (&self.loaded, &found) {
            (None, Some(found)) => self.desired.adopt(found),
            // The guard may have reverted it.
            (Some(_), _) if may_have_expired => self.desired.reset(),
            _ => {}
        }
        self.keep_clearing();
        let policy = self.desired.policy(&self.name, actions, Instant::now(), self.expiry);
        if self.loaded.is_some() && found.is_some() && found != self.loaded {
            self.loaded = None;
            return Err(ControllerError::Replaced(self.name.clone()));
        }
        if self.desired.has_backups() {
            self.guard.ensure_running();
        }
        let unchanged = found.is_some() && self.loaded.as_ref() == Some(&policy);
        if !unchanged || !self.engine.renew(&self.name, self.expiry)? {
            self.engine.load_leased(&policy, self.expiry)?;
            self.loaded = Some(policy);
        }
        self.guard.policy_loaded();
        self.inject_priorities();
        Ok(actions.iter().filter_map(|action| self.act(action).err()).collect())
    }

    /// Reverts what a lapsed policy of this name has left, and removes it.
    ///
    /// # Errors
    /// As for [`view`](Session::view) and [`apply`](Session::apply).
    pub(super) fn revert_lapsed(mut self, lapsed: &Policy) -> Result<(), ControllerError> {
        self.view()?;
        self.desired.adopt(lapsed);
        self.desired.policy(&self.name, &[], Instant::now(), self.expiry);
        // Before loading chains, which takes time: the lapsed ones have no effect any more.
        self.inject_priorities();
        self.apply(&[])?;
        self.finish()
    }

    /// Reverts the actions in force, as dropping does, and reports errors.
    ///
    /// # Errors
    /// The policy cannot be removed; it will expire.
    pub fn finish(mut self) -> Result<(), ControllerError> {
        self.revert()
    }

    fn revert(&mut self) -> Result<(), ControllerError> {
        let Some(loaded) = self.loaded.take() else { return Ok(()) };
        let result = self.unload(loaded);
        if result.is_err() {
            self.guard.detach();
        }
        result
    }

    fn unload(&mut self, loaded: Policy) -> Result<(), ControllerError> {
        if self.engine.policy(&self.name)?.map(|found| found.policy) != Some(loaded) {
            return Ok(());
        }
        let last = self.desired.policy(&self.name, &[], Instant::now(), self.expiry);
        if !last.chains.is_empty() {
            // Replace the chains that set the backup flag first: they would overwrite injected MP_PRIO options.
            self.engine.load_leased(&last, self.expiry)?;
            self.inject_priorities();
            let start = Instant::now();
            while !self.pending_priorities.is_empty() && start.elapsed() < REVERT_TIMEOUT {
                thread::sleep(RETRY_INTERVAL);
                self.engine.renew(&self.name, self.expiry)?;
                self.view()?;
                self.inject_priorities();
            }
        }
        self.engine.unload(&self.name)?;
        Ok(())
    }

    /// Keeps the chains of former backups whose new flag is not confirmed: without them nothing records the sequence numbers
    /// that an injected packet needs.
    fn keep_clearing(&mut self) {
        for one in self.pending_priorities.iter().filter(|one| !one.backup) {
            self.desired.keep_clearing(one.tuple, Instant::now(), self.expiry);
        }
    }

    /// Injects MP_PRIO into subflows whose backup flag changed. Chains add it to passing packets; an idle subflow, and one
    /// whose chains were removed, needs an injected packet. While data arrives, an injected packet is quickly outdated and
    /// discarded: so it is repeated.
    fn inject_priorities(&mut self) {
        let changed = self.desired.take_changed();
        let mut pending = mem::take(&mut self.pending_priorities);
        pending.retain(|one| changed.iter().all(|(other, _)| *other != one.tuple));
        let all_changed = changed.into_iter().flat_map(|(tuple, backup)| {
            [Hook::Egress, Hook::Ingress].map(|hook| PendingPriority { tuple, hook, backup, injected: 0 })
        });
        pending.extend(all_changed);
        pending.retain_mut(|one| {
            let Some(info) = self.desired.subflow(&one.tuple) else { return false };
            // The flag that the kernel reports at first may predate the change.
            if one.injected > 0 && one.hook == Hook::Ingress && info.backup_remote == Some(one.backup) {
                return false;
            }
            one.injected += u32::from(self.inject(one.tuple, one.hook, one.backup));
            one.hook == Hook::Ingress && info.backup_remote.is_some() || one.injected < UNCONFIRMED_INJECTIONS
        });
        self.pending_priorities = pending;
    }

    /// Injects MP_PRIO; `false`: too little is known about the subflow yet.
    fn inject(&self, tuple: FourTuple, hook: Hook, backup: bool) -> bool {
        match Injector::new(&self.engine).set_backup(tuple, hook, backup) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!("{error}");
                !matches!(error, InjectError::Unknown(_) | InjectError::TooEarly(_))
            }
        }
    }

    /// Performs the actions that are not chains.
    fn act(&mut self, action: &Action) -> Result<(), pm::Error> {
        match action {
            Action::Create { token, local, remote, remote_id } => {
                self.path_manager()?.subflow_create(*token, local, *remote, *remote_id)
            }
            Action::Remove { token, subflow: FourTuple { local, remote } } => {
                self.path_manager()?.subflow_destroy(*token, *local, *remote)
            }
            Action::Log(text) => {
                tracing::info!("{}: {text}", self.name);
                Ok(())
            }
            Action::Chain(_) | Action::Pace { .. } | Action::Limit { .. } | Action::Backup { .. } => Ok(()),
        }
    }

    fn path_manager(&mut self) -> Result<&pm::PathManager, pm::Error> {
        Ok(match &mut self.manager {
            Some(manager) => manager,
            none => none.insert(pm::PathManager::open()?),
        })
    }
}

/// An MP_PRIO option to inject until it is known, or likely, to be received.
#[derive(Debug)]
struct PendingPriority {
    tuple: FourTuple,
    hook: Hook,
    backup: bool,
    /// How often it was injected.
    injected: u32,
}

/// How often to inject an option whose arrival is not reported: that of one to the peer.
const UNCONFIRMED_INJECTIONS: u32 = 4;

/// How long to wait before each repetition when a session ends.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// When to give up on repetitions when a session ends. They end as soon as the kernel reports the new flags; busy
/// processors delay that.
const REVERT_TIMEOUT: Duration = Duration::from_secs(5);

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.revert() {
            tracing::warn!("{error}; the policy will expire");
        }
    }
}
