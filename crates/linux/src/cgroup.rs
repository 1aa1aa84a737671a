//! Control groups (`cgroups(7)`, version 2), to which BPF programs are attached to apply to a set of processes.
//!
//! A cgroup created here is a child of this process's cgroup, so that its limits still apply. It is named
//! `plait-PID-ROLE`, and removed when dropped, or by [`clean_leftovers`] if its creator was killed. All access is by
//! directory descriptors, as the hierarchy may have no path: `ip netns exec` remounts /sys, which hides the cgroups, so
//! that a detached mount is used instead.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, mkdirat, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::leftovers;

/// Why a cgroup cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no cgroup2 file system.
    #[error(
        "expected a mounted cgroup2 file system, got none, and cannot mount one: {0}; \
         run as root, or mount it: mount -t cgroup2 none /sys/fs/cgroup/unified"
    )]
    NoFileSystem(io::Error),
    /// The cgroup of this process is not accessible.
    #[error("cannot open the cgroup {} of this process: {reason}", .path.display())]
    Current {
        /// Its path from the root of the hierarchy.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// Creating, changing or reading a cgroup failed.
    #[error(
        "cannot {operation} the cgroup {name}: {reason}; this requires root or a cgroup delegated to this user"
    )]
    Use {
        /// The failed operation.
        operation: &'static str,
        /// The cgroup.
        name: String,
        /// The reason.
        reason: io::Error,
    },
}

/// A cgroup created by this process. Dropping it moves this process back to the parent and removes the cgroup.
///
/// If other processes are still inside, the cgroup remains, as the BPF programs attached to it must stay in effect for
/// them. After they have ended, [`clean_leftovers`] removes it.
#[derive(Debug)]
pub struct Cgroup {
    name: String,
    directory: OwnedFd,
    parent: OwnedFd,
}

impl Cgroup {
    /// Creates the cgroup `plait-PID-role` (PID is this process) below the cgroup of this process; `plait-PID-role-2` if
    /// the first one was created by an earlier process with this id, and others are still inside.
    ///
    /// # Errors
    /// See [`Error`]; `EEXIST` if this process already has one with this role.
    pub fn create_below_current(role: &str) -> Result<Cgroup, Error> {
        let root = open_root().map_err(Error::NoFileSystem)?;
        let parent = open_current(&root)?;
        let first = format!("plait-{}-{role}", std::process::id());
        let (mut name, mut number) = (first.clone(), 1);
        let mut attempts = 0;
        loop {
            match create_locked(&parent, &name) {
                Ok(directory) => return Ok(Cgroup { name, directory, parent }),
                Err(Errno::EXIST) if is_used_by_others(&parent, &name) => {
                    number += 1;
                    name = format!("{first}-{number}");
                }
                Err(Errno::EXIST) if remove_unowned(&parent, &name) => {}
                // Another process removes it, or removed it before it was locked.
                Err(Errno::EXIST | Errno::NOENT) if attempts < ATTEMPTS => {
                    attempts += 1;
                    thread::sleep(POLL_INTERVAL);
                }
                Err(reason) => return Err(Error::Use { operation: "create", name, reason: reason.into() }),
            }
        }
    }

    /// Opens the cgroup that another process has created for itself by [`create_below_current`](Self::create_below_current), to
    /// [enter](Self::enter) it as well. It remains until the last of both has left it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn of_process(pid: u32) -> Result<Cgroup, Error> {
        let (parent, name) = parent_of(pid)?;
        let failed =
            |reason: Errno| Error::Use { operation: "open", name: name.clone(), reason: reason.into() };
        let directory = open_locked(&parent, &name).map_err(failed)?;
        Ok(Cgroup { name, directory, parent })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves this process with all its threads into the cgroup. Child processes inherit it.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn enter(&self) -> Result<(), Error> {
        self.add(std::process::id())
    }

    /// Moves a process into the cgroup.
    ///
    /// # Errors
    /// `ESRCH` if the process does not exist, or the kernel's reason.
    pub fn add(&self, pid: u32) -> Result<(), Error> {
        move_process(&self.directory, pid).map_err(|reason| self.error("add a process to", reason))
    }

