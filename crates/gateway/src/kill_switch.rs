//! The kill switch: nothing leaves this host outside of plait, whether a gateway runs or not.
//!
//! `bpf/kill_switch.bpf.c` is attached to the root of the control groups, and pinned: it remains in force until it is
//! [removed](KillSwitch::remove), even if the gateway is killed. The next gateway takes it over. What has no socket, since this host
//! forwards it, is stopped by [`forward`].

mod forward;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapHandle};
use plait_linux::bpf_files::{self, BpfFiles};
use plait_linux::netns::{self, NetNs};
use plait_linux::{bpf_link, cgroup};
use rustix::fs::{AtFlags, unlinkat};
use tracing::warn;

use self::forward::{FORWARD_V4, FORWARD_V6, FORWARDED_V4, FORWARDED_V6};
use crate::bpf::{self, BpfError, Programs};
use crate::networks::Networks;
use crate::skeleton::kill_switch::KillSwitchSkelBuilder;

/// How the directory of its pins begins; the cookie and the inode of its network namespace follow.
const PREFIX: &str = "kill-switch-";

/// The pin without which the others are of no effect.
const LINK: &str = "link";
const GATEWAYS: &str = "gateways";
const EXCLUDED_V4: &str = "excluded_v4";
const EXCLUDED_V6: &str = "excluded_v6";

/// In the order in which they are removed: the kill switch is in force as long as the link is there, and what remains without it is of
/// no effect.
const PINS: [&str; 8] =
    [FORWARD_V4, FORWARD_V6, LINK, GATEWAYS, EXCLUDED_V4, EXCLUDED_V6, FORWARDED_V4, FORWARDED_V6];

/// The kill switch cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KillSwitchError {
    /// The BPF file system.
    #[error(transparent)]
    Files(#[from] bpf_files::Error),
    /// BPF programs.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The root of the control groups.
    #[error("cannot use the kill switch: {0}")]
    Io(#[from] io::Error),
}

/// A kill switch that is in force.
pub struct KillSwitch {
    excluded: Networks,
    /// `None` if the kernel cannot stop what is forwarded.
    forwarded: Option<Networks>,
}

/// The networks that are reached without plait while the kill switch is in force.
#[derive(Clone, Debug)]
pub(crate) struct Exclusions {
    /// By this host.
    pub(crate) own: BTreeSet<IpNet>,
    /// By those whose packets it forwards.
    pub(crate) forwarded: BTreeSet<IpNet>,
}

impl KillSwitch {
    /// Lets nothing leave a network namespace, given by its cookie, but what is of a gateway, given by the id of its cgroup, or goes to
    /// these networks. Takes over one that is in force, but no longer for another gateway.
    pub(crate) fn engage(
        namespace: u64,
        gateway: u64,
        exclusions: &Exclusions,
    ) -> Result<KillSwitch, KillSwitchError> {
        if let Some(present) = KillSwitch::adopt(namespace, gateway, exclusions)? {
            return Ok(present);
        }
        let files = BpfFiles::find()?;
        let directory = own_directory(&files, namespace)?;
        // What is there is of one whose creator was killed before it was in force.
        remove_pins(&directory)?;
        files.mount_for(&directory)?;
        let mut storage = MaybeUninit::uninit();
        let skeleton = bpf::load("kill_switch", KillSwitchSkelBuilder::default(), &mut storage)?;
        bpf::write_settings(&skeleton.maps.namespaces, &namespace)?;
        let gateways = bpf::handle(&skeleton.maps.gateways)?;
        bpf::update(&gateways, &gateway.to_ne_bytes(), &1u8)?;
        let excluded =
            Networks::of(bpf::handle(&skeleton.maps.excluded_v4)?, bpf::handle(&skeleton.maps.excluded_v6)?);
        excluded.set(&exclusions.own)?;
        let mut programs = Programs::of(&skeleton)?;
        let pin = |object: &dyn AsFd, name| bpf_link::pin(object.as_fd(), &directory.join(name));
        let [v4, v6] = excluded.maps();
        pin(&gateways, GATEWAYS)?;
        pin(v4, EXCLUDED_V4)?;
        pin(v6, EXCLUDED_V6)?;
        programs.attach(cgroup::open_root()?)?;
        for link in programs.links() {
            pin(link, LINK)?;
        }
        Ok(KillSwitch { excluded, forwarded: stop_forwarding(&directory, exclusions) })
    }

    /// Takes over the one that is in force, if there is one.
    pub(crate) fn adopt(
        namespace: u64,
        gateway: u64,
        exclusions: &Exclusions,
    ) -> Result<Option<KillSwitch>, KillSwitchError> {
        let files = BpfFiles::find()?;
        let directory = own_directory(&files, namespace)?;
        if !directory.join(LINK).exists() {
            return Ok(None);
        }
        let open = |name| MapHandle::from_pinned_path(directory.join(name)).map_err(io::Error::other);
        let gateways = open(GATEWAYS)?;
        bpf::update(&gateways, &gateway.to_ne_bytes(), &1u8)?;
        for earlier in gateways.keys().filter(|key| *key != gateway.to_ne_bytes()) {
            gateways.delete(&earlier).map_err(io::Error::other)?;
        }
        let excluded = Networks::of(open(EXCLUDED_V4)?, open(EXCLUDED_V6)?);
        excluded.set(&exclusions.own)?;
        Ok(Some(KillSwitch { excluded, forwarded: stop_forwarding(&directory, exclusions) }))
    }

    /// Mounts the file system of its pins, with an empty directory for them.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn mount() -> Result<(), KillSwitchError> {
        let files = BpfFiles::find()?;
        let directory = own_directory(&files, netns::cookie()?)?;
        Ok(files.mount_for(&directory)?)
    }

    pub(crate) fn exclude(&self, exclusions: &Exclusions) -> Result<(), BpfError> {
        self.excluded.set(&exclusions.own)?;
        match &self.forwarded {
            Some(networks) => networks.set(&exclusions.forwarded),
            None => Ok(()),
        }
    }

    /// Whether one is in force in this network namespace.
    ///
    /// # Errors
    /// The BPF file system or the namespace is inaccessible.
    pub fn is_engaged() -> Result<bool, KillSwitchError> {
        let files = BpfFiles::find()?;
        Ok(own_directory(&files, netns::cookie()?)?.join(LINK).exists())
    }

    /// Removes that of this network namespace. Returns whether there was one.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn remove() -> Result<bool, KillSwitchError> {
        let files = BpfFiles::find()?;
        let directory = own_directory(&files, netns::cookie()?)?;
        let engaged = directory.join(LINK).exists();
        remove_pins(&directory)?;
        files.unmount_if_empty()?;
        Ok(engaged)
    }

    /// Removes those of network namespaces that no longer exist. Returns their directories.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn clean_leftovers() -> Result<Vec<PathBuf>, KillSwitchError> {
        let files = BpfFiles::find()?;
        let entries = match fs::read_dir(files.root()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let inodes: BTreeSet<u64> =
            netns::all().iter().filter_map(|namespace| Some(namespace.identity().ok()?.inode)).collect();
        let mut removed = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let inode =
                name.strip_prefix(PREFIX).and_then(|name| name.split_once('-')?.1.parse::<u64>().ok());
            if inode.is_some_and(|inode| !inodes.contains(&inode)) {
                remove_pins(&path)?;
                removed.push(path);
            }
        }
        files.unmount_if_empty()?;
        Ok(removed)
    }
}

