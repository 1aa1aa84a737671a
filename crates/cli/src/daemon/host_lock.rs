//! One daemon at a time redirects the connections of a network namespace: it holds the lock on a file that names its process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use plait_linux::{is_same_file, netns};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Pid;

/// How long a lock is waited for: processes that check whether it is held take it for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// How the names of a host-wide daemon's files begin: not as a process's file, which others would remove.
const HOST_FILE_PREFIX: &str = "host.";

/// The kind of the lock's file.
pub(crate) const LOCK: &str = "lock";

/// The lock, held until dropped or until the process ends.
pub(crate) struct HostLock {
    file: File,
}

impl HostLock {
    /// Takes the lock of the current network namespace.
    pub(crate) fn acquire() -> anyhow::Result<HostLock> {
        let path = HostLock::path()?;
        let give_up = Instant::now() + LOCK_TIMEOUT;
        loop {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = file.with_context(|| format!("cannot open {}", path.display()))?;
            if !try_lock(&file, &path)? {
                if Instant::now() < give_up {
                    thread::sleep(LOCK_TIMEOUT / 10);
                    continue;
                }
                bail!(
                    "the connections of this host are redirected already, by process {}: `plait down` stops it",
                    process_in(&file)?
                );
            }
            // The holder before may have removed the file.
            if is_same_file(&file, &path) {
                let lock = HostLock { file };
                lock.name_process()?;
                return Ok(lock);
            }
        }
    }

    /// The lock that another process holds as well. It names this process once that is [told](Self::name_process).
    pub(super) fn inherit(descriptor: OwnedFd) -> HostLock {
        HostLock { file: descriptor.into() }
    }

    /// A further descriptor, for another process that holds it then as well.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Names this process as its holder.
    pub(super) fn name_process(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(std::process::id().to_string().as_bytes(), 0)
    }

    /// The process that holds it.
    pub(crate) fn holder() -> anyhow::Result<Option<Pid>> {
        let path = HostLock::path()?;
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("cannot open {}", path.display()))?,
        };
        if try_lock(&file, &path)? {
            return Ok(None);
        }
        Ok(Pid::from_raw(process_in(&file)?))
    }

    /// Removes the files of processes that were killed, also those of namespaces that are gone. Returns their paths.
    pub(crate) fn clean_leftovers() -> anyhow::Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        for entry in fs::read_dir(plait_linux::run_directory()?)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let kind = name.strip_prefix(HOST_FILE_PREFIX).and_then(|name| name.split_once('.'));
            if kind.is_none_or(|(_, kind)| kind != LOCK) {
                continue;
            }
            let file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.with_context(|| format!("cannot open {}", path.display()))?,
            };
            // The lock is held until the file is removed; a process that waits for it then opens the new file.
            if try_lock(&file, &path)? && is_same_file(&file, &path) {
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
                removed.push(path);
            }
        }
        Ok(removed)
    }

    /// Its file.
    pub(super) fn path() -> anyhow::Result<PathBuf> {
        host_file(LOCK)
    }
}

/// Whether the lock was free, and is held now.
fn try_lock(file: &File, path: &Path) -> anyhow::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// The process that a file names. One that has just taken the lock will have done so in a moment.
fn process_in(file: &File) -> io::Result<i32> {
    let mut text = [0; 16];
    let length = file.read_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..length]).trim().parse().unwrap_or_default())
}

/// A file of the daemon of this network namespace, in the run directory, by what it is.
pub(crate) fn host_file(kind: &str) -> anyhow::Result<PathBuf> {
    let directory = plait_linux::run_directory()?;
    let namespace =
        netns::cookie().context("this kernel has no cookies of network namespaces (Linux 5.14)")?;
    Ok(directory.join(format!("{HOST_FILE_PREFIX}{namespace}.{kind}")))
}

/// Removes the files of these kinds.
pub(crate) fn remove_files(kinds: &[&str]) -> anyhow::Result<()> {
    for kind in kinds {
        let path = host_file(kind)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
