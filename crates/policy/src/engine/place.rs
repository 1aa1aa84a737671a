//! Where the engine of a network namespace keeps what outlives a command.
//!
//! Below the run folder (`/run/plait`):
//! - `policy/N/`, N the namespace's inode number: what is loaded (state.rs);
//! - `bpf/`: a BPF file system of plait's own, and in it `N/maps`, `N/programs` and `N/links`, which keep what they
//!   name in the kernel.
//!
//! Every mount of a BPF file system is a new one, and `ip netns exec` gives each command a mount namespace that ends
//! with it. So the file system is mounted where process 1 has its mounts, or, where this process may not go there, as
//! in some containers, where the farthest of its ancestors has that it may follow.

use std::fs::{self, DirBuilder, DirEntry, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;

use plait_host::netns::{self, Identity, NetNs};
use plait_host::run_folder;
use rustix::fs::{FlockOperation, FsWord, Mode, OFlags, flock, open, statfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::Error;
use super::sys;

/// The folders of all namespaces' engines.
#[derive(Debug)]
pub(super) struct Folders {
    /// The run folder by the name it has among the mounts.
    inside: PathBuf,
    /// The run folder as this process reaches it.
    reached: PathBuf,
    /// The mounts, if they are not this process's own.
    elsewhere: Option<Mounts>,
}

/// The mounts of another process.
#[derive(Debug)]
struct Mounts {
    namespace: File,
    /// Its root folder, by which they are reached also when that process has ended.
    root: OwnedFd,
}

impl Folders {
    pub(super) fn find() -> Result<Folders, Error> {
        let inside = run_folder().map_err(Error::folder("open", "the run folder"))?;
        let Some(mounts) = Mounts::outermost() else {
            return Ok(Folders { reached: inside.clone(), inside, elsewhere: None });
        };
        let root = PathBuf::from(format!("/proc/self/fd/{}", mounts.root.as_raw_fd()));
        let reached = root.join(inside.strip_prefix("/").unwrap_or(&inside));
        make(&reached).map_err(Error::folder("make", &reached))?;
        Ok(Folders { inside, reached, elsewhere: Some(mounts) })
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
        // The kernel may have put files of its own there.
        let is_folder = |entry: io::Result<DirEntry>| entry.is_ok_and(|entry| entry.path().is_dir());
        if is_bpf(&pins) && fs::read_dir(&pins).is_ok_and(|mut entries| !entries.any(is_folder)) {
            self.among_mounts(|run| unmount(run.join("bpf"), UnmountFlags::DETACH))
                .and_then(|result| Ok(result?))
                .map_err(Error::folder("unmount", &pins))?;
        }
        for folder in [pins, self.states()] {
            match fs::remove_dir(&folder) {
                // Others are in it, or it is mounted on because others are.
                Err(error)
                    if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy) => {}
                Err(error) if error.kind() != ErrorKind::NotFound => {
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
        match &self.elsewhere {
            None => Ok(work(&self.inside)),
            Some(mounts) => mounts.among(|| work(&self.inside)),
        }
    }
}

impl Mounts {
    /// Those of process 1 or else the farthest ancestor whose mounts this process may use; `None` if they are its own.
    fn outermost() -> Option<Mounts> {
        let own = fs::metadata("/proc/thread-self/ns/mnt").ok()?.ino();
        let processes = ancestors();
        let mounts = processes.iter().rev().find_map(|process| Mounts::of(process).ok())?;
        (mounts.namespace.metadata().ok()?.ino() != own).then_some(mounts)
    }

    fn of(process: &Path) -> io::Result<Mounts> {
        let namespace = File::open(process.join("ns/mnt"))?;
        let root =
            open(process.join("root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mounts = Mounts { namespace, root };
        mounts.among(|| ())?;
        Ok(mounts)
    }

    /// Calls `work` where these are the mounts.
    fn among<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = || {
                // SAFETY: only what the thread shares of the file system (its root and working folder) is unshared,
                // not the table of file descriptors.
                unsafe { unshare_unsafe(UnshareFlags::FS) }?;
                move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
                Ok(work())
            };
            let thread = thread::Builder::new().name("mounts".into()).spawn_scoped(scope, inside)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The folders in /proc of this process and its ancestors, as far as it may see them.
fn ancestors() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/proc/self")];
    while let Some(parent) = parent(&found[found.len() - 1]) {
        found.push(PathBuf::from(format!("/proc/{parent}")));
    }
    found
}

/// The parent of a process.
fn parent(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    // The first process of a container has a parent that it does not see.
    line.trim().parse().ok().filter(|parent| *parent != 0)
}

/// The folders of one namespace's engine.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folders: Folders,
    /// The namespace's number, given once in the life of a kernel.
    pub(super) cookie: u64,
    /// What tells the namespace from one that had its inode number before.
    pub(super) mark: String,
    pub(super) namespace: NetNs,
    identity: Identity,
}

impl Place {
    /// That of the calling thread's namespace.
    pub(super) fn current() -> Result<Place, Error> {
        let namespace = NetNs::current().map_err(Error::Namespace)?;
        let identity = namespace.identity().map_err(Error::Namespace)?;
        let cookie = sys::namespace_cookie().map_err(Error::Namespace)?;
        Ok(Place { folders: Folders::find()?, cookie, mark: mark(cookie), namespace, identity })
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

/// The folder of links of the namespace with this inode number.
pub(super) fn links_of(folders: &Folders, inode: u64) -> PathBuf {
    folders.pins().join(inode.to_string()).join("links")
}

/// The folder of what is loaded in the namespace with this inode number.
pub(super) fn state_of(folders: &Folders, inode: u64) -> PathBuf {
    folders.states().join(inode.to_string())
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

fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn is_bpf(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.f_type == BPF_FS_MAGIC)
}

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: FsWord = 0xcafe_4a11;
