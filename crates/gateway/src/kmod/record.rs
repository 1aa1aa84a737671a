//! Which enabler runs in which network namespace, and what one that was killed left behind.
//!
//! An enabler keeps a file in the run directory, `kmod.DEVICE.INODE` after its namespace, locked for as long as it lives: so
//! there is one in a namespace. What it says is whom to end and which rules are its own.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::cgroup;
use plait_linux::netns::{self, Identity, NetNs};
use plait_linux::run_directory;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::module::{Module, ModuleError};

/// An enabler that was asked to end has this long for it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Who only looks at a record has it locked for less than this.
const GLANCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(10);

/// An enabler, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enabled {
    /// Process id.
    pub pid: u32,
    /// The inode of its network namespace (`/proc/PID/ns/net`).
    pub namespace: u64,
    /// The control group whose programs it protects, from the root of the hierarchy.
    pub cgroup: String,
    /// `xor64` or `stream`.
    pub mode: String,
    /// Whether unprotected connections are refused.
    pub require: bool,
    /// The interface by which connections begin.
    pub trusted: Option<String>,
    /// Its rule, as the module was told.
    pub rule: String,
    /// The maps of verdicts that its rules name: more than one until those of a killed one are removed.
    pub verdicts: Vec<u32>,
}

/// The enablers of this user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Enablers {
    /// Those that run.
    pub running: Vec<Enabled>,
    /// Those that were killed and left their rules behind: what they concern is refused.
    pub killed: Vec<Enabled>,
}

/// The file of this process's enabler; locked, and removed when dropped, unless it still says what a killed one left.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    file: File,
    holds_leftovers: bool,
}

/// The place of the enabler of a network namespace.
pub(super) enum Place {
    /// It is this process's now; what a killed one had there.
    Free(Record, Option<Enabled>),
    /// Another one's.
    Taken(Option<Enabled>),
}

impl Record {
    /// Takes the place of the enabler of this thread's network namespace.
    pub(super) fn take() -> io::Result<Place> {
        let path = path_of(NetNs::current()?.identity()?)?;
        let begin = Instant::now();
        loop {
            let mut file = open(&path)?;
            if lock(&file)? {
                // Whoever had it before may have removed it at its end.
                if is_in_place(&path, &file) {
                    let left = read(&mut file);
                    let record = Record { path, file, holds_leftovers: left.is_some() };
                    return Ok(Place::Free(record, left));
                }
            // Somebody may only be looking.
            } else if begin.elapsed() > GLANCE {
                return Ok(Place::Taken(read(&mut file)));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Puts down what this enabler is.
    pub(super) fn write(&mut self, enabled: &Enabled) -> io::Result<()> {
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file.write_all(&serde_json::to_vec(enabled)?)
    }

    /// Somebody else sees to what a killed one left.
    pub(super) fn hand_over_leftovers(&mut self) {
        self.holds_leftovers = false;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.holds_leftovers {
            remove(&self.path, &self.file);
        }
    }
}

/// An empty one that stays says as well that nothing is left behind.
fn remove(path: &Path, file: &File) {
    let _ = file.set_len(0);
    let _ = fs::remove_file(path);
}

/// The enablers of this user, in all network namespaces.
///
/// # Errors
/// The run directory cannot be read.
pub fn enablers() -> io::Result<Enablers> {
    let mut found = Enablers::default();
    for (_, path) in records()? {
        let Ok(mut file) = open(&path) else { continue };
        let list = if lock(&file)? { &mut found.killed } else { &mut found.running };
        list.extend(read(&mut file));
    }
    Ok(found)
}

/// The enabler that runs for a control group and the network namespace in which a process is.
pub(crate) fn enabler_of(pid: u32) -> Option<Enabled> {
    let (cgroup, namespace) = (cgroup::of(pid)?, namespace_of(pid)?);
    let concerns = |enabled: &Enabled| enabled.namespace == namespace && cgroup.starts_with(&enabled.cgroup);
    enablers().ok()?.running.into_iter().find(concerns)
}

/// The inode of a process's network namespace.
pub(super) fn namespace_of(pid: u32) -> Option<u64> {
    NetNs::at(Path::new(&format!("/proc/{pid}/ns/net"))).ok()?.identity().ok().map(|identity| identity.inode)
}

/// Removes the rules that killed enablers left behind, in all network namespaces; what was removed, in words.
///
/// # Errors
/// The run directory cannot be read, or the module does not do it.
pub fn clean_leftovers() -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for (namespace, path) in records()? {
        let mut file = open(&path)?;
        if !lock(&file)? {
            continue;
        }
        if let Some(left) = read(&mut file) {
            clear_in(namespace, &left.verdicts)?;
            removed.push(format!("{} (process {})", left.rule, left.pid));
        }
        remove(&path, &file);
    }
    Ok(removed)
}

/// The enabler of this namespace could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum DisableError {
    /// There is none.
    #[error("no `plait kmod enable` of this user runs in this network namespace")]
    NotEnabled,
    /// It did not end.
    #[error(
        "`plait kmod enable` (process {pid}) has not ended after {} s: kill it, and run `plait doctor --clean`",
        PATIENCE.as_secs()
    )]
    Stubborn {
        /// Process id.
        pid: u32,
    },
    /// The run directory, the process or the module was not to be had.
    #[error("cannot disable: {0}")]
    Failed(#[from] io::Error),
}

