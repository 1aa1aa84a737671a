//! A BPF file system of plait's own: what is pinned there stays in the kernel when the command that made it has ended.
//!
//! It is `bpf/` in the [run folder](crate::run_folder), mounted with the first folder that is made in it, and unmounted
//! with the last that is removed.

use std::fs::{self, DirBuilder, DirEntry, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, FsWord, flock, statfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::mounts::Mounts;
use crate::run_folder;

/// Why the file system cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A folder cannot be made, read, locked or removed.
    #[error("cannot {operation} {}: {reason}", .path.display())]
    Folder {
        /// What was tried.
        operation: &'static str,
        /// The folder.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The file system cannot be had.
    #[error("cannot mount a BPF file system at {}: {reason}; it takes root, and a kernel with BPF", .path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
}

/// The file system, and the run folder that it is in.
#[derive(Debug)]
pub struct BpfFiles {
    /// The run folder by the name it has among the mounts.
    inside: PathBuf,
    /// The run folder as this process reaches it.
    reached: PathBuf,
    /// The mounts, if they are not this process's own.
    elsewhere: Option<Mounts>,
}

impl BpfFiles {
    /// Finds out where it is, or would be; nothing is mounted yet.
    ///
    /// # Errors
    /// The run folder cannot be used.
    pub fn find() -> Result<BpfFiles, Error> {
        let inside = run_folder().map_err(failed("open", Path::new("the run folder")))?;
        let elsewhere = Mounts::outermost();
        let reached = elsewhere.as_ref().map_or(inside.clone(), |mounts| mounts.reach(&inside));
        make(&reached)?;
        Ok(BpfFiles { inside, reached, elsewhere })
    }

    /// The run folder among the same mounts, as this process reaches it as long as this lives.
    pub fn run_folder(&self) -> &Path {
        &self.reached
    }

    /// The root of the file system, if it is mounted.
    pub fn root(&self) -> PathBuf {
        self.reached.join("bpf")
    }

    /// Mounts the file system, unless it is, and makes a folder in it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn mount_for(&self, folder: &Path) -> Result<(), Error> {
        let _lock = self.lock()?;
        let root = self.root();
        make(&root)?;
        if !is_bpf(&root) {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            self.among_mounts(|run| mount("plait", run.join("bpf"), "bpf", flags, Some(c"mode=0700")))
                .and_then(|result| Ok(result?))
                .map_err(|reason| Error::Mount { path: root, reason })?;
        }
        make(folder)
    }

    /// Removes the file system if no folder is in it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn unmount_if_empty(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let root = self.root();
        // The kernel may have put files of its own there.
        let is_folder = |entry: io::Result<DirEntry>| entry.is_ok_and(|entry| entry.path().is_dir());
        let mounted = is_bpf(&root);
        if mounted && fs::read_dir(&root).is_ok_and(|mut entries| entries.any(is_folder)) {
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
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("unmount", &root)(error)),
            _ => Ok(()),
        }
    }

    /// Waits until no other process mounts or unmounts; it can go on when the result is dropped.
    fn lock(&self) -> Result<File, Error> {
        let lock = || {
            let folder = File::open(&self.reached)?;
            rustix::io::retry_on_intr(|| flock(&folder, FlockOperation::LockExclusive))?;
            Ok(folder)
        };
        lock().map_err(failed("lock", &self.reached))
    }

    /// Calls `work` with the run folder's name where the file system is mounted.
    fn among_mounts<T: Send>(&self, work: impl FnOnce(&Path) -> T + Send) -> io::Result<T> {
        match &self.elsewhere {
            None => Ok(work(&self.inside)),
            Some(mounts) => mounts.among(|| work(&self.inside)),
        }
    }
}

fn make(folder: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed("make", folder)(error)),
        _ => Ok(()),
    }
}

fn is_bpf(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.f_type == BPF_FS_MAGIC)
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |reason| Error::Folder { operation, path, reason }
}

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: FsWord = 0xcafe_4a11;
