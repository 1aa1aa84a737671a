//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};

use plait_linux::{bpf_files, cgroup};

use crate::Algorithm;

/// Why an algorithm cannot be loaded, used or unloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refuses the programs.
    #[error("cannot {operation}: {reason}; {NEEDED}")]
    Kernel {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        reason: libbpf_rs::Error,
    },
    /// Somebody else has registered an algorithm of the same name.
    #[error("the kernel has an algorithm {} already, which this plait did not load: end the program that did", .0.kernel_name())]
    Taken(Algorithm),
    /// It is not loaded.
    #[error("{0} is not loaded: nothing to unload; loaded are: {list}", list = those(.1))]
    NotLoaded(Algorithm, Vec<Algorithm>),
    /// The kernel has it still.
    #[error("the kernel still has {} two seconds after it was taken back", .0.kernel_name())]
    Stays(Algorithm),
    /// The control group or namespace uses none.
    #[error("{0} uses no algorithm of plait's")]
    NotUsed(String),
    /// A file or directory cannot be used.
    #[error("cannot {operation} {}: {reason}", .path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The file system that keeps what outlives a command cannot be used.
    #[error("{0}")]
    Files(#[from] bpf_files::Error),
    /// The control group cannot be used.
    #[error("{0}")]
    ControlGroup(#[from] cgroup::Error),
    /// The network namespace cannot be found out, or entered.
    #[error("cannot use the network namespace: {0}")]
    Namespace(io::Error),
}

const NEEDED: &str =
    "it takes root, and a kernel of version 6.4 or later with MPTCP, BTF and the BPF JIT compiler";

impl Error {
    pub(crate) fn kernel(operation: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
        move |reason| Error::Kernel { operation, reason }
    }

    pub(crate) fn file(operation: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |reason| Error::File { operation, path, reason }
    }
}

fn those(loaded: &[Algorithm]) -> String {
    if loaded.is_empty() {
        return "none".into();
    }
    loaded.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ")
}
