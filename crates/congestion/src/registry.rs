//! The algorithms loaded into the kernel, and the namespaces and control groups that use them.
//!
//! All state is in the kernel and outlives the command: pins in plait's BPF file system, `congestion/NAME` for an
//! algorithm, `congestion/NAME:PART` for a map or program of it that others use, or a link of such a program to an interface,
//! and `congestion/NAME@ID` for a control group that uses it; and the sysctl of a network namespace, whose
//! previous value is saved in `congestion/INODE` of the run directory. A killed command leaves no partial state:
//! unpinned objects end with the process, and the sysctl is saved before it is changed.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys::BPF_TCX_EGRESS;
use libbpf_rs::{Link, Object, Program};
use plait_linux::bpf_files::BpfFiles;
use plait_linux::netns::{self, NetNs};
use plait_linux::{bpf_link, cgroup, is_same_file};
use rustix::fs::{FlockOperation, flock};

use crate::connections::sockets_of;
use crate::{Algorithm, Error, KernelAlgorithm, cgroups, namespaces, object};

/// Manages the algorithms of one kind in this kernel. Several processes can use it at once: a lock serializes changes,
/// those of other kinds too, as a control group or namespace uses one algorithm in all.
#[derive(Debug)]
pub struct Registry<A = Algorithm> {
    files: BpfFiles,
    kind: PhantomData<A>,
}

/// What an algorithm is enabled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// Sockets of a control group that connect or are accepted after it was enabled.
    ControlGroup {
        /// From the root of the hierarchy; `None` if the group no longer exists.
        path: Option<PathBuf>,
        /// Its id.
        id: u64,
    },
    /// Sockets created in a network namespace after it was enabled.
    Namespace {
        /// The inode number of the namespace.
        inode: u64,
        /// Its name in `/run/netns`, if it has one.
        name: Option<String>,
    },
}

/// The result of unloading an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unloaded {
    /// The sockets, in all network namespaces, that still use it. The kernel keeps the programs until they are closed,
    /// and offers the algorithm to no other socket.
    pub sockets: usize,
}

impl<A: KernelAlgorithm> Registry<A> {
    /// Locates the run directory.
    ///
    /// # Errors
    /// The run directory cannot be used.
    pub fn find() -> Result<Registry<A>, Error> {
        Ok(Registry { files: BpfFiles::find()?, kind: PhantomData })
    }

    /// The loaded algorithms.
    ///
    /// # Errors
    /// The pins cannot be read.
    pub fn loaded(&self) -> Result<Vec<A>, Error> {
        let mut loaded: Vec<_> = self.pins()?.iter().filter_map(|name| A::named(name)).collect();
        loaded.sort_unstable();
        Ok(loaded)
    }

    /// Registers an algorithm with the kernel; `false` if it was already registered.
    ///
    /// # Errors
    /// [`Error::Kernel`], or [`Error::NameTaken`].
    pub fn load(&self, algorithm: A) -> Result<bool, Error> {
        self.load_object(algorithm, || algorithm.load())
    }

    /// As [`load`](Registry::load), with the loaded programs that `load` returns.
    ///
    /// # Errors
    /// As [`load`](Registry::load), or that of `load`.
    pub fn load_object(
        &self,
        algorithm: A,
        load: impl FnOnce() -> Result<Object, Error>,
    ) -> Result<bool, Error> {
        let _lock = self.lock()?;
        self.load_locked(algorithm, load)
    }