    /// The file `cgroup.procs`: a child enters the cgroup between fork and exec by writing `0` to it.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn entrance(&self) -> Result<fs::File, Error> {
        entrance(&self.directory).map(fs::File::from).map_err(|reason| self.error("open", reason))
    }

    /// The ids of its processes.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn processes(&self) -> Result<Vec<u32>, Error> {
        processes(&self.directory).map_err(|reason| self.error("read", reason))
    }

    /// Its parent, which this process returns to.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn parent(&self) -> io::Result<ParentCgroup> {
        ParentCgroup::open(&self.parent)
    }

    fn error(&self, operation: &'static str, reason: io::Error) -> Error {
        Error::Use { operation, name: self.name.clone(), reason }
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // If it cannot be removed now, clean_leftovers() does after this process has ended.
        let _ = remove(&self.parent, &self.name, std::process::id());
    }
}

/// A cgroup, as what it takes to remove those below it.
#[derive(Debug)]
pub struct ParentCgroup {
    /// Its directory, in which theirs are listed and removed.
    pub directory: OwnedFd,
    /// Its list of processes, open for writing: the processes of the cgroups below move back to it.
    pub processes: OwnedFd,
}

impl ParentCgroup {
    fn open(directory: &OwnedFd) -> io::Result<ParentCgroup> {
        Ok(ParentCgroup { directory: directory.try_clone()?, processes: entrance(directory)? })
    }
}

/// The cgroups that a process creates below its current one, for another process to remove.
#[derive(Debug)]
pub struct CreatorCgroups {
    creator: u32,
    parent: OwnedFd,
    /// One that it has entered, and another process created.
    entered: Option<String>,
}

impl CreatorCgroups {
    /// Those that the creator will have created below the current cgroup of this process.
    ///
    /// # Errors
    /// There is no cgroup2 file system, or the current cgroup is inaccessible.
    pub fn below_current(creator: u32) -> Result<CreatorCgroups, Error> {
        let root = open_root().map_err(Error::NoFileSystem)?;
        Ok(CreatorCgroups { creator, parent: open_current(&root)?, entered: None })
    }

    /// That of another process, which the creator will have entered.
    ///
    /// # Errors
    /// As [`Cgroup::of_process`].
    pub fn entered(creator: u32, other: u32) -> Result<CreatorCgroups, Error> {
        let (parent, name) = parent_of(other)?;
        Ok(CreatorCgroups { creator, parent, entered: Some(name) })
    }

