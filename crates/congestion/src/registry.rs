//! Which algorithms the kernel has of plait's, and who uses them.
//!
//! Both outlive the command that asked for them, in the kernel: as pins in plait's BPF file system, `congestion/NAME` for
//! an algorithm and `congestion/NAME@N` for the control group with the number N; and as the setting of a network
//! namespace, whose former value is in `congestion/INODE` of the run directory. Nothing is half done by a command that is
//! killed: what is not pinned ends with it, and a setting is recorded before it is changed.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::Link;
use plait_linux::bpf_files::BpfFiles;
use plait_linux::cgroup;
use plait_linux::netns::{self, NetNs};
use rustix::fs::{FlockOperation, flock};

use crate::connections::sockets_of;
use crate::{Algorithm, Error, control_groups, namespaces, object};

/// A way to the algorithms of this kernel. Any number of processes may have one; changes happen one after the other.
#[derive(Debug)]
pub struct Registry {
    files: BpfFiles,
}

/// Who uses an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// The sockets of a control group that connect or are accepted since it was asked for.
    ControlGroup {
        /// From the root of the hierarchy; `None` if the group is gone.
        path: Option<PathBuf>,
        /// Its number.
        number: u64,
    },
    /// The sockets that were made in a network namespace since it was asked for.
    Namespace {
        /// The inode number of the namespace.
        inode: u64,
        /// Its name in `/run/netns`, if it has one.
        name: Option<String>,
    },
}

/// What became of an algorithm that was unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unloaded {
    /// Sockets, of all network namespaces, that go on with it until they are closed; the kernel keeps the programs for
    /// them, and offers them to no other.
    pub sockets: usize,
}

impl Registry {
    /// Finds the run directory; nothing is made.
    ///
    /// # Errors
    /// The run directory cannot be used.
    pub fn find() -> Result<Registry, Error> {
        Ok(Registry { files: BpfFiles::find()? })
    }

    /// The algorithms that are loaded.
    ///
    /// # Errors
    /// The pins cannot be read.
    pub fn loaded(&self) -> Result<Vec<Algorithm>, Error> {
        let mut loaded: Vec<_> = self.pins()?.into_iter().filter_map(|name| name.parse().ok()).collect();
        loaded.sort_unstable();
        Ok(loaded)
    }

    /// Makes an algorithm known to the kernel; `false`: it was.
    ///
    /// # Errors
    /// The kernel's refusal, or somebody else has registered one of this name.
    pub fn load(&self, algorithm: Algorithm) -> Result<bool, Error> {
        let _lock = self.lock()?;
        self.load_locked(algorithm)
    }

    /// Takes an algorithm back from the kernel, and from whoever uses it: control groups get back what their namespaces
    /// use, namespaces what they had.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], or the kernel's refusal.
    pub fn unload(&self, algorithm: Algorithm) -> Result<Unloaded, Error> {
        let _lock = self.lock()?;
        let loaded = self.loaded()?;
        if !loaded.contains(&algorithm) {
            return Err(Error::NotLoaded(algorithm, loaded));
        }
        for number in self.groups_of(algorithm)? {
            self.unpin(&group_pin(algorithm, number))?;
        }
        let mut sockets = 0;
        for namespace in netns::all() {
            if namespaces::used(&namespace)? == Some(algorithm) {
                namespaces::end(&self.records(), &namespace)?;
            }
            sockets += namespace.run(|| sockets_of(algorithm)).map_err(Error::Namespace)??;
        }
        self.unpin(algorithm.name())?;
        await_absence(algorithm)?;
        Ok(Unloaded { sockets })
    }

    /// Lets the sockets of a control group use an algorithm: those that connect or are accepted from now on, and the subflows
    /// that the kernel makes for them, whatever the programs ask for. Loads it if need be. The group's path from the root
    /// of the hierarchy.
    ///
    /// # Errors
    /// As [`load`](Registry::load); there is no such control group.
    pub fn use_in_group(&self, algorithm: Algorithm, group: &Path) -> Result<PathBuf, Error> {
        let (path, group) = cgroup::open(group)?;
        let number = control_groups::number(&path, &group)?;
        let _lock = self.lock()?;
        self.load_locked(algorithm)?;
        let pin = group_pin(algorithm, number);
        if !self.pins()?.contains(&pin) {
            let mut link = object::attach_to_group(algorithm, group.as_fd())?;
            link.pin(self.directory().join(&pin)).map_err(Error::kernel("pin the program"))?;
        }
        // The others come after the new one, so that there is no moment without any.
        for other in Algorithm::ALL.into_iter().filter(|other| *other != algorithm) {
            self.unpin(&group_pin(other, number))?;
        }
        Ok(path)
    }

