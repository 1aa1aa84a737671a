//! Where the engine of a network namespace keeps what outlives a command.
//!
//! Below the run folder (`/run/plait`):
//! - `policy/N/`, N the namespace's inode number: what is loaded (state.rs), and `policy/N.lock`, held by who changes it;
//! - `bpf/`: a BPF file system of plait's own, and in it `N/maps`, `N/programs` and `N/links`, which keep what they
//!   name in the kernel.

use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plait_host::netns::{self, Identity, NetNs};
use plait_host::run_folder;
use rustix::fs::{FlockOperation, FsWord, flock, statfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::mounts::Mounts;
use super::{Error, sys};

/// What the engines of all namespaces share.
#[derive(Debug)]
pub(super) struct Folders {
    /// The run folder by the name it has among the mounts.
    inside: PathBuf,
    /// The run folder as this process reaches it.
    reached: PathBuf,
    /// The mounts, if they are not this process's own.
    elsewhere: Option<Mounts>,
}

impl Folders {
    pub(super) fn find() -> Result<Folders, Error> {
        let inside = run_folder().map_err(Error::folder("open", "the run folder"))?;
        let elsewhere = Mounts::outermost();
        let reached = elsewhere.as_ref().map_or(inside.clone(), |mounts| mounts.reach(&inside));
        make(&reached)?;
        Ok(Folders { inside, reached, elsewhere })
    }

    /// The inode numbers of namespaces that have or had an engine.
    pub(super) fn namespaces(&self) -> Result<Vec<u64>, Error> {
        let mut found = Vec::new();
        for folder in [self.states(), self.pins()] {
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(Error::folder("read", &folder))?,
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

    /// Mounts the BPF file system, unless it is, and makes a folder in it.
    fn mount_for(&self, folder: &Path) -> Result<(), Error> {
        let _lock = self.lock()?;
        let pins = self.pins();
        make(&pins)?;
        if !is_bpf(&pins) {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            self.among_mounts(|run| mount("plait", run.join("bpf"), "bpf", flags, Some(c"mode=0700")))
                .and_then(|result| Ok(result?))
                .map_err(|reason| Error::Mount { path: pins, reason })?;
        }
        make(folder)
    }

    /// Removes the BPF file system if nothing is in it.
    fn unmount_if_empty(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let pins = self.pins();
        // The kernel may have put files of its own there.
        let is_folder = |entry: io::Result<DirEntry>| entry.is_ok_and(|entry| entry.path().is_dir());
        let mounted = is_bpf(&pins);
        if mounted && fs::read_dir(&pins).is_ok_and(|mut entries| entries.any(is_folder)) {
            return Ok(());
        }
        // Also the folder: this process's own mounts may have a copy of the mount, and then it would be in use.
        let remove = |run: &Path| {
            if mounted {
                unmount(run.join("bpf"), UnmountFlags::DETACH)?;
            }
            fs::remove_dir(run.join("bpf"))
        };
        match self.among_mounts(remove).and_then(|result| result) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::folder("unmount", &pins)(error)),
            _ => Ok(()),
        }
    }

    fn states(&self) -> PathBuf {
        self.reached.join("policy")
    }

    fn pins(&self) -> PathBuf {
        self.reached.join("bpf")
    }

    /// Waits until no other process mounts or unmounts; it can go on when the result is dropped.
    fn lock(&self) -> Result<File, Error> {
        let lock = || {
            let folder = File::open(&self.reached)?;
            rustix::io::retry_on_intr(|| flock(&folder, FlockOperation::LockExclusive))?;
            Ok(folder)
        };
        lock().map_err(Error::folder("lock", &self.reached))
    }

    /// Calls `work` with the run folder's name where the file system is mounted.
    fn among_mounts<T: Send>(&self, work: impl FnOnce(&Path) -> T + Send) -> io::Result<T> {
        match &self.elsewhere {
            None => Ok(work(&self.inside)),
            Some(mounts) => mounts.among(|| work(&self.inside)),
        }
    }
}

/// The folders of the engine of one namespace.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) folders: Arc<Folders>,
    /// The namespace's inode number.
    pub(super) inode: u64,
}

impl Home {
    /// The folder of what is loaded.
    pub(super) fn state(&self) -> PathBuf {
        self.folders.states().join(self.inode.to_string())
    }

    /// The folder of pins.
    pub(super) fn pins(&self) -> PathBuf {
        self.folders.pins().join(self.inode.to_string())
    }

    /// The folder of links' pins.
    pub(super) fn links(&self) -> PathBuf {
        self.pins().join("links")
    }

    /// Something is or was loaded.
    pub(super) fn exists(&self) -> bool {
        self.state().exists() || self.pins().exists()
    }

    /// Waits until no other process changes what is loaded.
    pub(super) fn lock(&self) -> Result<Lock<'_>, Error> {
        let (folder, path) = (self.folders.states(), self.lock_path());
        loop {
            make(&folder)?;
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = match file {
                // Who had the lock before has removed the folder in this moment.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(Error::folder("open", &path))?,
            };
            rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
                .map_err(|error| Error::folder("lock", &path)(error.into()))?;
            // Or the file: then the lock is of one that nobody else finds.
            let is_it = |there: fs::Metadata| file.metadata().is_ok_and(|file| file.ino() == there.ino());
            if fs::metadata(&path).is_ok_and(is_it) {
                return Ok(Lock { home: self, _file: file });
            }
        }
    }

    /// Makes the folder of what is loaded.
    pub(super) fn make_state(&self) -> Result<(), Error> {
        make(&self.state())
    }

    /// Makes all folders, and mounts the file system for pins.
    pub(super) fn make(&self) -> Result<(), Error> {
        self.make_state()?;
        let pins = self.pins();
        self.folders.mount_for(&pins)?;
        ["maps", "programs", "links"].into_iter().try_for_each(|folder| make(&pins.join(folder)))
    }

    /// Removes the folders and all that is in them, and says which: with the pins go maps and programs, and links are
    /// detached.
    pub(super) fn remove(&self) -> Result<Vec<PathBuf>, Error> {
        let mut removed = Vec::new();
        // What is loaded goes last: as long as it is there, somebody killed here has not finished.
        for folder in [self.pins(), self.state()] {
            match fs::remove_dir_all(&folder) {
                Ok(()) => removed.push(folder),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::folder("remove", &folder)(error)),
            }
        }
        self.folders.unmount_if_empty()?;
        Ok(removed)
    }

    fn lock_path(&self) -> PathBuf {
        self.folders.states().join(format!("{}{LOCK}", self.inode))
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
            let _ = remove_if_empty(&self.home.folders.states());
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
        let home = Home { folders: Arc::new(Folders::find()?), inode: identity.inode };
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

/// A run folder on a disk outlives the kernel, and the next one gives the same cookies again.
fn mark(cookie: u64) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{cookie} since boot {}", boot.trim())
}

fn make(folder: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::folder("make", folder)(error)),
        _ => Ok(()),
    }
}

fn remove_if_empty(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir(folder) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Err(Error::folder("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

fn is_bpf(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.f_type == BPF_FS_MAGIC)
}

const LOCK: &str = ".lock";
/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: FsWord = 0xcafe_4a11;