    /// Their parent, which the creator returns to.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn parent(&self) -> io::Result<ParentCgroup> {
        ParentCgroup::open(&self.parent)
    }

    /// Moves the creator out of them, and removes them. Those with other processes inside remain.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn remove(&self) -> io::Result<()> {
        let prefix = format!("plait-{}-", self.creator);
        let is_own = |name: &&String| name.starts_with(&prefix) || self.entered.as_ref() == Some(*name);
        for name in children(&self.parent)?.iter().filter(is_own) {
            match remove(&self.parent, name, self.creator) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

/// Removes each empty cgroup `plait-PID-...` whose creator has ended, and no longer holds it locked. Returns their paths from the root of the
/// hierarchy.
///
/// # Errors
/// There is no cgroup file system, or one of them cannot be removed.
pub fn clean_leftovers() -> Result<Vec<PathBuf>, Error> {
    let root = open_root().map_err(Error::NoFileSystem)?;
    let mut removed = Vec::new();
    clean_below(&root, Path::new("/"), &mut removed)?;
    Ok(removed)
}

/// The id, as in BPF, of the cgroup at a path from the root of the hierarchy; `None` if it does not exist.
///
/// # Errors
/// There is no cgroup2 file system, or the path cannot be opened.
pub fn id(path: &str) -> Result<Option<u64>, Error> {
    let root = open_root().map_err(Error::NoFileSystem)?;
    let failed = |reason: Errno| Error::Use { operation: "open", name: path.into(), reason: reason.into() };
    let below = path.trim_start_matches('/');
    match open_directory(&root, Path::new(if below.is_empty() { "." } else { below })) {
        Ok(directory) => rustix::fs::fstat(&directory).map(|found| Some(found.st_ino)).map_err(failed),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Opens an existing cgroup, given by its path from the root of the hierarchy or in the file system. Returns its path
/// from the root, and its directory.
///
/// # Errors
/// There is no cgroup2 file system, or the cgroup does not exist.
pub fn open(given: &Path) -> Result<(PathBuf, OwnedFd), Error> {
    let root = open_root().map_err(Error::NoFileSystem)?;
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let mounts = table.lines().filter_map(mount_point);
    // In `ip netns exec`, no mount is visible, but users still pass the usual paths.
    let usual = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(PathBuf::from);
    let inside = mounts.chain(usual).find_map(|mount| given.strip_prefix(mount).ok());
    let path = inside.unwrap_or_else(|| given.strip_prefix("/").unwrap_or(given));
    let directory = open_directory(&root, if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let directory = directory.map_err(|reason| {
        let name = given.display().to_string();
        Error::Use { operation: "open", name, reason: reason.into() }
    })?;
    Ok((Path::new("/").join(path), directory))
}

/// The cgroup of a process, from the root of the hierarchy; `None` if the process or the hierarchy does not exist.
pub fn of(pid: u32) -> Option<PathBuf> {
    path_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?).map(|path| Path::new("/").join(path))
}

/// The ids of the processes in a cgroup, given by its directory.
///
/// # Errors
/// The kernel's reason.
pub fn processes_of(directory: impl AsFd) -> io::Result<Vec<u32>> {
    processes(directory)
}

/// The root of the cgroup2 hierarchy: a visible mount, or else a detached one.
///
/// # Errors
/// There is no cgroup2 file system.
pub fn open_root() -> io::Result<OwnedFd> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    match table.lines().filter_map(mount_point).find_map(|path| open_if_cgroup2(&path)) {
        Some(root) => Ok(root),
        None => mount_detached().map_err(io::Error::from),
    }
}

fn mount_detached() -> Result<OwnedFd, Errno> {
    let file_system = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&file_system)?;
    let mount = fsmount(&file_system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    // The mount's descriptor identifies the directory, but cannot list it.
    open_directory(&mount, Path::new("."))
}

/// The mount point in a line of `mountinfo` (`proc(5)`), if it is that of a complete cgroup2 hierarchy.
fn mount_point(line: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, path) = (fields.next()?, fields.next()?);
    let wanted = after.split(' ').next()? == "cgroup2" && root == "/";
    // Special characters are escaped with backslashes; such mount points are not supported.
    (wanted && !path.contains('\\')).then(|| PathBuf::from(path))
}

/// Opens a mount point, unless another file system is mounted over it.
fn open_if_cgroup2(path: &Path) -> Option<OwnedFd> {
    let directory = rustix::fs::open(path, DIRECTORY, Mode::empty()).ok()?;
    let kind = rustix::fs::fstatfs(&directory).ok()?.f_type;
    (kind == CGROUP2_SUPER_MAGIC).then_some(directory)
}

/// The cgroup of this process: the line `0::PATH` of `/proc/self/cgroup`.
fn open_current(root: &OwnedFd) -> Result<OwnedFd, Error> {
    let missing = |reason| Error::Current { path: "/proc/self/cgroup".into(), reason };
    let table = fs::read_to_string("/proc/self/cgroup").map_err(missing)?;
    let path = path_in(&table).ok_or_else(|| {
        missing(io::Error::new(io::ErrorKind::NotFound, "expected a line 0::PATH: the kernel has no cgroup2"))
    })?;
    let inside = if path.is_empty() { "." } else { path };
    open_directory(root, Path::new(inside))
        .map_err(|reason| Error::Current { path: Path::new("/").join(path), reason: reason.into() })
}

/// The parent and the name of the cgroup that a process has created for itself.
fn parent_of(pid: u32) -> Result<(OwnedFd, String), Error> {
    let root = open_root().map_err(Error::NoFileSystem)?;
    let path = of(pid).unwrap_or_default();
    let failed = |reason| Error::Use { operation: "open", name: path.display().to_string(), reason };
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| name.starts_with("plait-"));
    let (Some(parent), Some(name)) = (path.parent(), name) else {
        let text = format!("expected process {pid} to be in a cgroup of its own");
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, text)));
    };
    let parent = parent.strip_prefix("/").unwrap_or(parent);
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = open_directory(&root, parent).map_err(|reason| failed(reason.into()))?;
    Ok((parent, name.to_owned()))
}

/// The path after the root in a table such as `/proc/self/cgroup`.
fn path_in(table: &str) -> Option<&str> {
    table.lines().find_map(|line| line.strip_prefix("0::/"))
}

fn open_directory(parent: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    openat(parent, path, DIRECTORY, Mode::empty())
}

fn move_process(directory: impl AsFd, pid: u32) -> io::Result<()> {
    rustix::io::write(entrance(directory)?, pid.to_string().as_bytes())?;
    Ok(())
}

