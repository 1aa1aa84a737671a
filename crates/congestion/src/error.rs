//! The errors of this crate.

use std::io;
use std::path::{Path, PathBuf};

use plait_linux::{bpf_files, cgroup};

use crate::Algorithm;

/// Why an algorithm cannot be loaded, enabled or unloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel rejects the programs.
    #[error("cannot {operation}: {reason}; {REQUIREMENTS}")]
    Kernel {
        /// The failed operation.
        operation: &'static str,
        /// The kernel's reason.
        reason: libbpf_rs::Error,
    },
    /// Another program has registered an algorithm of the same name.
    #[error("the kernel already has an algorithm named {}, which plait did not load: stop the program that registered it", .0.kernel_name())]
    NameTaken(Algorithm),
    /// The algorithm to unload is not loaded.
    #[error("{0} is not loaded: nothing to unload (loaded: {list})", list = names(.1))]
    NotLoaded(Algorithm, Vec<Algorithm>),
    /// The kernel did not remove the algorithm in time.
    #[error("the kernel still lists {} two seconds after it was unregistered", .0.kernel_name())]
    StillRegistered(Algorithm),
    /// The control group or namespace has no algorithm enabled.
    #[error("{0} uses no algorithm of plait: nothing to disable")]
    NotInUse(String),
    /// A file or directory cannot be used.
    #[error("cannot {operation} {}: {reason}", .path.display())]
    File {
        /// The failed operation.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// The BPF file system for pins cannot be used.
    #[error("{0}")]
    Files(#[from] bpf_files::Error),
    /// The control group cannot be used.
    #[error("{0}")]
    ControlGroup(#[from] cgroup::Error),
    /// The network namespace cannot be determined or entered.
    #[error("cannot use the network namespace: {0}")]
    Namespace(io::Error),
}

const REQUIREMENTS: &str =
    "this requires root and a kernel of version 6.4 or later with MPTCP, BTF and the BPF JIT compiler";

impl Error {
    pub(crate) fn kernel(operation: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
        move |reason| Error::Kernel { operation, reason }
    }

    pub(crate) fn file(operation: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |reason| Error::File { operation, path, reason }
    }
}

fn names(loaded: &[Algorithm]) -> String {
    if loaded.is_empty() {
        return "none".into();
    }
    loaded.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ")
}
