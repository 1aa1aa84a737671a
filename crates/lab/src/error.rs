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
        /// The Debian package that has it.
        package: String,
    },
    /// A program cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program's name.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program that was started cannot be waited for.
    #[error("lost track of {program}: {source}")]
    Lost {
        /// The program's name.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Failed {
        /// The whole command line.
        command: String,
        /// Exit status or signal, in words.
        status: String,
        /// What it wrote on stderr, trimmed.
        stderr: String,
    },
    /// A wait timed out.
    #[error("timed out after {} s waiting for {what}{}", .limit.as_secs_f32(), said(.stderr))]
    TimedOut {
        /// What was waited for.
        what: String,
        /// For how long.
        limit: Duration,
        /// What the program concerned wrote on stderr, if there was one.
        stderr: String,
    },
    /// The user (or the system) asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// A network namespace could not be made, entered, listed or removed.
    #[error("{0}")]
    Namespace(#[source] io::Error),
    /// The directory for run-time files cannot be had.
    #[error("{0}")]
    RunDirectory(#[source] io::Error),
    /// A file of the lab could not be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A capture that missed packets proves nothing.
    #[error(
        "the capture on {interface} is incomplete: {seen} packets passed, {captured} were written, {dropped} were \
         dropped; the run is invalid (reduce the load, or use a larger buffer)"
    )]
    IncompleteCapture {
        /// The interface listened on.
        interface: String,
        /// Packets that passed the interface.
        seen: u64,
        /// Packets in the file.
        captured: u64,
        /// Packets the kernel or the interface dropped before the listener read them.
        dropped: u64,
    },
    /// A file that describes a lab cannot be used.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// The backend that was asked for cannot be had.
    #[error("{0}")]
    Backend(plait_emulator::Error),
    /// A link could not be made, changed or asked.
    #[error("link {name}: {cause}")]
    Link {
        /// Its name.
        name: String,
        /// What happened.
        cause: plait_emulator::Error,
    },
    /// The lab that a link belonged to is gone.
    #[error("the link {link} was removed with its lab")]
    Closed {
        /// Its name.
        link: String,
    },
    /// Something cannot happen to a link after what has happened to it.
    #[error("link {link}: expected {expected} before {action}")]
    OutOfOrder {
        /// Its name.
        link: String,
        /// What was to happen.
        action: &'static str,
        /// What must happen before.
        expected: &'static str,
    },
    /// There is none of this name in the lab.
    #[error("expected one of the {what} {}, got {got:?}", .known.join(", "))]
    Unknown {
        /// Hosts or links.
        what: &'static str,
        /// What there is.
        known: Vec<String>,
        /// What was asked for.
        got: String,
    },
    /// Links are numbered, and the numbers are used up.
    #[error("a lab has at most 254 links, and this would be one more")]
    TooManyLinks,
    /// A name that cannot be part of a namespace's or interface's name.
    #[error("{got:?} is not a name for {what}: expected 1 to {max_length} letters, digits or underscores")]
    BadName {
        /// What was given.
        got: String,
        /// What it should have named.
        what: &'static str,
        /// How long it may be.
        max_length: usize,
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
