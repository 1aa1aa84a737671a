//! A BPF file system for plait: objects pinned there stay in the kernel after the command that created them has exited.
//!
//! The mount point is `bpf/` in the [run directory](crate::run_directory). It is mounted when the first directory in it
//! is created, and unmounted when the last one is removed.

use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, FsWord, flock, statfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::mounts::Mounts;
use crate::run_directory::{is_same_file, lock_shared, run_directory};

/// Why the file system cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory cannot be created, read, locked or removed.
    #[error("cannot {operation} {}: {reason}", .path.display())]
    Directory {
        /// The failed operation.
        operation: &'static str,
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// The file system cannot be mounted.
    #[error("cannot mount a BPF file system at {}: {reason}; this requires root and a kernel with BPF", .path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
}

/// The file system, and the run directory that contains it.
#[derive(Debug)]
pub struct BpfFiles {
    /// The path of the run directory in the mount namespace.
    inside: PathBuf,
    /// The path by which this process can access the run directory.
    accessible: PathBuf,
    /// The mount namespace; `None` if this process is in it.
    elsewhere: Option<Mounts>,
    /// That run directory, locked, so that no other process removes it.
    _used: Option<File>,
}

impl BpfFiles {
    /// Locates it, without mounting it.
    ///
    /// # Errors
    /// The run directory cannot be used.
    pub fn find() -> Result<BpfFiles, Error> {
        let inside = run_directory().map_err(failed("open", Path::new("the run directory")))?;
        let elsewhere = Mounts::outermost();
        let accessible = elsewhere.as_ref().map_or(inside.clone(), |mounts| mounts.accessible_path(&inside));
        let used = elsewhere.as_ref().map(|_| lock_shared(&accessible, None)).transpose();
        let used = used.map_err(failed("use", &accessible))?;
        Ok(BpfFiles { inside, accessible, elsewhere, _used: used })
    }

    /// The path by which this process can access the run directory in that mount namespace, until this value is dropped.
    pub fn run_directory(&self) -> &Path {
        &self.accessible
    }

    /// The mount point of the file system.
    pub fn root(&self) -> PathBuf {
        self.accessible.join("bpf")
    }

    /// Mounts the file system, if it is not mounted yet, and creates a directory in it.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn mount_for(&self, directory: &Path) -> Result<(), Error> {
        let _lock = self.lock()?;
        let root = self.root();
        create(&root)?;
        if !is_bpf(&root) {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            self.in_mount_namespace(|run| mount("plait", run.join("bpf"), "bpf", flags, Some(c"mode=0700")))
                .and_then(|result| Ok(result?))
                .map_err(|reason| {
                    let _ = fs::remove_dir(&root);
                    Error::Mount { path: root, reason }
                })?;
        }
        create(directory)
    }

    /// Unmounts the file system if it has no directories.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn unmount_if_empty(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let root = self.root();
        // Unmounted, it may be a mount point in another mount namespace, where removing it would unmount it.
        if !is_bpf(&root) {
            return Ok(());
        }
        // The kernel creates files there too.
        let is_directory = |entry: io::Result<DirEntry>| entry.is_ok_and(|entry| entry.path().is_dir());
        let mut entries = fs::read_dir(&root).map_err(failed("read", &root))?;
        if entries.any(is_directory) {
            return Ok(());
        }
        // Removes the directory there too: this process's mount namespace may have a copy of the mount, which keeps it
        // busy.
        let remove = |run: &Path| {
            unmount(run.join("bpf"), UnmountFlags::DETACH)?;
            fs::remove_dir(run.join("bpf"))
        };
        match self.in_mount_namespace(remove).and_then(|result| result) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("unmount", &root)(error)),
            _ => Ok(()),
        }
    }

    /// Waits for the exclusive lock on mounting and unmounting, which is released when the result is dropped.
    fn lock(&self) -> Result<MountLock, Error> {
        let path = self.accessible.join("bpf.lock");
        let lock = || loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            // The process that had the lock before has removed its file.
            if is_same_file(&file, &path) {
                return Ok(file);
            }
        };
        let file = lock().map_err(failed("lock", &path))?;
        Ok(MountLock { path, _file: file })
    }

    /// Calls `work` in the mount namespace of the file system, with the path of the run directory there.
    fn in_mount_namespace<T: Send>(&self, work: impl FnOnce(&Path) -> T + Send) -> io::Result<T> {
        match &self.elsewhere {
            None => Ok(work(&self.inside)),
            Some(mounts) => mounts.run(|| work(&self.inside)),
        }
    }
}

/// Released, and its file removed, when it is dropped.
struct MountLock {
    path: PathBuf,
    _file: File,
}

impl Drop for MountLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn create(directory: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed("create", directory)(error)),
        _ => Ok(()),
    }
}

fn is_bpf(directory: &Path) -> bool {
    statfs(directory).is_ok_and(|found| found.f_type == BPF_FS_MAGIC)
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |reason| Error::Directory { operation, path, reason }
}

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: FsWord = 0xcafe_4a11;
