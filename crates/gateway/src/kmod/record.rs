//! The records of enablers: at most one runs in a network namespace, and those that were killed can be cleaned up.
//!
//! An enabler keeps a file in the run directory, `kmod.DEVICE.INODE` after its namespace, locked while it runs. It contains
//! the process to stop and the rules to remove.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::cgroup;
use plait_linux::netns::{self, Identity, NetNs};
use plait_linux::{is_same_file, run_directory};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::module::{Module, ModuleError};

/// How long an enabler may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// A process that only reads a record has it locked for less than this.
const READ_TIME: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// An enabler's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enabled {
    /// Process id.
    pub pid: u32,
    /// The inode of its network namespace (`/proc/PID/ns/net`).
    pub namespace: u64,
    /// The cgroup whose programs it protects, from the root of the hierarchy.
    pub cgroup: String,
    /// `xor64` or `stream`.
    pub mode: String,
    /// Whether unprotected connections are refused.
    pub require: bool,
    /// The interface through which connections start.
    pub trusted: Option<String>,
    /// Its rule in the module.
    pub rule: String,
    /// The maps of verdicts that its rules name: more than one until those of a killed enabler are removed.
    pub verdicts: Vec<u32>,
}

/// The enablers of this user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Enablers {
    /// Those running.
    pub running: Vec<Enabled>,
    /// Those that were killed and left their rules behind, which refuse connections.
    pub killed: Vec<Enabled>,
}

/// This process's record, locked; removed when dropped, unless it still describes what a killed enabler left.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    file: File,
    holds_leftovers: bool,
}

/// The lock of a network namespace's record.
pub(super) enum Lock {
    /// Acquired by this process; with what a killed enabler left.
    Acquired(Record, Option<Enabled>),
    /// Held by another enabler.
    Held(Option<Enabled>),
}

impl Record {
    /// Locks the record of this thread's network namespace.
    pub(super) fn lock() -> io::Result<Lock> {
        let path = path_of(NetNs::current()?.identity()?)?;
        let begin = Instant::now();
        loop {
            let mut file = open(&path)?;
            if lock(&file)? {
                // The previous owner may have removed the file when it stopped.
                if is_same_file(&file, &path) {
                    let left = read(&mut file);
                    let record = Record { path, file, holds_leftovers: left.is_some() };
                    return Ok(Lock::Acquired(record, left));
                }
            // Another process may only be reading it.
            } else if begin.elapsed() > READ_TIME {
                return Ok(Lock::Held(read(&mut file)));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Writes this enabler's description.
    pub(super) fn write(&mut self, enabled: &Enabled) -> io::Result<()> {
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file.write_all(&serde_json::to_vec(enabled)?)
    }

    /// What a killed enabler left has been taken over.
    pub(super) fn discard_leftovers(&mut self) {
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

/// Truncated first: an empty file that cannot be removed means that nothing is left behind.
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

/// The running enabler for a process's cgroup and network namespace.
pub(crate) fn enabler_of(pid: u32) -> Option<Enabled> {
    let (cgroup, namespace) = (cgroup::of(pid)?, namespace_of(pid)?);
    let concerns = |enabled: &Enabled| enabled.namespace == namespace && cgroup.starts_with(&enabled.cgroup);
    enablers().ok()?.running.into_iter().find(concerns)
}

/// The inode of a process's network namespace.
pub(super) fn namespace_of(pid: u32) -> Option<u64> {
    NetNs::at(Path::new(&format!("/proc/{pid}/ns/net"))).ok()?.identity().ok().map(|identity| identity.inode)
}

/// Removes the rules that killed enablers left behind, in all network namespaces, and describes them.
///
/// # Errors
/// The run directory cannot be read, or the module rejects the request.
pub fn clean_leftovers() -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for (namespace, path) in records()? {
        let mut file = match open(&path) {
            // Another process is cleaning up, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
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

/// The enabler of this namespace could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum DisableError {
    /// None is running.
    #[error("no `plait kmod enable` of this user is running in this network namespace")]
    NotEnabled,
    /// It did not stop.
    #[error(
        "`plait kmod enable` (process {pid}) has not stopped after {} s: kill it, and run `plait doctor --clean`",
        STOP_TIMEOUT.as_secs()
    )]
    Timeout {
        /// Process id.
        pid: u32,
    },
    /// The run directory, the process or the module cannot be accessed.
    #[error("cannot disable: {0}")]
    Failed(#[from] io::Error),
}

/// Stops the enabler of this network namespace, or removes what a killed one left; returns its description.
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
        // Still locked: the process id is the enabler's, and was not reused.
        if !lock(&file)? {
            pidfd_send_signal(&process, Signal::TERM).map_err(io::Error::from)?;
            let begin = Instant::now();
            while !lock(&file)? {
                if begin.elapsed() > STOP_TIMEOUT {
                    return Err(DisableError::Timeout { pid: running.pid });
                }
                thread::sleep(POLL_INTERVAL);
            }
            return Ok(running);
        }
    }
    let left = read(&mut file).ok_or(DisableError::NotEnabled)?;
    clear_in(namespace, &left.verdicts)?;
    remove(&path, &file);
    Ok(left)
}

/// Removes rules in a namespace. If it is gone, or the module is, so are the rules.
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

/// Locks a record, unless an enabler has it locked.
fn lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
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
    fn record_is_named_after_its_namespace() {
        assert_eq!(parse("kmod.4.4026531840"), Some(Identity { device: 4, inode: 4026531840 }));
        for name in ["kmod.4", "kmod.x.1", "gateway-4.sock", "kmod.4.1.2"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn running_enabler_holds_the_lock_until_it_ends() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kmod.0.1");
        let (first, second) = (open(&path).expect("a file"), open(&path).expect("a file"));
        assert!(lock(&first).expect("a lock") && !lock(&second).expect("no lock"));
        drop(first);
        assert!(lock(&second).expect("a lock") && is_same_file(&second, &path));
        remove(&path, &second);
        assert!(!path.exists() && !is_same_file(&second, &path));
    }
}
