//! Where the engine of a network namespace keeps what outlives a command.
//!
//! Below the run folder (`/run/plait`):
//! - `policy/N/`, N the namespace's inode number: what is loaded (state.rs);
//! - `bpf/`: a BPF file system of plait's own, and in it `N/maps`, `N/programs` and `N/links`, which keep what they
//!   name in the kernel.
//!
//! Every mount of a BPF file system is a new one, and `ip netns exec` gives each command a mount namespace that ends
//! with it. So the file system is mounted where process 1 has its mounts, and reached through `/proc/1/root`. Where
//! that is not allowed, as in some containers, it is mounted where this process has its own, and a warning says so.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;

use plait_host::netns::{self, Identity, NetNs};
use plait_host::run_folder;
use rustix::fs::{FlockOperation, flock, statfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::Error;
use super::sys;

/// The folders of all namespaces' engines.
#[derive(Debug)]
pub(super) struct Folders {
    /// The run folder by the name it has for `mounts`.
    inside: PathBuf,
    /// The run folder as this process reaches it.
    reached: PathBuf,
    /// The mount namespace of process 1, if it is another.
    mounts: Option<File>,
}

impl Folders {
    pub(super) fn find() -> Result<Folders, Error> {
        let inside = run_folder().map_err(Error::folder("open", "the run folder"))?;
        let own = Folders { inside: inside.clone(), reached: inside.clone(), mounts: None };
        let Some(mounts) = other_mounts() else { return Ok(own) };
        let found = Folders { reached: below(Path::new(ROOT), &inside), inside, mounts: Some(mounts) };
        match found.among_mounts(|_| ()).and_then(|()| make(&found.reached)) {
            Ok(()) => Ok(found),
            Err(error) => {
                tracing::warn!(
                    "cannot reach the mounts of process 1 ({error}): policies end with the mount namespace of this \
                     process"
                );
                Ok(own)
            }
        }
    }

    /// Waits until no other process changes what is loaded; it can go on when the result is dropped.
    pub(super) fn lock(&self) -> Result<File, Error> {
        let lock = || {
            let folder = File::open(&self.reached)?;
            rustix::io::retry_on_intr(|| flock(&folder, FlockOperation::LockExclusive))?;
            Ok(folder)
        };
        lock().map_err(Error::folder("lock", &self.reached))
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
            found.extend(names.filter_map(|name| name.to_str()?.parse::<u64>().ok()));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Mounts the BPF file system, unless it is.
    pub(super) fn mount(&self) -> Result<(), Error> {
        let pins = self.pins();
        make(&pins).map_err(Error::folder("make", &pins))?;
        if is_bpf(&pins) {
            return Ok(());
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        self.among_mounts(|run| mount("plait", run.join("bpf"), "bpf", flags, Some(c"mode=0700")))
            .and_then(|result| Ok(result?))
            .map_err(|reason| Error::Mount { path: pins, reason })
    }

    /// Removes the BPF file system and the folders if nothing is in them.
    pub(super) fn unmount_if_empty(&self) -> Result<(), Error> {
        let pins = self.pins();
        if is_bpf(&pins) && fs::read_dir(&pins).is_ok_and(|mut entries| entries.next().is_none()) {
            self.among_mounts(|run| unmount(run.join("bpf"), UnmountFlags::DETACH))
                .and_then(|result| Ok(result?))
                .map_err(Error::folder("unmount", &pins))?;
        }
        for folder in [pins, self.states()] {
            match fs::remove_dir(&folder) {
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                    return Err(Error::folder("remove", &folder)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn states(&self) -> PathBuf {
        self.reached.join("policy")
    }

    fn pins(&self) -> PathBuf {
        self.reached.join("bpf")
    }

    /// Calls `work` with the run folder's name where the file system is mounted.
    fn among_mounts<T: Send>(&self, work: impl FnOnce(&Path) -> T + Send) -> io::Result<T> {
        let Some(mounts) = &self.mounts else { return Ok(work(&self.inside)) };
        thread::scope(|scope| {
            let inside = || {
                // SAFETY: only what the thread shares of the file system (its root and working folder) is unshared,
                // not the table of file descriptors.
                unsafe { unshare_unsafe(UnshareFlags::FS) }?;
                move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
                Ok(work(&self.inside))
            };
            let thread = thread::Builder::new().name("mounts".into()).spawn_scoped(scope, inside)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The folders of one namespace's engine.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folders: Folders,
    /// What tells the namespace from one that had its inode number before.
    pub(super) cookie: u64,
    pub(super) namespace: NetNs,
    identity: Identity,
}

impl Place {
    /// That of the calling thread's namespace.
    pub(super) fn current() -> Result<Place, Error> {
        let namespace = NetNs::current().map_err(Error::Namespace)?;
        let identity = namespace.identity().map_err(Error::Namespace)?;
        let cookie = sys::namespace_cookie().map_err(Error::Namespace)?;
        Ok(Place { folders: Folders::find()?, cookie, namespace, identity })
    }

    /// Calls `work` inside the namespace, wherever this is called from.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
        let current =
            NetNs::current().and_then(|namespace| namespace.identity()).map_err(Error::Namespace)?;
        if current == self.identity { work() } else { self.namespace.run(work).map_err(Error::Namespace)? }
    }

    /// The folder of what is loaded.
    pub(super) fn state(&self) -> PathBuf {
        self.folders.states().join(self.identity.inode.to_string())
    }

    /// The folder of pins.
    pub(super) fn pins(&self) -> PathBuf {
        self.folders.pins().join(self.identity.inode.to_string())
    }

    /// Makes the folders, and mounts the file system for pins.
    pub(super) fn make(&self) -> Result<(), Error> {
        self.make_state()?;
        self.folders.mount()?;
        let pins = self.pins();
        for folder in [pins.clone(), pins.join("maps"), pins.join("programs"), pins.join("links")] {
            make(&folder).map_err(Error::folder("make", &folder))?;
        }
        Ok(())
    }

    pub(super) fn make_state(&self) -> Result<(), Error> {
        for folder in [self.folders.states(), self.state()] {
            make(&folder).map_err(Error::folder("make", &folder))?;
        }
        Ok(())
    }

    /// Removes the folders and all that is in them: with the pins go maps and programs, and links are detached.
    pub(super) fn remove(&self) -> Result<Vec<PathBuf>, Error> {
        remove(&self.folders, self.identity.inode)
    }
}

/// Removes the folders of a namespace; those that there were.
pub(super) fn remove(folders: &Folders, inode: u64) -> Result<Vec<PathBuf>, Error> {
    let mut removed = Vec::new();
    // What is loaded goes last: as long as it is there, somebody killed here has not finished.
    for parent in [folders.pins(), folders.states()] {
        let folder = parent.join(inode.to_string());
        match fs::remove_dir_all(&folder) {
            Ok(()) => removed.push(folder),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::folder("remove", &folder)(error)),
        }
    }
    folders.unmount_if_empty()?;
    Ok(removed)
}

/// The folder of what is loaded in the namespace with this inode number.
pub(super) fn state_of(folders: &Folders, inode: u64) -> PathBuf {
    folders.states().join(inode.to_string())
}

/// The living namespace with this inode number, if any has a process or a name, and its cookie.
pub(super) fn living(inode: u64) -> Option<u64> {
    let device = NetNs::current().and_then(|namespace| namespace.identity()).ok()?.device;
    netns::find(Identity { device, inode })?.run(sys::namespace_cookie).ok()?.ok()
}

const ROOT: &str = "/proc/1/root";

/// The mount namespace of process 1, if it is not that of the calling thread and this process may know.
fn other_mounts() -> Option<File> {
    let mounts = File::open("/proc/1/ns/mnt").ok()?;
    let own = fs::metadata("/proc/thread-self/ns/mnt").ok()?;
    (mounts.metadata().ok()?.ino() != own.ino()).then_some(mounts)
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn is_bpf(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.f_type as i64 == BPF_FS_MAGIC)
}

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