    /// Unregisters an algorithm after disabling it everywhere: control groups use the algorithm of their network
    /// namespaces again, and namespaces their previous one.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], or [`Error::Kernel`].
    pub fn unload(&self, algorithm: A) -> Result<Unloaded, Error> {
        let _lock = self.lock()?;
        let loaded = self.loaded()?;
        if !loaded.contains(&algorithm) {
            let loaded = loaded.into_iter().map(A::name).collect();
            return Err(Error::NotLoaded { name: algorithm.name(), loaded });
        }
        for id in self.cgroups_using(algorithm)? {
            self.unpin(&cgroup_pin(algorithm, id))?;
        }
        let mut sockets = 0;
        for namespace in netns::all() {
            if namespaces::enabled::<A>(&namespace)? == Some(algorithm) {
                namespaces::disable::<A>(&self.saved_settings(), &namespace)?;
            }
            sockets += namespace.run(|| sockets_of(algorithm.kernel_name())).map_err(Error::Namespace)??;
        }
        self.unpin(algorithm.name())?;
        self.remove_orphans()?;
        self.remove_unused_saved_settings()?;
        wait_until_removed(algorithm.kernel_name())?;
        Ok(Unloaded { sockets })
    }

    /// Enables an algorithm for the sockets of a control group that connect or are accepted from now on, with all their
    /// subflows, regardless of what the programs request. Loads it if needed. `namespace` is the network namespace of the
    /// group's programs, whose paths the algorithm may measure. Returns the path of the group from the root of the
    /// hierarchy.
    ///
    /// # Errors
    /// As [`load`](Registry::load); the control group does not exist.
    pub fn enable_for_cgroup(&self, algorithm: A, group: &Path, namespace: &NetNs) -> Result<PathBuf, Error> {
        let (path, group) = cgroup::open(group)?;
        let id = cgroups::id(&path, &group)?;
        let _lock = self.lock()?;
        self.load_locked(algorithm, || algorithm.load())?;
        let pin = cgroup_pin(algorithm, id);
        if !self.pins()?.contains(&pin) {
            let mut link = object::attach_to_cgroup(algorithm.kernel_name(), group.as_fd())?;
            link.pin(self.directory().join(&pin)).map_err(Error::kernel("pin the program"))?;
        }
        // After the new one is attached, so that there is no gap.
        for (other, used_by) in self.cgroup_pins()? {
            if used_by == id && other != pin {
                self.unpin(&other)?;
            }
        }
        self.attach_to_interfaces(algorithm, namespace)?;
        self.detach_unused_programs()?;
        Ok(path)
    }

