//! Removes labs by their run id: namespaces, the processes in them, and directories.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use plait_linux::has_ended;
use plait_linux::netns::{self, Identity, NetNs};
use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;

/// Namespaces are named `plait-RUN-HOST`, with the run id and the host's name.
pub(crate) const NAMESPACE_PREFIX: &str = "plait-";
/// The directory of a lab, in plait's run directory, is named `lab-RUN`.
pub(crate) const DIRECTORY_PREFIX: &str = "lab-";
/// How long killed processes may take to end.
const KILL_LIMIT: Duration = Duration::from_secs(3);

/// Leftovers that were removed.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Names of network namespaces.
    pub namespaces: Vec<String>,
    /// Directories of labs.
    pub directories: Vec<PathBuf>,
}

/// Removes the namespaces, processes and files of labs whose owner process has ended.
pub fn remove_leftovers() -> Result<Leftovers, Error> {
    remove_runs(is_gone)
}

pub(crate) fn remove_runs(chosen: impl Fn(&str) -> bool) -> Result<Leftovers, Error> {
    let run_of =
        |namespace: &str| Some(namespace.strip_prefix(NAMESPACE_PREFIX)?.rsplit_once('-')?.0.to_owned());
    let mut namespaces = netns::list().map_err(Error::Namespace)?;
    namespaces.retain(|namespace| run_of(namespace).is_some_and(|run| chosen(&run)));
    end_processes(&namespaces);
    for namespace in &namespaces {
        remove_namespace(namespace)?;
    }
    let mut directories = Vec::new();
    let directory = plait_linux::run_directory().map_err(Error::RunDirectory)?;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(DIRECTORY_PREFIX))
            .is_some_and(&chosen)
        {
            remove_directory(&entry.path());
            directories.push(entry.path());
        }
    }
    Ok(Leftovers { namespaces, directories })
}

/// Whether the process with this run id has ended.
pub(crate) fn is_gone(run: &str) -> bool {
    let pid = run.split('-').next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    pid.is_some_and(has_ended)
}

/// Removes a namespace of a lab if it exists.
pub(crate) fn remove_namespace(namespace: &str) -> Result<(), Error> {
    match netns::delete(namespace) {
        // It was never created, or another run removed it at the same time.
        Err(_) if netns::list().is_ok_and(|names| names.iter().all(|name| name != namespace)) => Ok(()),
        removed => removed.map_err(Error::Namespace),
    }
}

/// Kills the processes in these namespaces, which would keep the namespaces alive.
pub(crate) fn end_processes(namespaces: &[String]) {
    let identity = |name: &String| NetNs::named(name).ok()?.identity().ok();
    let identities: Vec<Identity> = namespaces.iter().filter_map(identity).collect();
    let end = Instant::now() + KILL_LIMIT;
    loop {
        let pids = pids_in(&identities);
        if pids.is_empty() || Instant::now() >= end {
            return;
        }
        for pid in pids {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(Duration::from_millis(2));
    }
}

/// The processes whose main thread is in one of these namespaces.
fn pids_in(namespaces: &[Identity]) -> Vec<Pid> {
    if namespaces.is_empty() {
        return Vec::new();
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let inside = |directory: &Path| {
        let namespace = fs::metadata(directory.join("ns/net")).ok()?;
        let identity = Identity { device: namespace.dev(), inode: namespace.ino() };
        namespaces.contains(&identity).then_some(())
    };
    processes
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            inside(&entry.path()).map(|()| pid)
        })
        .collect()
}

pub(crate) fn remove_directory(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("could not remove {}: {error}", path.display());
    }
}
