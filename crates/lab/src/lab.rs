//! The lab itself: it makes hosts and links, and removes them.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use plait_host::netns;
use rustix::process::{Pid, Signal, kill_process};

use crate::process::run;
use crate::{Error, Host, Interrupt, Link, LinkSpec};

/// How namespaces of labs are named: this, the run id, `-`, the host.
const NAMESPACE_PREFIX: &str = "plait-";
/// How the folder of a lab in plait's run folder is named: this and the run id.
const FOLDER_PREFIX: &str = "lab-";
/// How long killed processes may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(3);
/// The kernel's limit for interface names, without the final zero.
const INTERFACE_NAME_LONGEST: usize = 15;

/// The numbers of the labs that live in this process; 0 is the one without a number.
static LIVING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Hosts and links of one run, removed when this is dropped.
///
/// The run id is this process's id (`4711`); if another lab of the process has it, with a number (`4711-1`). So labs
/// live side by side, and a dead run's leftovers are told from a living one's.
#[derive(Debug)]
pub struct Lab {
    id: String,
    number: u32,
    scratch: PathBuf,
    hosts: Vec<Host>,
    links: u8,
    interrupt: Interrupt,
}

impl Lab {
    /// An empty lab, whose waits end when `interrupt` says so. Removes what killed runs left behind.
    pub fn new(interrupt: Interrupt) -> Result<Self, Error> {
        Self::check_permitted()?;
        let folder = plait_host::run_folder().map_err(Error::RunFolder)?;
        let (number, pid) = (take_number(), std::process::id());
        let id = if number == 0 { pid.to_string() } else { format!("{pid}-{number}") };
        // A process id comes back: what carries ours already is not of this process either.
        if let Err(error) = remove_runs(|run| run == id || is_gone(run)) {
            tracing::warn!("what an earlier run left could not be removed: {error}");
        }
        let scratch = folder.join(format!("{FOLDER_PREFIX}{id}"));
        let lab = Self { id, number, scratch, hosts: Vec::new(), links: 0, interrupt };
        let made = DirBuilder::new().mode(0o700).create(&lab.scratch);
        made.map_err(|source| Error::File { path: lab.scratch.clone(), source })?;
        Ok(lab)
    }

    /// [`Error::NotRoot`] unless this process may make labs.
    pub fn check_permitted() -> Result<(), Error> {
        let uid = rustix::process::geteuid();
        if uid.is_root() { Ok(()) } else { Err(Error::NotRoot { uid: uid.as_raw() }) }
    }

    /// The run id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A folder for this run's files, readable by root alone, removed with the lab.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Adds a host. Its namespace is `plait-ID-NAME`.
    pub fn host(&mut self, name: &str) -> Result<Host, Error> {
        check_name(name, "a host", 32)?;
        let namespace = format!("{NAMESPACE_PREFIX}{}-{name}", self.id);
        let host = Host::make(&namespace, &self.interrupt)?;
        self.hosts.push(host.clone());
        Ok(host)
    }

    /// Links two hosts of this lab.
    pub fn link(&mut self, a: &Host, b: &Host, spec: LinkSpec) -> Result<Link, Error> {
        check_name(&spec.name, "a link", INTERFACE_NAME_LONGEST)?;
        self.links = self.links.checked_add(1).filter(|n| *n < u8::MAX).ok_or(Error::TooManyLinks)?;
        Link::make(spec, self.links, a, b)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &self.hosts {
            let namespace = host.namespace_name();
            if let Err(error) = remove_namespace(namespace) {
                tracing::warn!("could not remove the namespace {namespace}: {error}");
            }
        }
        remove_folder(&self.scratch);
        living().remove(&self.number);
    }
}

fn take_number() -> u32 {
    let mut living = living();
    let number = (0..).find(|n| !living.contains(n)).expect("fewer than 2^32 labs live at once");
    living.insert(number);
    number
}

fn living() -> MutexGuard<'static, BTreeSet<u32>> {
    // A set of numbers is whole after any panic.
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes namespaces, the processes in them, and files of labs whose process is gone; gives the namespaces' names.
pub fn remove_leftovers() -> Result<Vec<String>, Error> {
    remove_runs(is_gone)
}

fn remove_runs(chosen: impl Fn(&str) -> bool) -> Result<Vec<String>, Error> {
    let run_of =
        |namespace: &str| Some(namespace.strip_prefix(NAMESPACE_PREFIX)?.rsplit_once('-')?.0.to_owned());
    let mut namespaces = netns::list().map_err(Error::Namespace)?;
    namespaces.retain(|namespace| run_of(namespace).is_some_and(|run| chosen(&run)));
    for namespace in &namespaces {
        remove_namespace(namespace)?;
    }
    let folder = plait_host::run_folder().map_err(Error::RunFolder)?;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().and_then(|name| name.strip_prefix(FOLDER_PREFIX)).is_some_and(&chosen) {
            remove_folder(&entry.path());
        }
    }
    Ok(namespaces)
}

/// Whether this is a run id, and its process no longer there.
fn is_gone(run: &str) -> bool {
    let pid = run.split('-').next().and_then(|pid| pid.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

/// Removes a namespace of a lab, if it is there, and ends what still runs in it: that was started for the lab, and
/// would keep the namespace alive without a name.
fn remove_namespace(namespace: &str) -> Result<(), Error> {
    let removed = end_processes(namespace).and_then(|()| netns::delete(namespace).map_err(Error::Namespace));
    match removed {
        // It was never made, or another run removed the same leftover at the same time.
        Err(_) if netns::list().is_ok_and(|names| names.iter().all(|name| name != namespace)) => Ok(()),
        removed => removed,
    }
}

fn end_processes(namespace: &str) -> Result<(), Error> {
    let end = Instant::now() + KILL_LIMIT;
    loop {
        let pids = pids_in(namespace)?;
        if pids.is_empty() || Instant::now() >= end {
            return Ok(());
        }
        for pid in pids {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(Duration::from_millis(5));
    }
}

fn pids_in(namespace: &str) -> Result<Vec<Pid>, Error> {
    let mut pids = Command::new("ip");
    pids.args(["netns", "pids", namespace]);
    Ok(run(pids)?.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect())
}

fn remove_folder(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("could not remove {}: {error}", path.display());
    }
}

fn check_name(given: &str, what: &'static str, longest: usize) -> Result<(), Error> {
    let fits = (1..=longest).contains(&given.len());
    if fits && given.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Ok(());
    }
    Err(Error::BadName { given: given.into(), what, longest })
}
