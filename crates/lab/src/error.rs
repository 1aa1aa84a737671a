//! Errors of labs.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use plait_config::{Diagnostic, LoadError};

/// Why a lab could not be built, used or measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Namespaces and links need CAP_SYS_ADMIN and CAP_NET_ADMIN.
    #[error("expected root, which network namespaces require, got user {uid}: run it with sudo")]
    NotRoot {
        /// The effective user id found.
        uid: u32,
    },
    /// A required program is missing.
    #[error("{program} not found: install it (Debian, Ubuntu: apt-get install {package})")]
    MissingProgram {
        /// The program's name.
        program: String,
        /// The Debian package that provides it.
        package: String,
    },
    /// A program cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program's name.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Waiting for a started program failed.
    #[error("lost track of {program}: {source}")]
    Lost {
        /// The program's name.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Failed {
        /// The whole command line.
        command: String,
        /// The exit status or signal.
        status: String,
        /// Its stderr, trimmed.
        stderr: String,
    },
    /// A wait timed out.
    #[error("timed out after {} s waiting for {what}{}", .limit.as_secs_f32(), said(.stderr))]
    TimedOut {
        /// The condition waited for.
        what: String,
        /// The time limit.
        limit: Duration,
        /// The stderr of the program concerned, if any.
        stderr: String,
    },
    /// The user or the system requested a stop.
    #[error("interrupted")]
    Interrupted,
    /// A network namespace could not be created, entered, listed or removed.
    #[error("{0}")]
    Namespace(#[source] io::Error),
    /// The directory for run-time files is not available.
    #[error("{0}")]
    RunDirectory(#[source] io::Error),
    /// A file of the lab could not be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A capture missed packets, so nothing can be concluded from it.
    #[error(
        "the capture on {interface} is incomplete: {seen} packets passed, {captured} were written, {dropped} were \
         dropped; the run is invalid (reduce the load, or use a larger buffer)"
    )]
    IncompleteCapture {
        /// The captured interface.
        interface: String,
        /// Packets that passed the interface.
        seen: u64,
        /// Packets in the file.
        captured: u64,
        /// Packets that the kernel or the interface dropped before tcpdump read them.
        dropped: u64,
    },
    /// A topology or experiment file is invalid or cannot be read.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// The requested backend is not available.
    #[error("{0}")]
    Backend(plait_emulator::Error),
    /// A link could not be created, changed or queried.
    #[error("link {name}: {cause}")]
    Link {
        /// The link's name.
        name: String,
        /// The cause.
        cause: plait_emulator::Error,
    },
    /// The link was removed with its lab.
    #[error("the link {link} was removed with its lab")]
    Closed {
        /// The link's name.
        link: String,
    },
    /// An action does not fit the state of a link.
    #[error("link {link}: expected {expected} before {action}")]
    OutOfOrder {
        /// The link's name.
        link: String,
        /// The rejected action.
        action: &'static str,
        /// The action that must come first.
        expected: &'static str,
    },
    /// The lab has nothing of this name.
    #[error("expected one of the {what} {}, got {got:?}", .known.join(", "))]
    Unknown {
        /// The kind: hosts or links.
        what: &'static str,
        /// The existing names.
        known: Vec<String>,
        /// The requested name.
        got: String,
    },
}

impl From<Diagnostic> for Error {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Config(diagnostic.into())
    }
}

fn said(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; stderr: {stderr}") }
}