    /// Enables an algorithm for the sockets created in a network namespace from now on, with all their subflows. Loads
    /// it if needed.
    ///
    /// # Errors
    /// As [`load`](Registry::load); the sysctl cannot be changed.
    pub fn enable_for_namespace(&self, algorithm: A, namespace: &NetNs) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.load_locked(algorithm, || algorithm.load())?;
        namespaces::enable(&self.saved_settings(), namespace, algorithm.kernel_name())?;
        self.attach_to_interfaces(algorithm, namespace)?;
        self.detach_unused_programs()
    }

    /// The file of a map or program of a loaded algorithm, one of its [`PARTS`](KernelAlgorithm::PARTS).
    pub fn part(&self, algorithm: A, part: &str) -> PathBuf {
        self.directory().join(format!("{algorithm}:{part}"))
    }

    /// Reverts [`enable_for_cgroup`](Registry::enable_for_cgroup). Returns the group's path and the algorithm.
    ///
    /// # Errors
    /// [`Error::NotInUse`]; the control group does not exist.
    pub fn disable_for_cgroup(&self, group: &Path) -> Result<(PathBuf, A), Error> {
        let (path, group) = cgroup::open(group)?;
        let id = cgroups::id(&path, &group)?;
        let _lock = self.lock()?;
        let mut disabled = None;
        for &algorithm in A::ALL {
            if self.cgroups_using(algorithm)?.contains(&id) {
                self.unpin(&cgroup_pin(algorithm, id))?;
                disabled = Some(algorithm);
            }
        }
        self.detach_unused_programs()?;
        let name = path.display().to_string();
        disabled
            .map(|algorithm| (path, algorithm))
            .ok_or_else(|| Error::not_in_use::<A>(format!("the control group {name}")))
    }

    /// Reverts [`enable_for_namespace`](Registry::enable_for_namespace). Returns the algorithm.
    ///
    /// # Errors
    /// [`Error::NotInUse`]; the sysctl cannot be changed.
    pub fn disable_for_namespace(&self, namespace: &NetNs) -> Result<A, Error> {
        let _lock = self.lock()?;
        let disabled = namespaces::disable(&self.saved_settings(), namespace)?;
        let disabled: A = disabled.ok_or_else(|| Error::not_in_use::<A>("the network namespace"))?;
        self.detach_unused_programs()?;
        Ok(disabled)
    }

    /// The control groups and namespaces for which algorithms are enabled.
    ///
    /// # Errors
    /// Namespaces cannot be entered, or pins cannot be read.
    pub fn uses(&self) -> Result<Vec<(A, Use)>, Error> {
        let mut uses = Vec::new();
        let groups = self.pinned_cgroups()?;
        let ids: Vec<_> = groups.iter().map(|(_, id)| *id).collect();
        let paths = cgroups::paths(&ids)?;
        for (algorithm, id) in groups {
            let path = paths.iter().find(|(other, _)| *other == id).map(|(_, path)| path.clone());
            uses.push((algorithm, Use::ControlGroup { path, id }));
        }
        let names = namespace_names();
        for namespace in netns::all() {
            let Some(algorithm) = namespaces::enabled(&namespace)? else { continue };
            let inode = namespace.identity().map_err(Error::Namespace)?.inode;
            let name = names.iter().find(|(other, _)| *other == inode).map(|(_, name)| name.clone());
            uses.push((algorithm, Use::Namespace { inode, name }));
        }
        Ok(uses)
    }

    /// Removes the pins and saved sysctls of control groups and namespaces that no longer exist, for algorithms of every
    /// kind. Returns their paths.
    ///
    /// # Errors
    /// A pin or file cannot be removed.
    pub fn clean_leftovers(&self) -> Result<Vec<PathBuf>, Error> {
        let mut removed = Vec::new();
        if !self.directory().exists() && !self.saved_settings().exists() {
            return Ok(removed);
        }
        let _lock = self.lock()?;
        let pins = self.cgroup_pins()?;
        let ids: Vec<_> = pins.iter().map(|(_, id)| *id).collect();
        let existing = cgroups::paths(&ids)?;
        for (pin, id) in pins {
            if !existing.iter().any(|(other, _)| *other == id) {
                self.unpin(&pin)?;
                removed.push(self.directory().join(pin));
            }
        }
        let existing: Vec<_> =
            netns::all().iter().filter_map(|namespace| Some(namespace.identity().ok()?.inode)).collect();
        for pin in self.pins()? {
            if egress_namespace(&pin).is_some_and(|inode| !existing.contains(&inode)) {
                self.unpin(&pin)?;
                removed.push(self.directory().join(pin));
            }
        }
        removed.extend(self.remove_unused_saved_settings()?);
        Ok(removed)
    }

    /// Removes the saved sysctls of namespaces that use no algorithm: they no longer exist, or have the number of one that did.
    fn remove_unused_saved_settings(&self) -> Result<Vec<PathBuf>, Error> {
        let (saved, mut used) = (entries(&self.saved_settings())?, Vec::new());
        if saved.is_empty() {
            return Ok(Vec::new());
        }
        for namespace in netns::all() {
            if namespaces::uses_algorithm(&namespace)? {
                used.push(namespace.identity().map_err(Error::Namespace)?.inode);
            }
        }
        let unused =
            saved.into_iter().filter(|saved| !saved.parse().is_ok_and(|inode| used.contains(&inode)));
        let remove = |name| {
            let path = self.saved_settings().join(name);
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
            Ok(path)
        };
        unused.map(remove).collect()
    }

    fn load_locked(&self, algorithm: A, load: impl FnOnce() -> Result<Object, Error>) -> Result<bool, Error> {
        if self.loaded()?.contains(&algorithm) {
            return Ok(false);
        }
        let mut object = load()?;
        self.files.mount_for(&self.directory())?;
        self.remove_orphans()?;
        for part in A::PARTS {
            let path = self.part(algorithm, part);
            bpf_link::pin(object::part(&object, part)?.as_fd(), &path).map_err(Error::file("pin", &path))?;
        }
        let mut link = object::register(&mut object, algorithm.kernel_name())?;
        link.pin(self.directory().join(algorithm.name())).map_err(Error::kernel("pin the algorithm"))?;
        Ok(true)
    }

    /// Attaches its program for packets that leave, if it has one, to the interfaces of a namespace. Kernels without TCX
    /// (before 6.6) do without.
    fn attach_to_interfaces(&self, algorithm: A, namespace: &NetNs) -> Result<(), Error> {
        let Some(part) = A::EGRESS else { return Ok(()) };
        let program = Program::fd_from_pinned_path(self.part(algorithm, part))
            .map_err(Error::kernel("open the program for interfaces"))?;
        let links = egress_links(algorithm, namespace.identity().map_err(Error::Namespace)?.inode);
        for pin in self.pins()?.iter().filter(|pin| pin.starts_with(&links)) {
            self.unpin(pin)?;
        }
        let attach = || bpf_link::attach_to_all(program.as_fd(), BPF_TCX_EGRESS);
        let attached = namespace.run(attach).map_err(Error::Namespace)?.unwrap_or_else(|error| {
            tracing::debug!("{algorithm} is not attached to interfaces: {error}");
            Vec::new()
        });
        for (if_index, link) in attached {
            let path = self.directory().join(format!("{links}{if_index}"));
            bpf_link::pin(link.as_fd(), &path).map_err(Error::file("pin", &path))?;
        }
        Ok(())
    }

    /// Detaches programs from the interfaces of namespaces that do not use their algorithm, unless a control group does.
    fn detach_unused_programs(&self) -> Result<(), Error> {
        let link = |pin: String| {
            let algorithm = A::named(pin.split_once(':')?.0)?;
            Some((algorithm, egress_namespace(&pin)?, pin))
        };
        let links: Vec<_> = self.pins()?.into_iter().filter_map(link).collect();
        if links.is_empty() {
            return Ok(());
        }
        let uses = self.uses()?;
        for (algorithm, attached_in, pin) in links {
            let is_used = uses.iter().any(|(used, by)| {
                let is_here = matches!(by, Use::Namespace { inode, .. } if *inode == attached_in);
                *used == algorithm && (is_here || matches!(by, Use::ControlGroup { .. }))
            });
            if !is_used {
                self.unpin(&pin)?;
            }
        }
        Ok(())
    }

    /// Removes the parts of algorithms that are not loaded.
    fn remove_orphans(&self) -> Result<(), Error> {
        let pins = self.pins()?;
        let is_orphan = |pin: &&String| {
            pin.split_once(':').is_some_and(|(name, _)| !pins.iter().any(|other| other == name))
        };
        pins.iter().filter(is_orphan).try_for_each(|pin| self.unpin(pin))
    }

    /// Removes a pin, if it exists, and detaches its link.
    fn unpin(&self, name: &str) -> Result<(), Error> {
        let path = self.directory().join(name);
        if fs::symlink_metadata(&path).is_err() {
            return Ok(());
        }
        if let Ok(link) = Link::open(&path) {
            // On kernels that cannot detach a link, dropping the last reference does.
            let _ = link.detach();
        }
        fs::remove_file(&path).map_err(Error::file("remove", &path))
    }

    fn cgroups_using(&self, algorithm: A) -> Result<Vec<u64>, Error> {
        let groups = self.pinned_cgroups()?.into_iter();
        Ok(groups.filter(|(other, _)| *other == algorithm).map(|(_, id)| id).collect())
    }

    fn pinned_cgroups(&self) -> Result<Vec<(A, u64)>, Error> {
        let algorithm = |(pin, id): (String, u64)| Some((A::named(pin.split_once('@')?.0)?, id));
        let mut groups: Vec<_> = self.cgroup_pins()?.into_iter().filter_map(algorithm).collect();
        groups.sort_unstable();
        Ok(groups)
    }

    /// The pins for control groups, of algorithms of every kind, with the groups' ids.
    fn cgroup_pins(&self) -> Result<Vec<(String, u64)>, Error> {
        let with_id = |pin: String| {
            let id = pin.split_once('@')?.1.parse().ok()?;
            Some((pin, id))
        };
        Ok(self.pins()?.into_iter().filter_map(with_id).collect())
    }

    fn pins(&self) -> Result<Vec<String>, Error> {
        entries(&self.directory())
    }

    fn directory(&self) -> PathBuf {
        self.files.root().join("congestion")
    }

    fn saved_settings(&self) -> PathBuf {
        self.files.run_directory().join("congestion")
    }

    /// Waits for the exclusive lock.
    fn lock(&self) -> Result<Lock<'_, A>, Error> {
        let path = self.saved_settings();
        loop {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(Error::file("create", &path)(error));
                }
                _ => {}
            }
            // Another process may remove the directory when it releases the lock.
            let Ok(directory) = File::open(&path) else { continue };
            rustix::io::retry_on_intr(|| flock(&directory, FlockOperation::LockExclusive))
                .map_err(|error| Error::file("lock", &path)(error.into()))?;
            if is_same_file(&directory, &path) {
                return Ok(Lock { registry: self, _directory: directory });
            }
        }
    }

    /// Removes empty directories.
    fn remove_empty_directories(&self) -> Result<(), Error> {
        let directory = self.directory();
        let existed = directory.exists();
        for path in [&directory, &self.saved_settings()] {
            match fs::remove_dir(path) {
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                    return Err(Error::file("remove", path)(error));
                }
                _ => {}
            }
        }
        if existed { Ok(self.files.unmount_if_empty()?) } else { Ok(()) }
    }
}