    /// Lets the sockets that are made in a network namespace from now on use an algorithm, and the subflows that the kernel
    /// makes for them. Loads it if need be.
    ///
    /// # Errors
    /// As [`load`](Registry::load); the setting cannot be changed.
    pub fn use_in_namespace(&self, algorithm: Algorithm, namespace: &NetNs) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.load_locked(algorithm)?;
        namespaces::begin(&self.records(), namespace, algorithm)
    }

    /// Ends what [`use_in_group`](Registry::use_in_group) began: the group's path, and the algorithm.
    ///
    /// # Errors
    /// [`Error::NotUsed`]; there is no such control group.
    pub fn leave_group(&self, group: &Path) -> Result<(PathBuf, Algorithm), Error> {
        let (path, group) = cgroup::open(group)?;
        let number = control_groups::number(&path, &group)?;
        let _lock = self.lock()?;
        let mut ended = None;
        for algorithm in Algorithm::ALL {
            if self.groups_of(algorithm)?.contains(&number) {
                self.unpin(&group_pin(algorithm, number))?;
                ended = Some(algorithm);
            }
        }
        let name = path.display().to_string();
        ended
            .map(|algorithm| (path, algorithm))
            .ok_or_else(|| Error::NotUsed(format!("the control group {name}")))
    }

    /// Ends what [`use_in_namespace`](Registry::use_in_namespace) began.
    ///
    /// # Errors
    /// [`Error::NotUsed`]; the setting cannot be changed.
    pub fn leave_namespace(&self, namespace: &NetNs) -> Result<Algorithm, Error> {
        let _lock = self.lock()?;
        let ended = namespaces::end(&self.records(), namespace)?;
        ended.ok_or_else(|| Error::NotUsed("the network namespace".into()))
    }

    /// Who uses which algorithm.
    ///
    /// # Errors
    /// Namespaces cannot be entered, or pins not be read.
    pub fn uses(&self) -> Result<Vec<(Algorithm, Use)>, Error> {
        let mut uses = Vec::new();
        let groups = self.groups()?;
        let numbers: Vec<_> = groups.iter().map(|(_, number)| *number).collect();
        let paths = control_groups::paths(&numbers)?;
        for (algorithm, number) in groups {
            let path = paths.iter().find(|(other, _)| *other == number).map(|(_, path)| path.clone());
            uses.push((algorithm, Use::ControlGroup { path, number }));
        }
        let names = names_of_namespaces();
        for namespace in netns::all() {
            let Some(algorithm) = namespaces::used(&namespace)? else { continue };
            let inode = namespace.identity().map_err(Error::Namespace)?.inode;
            let name = names.iter().find(|(other, _)| *other == inode).map(|(_, name)| name.clone());
            uses.push((algorithm, Use::Namespace { inode, name }));
        }
        Ok(uses)
    }

    /// Removes what control groups and namespaces that are gone have left; what it was.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn clean_leftovers(&self) -> Result<Vec<PathBuf>, Error> {
        let mut removed = Vec::new();
        if !self.directory().exists() && !self.records().exists() {
            return Ok(removed);
        }
        let _lock = self.lock()?;
        for (algorithm, used) in self.uses()? {
            if let Use::ControlGroup { path: None, number } = used {
                self.unpin(&group_pin(algorithm, number))?;
                removed.push(self.directory().join(group_pin(algorithm, number)));
            }
        }
        let living: Vec<_> =
            netns::all().iter().filter_map(|namespace| Some(namespace.identity().ok()?.inode)).collect();
        for record in entries(&self.records())? {
            if !record.parse().is_ok_and(|inode| living.contains(&inode)) {
                let path = self.records().join(record);
                fs::remove_file(&path).map_err(Error::file("remove", &path))?;
                removed.push(path);
            }
        }
        Ok(removed)
    }

    fn load_locked(&self, algorithm: Algorithm) -> Result<bool, Error> {
        if self.loaded()?.contains(&algorithm) {
            return Ok(false);
        }
        let mut link = object::register(algorithm)?;
        self.files.mount_for(&self.directory())?;
        link.pin(self.directory().join(algorithm.name())).map_err(Error::kernel("pin the algorithm"))?;
        Ok(true)
    }

    /// Ends what a pin keeps, if there is one: at once, where the kernel can.
    fn unpin(&self, name: &str) -> Result<(), Error> {
        let path = self.directory().join(name);
        if fs::symlink_metadata(&path).is_err() {
            return Ok(());
        }
        if let Ok(link) = Link::open(&path) {
            // A kernel that cannot detach does so when nobody has the link any more.
            let _ = link.detach();
        }
        fs::remove_file(&path).map_err(Error::file("remove", &path))
    }

    fn groups_of(&self, algorithm: Algorithm) -> Result<Vec<u64>, Error> {
        let groups = self.groups()?.into_iter();
        Ok(groups.filter(|(other, _)| *other == algorithm).map(|(_, number)| number).collect())
    }

    fn groups(&self) -> Result<Vec<(Algorithm, u64)>, Error> {
        let parse = |name: String| {
            let (algorithm, number) = name.split_once('@')?;
            Some((algorithm.parse().ok()?, number.parse().ok()?))
        };
        let mut groups: Vec<_> = self.pins()?.into_iter().filter_map(parse).collect();
        groups.sort_unstable();
        Ok(groups)
    }

    fn pins(&self) -> Result<Vec<String>, Error> {
        entries(&self.directory())
    }

    fn directory(&self) -> PathBuf {
        self.files.root().join("congestion")
    }

    fn records(&self) -> PathBuf {
        self.files.run_directory().join("congestion")
    }

    /// Waits until no other process changes anything; it can go on when the result is dropped.
    fn lock(&self) -> Result<Lock<'_>, Error> {
        let path = self.records();
        loop {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(Error::file("make", &path)(error));
                }
                _ => {}
            }
            // Who had the lock before may remove the directory at any moment.
            let Ok(directory) = File::open(&path) else { continue };
            rustix::io::retry_on_intr(|| flock(&directory, FlockOperation::LockExclusive))
                .map_err(|error| Error::file("lock", &path)(error.into()))?;
            let locked = directory.metadata().map_err(Error::file("read", &path))?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == locked) {
                return Ok(Lock { registry: self, _directory: directory });
            }
        }
    }

    /// Removes directories in which nothing is any more.
    fn tidy(&self) -> Result<(), Error> {
        let directory = self.directory();
        let is_there = directory.exists();
        for path in [&directory, &self.records()] {
            match fs::remove_dir(path) {
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                    return Err(Error::file("remove", path)(error));
                }
                _ => {}
            }
        }
        if is_there { Ok(self.files.unmount_if_empty()?) } else { Ok(()) }
    }
}

/// Nobody else changes anything as long as this lives. Directories in which nothing is go with it.
struct Lock<'a> {
    registry: &'a Registry,
    _directory: File,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.registry.tidy() {
            tracing::warn!("{error}");
        }
    }
}

fn group_pin(algorithm: Algorithm, number: u64) -> String {
    format!("{algorithm}@{number}")
}

/// The kernel takes an algorithm back some moments after the last has let it go.
fn await_absence(algorithm: Algorithm) -> Result<(), Error> {
    let begun = Instant::now();
    while namespaces::is_available(algorithm)? {
        if begun.elapsed() > Duration::from_secs(2) {
            return Err(Error::Stays(algorithm));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn names_of_namespaces() -> Vec<(u64, String)> {
    let names = netns::list().unwrap_or_default().into_iter();
    names.filter_map(|name| Some((NetNs::named(&name).ok()?.identity().ok()?.inode, name))).collect()
}

/// The names in a directory; none if it is not there.
fn entries(directory: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::file("read", directory))?,
    };
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}
