//! Where the engine of a network namespace keeps what outlives a command.
//!
//! Below the run directory (`/run/plait`):
//! - `policy/N/`, N the namespace's inode number: what is loaded (state.rs), and `policy/N.lock`, held by who changes it;
//! - `bpf/`: a BPF file system of plait's own, and in it `N/maps`, `N/programs` and `N/links`, which keep what they
//!   name in the kernel.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plait_linux::bpf_files::BpfFiles;
use plait_linux::netns::{self, Identity, NetNs};
use rustix::fs::{FlockOperation, flock};

use super::{Error, sys};

/// The inode numbers of namespaces that have or had an engine.
pub(super) fn namespaces(files: &BpfFiles) -> Result<Vec<u64>, Error> {
    let mut found = Vec::new();
    for directory in [states(files), files.root()] {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other.map_err(Error::directory("read", &directory))?,
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

/// The directories of the engine of one namespace.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) files: Arc<BpfFiles>,
    /// The namespace's inode number.
    pub(super) inode: u64,
}

impl Home {
    /// The directory of what is loaded.
    pub(super) fn state(&self) -> PathBuf {
        states(&self.files).join(self.inode.to_string())
    }

    /// The directory of pins.
    pub(super) fn pins(&self) -> PathBuf {
        self.files.root().join(self.inode.to_string())
    }

    /// The directory of links' pins.
    pub(super) fn links(&self) -> PathBuf {
        self.pins().join("links")
    }

    /// Something is or was loaded.
    pub(super) fn exists(&self) -> bool {
        self.state().exists() || self.pins().exists()
    }

    /// Waits until no other process changes what is loaded.
    pub(super) fn lock(&self) -> Result<Lock<'_>, Error> {
        let (directory, path) = (states(&self.files), self.lock_path());
        loop {
            make(&directory)?;
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = match file {
                // Who had the lock before has removed the directory in this moment.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(Error::directory("open", &path))?,
            };
            rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
                .map_err(|error| Error::directory("lock", &path)(error.into()))?;
            // Or the file: then the lock is of one that nobody else finds.
            let is_it = |there: fs::Metadata| file.metadata().is_ok_and(|file| file.ino() == there.ino());
            if fs::metadata(&path).is_ok_and(is_it) {
                return Ok(Lock { home: self, _file: file });
            }
        }
    }

    /// Makes the directory of what is loaded.
    pub(super) fn make_state(&self) -> Result<(), Error> {
        make(&self.state())
    }

    /// Makes all directories, and mounts the file system for pins.
    pub(super) fn make(&self) -> Result<(), Error> {
        self.make_state()?;
        let pins = self.pins();
        self.files.mount_for(&pins)?;
        ["maps", "programs", "links"].into_iter().try_for_each(|directory| make(&pins.join(directory)))
    }

    /// Removes the directories and all that is in them, and says which: with the pins go maps and programs, and links are
    /// detached.
    pub(super) fn remove(&self) -> Result<Vec<PathBuf>, Error> {
        let mut removed = Vec::new();
        // What is loaded goes last: as long as it is there, somebody killed here has not finished.
        for directory in [self.pins(), self.state()] {
            match fs::remove_dir_all(&directory) {
                Ok(()) => removed.push(directory),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::directory("remove", &directory)(error)),
            }
        }
        self.files.unmount_if_empty()?;
        Ok(removed)
    }

    fn lock_path(&self) -> PathBuf {
        states(&self.files).join(format!("{}{LOCK}", self.inode))
    }
}

/// Nobody else changes what is loaded in a namespace as long as this lives.
pub(super) struct Lock<'a> {
    home: &'a Home,
    _file: File,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if !self.home.state().exists() {
            // Where nothing is loaded, nothing is left; what cannot be removed is a leftover.
            let _ = fs::remove_file(self.home.lock_path());
            let _ = remove_if_empty(&states(&self.home.files));
        }
    }
}

/// The place of one namespace's engine.
#[derive(Debug)]
pub(super) struct Place {
    home: Home,
    /// The namespace's number, given once in the life of a kernel.
    pub(super) cookie: u64,
    /// What tells the namespace from one that had its inode number before.
    pub(super) mark: String,
    namespace: NetNs,
    identity: Identity,
}

impl Place {
    /// That of the calling thread's namespace.
    pub(super) fn current() -> Result<Place, Error> {
        let namespace = NetNs::current().map_err(Error::Namespace)?;
        let identity = namespace.identity().map_err(Error::Namespace)?;
        let cookie = sys::namespace_cookie().map_err(Error::Namespace)?;
        let home = Home { files: Arc::new(BpfFiles::find()?), inode: identity.inode };
        Ok(Place { home, cookie, mark: mark(cookie), namespace, identity })
    }

    /// Calls `work` inside the namespace, wherever this is called from.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
        let current =
            NetNs::current().and_then(|namespace| namespace.identity()).map_err(Error::Namespace)?;
        if current == self.identity { work() } else { self.namespace.run(work).map_err(Error::Namespace)? }
    }
}

impl Deref for Place {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

/// The mark of the living namespace with this inode number, if any has a process or a name.
pub(super) fn living(inode: u64) -> Option<String> {
    let device = NetNs::current().and_then(|namespace| namespace.identity()).ok()?.device;
    let cookie = netns::find(Identity { device, inode })?.run(sys::namespace_cookie).ok()?.ok()?;
    Some(mark(cookie))
}

/// A run directory on a disk outlives the kernel, and the next one gives the same cookies again.
fn mark(cookie: u64) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{cookie} since boot {}", boot.trim())
}

fn make(directory: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(Error::directory("make", directory)(error))
        }
        _ => Ok(()),
    }
}

fn remove_if_empty(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir(directory) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Err(Error::directory("remove", directory)(error))
        }
        _ => Ok(()),
    }
}

const LOCK: &str = ".lock";
