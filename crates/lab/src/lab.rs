//! The lab: creates hosts and links, and removes them.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::host::Host;
use crate::leftovers::{
    DIRECTORY_PREFIX, NAMESPACE_PREFIX, end_processes, is_gone, remove_directory, remove_namespace,
    remove_runs,
};
use crate::link::Link;
use crate::schedule::{Applied, Schedule};
use crate::seed::Seed;
use crate::services::Service;
use crate::topology::{Action, Event};
use plait_linux::signal::StopSignal;

/// The numbers of the active labs in this process; the run id of lab 0 contains no number.
static ACTIVE: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Hosts, links and services of one run, removed when this is dropped.
///
/// The run id is the process id (`4711`), with a number (`4711-1`) if another lab of the process already has it. It
/// keeps concurrent labs apart, and distinguishes the leftovers of a dead run from an active one.
#[derive(Debug)]
pub struct Lab {
    id: String,
    number: u32,
    scratch: PathBuf,
    pub(crate) stop: StopSignal,
    pub(crate) seed: Seed,
    pub(crate) hosts: Vec<Host>,
    pub(crate) links: Vec<Link>,
    pub(crate) services: Vec<Service>,
    /// The events of the topology, with their links.
    pub(crate) events: Vec<(Link, Event)>,
    schedule: Option<Schedule>,
}

impl Lab {
    /// Creates an empty lab, after removing the leftovers of killed runs. Everything random in it is derived from `seed`. A
    /// signal on `stop` interrupts its waits.
    pub fn new(seed: Seed, stop: StopSignal) -> Result<Self, Error> {
        Self::check_permitted()?;
        let directory = plait_linux::run_directory().map_err(Error::RunDirectory)?;
        let (number, pid) = (take_number(), std::process::id());
        let id = if number == 0 { pid.to_string() } else { format!("{pid}-{number}") };
        // Process ids are reused: leftovers with our id belong to an earlier process.
        if let Err(error) = remove_runs(|run| run == id || is_gone(run)) {
            tracing::warn!("cannot remove what an earlier run left: {error}");
        }
        let scratch = directory.join(format!("{DIRECTORY_PREFIX}{id}"));
        let lab = Self {
            id,
            number,
            scratch,
            stop,
            seed,
            hosts: Vec::new(),
            links: Vec::new(),
            services: Vec::new(),
            events: Vec::new(),
            schedule: None,
        };
        let made = DirBuilder::new().mode(0o700).create(&lab.scratch);
        made.map_err(|source| Error::File { path: lab.scratch.clone(), source })?;
        Ok(lab)
    }

    /// [`Error::NotRoot`] if this process may not create labs.
    pub fn check_permitted() -> Result<(), Error> {
        let uid = rustix::process::geteuid();
        if uid.is_root() { Ok(()) } else { Err(Error::NotRoot { uid: uid.as_raw() }) }
    }

    /// The run id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory for this run's files, readable only by root and removed with the lab.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The hosts, in the order of creation.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host with this name.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is none.
    pub fn find_host(&self, name: &str) -> Result<&Host, Error> {
        find("hosts", &self.hosts, Host::name, name)
    }

    /// The links, in the order of creation.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The link with this name.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is none.
    pub fn find_link(&self, name: &str) -> Result<&Link, Error> {
        find("links", &self.links, Link::name, name)
    }

    /// The services, in the order in which they started.
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// Stops the services, in the order in which they started; everything else stays.
    pub fn end_services(&mut self) {
        self.services.clear();
    }

    /// Applies an action to a link now.
    ///
    /// # Errors
    /// There is no such link, the action does not fit its state, or the kernel refuses it.
    pub fn apply(&self, link: &str, action: &Action) -> Result<(), Error> {
        self.find_link(link)?.apply(action)
    }

    /// Starts the clock of the topology's events. Starting it again has no effect.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_events(&mut self) -> Result<(), Error> {
        if self.schedule.is_none() {
            self.schedule = Some(Schedule::start(self.events.clone())?);
        }
        Ok(())
    }

    /// The events applied since [`start_events`](Self::start_events), with their outcome.
    pub fn applied_events(&self) -> Vec<Applied> {
        self.schedule.as_ref().map(Schedule::applied).unwrap_or_default()
    }

    /// Adds a host in the namespace `plait-ID-NAME`.
    pub(crate) fn add_host(&mut self, name: &str) -> Result<(), Error> {
        let namespace = format!("{NAMESPACE_PREFIX}{}-{name}", self.id);
        self.hosts.push(Host::make(name, &namespace, self.seed, &self.stop)?);
        Ok(())
    }
}

impl Drop for Lab {
    /// Removes everything; programs are ended before the hosts and links that they use.
    fn drop(&mut self) {
        self.schedule = None;
        for service in self.services.drain(..).rev() {
            drop(service);
        }
        let namespaces: Vec<_> = self.hosts.iter().map(|host| host.namespace_name().to_owned()).collect();
        end_processes(&namespaces);
        for link in &self.links {
            link.close();
        }
        for namespace in namespaces {
            if let Err(error) = remove_namespace(&namespace) {
                tracing::warn!("could not remove the namespace {namespace}: {error}");
            }
        }
        remove_directory(&self.scratch);
        active().remove(&self.number);
    }
}

fn find<'a, T>(
    what: &'static str,
    all: &'a [T],
    name_of: fn(&T) -> &str,
    name: &str,
) -> Result<&'a T, Error> {
    let known = || all.iter().map(|one| name_of(one).to_owned()).collect();
    let found = all.iter().find(|one| name_of(one) == name);
    found.ok_or_else(|| Error::Unknown { what, known: known(), got: name.into() })
}

fn take_number() -> u32 {
    let mut active = active();
    let number = (0..).find(|n| !active.contains(n)).expect("fewer than 2^32 labs live at once");
    active.insert(number);
    number
}

fn active() -> MutexGuard<'static, BTreeSet<u32>> {
    // The set is consistent even after a panic.
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}
