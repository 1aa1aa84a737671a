//! Attaching the program that carries out what the actor `pace` asks for (bpf/pace.bpf.c).
//!
//! It is attached to the root of all control groups, and pinned, so that it outlives a command. It paces the subflows
//! of one network namespace: that of the thread that attaches it, which must be the one that detaches it.
//!
//! Subflows that were there before it are paced from Linux 6.12 on.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{Iter, Link, Object, ObjectBuilder, OpenObject, ProgramMut};
use plait_linux::cgroup;

/// Why subflows cannot be paced, or not be let go.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The root of all control groups cannot be opened.
    #[error("cannot open the root of all control groups, to which the actor pace is attached: {0}")]
    Cgroup(io::Error),
    /// The kernel does not take the program.
    #[error(
        "cannot {operation} the program of the actor pace: {reason}; it takes root, and a kernel of version 5.15 or later"
    )]
    Kernel {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        reason: libbpf_rs::Error,
    },
    /// A pin cannot be removed.
    #[error("cannot remove {}: {reason}", .path.display())]
    Pin {
        /// The pin.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
}

/// Attaches the program: from now on, subflows of this network namespace do what `flows` asks of them. `network` is the
/// namespace's cookie. What keeps it is pinned in the directory `pins`, which is on a BPF file system.
pub(crate) fn attach(flows: BorrowedFd<'_>, network: u64, pins: &Path) -> Result<(), Error> {
    let root = cgroup::open_root().map_err(Error::Cgroup)?;
    let object = load(flows, network).map_err(failed("load"))?;
    let mut attached = program(&object, "pace")
        .and_then(|program| program.attach_cgroup(root.as_raw_fd()))
        .map_err(failed("attach"))?;
    let mut restore =
        program(&object, "restore").and_then(|program| program.attach()).map_err(failed("attach"))?;
    let adopt = program(&object, "adopt").and_then(|program| program.attach()).map_err(failed("attach"))?;
    // First what undoes the second.
    restore.pin(pins.join(RESTORE)).map_err(failed("pin"))?;
    attached.pin(pins.join(PACE)).map_err(failed("pin"))?;
    run(&adopt).map_err(failed("run"))
}

/// Whether it is attached, by what is pinned in the directory.
pub(crate) fn is_attached(pins: &Path) -> bool {
    pins.join(PACE).exists()
}

/// Detaches what was attached and pinned in the directory, if anything was, and gives back to every socket what it had.
pub(crate) fn detach(pins: &Path) -> Result<(), Error> {
    if let Some(link) = open(&pins.join(PACE))? {
        link.detach().map_err(failed("detach"))?;
    }
    if let Some(restore) = open(&pins.join(RESTORE))? {
        run(&restore).map_err(failed("run"))?;
    }
    for name in [PACE, RESTORE] {
        let path = pins.join(name);
        match fs::remove_file(&path) {
            Err(reason) if reason.kind() != ErrorKind::NotFound => return Err(Error::Pin { path, reason }),
            _ => {}
        }
    }
    Ok(())
}

fn load(flows: BorrowedFd<'_>, network: u64) -> libbpf_rs::Result<Object> {
    let mut object: OpenObject = ObjectBuilder::default().open_memory(OBJECT)?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == "flows" {
            map.reuse_fd(flows)?;
        } else if name.ends_with(".rodata") {
            // The only constant in it.
            map.set_initial_value(&network.to_ne_bytes())?;
        }
    }
    object.load()
}

fn program<'o>(object: &'o Object, name: &str) -> libbpf_rs::Result<ProgramMut<'o>> {
    let missing = || libbpf_rs::Error::from(io::Error::from(ErrorKind::NotFound));
    object.progs_mut().find(|program| program.name() == name).ok_or_else(missing)
}

/// What is pinned under a name, if anything is.
fn open(path: &Path) -> Result<Option<Link>, Error> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => Link::open(path).map(Some).map_err(failed("find")),
    }
}

/// Runs a program over all sockets of this thread's network namespace.
fn run(link: &Link) -> libbpf_rs::Result<()> {
    let mut sockets = Iter::new(link)?;
    let mut nothing = [0; 64];
    loop {
        match sockets.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // The kernel pauses after a million sockets without output.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn failed(operation: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |reason| Error::Kernel { operation, reason }
}

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pace.bpf.o"));
const PACE: &str = "pace";
const RESTORE: &str = "pace_restore";