/// The kill switch of this network namespace, for a process that will have no access to paths when it removes it.
pub(crate) struct ReleasedKillSwitch {
    directory: OwnedFd,
    name: PathBuf,
}

impl ReleasedKillSwitch {
    /// The file system must be mounted ([`KillSwitch::mount`]).
    pub(crate) fn prepare() -> Result<ReleasedKillSwitch, KillSwitchError> {
        let files = BpfFiles::find()?;
        let own = own_directory(&files, netns::cookie()?)?;
        let name = own.file_name().map(PathBuf::from).unwrap_or_default();
        let directory = OwnedFd::from(fs::File::open(files.root())?);
        Ok(ReleasedKillSwitch { directory, name })
    }

    /// The directory of the file system.
    pub(crate) fn directory(&self) -> io::Result<OwnedFd> {
        self.directory.try_clone()
    }

    pub(crate) fn release(&self) -> io::Result<()> {
        for name in PINS {
            let removed = unlinkat(&self.directory, self.name.join(name), AtFlags::empty());
            ignore_missing(removed.map_err(io::Error::from))?;
        }
        ignore_missing(unlinkat(&self.directory, &self.name, AtFlags::REMOVEDIR).map_err(io::Error::from))
    }
}

/// Also stops what this host forwards, where the kernel can.
fn stop_forwarding(directory: &Path, exclusions: &Exclusions) -> Option<Networks> {
    forward::stop(directory, &exclusions.forwarded)
        .inspect_err(|error| {
            warn!(
                "the kill switch does not stop what this host forwards (it needs Linux 6.4 with CONFIG_NETFILTER_BPF_LINK): {error}"
            );
        })
        .ok()
}

/// Where the kill switch of this network namespace is pinned.
fn own_directory(files: &BpfFiles, namespace: u64) -> io::Result<PathBuf> {
    let inode = NetNs::current()?.identity()?.inode;
    Ok(files.root().join(format!("{PREFIX}{namespace}-{inode}")))
}

/// Removes the pins and their directory, if there are any.
fn remove_pins(directory: &Path) -> io::Result<()> {
    for name in PINS {
        ignore_missing(fs::remove_file(directory.join(name)))?;
    }
    ignore_missing(fs::remove_dir(directory))
}

fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