/// Ends the enabler of this network namespace in an orderly way, or removes what one that was killed left; which it was.
///
/// # Errors
/// See [`DisableError`].
pub fn disable() -> Result<Enabled, DisableError> {
    let namespace = NetNs::current()?.identity()?;
    let path = path_of(namespace)?;
    if !path.exists() {
        return Err(DisableError::NotEnabled);
    }
    let mut file = open(&path)?;
    let described = read(&mut file);
    if !lock(&file)? {
        let running = described.ok_or(DisableError::NotEnabled)?;
        let pid = i32::try_from(running.pid).ok().and_then(Pid::from_raw).ok_or(DisableError::NotEnabled)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        // Locked still: it is the enabler that was opened, and not who has got its number.
        if !lock(&file)? {
            pidfd_send_signal(&process, Signal::TERM).map_err(io::Error::from)?;
            let begin = Instant::now();
            while !lock(&file)? {
                if begin.elapsed() > PATIENCE {
                    return Err(DisableError::Stubborn { pid: running.pid });
                }
                thread::sleep(PAUSE);
            }
            return Ok(running);
        }
    }
    let left = read(&mut file).ok_or(DisableError::NotEnabled)?;
    clear_in(namespace, &left.verdicts)?;
    remove(&path, &file);
    Ok(left)
}

/// A namespace that is gone, and a module that is, took the rules along.
fn clear_in(namespace: Identity, verdicts: &[u32]) -> io::Result<()> {
    let Some(namespace) = netns::find(namespace) else { return Ok(()) };
    let clear = || verdicts.iter().try_for_each(|&map| Module::clear(map));
    match namespace.run(clear)? {
        Ok(()) | Err(ModuleError::NotLoaded) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn path_of(namespace: Identity) -> io::Result<PathBuf> {
    Ok(run_directory()?.join(format!("kmod.{}.{}", namespace.device, namespace.inode)))
}

fn records() -> io::Result<Vec<(Identity, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run_directory()?)? {
        let path = entry?.path();
        let namespace = path.file_name().and_then(|name| parse(name.to_str()?));
        found.extend(namespace.map(|namespace| (namespace, path)));
    }
    Ok(found)
}

fn parse(name: &str) -> Option<Identity> {
    let (device, inode) = name.strip_prefix("kmod.")?.split_once('.')?;
    Some(Identity { device: device.parse().ok()?, inode: inode.parse().ok()? })
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Locks it, unless an enabler has it.
fn lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_in_place(path: &Path, file: &File) -> bool {
    let inode = |metadata: io::Result<fs::Metadata>| metadata.map(|metadata| metadata.ino()).ok();
    inode(fs::metadata(path)).is_some_and(|there| Some(there) == inode(file.metadata()))
}

fn read(file: &mut File) -> Option<Enabled> {
    let mut text = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut text)).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_named_after_its_namespace() {
        assert_eq!(parse("kmod.4.4026531840"), Some(Identity { device: 4, inode: 4026531840 }));
        for name in ["kmod.4", "kmod.x.1", "gateway-4.sock", "kmod.4.1.2"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn who_is_there_is_left_alone_and_who_was_killed_is_known() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kmod.0.1");
        let (first, second) = (open(&path).expect("a file"), open(&path).expect("a file"));
        assert!(lock(&first).expect("a lock") && !lock(&second).expect("no lock"));
        drop(first);
        assert!(lock(&second).expect("a lock") && is_in_place(&path, &second));
        remove(&path, &second);
        assert!(!path.exists() && !is_in_place(&path, &second));
    }
}
