//! What can go wrong with an engine.

use std::io;
use std::path::{Path, PathBuf};

use plait_linux::{bpf_files, cgroup, netlink};

use super::attach::Tried;
use crate::Hook;
use crate::compile::CompileError;
use crate::specification::SpecificationError;
use crate::{own, pace};

/// Why the engine could not do what it was asked; what was loaded before is loaded still.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A policy is none.
    #[error("{0}")]
    Specification(SpecificationError),
    /// A policy with this name is loaded already.
    #[error("a policy named '{0}' is loaded already: unload or replace it, or give the new one another name")]
    Exists(String),
    /// No policy with this name is loaded.
    #[error("no policy named '{name}' is loaded; {}", those_loaded(.loaded))]
    Unknown {
        /// The name.
        name: String,
        /// Those that are.
        loaded: Vec<String>,
    },
    /// A chain cannot be carried out on this host.
    #[error("policy '{policy}', chain '{chain}': {reason}")]
    Chain {
        /// The policy.
        policy: String,
        /// The chain.
        chain: String,
        /// What was expected and found.
        reason: String,
    },
    /// The chains of a hook cannot be put together, or the kernel does not take the program made of them.
    #[error("the chains of {hook} of all policies together: {reason}")]
    Chains {
        /// The hook.
        hook: Hook,
        /// What was expected and found.
        reason: String,
    },
    /// There is more of something than there is room for.
    #[error("expected at most {most} {what} of all loaded policies, found {found}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there would be.
        found: usize,
        /// How many there can be.
        most: u32,
    },
    /// No way of attaching to an interface works.
    #[error("cannot attach to {hook} of the interface {interface}: {tried}; {NEEDED}")]
    Attach {
        /// The interface.
        interface: String,
        /// Of which hook.
        hook: Hook,
        /// What was tried, and why it did not work.
        tried: Tried,
    },
    /// Something stays attached.
    #[error("cannot detach from {hook} of the interface {interface}: {reason}")]
    Detach {
        /// The interface.
        interface: String,
        /// Of which hook.
        hook: Hook,
        /// Why.
        reason: io::Error,
    },
    /// The kernel refuses something that policies are made of.
    #[error("cannot {operation}: {reason}; {NEEDED}")]
    Kernel {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        reason: libbpf_rs::Error,
    },
    /// A file or directory cannot be used.
    #[error("cannot {operation} {}: {reason}{}", .path.display(), if_denied(.reason))]
    Directory {
        /// What was tried.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// What is loaded is written down in a way that this version does not know.
    #[error("cannot read what is loaded from {}: {reason}; unload all policies, and load them again", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: serde_json::Error,
    },
    /// The file system that keeps programs cannot be used.
    #[error("{0}")]
    Files(bpf_files::Error),
    /// The network namespace cannot be found out, or entered.
    #[error("cannot use this network namespace: {0}")]
    Namespace(io::Error),
    /// The interfaces cannot be listed.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(netlink::Error),
    /// Control groups cannot be found out.
    #[error("cannot look up control groups: {0}")]
    Cgroups(cgroup::Error),
    /// A selector or an actor of the user's own cannot be loaded.
    #[error("{0}")]
    Own(own::Error),
    /// Subflows cannot be paced, or not be let go.
    #[error("{0}")]
    Pace(pace::Error),
    /// Another process reads the events.
    #[error("another process reads the events of the policies here: there can be one at a time")]
    EventsTaken,
}

const NEEDED: &str = "it takes root, and a kernel of version 5.15 or later with BPF and its JIT compiler";

impl Error {
    pub(super) fn directory(
        operation: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |reason| Error::Directory { operation, path, reason }
    }

    pub(super) fn kernel(operation: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
        move |reason| Error::Kernel { operation, reason }
    }

    /// The objects that this crate was built with lack something, or what is pinned is not what it was.
    pub(super) fn missing(kind: &'static str, name: &str) -> Error {
        let text = format!("there is no {kind} '{name}'");
        Error::Kernel { operation: "find what programs are made of", reason: io::Error::other(text).into() }
    }

    pub(super) fn chain(policy: &str, chain: &str, reason: &CompileError) -> Error {
        Error::Chain { policy: policy.into(), chain: chain.into(), reason: reason.to_string() }
    }
}

impl From<SpecificationError> for Error {
    fn from(error: SpecificationError) -> Error {
        Error::Specification(error)
    }
}

impl From<bpf_files::Error> for Error {
    fn from(error: bpf_files::Error) -> Error {
        Error::Files(error)
    }
}

fn those_loaded(names: &[String]) -> String {
    if names.is_empty() { "none is".into() } else { format!("loaded are: {}", names.join(", ")) }
}

fn if_denied(reason: &io::Error) -> &'static str {
    if reason.kind() == io::ErrorKind::PermissionDenied { "; it takes root" } else { "" }
}
