//! What stands between a controller and the host: views one way, what shall hold the other.

use std::mem;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::{diag, netlink, pm};

use super::begun::Begun;
use super::guard::Guard;
use super::view::{View, Viewer};
use super::wishes::{Known, Wishes};
use super::{Action, Failure};
use crate::engine::Ends;
use crate::inject::{InjectError, Injector};
use crate::specification::SpecificationError;
use crate::{Engine, Hook, Policy, engine};

/// Why a controller's loop ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The controller failed.
    #[error("the controller failed: {0}")]
    Controller(Failure),
    /// It asked for chains that cannot be.
    #[error("the controller asked for what cannot be: {0}")]
    Policy(#[from] SpecificationError),
    /// Its policy cannot be loaded or removed.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The connections of this host cannot be listed.
    #[error(transparent)]
    View(#[from] diag::Error),
    /// Nor its interfaces.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(netlink::Error),
    /// Somebody else loaded a policy under its name.
    #[error("another one has replaced the controller's policy '{0}'")]
    Replaced(String),
}

/// One controller's hold on the network namespace of the thread that began it. What it applied is taken back when it is
/// dropped.
#[derive(Debug)]
pub struct Control {
    engine: Engine,
    viewer: Viewer,
    manager: Option<pm::PathManager>,
    name: String,
    expiry: Duration,
    wishes: Wishes,
    begun: Begun,
    /// Who has not been told yet that a subflow is a backup, or no longer.
    untold: Vec<(Ends, Hook, bool)>,
    /// What is loaded under the name, as far as this knows.
    loaded: Option<Policy>,
    guard: Guard,
}

impl Control {
    /// Begins under this name, which is that of the policy it will load. If one of the name is loaded, it stays in force
    /// until the first [`apply`](Control::apply) replaces it.
    ///
    /// # Errors
    /// It cannot be a policy's name, or the host cannot be asked.
    pub fn begin(name: &str, expiry: Duration) -> Result<Control, Error> {
        Control::with(Engine::current()?, name, expiry)
    }

    /// The same, of an engine of the thread's network namespace.
    pub(super) fn with(engine: Engine, name: &str, expiry: Duration) -> Result<Control, Error> {
        let mut wishes = Wishes::default();
        wishes.policy(name, &[], Instant::now(), expiry).check()?;
        Ok(Control {
            engine,
            viewer: Viewer::open()?,
            manager: None,
            name: name.into(),
            expiry,
            wishes,
            begun: Begun::default(),
            untold: Vec::new(),
            loaded: None,
            guard: Guard::default(),
        })
    }

    /// Has a command run, from the first [`Action::Backup`] on, which calls [`guard`](super::guard) with the name: without
    /// it, subflows stay backups if this process is killed.
    pub fn guarded_by(mut self, command: Command) -> Control {
        self.guard = Guard::new(command);
        self
    }

    /// What there is now.
    ///
    /// # Errors
    /// The kernel does not list connections or interfaces.
    pub fn view(&mut self) -> Result<View, Error> {
        let view = self.viewer.view(self.engine.flows()?)?;
        self.begun.tell(&self.engine, &view)?;
        self.wishes.see(&view);
        Ok(view)
    }

    /// Makes this, and nothing else, hold until the next call, or until the expiry; what the path manager refused to do
    /// is returned, as a connection may have ended since the view.
    ///
    /// # Errors
    /// What was asked for cannot be, or somebody else took the name; what was said before holds until its expiry.
    pub fn apply(&mut self, actions: &[Action]) -> Result<Vec<pm::Error>, Error> {
        let found = self.engine.policy(&self.name)?;
        let over = found.as_ref().is_none_or(|found| found.remaining == Some(Duration::ZERO));
        let found = found.map(|found| found.policy);
        match (&self.loaded, &found) {
            (None, Some(found)) => self.wishes.take_over(found),
            // It lapsed, and was taken back, while this process had to wait for long.
            (Some(_), _) if over => self.wishes.begin_anew(),
            _ => {}
        }
        let policy = self.wishes.policy(&self.name, actions, Instant::now(), self.expiry);
        if self.loaded.is_some() && found.is_some() && found != self.loaded {
            self.loaded = None;
            return Err(Error::Replaced(self.name.clone()));
        }
        let holds = found.is_some() && self.loaded.as_ref() == Some(&policy);
        if !holds || !self.engine.renew(&self.name, self.expiry)? {
            self.engine.load_for(&policy, self.expiry)?;
            self.loaded = Some(policy);
        }
        if self.wishes.has_backups() {
            self.guard.stand();
        }
        self.tell_turned();
        Ok(actions.iter().filter_map(|action| self.act(action).err()).collect())
    }

    /// Takes back what a policy of this name has left that has lapsed, and removes it.
    ///
    /// # Errors
    /// As those of [`view`](Control::view) and [`apply`](Control::apply).
    pub(super) fn end_lapsed(mut self, lapsed: &Policy) -> Result<(), Error> {
        self.view()?;
        self.wishes.take_over(lapsed);
        self.wishes.policy(&self.name, &[], Instant::now(), self.expiry);
        // At once: its chains say nothing any more, and it takes time to load others.
        self.tell_turned();
        self.apply(&[])?;
        self.end()
    }

    /// Takes back what holds; dropping does too, and says nothing of what went wrong.
    ///
    /// # Errors
    /// The policy cannot be removed. It expires.
    pub fn end(mut self) -> Result<(), Error> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<(), Error> {
        let Some(loaded) = self.loaded.take() else { return Ok(()) };
        let done = self.unload(loaded);
        if done.is_err() {
            self.guard.leave();
        }
        done
    }

    fn unload(&mut self, loaded: Policy) -> Result<(), Error> {
        if self.engine.policy(&self.name)?.map(|found| found.policy) != Some(loaded) {
            return Ok(());
        }
        let last = self.wishes.policy(&self.name, &[], Instant::now(), self.expiry);
        if !last.chains.is_empty() {
            // As long as chains say that subflows are backups, nobody else can say otherwise.
            self.engine.load_for(&last, self.expiry)?;
            self.tell_turned();
            for pause in PAUSES.into_iter().map(Duration::from_millis) {
                if self.untold.is_empty() {
                    break;
                }
                thread::sleep(pause);
                self.view()?;
                self.tell_turned();
            }
        }
        self.engine.unload(&self.name)?;
        Ok(())
    }

    /// Tells the ends of subflows whether they are backups. Chains do so with the packets that pass; where none do, and
    /// after the end, when there are no chains, a packet is made for it.
    fn tell_turned(&mut self) {
        let turned = self.wishes.take_turned();
        let mut untold = mem::take(&mut self.untold);
        untold.retain(|(ends, ..)| turned.iter().all(|(other, _)| other != ends));
        untold.retain(|(ends, hook, backup)| match (hook, self.wishes.known(ends)) {
            (_, None) => false,
            // While data comes in, a packet that is made up is soon behind it, and not taken: this host says itself what
            // it has taken.
            (Hook::Ingress, Some(Known { backup_remote: Some(is), .. })) => {
                is != backup && {
                    self.tell(*ends, *hook, *backup);
                    true
                }
            }
            _ => !self.tell(*ends, *hook, *backup),
        });
        // What this host has said of these is older than their turn.
        for (ends, backup) in turned {
            let Some(known) = self.wishes.known(&ends) else { continue };
            if !self.tell(ends, Hook::Egress, backup) {
                untold.push((ends, Hook::Egress, backup));
            }
            if !self.tell(ends, Hook::Ingress, backup) || known.backup_remote.is_some() {
                untold.push((ends, Hook::Ingress, backup));
            }
        }
        self.untold = untold;
    }

    /// `false`: not yet, as too little is known of the subflow.
    fn tell(&self, ends: Ends, hook: Hook, backup: bool) -> bool {
        match Injector::new(&self.engine).set_backup(ends, hook, backup) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!("{error}");
                !matches!(error, InjectError::Unknown(_) | InjectError::TooEarly(_))
            }
        }
    }

    /// Does what is not a chain.
    fn act(&mut self, action: &Action) -> Result<(), pm::Error> {
        match action {
            Action::Create { token, local, remote, remote_id } => {
                self.manager()?.subflow_create(*token, local, *remote, *remote_id)
            }
            Action::Remove { token, subflow: Ends { local, remote } } => {
                self.manager()?.subflow_destroy(*token, *local, *remote)
            }
            Action::Log(text) => {
                tracing::info!("{}: {text}", self.name);
                Ok(())
            }
            Action::Chain(_) | Action::Pace { .. } | Action::Limit { .. } | Action::Backup { .. } => Ok(()),
        }
    }

    fn manager(&mut self) -> Result<&pm::PathManager, pm::Error> {
        Ok(match &mut self.manager {
            Some(manager) => manager,
            none => none.insert(pm::PathManager::open()?),
        })
    }
}

/// How long to wait, in milliseconds, before telling again in the end who may not have heard it.
const PAUSES: [u64; 3] = [100, 200, 400];

impl Drop for Control {
    fn drop(&mut self) {
        if let Err(error) = self.take_back() {
            tracing::warn!("{error}; it expires");
        }
    }
}
