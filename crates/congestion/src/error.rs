//! The errors of this crate.

use std::io;
use std::path::{Path, PathBuf};

use plait_linux::{bpf_files, bpf_source, cgroup};

use crate::kernel_algorithm::KernelAlgorithm;

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
    /// The kernel lacks what the programs need.
    #[error("this kernel lacks {what}: {needed_for}")]
    Missing {
        /// The kernel's name of it.
        what: String,
        /// What it is needed for, and how to get it.
        needed_for: &'static str,
    },
    /// Another program has registered an algorithm of the same name.
    #[error(
        "the kernel already has an algorithm named {0}, which plait did not load: stop the program that registered it"
    )]
    NameTaken(&'static str),
    /// The algorithm to unload is not loaded.
    #[error("{name} is not loaded: nothing to unload (loaded: {})", if loaded.is_empty() { "none".into() } else { loaded.join(", ") })]
    NotLoaded {
        /// Its name.
        name: &'static str,
        /// The names of those that are.
        loaded: Vec<&'static str>,
    },
    /// Another program of this name is loaded.
    #[error("another program is loaded as {0}: unload it first")]
    AlreadyLoaded(&'static str),
    /// The programs cannot be read or compiled.
    #[error(transparent)]
    Source(#[from] bpf_source::SourceError),
    /// The kernel did not remove the algorithm in time.
    #[error("the kernel still lists {0} two seconds after it was unregistered")]
    StillRegistered(&'static str),
    /// The control group or namespace has no algorithm enabled.
    #[error("{user} uses no {kind} of plait: nothing to disable")]
    NotInUse {
        /// The control group or namespace.
        user: String,
        /// [`KernelAlgorithm::KIND`].
        kind: &'static str,
    },
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
    /// For [`Result::map_err`]: the kernel rejected this operation.
    pub fn kernel(operation: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
        move |reason| Error::Kernel { operation, reason }
    }

    pub(crate) fn not_in_use<A: KernelAlgorithm>(user: impl Into<String>) -> Error {
        Error::NotInUse { user: user.into(), kind: A::KIND }
    }

    pub(crate) fn file(operation: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |reason| Error::File { operation, path, reason }
    }
}