/// The exclusive lock. Dropping it removes what a killed command left, and empty directories.
struct Lock<'a, A: KernelAlgorithm> {
    registry: &'a Registry<A>,
    _directory: File,
}

impl<A: KernelAlgorithm> Drop for Lock<'_, A> {
    fn drop(&mut self) {
        let removed = self.registry.remove_orphans().and_then(|()| self.registry.remove_empty_directories());
        if let Err(error) = removed {
            tracing::warn!("{error}");
        }
    }
}

fn cgroup_pin(algorithm: impl KernelAlgorithm, id: u64) -> String {
    format!("{algorithm}@{id}")
}

/// The beginning of the pins of an algorithm's links to the interfaces of a namespace, whose indices follow.
fn egress_links(algorithm: impl KernelAlgorithm, inode: u64) -> String {
    format!("{algorithm}:egress-{inode}-")
}

/// The inode of the namespace in the pin of a link to an interface.
fn egress_namespace(pin: &str) -> Option<u64> {
    pin.split_once(":egress-")?.1.split_once('-')?.0.parse().ok()
}

/// The kernel removes an algorithm shortly after the last reference to it is dropped.
fn wait_until_removed(kernel_name: &'static str) -> Result<(), Error> {
    let start = Instant::now();
    while namespaces::is_available(kernel_name)? {
        if start.elapsed() > Duration::from_secs(2) {
            return Err(Error::StillRegistered(kernel_name));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn namespace_names() -> Vec<(u64, String)> {
    let names = netns::list().unwrap_or_default().into_iter();
    names.filter_map(|name| Some((NetNs::named(&name).ok()?.identity().ok()?.inode, name))).collect()
}

/// The names in a directory; empty if it does not exist.
fn entries(directory: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::file("read", directory))?,
    };
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}
