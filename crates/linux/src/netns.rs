//! Network namespaces: entering, making and removing them.
//!
//! Named namespaces are files in `/run/netns`, as `ip netns` keeps them, and the two can be mixed. A namespace is
//! entered by a *thread*: threads it starts afterwards are inside, all others stay where they were.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind_recursive, mount_change, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// What identifies a namespace as long as it lives; the kernel may use it again afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device of the namespace file system.
    pub device: u64,
    /// Inode of the namespace.
    pub inode: u64,
}

/// A network namespace, held open: it lives at least as long as this does.
#[derive(Debug)]
pub struct NetNs(File);

impl NetNs {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn current() -> io::Result<NetNs> {
        NetNs::at(Path::new(CURRENT))
    }

    /// The namespace that `ip netns` or [`Named::create`] gave this name.
    ///
    /// # Errors
    /// There is none; the text names the file that was expected.
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

    /// What identifies it.
    ///
    /// # Errors
    /// What `fstat(2)` says.
    pub fn identity(&self) -> io::Result<Identity> {
        let metadata = self.0.metadata()?;
        Ok(Identity { device: metadata.dev(), inode: metadata.ino() })
    }

    /// Moves the calling thread inside, for good.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; `EINVAL` if it is no network namespace.
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|error| {
            let error = io::Error::from(error);
            let text = format!("cannot enter a network namespace, which takes CAP_SYS_ADMIN (root): {error}");
            io::Error::new(error.kind(), text)
        })
    }

    /// Calls `work` inside, on a thread of its own, and waits for it. A panic of `work` is passed on.
    ///
    /// # Errors
    /// As [`enter`](NetNs::enter), or no thread can be made.
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

/// A named network namespace that this process made; removed when dropped.
///
/// The kernel ends it once nothing uses it any more: processes and sockets inside keep it alive, though nameless.
#[derive(Debug)]
pub struct Named {
    name: String,
    namespace: NetNs,
}

impl Named {
    /// Makes an empty namespace (its loopback interface is down).
    ///
    /// # Errors
    /// `EEXIST` if the name is taken, `EPERM` without `CAP_SYS_ADMIN`, `EINVAL` for a name with a slash.
    pub fn create(name: &str) -> io::Result<Named> {
        let path = path_of(name)?;
        prepare_directory()?;
        fs::OpenOptions::new().write(true).create_new(true).mode(0o000).open(&path).map_err(|error| {
            let text = format!("cannot make the network namespace {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        })?;
        let made = thread::scope(|scope| {
            let inside = || {
                // SAFETY: only the network namespace is unshared, not the table of file descriptors.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
                rustix::mount::mount_bind(CURRENT, &path)?;
                NetNs::current()
            };
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        match made {
            Ok(namespace) => Ok(Named { name: name.into(), namespace }),
            Err(error) => {
                let _ = remove(&path);
                let text =
                    format!("cannot make a network namespace, which takes CAP_SYS_ADMIN (root): {error}");
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
        // Already gone if somebody else deleted it, which is what is wanted.
        let _ = delete(&self.name);
    }
}

/// Removes a named namespace.
///
/// # Errors
/// There is none with this name, or it takes privileges this process lacks.
pub fn delete(name: &str) -> io::Result<()> {
    remove(&path_of(name)?)
}

/// The names of all named namespaces.
///
/// # Errors
/// The directory cannot be read. That it is not there means that there are none.
pub fn list() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The namespace with this identity, wherever it has a name or a process.
pub fn find(identity: Identity) -> Option<NetNs> {
    seen().find(|namespace| namespace.identity().is_ok_and(|found| found == identity))
}

/// All namespaces that have a name or a process, each once.
pub fn all() -> Vec<NetNs> {
    // A name is a mere file until the namespace is mounted there.
    let device = NetNs::current().and_then(|own| own.identity()).map(|own| own.device).ok();
    let mut known = HashSet::new();
    let mut is_new = |found: Identity| Some(found.device) == device && known.insert(found);
    seen().filter(|namespace| namespace.identity().is_ok_and(&mut is_new)).collect()
}

/// Namespaces by their names and processes, so that one may come several times.
fn seen() -> impl Iterator<Item = NetNs> {
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
        let text =
            format!("expected a name for a network namespace, without slash or leading dot, got '{name}'");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(Path::new(DIRECTORY).join(name))
}

fn remove(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        // A file on which nothing is mounted: its maker was killed between the two steps.
        Ok(()) | Err(rustix::io::Errno::INVAL) => fs::remove_file(path),
        Err(error) => Err(io::Error::new(
            io::Error::from(error).kind(),
            format!("cannot remove the network namespace {}: {error}", path.display()),
        )),
    }
}

/// Makes `/run/netns` a mount that propagates, so that namespaces made here can be removed from other mount
/// namespaces too; what `ip netns` does, under the lock that it takes.
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