fn entrance(directory: impl AsFd) -> io::Result<OwnedFd> {
    Ok(openat(directory, PROCESSES, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Empty if another process has removed the cgroup in the meantime.
fn processes(directory: impl AsFd) -> io::Result<Vec<u32>> {
    let file = match openat(directory, PROCESSES, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NODEV) => return Ok(Vec::new()),
        file => file?,
    };
    let text = match io::read_to_string(fs::File::from(file)) {
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => return Ok(Vec::new()),
        text => text?,
    };
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Creates a cgroup, locked so that [`clean_leftovers`] of a process that does not see its creator, being outside of the PID
/// namespace of its container, does not remove it while it is empty. `ENOENT` if it was removed before it was locked.
fn create_locked(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    open_locked(parent, name).inspect_err(|_| {
        let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
    })
}

/// Opens a cgroup, and keeps it from being removed by [`clean_leftovers`].
fn open_locked(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let directory = open_directory(parent, Path::new(name))?;
    flock(&directory, FlockOperation::LockShared)?;
    statat(parent, name, AtFlags::empty())?;
    Ok(directory)
}

/// Whether only other processes are inside: a gateway that took over from an earlier process with the id of this one, or
/// one with the same id in another PID namespace.
fn is_used_by_others(parent: &OwnedFd, name: &str) -> bool {
    let inside = open_directory(parent, Path::new(name)).map_err(io::Error::from).and_then(processes);
    inside.is_ok_and(|inside| !inside.is_empty() && !inside.contains(&std::process::id()))
}

/// Removes a cgroup of a killed process that had the id of this one. Returns whether it is gone.
fn remove_unowned(parent: &OwnedFd, name: &str) -> bool {
    let Ok(directory) = open_directory(parent, Path::new(name)) else { return true };
    // That of this process is locked by it.
    flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
        && remove(parent, name, std::process::id()).is_ok()
}

fn clean_below(directory: &OwnedFd, path: &Path, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
    let failed = |path: &Path, reason| {
        let name = path.display().to_string();
        Error::Use { operation: "clean", name, reason }
    };
    for name in children(directory).map_err(|source| failed(path, source))? {
        // Other processes may remove cgroups meanwhile.
        let Ok(child) = open_directory(directory, Path::new(&name)) else { continue };
        clean_below(&child, &path.join(&name), removed)?;
        if leftovers::is_of_dead_process(&name)
            && flock(&child, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            match remove(directory, &name, std::process::id()) {
                Ok(()) => removed.push(path.join(&name)),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Err(reason) => {
                    let name = path.join(&name).display().to_string();
                    return Err(Error::Use { operation: "remove", name, reason });
                }
            }
        }
    }
    Ok(())
}

/// The child cgroups; none if this one was removed in the meantime.
fn children(directory: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = match entry {
            Err(Errno::NOENT | Errno::NODEV) => return Ok(Vec::new()),
            entry => entry?,
        };
        let name = entry.file_name().to_string_lossy();
        if entry.file_type() == FileType::Directory && name != "." && name != ".." {
            names.push(name.into_owned());
        }
    }
    Ok(names)
}

/// Moves its creator out of a cgroup and removes it with its children; `EBUSY` if another process is inside.
fn remove(parent: &OwnedFd, name: &str, creator: u32) -> io::Result<()> {
    let directory = match open_directory(parent, Path::new(name)) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    for child in children(&directory)? {
        remove(&directory, &child, creator)?;
    }
    if processes(&directory)?.contains(&creator) {
        move_process(parent, creator)?;
    }
    let mut attempts = 0;
    loop {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // A process that has just ended is no longer listed, but still keeps the cgroup busy.
            Err(Errno::BUSY) if attempts < ATTEMPTS && processes(&directory)?.is_empty() => attempts += 1,
            Err(error) => return Err(error.into()),
        }
        thread::sleep(POLL_INTERVAL);
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const PROCESSES: &str = "cgroup.procs";
const CGROUP2_SUPER_MAGIC: rustix::fs::FsWord = 0x6367_7270;
/// A process leaves its cgroup with a delay after it has ended, which is much shorter than half a second.
const ATTEMPTS: u32 = 100;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_complete_hierarchies_of_version_2() {
        let line = "33 25 0:28 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(mount_point(line), Some("/sys/fs/cgroup/unified".into()));
        for other in [
            "33 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
            "33 25 0:28 /part /mnt rw - cgroup2 cgroup2 rw",
            "33 25 0:28 / /mnt rw",
            "",
        ] {
            assert_eq!(mount_point(other), None, "{other}");
        }
    }
}
