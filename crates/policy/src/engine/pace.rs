//! Attaches the program behind the actor `pace` (bpf/pace.bpf.c).
//!
//! It is attached to the root control group and pinned, so that it outlives a command. It paces the subflows of one
//! network namespace: that of the thread that attaches it, which must also detach it.
//!
//! Subflows that existed before are paced on Linux 6.12 and later.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Iter, Link, OpenObject};
use plait_linux::cgroup;

use super::skeleton::pace::{PaceSkel, PaceSkelBuilder};

/// Why the pacing program cannot be attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum PaceError {
    /// The root control group cannot be opened.
    #[error("cannot open the root control group, which the actor pace needs: {0}")]
    Cgroup(io::Error),
    /// The kernel rejected an operation.
    #[error(
        "cannot {operation} the program of the actor pace: {reason}; this requires root and Linux 5.15 or later"
    )]
    Kernel {
        /// The operation.
        operation: &'static str,
        /// The error.
        reason: libbpf_rs::Error,
    },
    /// A pin cannot be removed.
    #[error("cannot remove {}: {reason}", .path.display())]
    Pin {
        /// The pin.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
}

/// Attaches the program: subflows of this network namespace are paced as their records in `flows` say. `network` is
/// the cookie of the namespace. Links are pinned in the directory `pins` on a BPF file system.
pub(crate) fn attach(flows: BorrowedFd<'_>, network: u64, pins: &Path) -> Result<(), PaceError> {
    let root = cgroup::open_root().map_err(PaceError::Cgroup)?;
    let mut storage = MaybeUninit::uninit();
    let skeleton = load(flows, network, &mut storage).map_err(failed("load"))?;
    let programs = &skeleton.progs;
    let mut attached = programs.pace.attach_cgroup(root.as_raw_fd()).map_err(failed("attach"))?;
    let mut restore = programs.restore.attach().map_err(failed("attach"))?;
    let adopt = programs.adopt.attach().map_err(failed("attach"))?;
    // Pin first what undoes the second.
    restore.pin(pins.join(RESTORE)).map_err(failed("pin"))?;
    attached.pin(pins.join(PACE)).map_err(failed("pin"))?;
    run(&adopt).map_err(failed("run"))
}

/// Whether the program is attached, according to its pin.
pub(crate) fn is_attached(pins: &Path) -> bool {
    pins.join(PACE).exists()
}

/// Detaches and unpins the program, if it is attached, and restores the pacing rate of every socket.
pub(crate) fn detach(pins: &Path) -> Result<(), PaceError> {
    if let Some(link) = open(&pins.join(PACE))? {
        link.detach().map_err(failed("detach"))?;
    }
    if let Some(restore) = open(&pins.join(RESTORE))? {
        run(&restore).map_err(failed("run"))?;
    }
    for name in [PACE, RESTORE] {
        let path = pins.join(name);
        match fs::remove_file(&path) {
            Err(reason) if reason.kind() != ErrorKind::NotFound => {
                return Err(PaceError::Pin { path, reason });
            }
            _ => {}
        }
    }
    Ok(())
}

fn load<'o>(
    flows: BorrowedFd<'_>,
    network: u64,
    storage: &'o mut MaybeUninit<OpenObject>,
) -> libbpf_rs::Result<PaceSkel<'o>> {
    let mut skeleton = PaceSkelBuilder::default().open(storage)?;
    skeleton.maps.flows.reuse_fd(flows)?;
    if let Some(constants) = &mut skeleton.maps.rodata_data {
        constants.network = network;
    }
    skeleton.load()
}

/// Opens a pinned link, if it exists.
fn open(path: &Path) -> Result<Option<Link>, PaceError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => Link::open(path).map(Some).map_err(failed("find")),
    }
}

/// Runs an iterator program over all sockets of the current network namespace.
fn run(link: &Link) -> libbpf_rs::Result<()> {
    let mut sockets = Iter::new(link)?;
    let mut nothing = [0; 64];
    loop {
        match sockets.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // The kernel interrupts after a million sockets without output.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn failed(operation: &'static str) -> impl FnOnce(libbpf_rs::Error) -> PaceError {
    move |reason| PaceError::Kernel { operation, reason }
}

const PACE: &str = "pace";
const RESTORE: &str = "pace_restore";
