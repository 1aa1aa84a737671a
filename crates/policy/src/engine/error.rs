//! Errors of the engine.

use std::io;
use std::path::{Path, PathBuf};

use plait_linux::{bpf_files, cgroup, netlink};

use super::attach_mode::AttachFailures;
use super::custom_file::CustomFileError;
use super::pace::PaceError;
use crate::compile::CompileError;
use crate::model::{Hook, InvalidPolicy};
use crate::parse::PolicyError;

/// Why an operation of the engine failed; the policies that were loaded before are still loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A stored policy could not be parsed.
    #[error(transparent)]
    StoredPolicy(#[from] PolicyError),
    /// A policy violates a constraint.
    #[error(transparent)]
    InvalidPolicy(#[from] InvalidPolicy),
    /// A policy with this name is already loaded.
    #[error("a policy named '{0}' is already loaded: unload or replace it, or rename the new one")]
    Exists(String),
    /// No policy with this name is loaded.
    #[error("no policy named '{name}' is loaded; {}", loaded_names(.loaded))]
    Unknown {
        /// The name.
        name: String,
        /// The loaded policies.
        loaded: Vec<String>,
    },
    /// A chain cannot be compiled on this host.
    #[error("policy '{policy}', chain '{chain}': {reason}")]
    Chain {
        /// The policy.
        policy: String,
        /// The chain.
        chain: String,
        /// What was expected and found.
        reason: String,
    },
    /// The chains of a hook cannot be compiled together, or the kernel rejects their program.
    #[error("the chains of {hook} of all policies together: {reason}")]
    Chains {
        /// The hook.
        hook: Hook,
        /// What was expected and found.
        reason: String,
    },
    /// A limit over all loaded policies was exceeded.
    #[error("expected at most {max} {what} in all loaded policies, got {found}")]
    TooMany {
        /// What is limited.
        what: &'static str,
        /// The required number.
        found: usize,
        /// The maximum.
        max: u32,
    },
    /// No attach mode works on an interface.
    #[error("cannot attach to {hook} of the interface {interface}: {failures}; {REQUIREMENTS}")]
    Attach {
        /// The interface.
        interface: String,
        /// Of which hook.
        hook: Hook,
        /// The modes that were tried, and why they failed.
        failures: AttachFailures,
    },
    /// A program could not be detached.
    #[error("cannot detach from {hook} of the interface {interface}: {reason}")]
    Detach {
        /// The interface.
        interface: String,
        /// Of which hook.
        hook: Hook,
        /// Why.
        reason: io::Error,
    },
    /// The kernel rejected a BPF operation.
    #[error("cannot {operation}: {reason}; {REQUIREMENTS}")]
    Kernel {
        /// What was tried.
        operation: &'static str,
        /// The kernel's reason.
        reason: libbpf_rs::Error,
    },
    /// A file or directory cannot be used.
    #[error("cannot {operation} {}: {reason}{}", .path.display(), root_hint(.reason))]
    Directory {
        /// What was tried.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The stored state has a format that this version does not know.
    #[error("cannot read the state in {}: {reason}; run `plait policy unload --all` and load the policies again", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: serde_json::Error,
    },
    /// The BPF file system cannot be used.
    #[error(transparent)]
    Files(#[from] bpf_files::Error),
    /// The network namespace cannot be identified or entered.
    #[error("cannot use this network namespace: {0}")]
    Namespace(io::Error),
    /// The interfaces cannot be listed.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(netlink::Error),
    /// A control group cannot be looked up.
    #[error("cannot look up control groups: {0}")]
    Cgroups(cgroup::Error),
    /// A custom selector or actor cannot be loaded.
    #[error(transparent)]
    Custom(CustomFileError),
    /// The pacing program cannot be attached or detached.
    #[error(transparent)]
    Pace(PaceError),
    /// Another process reads the events.
    #[error("another process already reads the events of this network namespace; only one can at a time")]
    EventsTaken,
}

const REQUIREMENTS: &str = "this requires root and Linux 5.15 or later with BPF and its JIT compiler";

impl EngineError {
    pub(super) fn directory(
        operation: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(io::Error) -> EngineError {
        let path = path.as_ref().to_owned();
        move |reason| EngineError::Directory { operation, path, reason }
    }

    pub(super) fn kernel(operation: &'static str) -> impl FnOnce(libbpf_rs::Error) -> EngineError {
        move |reason| EngineError::Kernel { operation, reason }
    }

    /// The compiled objects lack a program or map, or a pin has other contents than expected.
    pub(super) fn missing(kind: &'static str, name: &str) -> EngineError {
        let text = format!("{kind} '{name}' not found");
        EngineError::Kernel { operation: "find a program or map", reason: io::Error::other(text).into() }
    }

    pub(super) fn chain(policy: &str, chain: &str, reason: &CompileError) -> EngineError {
        EngineError::Chain { policy: policy.into(), chain: chain.into(), reason: reason.to_string() }
    }
}

fn loaded_names(names: &[String]) -> String {
    if names.is_empty() { "nothing is loaded".into() } else { format!("loaded: {}", names.join(", ")) }
}

fn root_hint(reason: &io::Error) -> &'static str {
    if reason.kind() == io::ErrorKind::PermissionDenied { "; this requires root" } else { "" }
}
