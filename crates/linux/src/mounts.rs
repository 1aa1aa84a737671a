//! The mount namespace in which plait mounts the BPF file system for pins that outlive a command.
//!
//! Every mount of a BPF file system is a new instance, and `ip netns exec` runs each command in a temporary mount
//! namespace. So the file system is mounted in the mount namespace of process 1 or, where that is not permitted, as in
//! some containers, in that of the most distant accessible ancestor of this process.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The mount namespace of a process.
#[derive(Debug)]
pub(crate) struct Mounts {
    namespace: File,
    /// The root directory of the process, by which the mounts are accessible even after it has ended.
    root: OwnedFd,
}

impl Mounts {
    /// That of process 1, or else of the most distant accessible ancestor; `None` if this process is in it.
    pub(crate) fn outermost() -> Option<Mounts> {
        let own = fs::metadata("/proc/thread-self/ns/mnt").ok()?.ino();
        let processes = ancestors();
        let mounts = processes.iter().rev().find_map(|process| Mounts::of(process).ok())?;
        (mounts.namespace.metadata().ok()?.ino() != own).then_some(mounts)
    }

    /// Converts a path in this mount namespace to one that this process can use until this value is dropped.
    pub(crate) fn accessible_path(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn of(process: &Path) -> io::Result<Mounts> {
        let namespace = File::open(process.join("ns/mnt"))?;
        let root =
            open(process.join("root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mounts = Mounts { namespace, root };
        mounts.run(|| ())?;
        Ok(mounts)
    }

    /// Calls `work` in this mount namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = || {
                // SAFETY: only the root and working directories are unshared, not the table of file descriptors.
                unsafe { unshare_unsafe(UnshareFlags::FS) }?;
                move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
                Ok(work())
            };
            let thread = thread::Builder::new().name("mounts".into()).spawn_scoped(scope, inside)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The /proc directories of this process and its visible ancestors.
fn ancestors() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/proc/self")];
    while let Some(parent) = parent(&found[found.len() - 1]) {
        found.push(PathBuf::from(format!("/proc/{parent}")));
    }
    found
}

/// The parent of a process, if it is visible.
fn parent(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    // The first process of a container has a parent that is not visible.
    line.trim().parse().ok().filter(|parent| *parent != 0)
}
