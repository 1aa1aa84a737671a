//! The directories, lock and identity of a network namespace's engine.
//!
//! Below the run directory (`/run/plait`):
//! - `policy/N/`, with N the inode number of the namespace: the state (state.rs); and `policy/N.lock`, held during
//!   changes;
//! - `bpf/`: a BPF file system with the pins in `N/maps`, `N/programs` and `N/links`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plait_linux::bpf_files::BpfFiles;
use plait_linux::is_same_file;
use plait_linux::netns::{self, Identity, NetNs};
use rustix::fs::{FlockOperation, flock};

use super::error::EngineError;
use super::sys;

/// The inode numbers of namespaces that have or had an engine.
pub(super) fn namespaces(files: &BpfFiles) -> Result<Vec<u64>, EngineError> {
    let mut found = Vec::new();
    for directory in [states(files), files.root()] {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other.map_err(EngineError::directory("read", &directory))?,
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        found.extend(names.filter_map(|name| {
            let name = name.to_str()?;
            name.strip_suffix(LOCK).unwrap_or(name).parse::<u64>().ok()
        }));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn states(files: &BpfFiles) -> PathBuf {
    files.run_directory().join("policy")
}

/// The directories of one namespace's engine.
#[derive(Debug)]
pub(super) struct Directories {
    pub(super) files: Arc<BpfFiles>,
    /// The inode number of the namespace.
    pub(super) inode: u64,
}

impl Directories {
    /// The directory of the state.
    pub(super) fn state(&self) -> PathBuf {
        states(&self.files).join(self.inode.to_string())
    }

    /// The directory of pins.
    pub(super) fn pins(&self) -> PathBuf {
        self.files.root().join(self.inode.to_string())
    }

    /// The directory of pinned links.
    pub(super) fn links(&self) -> PathBuf {
        self.pins().join("links")
    }

    /// Whether anything is or was loaded.
    pub(super) fn exists(&self) -> bool {
        self.state().exists() || self.pins().exists()
    }

    /// Acquires the lock for changes, waiting for other processes.
    pub(super) fn lock(&self) -> Result<Lock<'_>, EngineError> {
        let (directory, path) = (states(&self.files), self.lock_path());
        loop {
            create(&directory)?;
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = match file {
                // The previous owner has just removed the directory.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(EngineError::directory("open", &path))?,
            };
            rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
                .map_err(|error| EngineError::directory("lock", &path)(error.into()))?;
            // It may have removed the file as well: then this lock excludes nobody.
            if is_same_file(&file, &path) {
                return Ok(Lock { directories: self, _file: file });
            }
        }
    }

    /// Creates the directory of the state.
    pub(super) fn create_state(&self) -> Result<(), EngineError> {
        create(&self.state())
    }

    /// Creates all directories, and mounts the BPF file system.
    pub(super) fn create(&self) -> Result<(), EngineError> {
        self.create_state()?;
        let pins = self.pins();
        self.files.mount_for(&pins)?;
        ["maps", "programs", "links"].into_iter().try_for_each(|directory| create(&pins.join(directory)))
    }

    /// Removes the directories and returns which ones; unpinning frees maps and programs and detaches links.
    pub(super) fn remove(&self) -> Result<Vec<PathBuf>, EngineError> {
        let mut removed = Vec::new();
        // The state goes last: as long as it exists, an interrupted removal is resumed.
        for directory in [self.pins(), self.state()] {
            match fs::remove_dir_all(&directory) {
                Ok(()) => removed.push(directory),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(EngineError::directory("remove", &directory)(error)),
            }
        }
        self.files.unmount_if_empty()?;
        Ok(removed)
    }

    fn lock_path(&self) -> PathBuf {
        states(&self.files).join(format!("{}{LOCK}", self.inode))
    }
}

/// Held during changes.
pub(super) struct Lock<'a> {
    directories: &'a Directories,
    _file: File,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if !self.directories.state().exists() {
            // Without a state nothing else may stay; what cannot be removed now is cleaned up later.
            let _ = fs::remove_file(self.directories.lock_path());
            let _ = remove_if_empty(&states(&self.directories.files));
        }
    }
}

/// A network namespace and its directories.
#[derive(Debug)]
pub(super) struct Namespace {
    directories: Directories,
    /// The cookie of the namespace, unique until reboot.
    pub(super) cookie: u64,
    /// Distinguishes the namespace from others with the same inode number, before and after a reboot.
    pub(super) id: String,
    netns: NetNs,
    identity: Identity,
}

impl Namespace {
    /// The namespace of the calling thread.
    pub(super) fn current() -> Result<Namespace, EngineError> {
        let namespace = NetNs::current().map_err(EngineError::Namespace)?;
        let identity = namespace.identity().map_err(EngineError::Namespace)?;
        let cookie = sys::namespace_cookie().map_err(EngineError::Namespace)?;
        let directories = Directories { files: Arc::new(BpfFiles::find()?), inode: identity.inode };
        Ok(Namespace { directories, cookie, id: identifier(cookie), netns: namespace, identity })
    }

    /// Calls `work` inside the namespace.
    pub(super) fn enter<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, EngineError> + Send,
    ) -> Result<T, EngineError> {
        let current =
            NetNs::current().and_then(|namespace| namespace.identity()).map_err(EngineError::Namespace)?;
        if current == self.identity {
            work()
        } else {
            self.netns.run(work).map_err(EngineError::Namespace)?
        }
    }
}

impl Deref for Namespace {
    type Target = Directories;

    fn deref(&self) -> &Directories {
        &self.directories
    }
}

/// The identifier of the existing namespace with this inode number, if it has a process or a name.
pub(super) fn living(inode: u64) -> Option<String> {
    let device = NetNs::current().and_then(|namespace| namespace.identity()).ok()?.device;
    let cookie = netns::find(Identity { device, inode })?.run(sys::namespace_cookie).ok()?.ok()?;
    Some(identifier(cookie))
}

/// Includes the boot identifier, as cookies repeat after a reboot and the run directory may be on a disk.
fn identifier(cookie: u64) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{cookie} since boot {}", boot.trim())
}

fn create(directory: &Path) -> Result<(), EngineError> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(EngineError::directory("create", directory)(error))
        }
        _ => Ok(()),
    }
}

fn remove_if_empty(directory: &Path) -> Result<(), EngineError> {
    match fs::remove_dir(directory) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Err(EngineError::directory("remove", directory)(error))
        }
        _ => Ok(()),
    }
}

const LOCK: &str = ".lock";
