//! Network namespaces: entering, creating and removing them.
//!
//! Named namespaces are files in `/run/netns`, compatible with `ip netns`. A namespace is entered by a *thread*, and
//! inherited by the threads that it starts; other threads are not affected.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind_recursive, mount_change, unmount};
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Identifies a namespace while it exists; the kernel may reuse the inode afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device of the namespace file system.
    pub device: u64,
    /// Inode of the namespace.
    pub inode: u64,
}

/// An open network namespace; it exists at least until this value is dropped.
#[derive(Debug)]
pub struct NetNs(File);

impl NetNs {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn current() -> io::Result<NetNs> {
        NetNs::at(Path::new(CURRENT))
    }

    /// The namespace with this name, created by `ip netns` or [`Named::create`].
    ///
    /// # Errors
    /// It does not exist; the message contains the path of the missing file.
    pub fn named(name: &str) -> io::Result<NetNs> {
        NetNs::at(&path_of(name)?)
    }

    /// The namespace of a file such as `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn at(path: &Path) -> io::Result<NetNs> {
        File::open(path).map(NetNs).map_err(|error| {
            let text = format!("cannot open the network namespace {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        })
    }

    /// Its identity.
    ///
    /// # Errors
    /// The error of `fstat(2)`.
    pub fn identity(&self) -> io::Result<Identity> {
        let metadata = self.0.metadata()?;
        Ok(Identity { device: metadata.dev(), inode: metadata.ino() })
    }

    /// Moves the calling thread into the namespace.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; `EINVAL` if the file is not a network namespace.
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|error| {
            let error = io::Error::from(error);
            let text =
                format!("cannot enter a network namespace, which requires CAP_SYS_ADMIN (root): {error}");
            io::Error::new(error.kind(), text)
        })
    }

    /// Calls `work` in the namespace, on a new thread, and waits for its result. Propagates a panic of `work`.
    ///
    /// # Errors
    /// As [`enter`](NetNs::enter); a thread cannot be created.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = || self.enter().map(|()| work());
            let thread = thread::Builder::new().name("netns".into()).spawn_scoped(scope, inside)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The cookie of the calling thread's namespace, which identifies it until the host is rebooted.
///
/// # Errors
/// The kernel has none (before Linux 5.14).
pub fn cookie() -> io::Result<u64> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut cookie = [0; size_of::<u64>()];
    crate::sockopt::get(&socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// `asm-generic/socket.h`.
const SO_NETNS_COOKIE: i32 = 71;

/// A named network namespace created by this process; removed when dropped.
///
/// While processes or sockets are inside, the kernel keeps it, without its name.
#[derive(Debug)]
pub struct Named {
    name: String,
    namespace: NetNs,
}

impl Named {
    /// Creates a namespace, in which the loopback interface is down.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken, `EPERM` without `CAP_SYS_ADMIN`, `EINVAL` for a name with a slash.
    pub fn create(name: &str) -> io::Result<Named> {
        let path = path_of(name)?;
        prepare_directory()?;
        fs::OpenOptions::new().write(true).create_new(true).mode(0o000).open(&path).map_err(|error| {
            let text = format!("cannot create the network namespace {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        })?;
        let created = thread::scope(|scope| {
            let inside = || {
                // SAFETY: only the network namespace is unshared, not the table of file descriptors.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
                rustix::mount::mount_bind(CURRENT, &path)?;
                NetNs::current()
            };
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        match created {
            Ok(namespace) => Ok(Named { name: name.into(), namespace }),
            Err(error) => {
                let _ = remove(&path);
                let text = format!(
                    "cannot create a network namespace, which requires CAP_SYS_ADMIN (root): {error}"
                );
                Err(io::Error::new(error.kind(), text))
            }
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl std::ops::Deref for Named {
    type Target = NetNs;

    fn deref(&self) -> &NetNs {
        &self.namespace
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // May fail because another process has already deleted it.
        let _ = delete(&self.name);
    }
}

/// Removes a named namespace.
///
/// # Errors
/// It does not exist, or this process lacks the privileges.
pub fn delete(name: &str) -> io::Result<()> {
    remove(&path_of(name)?)
}

/// The names of all named namespaces.
///
/// # Errors
/// The directory cannot be read; if it does not exist, the list is empty.
pub fn list() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The namespace with this identity, if it has a name or a process.
pub fn find(identity: Identity) -> Option<NetNs> {
    candidates().find(|namespace| namespace.identity().is_ok_and(|found| found == identity))
}

/// All namespaces that have a name or a process, without duplicates.
pub fn all() -> Vec<NetNs> {
    // A named namespace is a regular file until the namespace is mounted there.
    let device = NetNs::current().and_then(|own| own.identity()).map(|own| own.device).ok();
    let mut known = HashSet::new();
    let mut is_new = |found: Identity| Some(found.device) == device && known.insert(found);
    candidates().filter(|namespace| namespace.identity().is_ok_and(&mut is_new)).collect()
}

/// The namespaces of all names and processes, with duplicates.
fn candidates() -> impl Iterator<Item = NetNs> {
    let named = fs::read_dir(DIRECTORY).into_iter().flatten().flatten().map(|entry| entry.path());
    let processes =
        fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path().join("ns/net"));
    std::iter::once(PathBuf::from(CURRENT))
        .chain(named)
        .chain(processes)
        .filter_map(|path| NetNs::at(&path).ok())
}

const DIRECTORY: &str = "/run/netns";
const CURRENT: &str = "/proc/thread-self/ns/net";

fn path_of(name: &str) -> io::Result<PathBuf> {
    if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') {
        let text = format!(
            "expected the name of a network namespace, without slashes or a leading dot, got '{name}'"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(Path::new(DIRECTORY).join(name))
}

fn remove(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        // EINVAL: a regular file, whose creator was killed before it mounted the namespace.
        Ok(()) | Err(rustix::io::Errno::INVAL) => fs::remove_file(path),
        Err(error) => Err(io::Error::new(
            io::Error::from(error).kind(),
            format!("cannot remove the network namespace {}: {error}", path.display()),
        )),
    }
}

/// Makes `/run/netns` a shared mount, so that a namespace created here can also be removed in other mount namespaces.
/// Does the same as `ip netns`, under the same lock.
fn prepare_directory() -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(DIRECTORY)?;
    let directory = File::open(DIRECTORY)?;
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive)?;
    let share = || mount_change(DIRECTORY, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        Err(rustix::io::Errno::INVAL) => {
            mount_bind_recursive(DIRECTORY, DIRECTORY)?;
            Ok(share()?)
        }
        other => Ok(other?),
    }
}
