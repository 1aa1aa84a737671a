//! Confines this process to the privileges that it still needs: capabilities, system calls and files.
//!
//! The kernel keeps all of these per thread, and threads inherit them from their creator. So a process confines itself
//! while its threads wait in a [`ThreadGate`], and each of them enters the same [`Sandbox`] before it does anything.
//!
//! It cannot be left again: `no_new_privs` is set, and a new program cannot be executed.

mod capabilities;
mod files;
mod system_calls;
mod thread_gate;

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

use landlock::RulesetCreated;
use rustix::process::Pid;
pub use rustix::thread::CapabilitySet;
use seccompiler::BpfProgram;

pub use files::Files;
pub use thread_gate::ThreadGate;

use crate::user::User;

/// What a process may do in a sandbox.
#[derive(Debug)]
pub struct Rules {
    /// The capabilities that it keeps, of those that it has.
    pub capabilities: CapabilitySet,
    /// The user it becomes; `None`: it keeps its own.
    pub user: Option<User>,
    /// The files that it may open.
    pub files: Files,
    /// The process that it may send signals to, besides itself.
    pub signals: Option<Pid>,
    /// Whether it may attach its BPF programs to further interfaces, by links.
    pub attaches: bool,
}

/// A process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel refused, for another reason than that it lacks the feature.
    #[error("cannot {action}: {reason}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        reason: io::Error,
    },
    /// The system calls of this architecture, or the rules of files, could not be expressed.
    #[error("cannot prepare the sandbox: {0}")]
    Rules(String),
    /// A thread did not stop in the gate.
    #[error("cannot confine the threads of this process: expected {expected} to wait, got {waiting}")]
    Threads {
        /// All but the calling one.
        expected: usize,
        /// Those in the gate.
        waiting: usize,
    },
}

/// Part of a sandbox that this kernel lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingFeature {
    /// The user cannot be changed.
    User,
    /// Files are not restricted.
    Landlock,
    /// System calls are not restricted.
    Seccomp,
}

impl std::fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MissingFeature::User => "the permission to change the user (CAP_SETUID and CAP_SETGID, and a user namespace with more than one user)",
            MissingFeature::Landlock => {
                "Landlock (CONFIG_SECURITY_LANDLOCK, and 'landlock' in the kernel's parameter lsm=)"
            }
            MissingFeature::Seccomp => "seccomp filters (CONFIG_SECCOMP_FILTER)",
        })
    }
}

/// Prepared restrictions, the same for every thread that enters.
pub struct Sandbox {
    capabilities: CapabilitySet,
    user: Option<User>,
    files: RulesetCreated,
    system_calls: Vec<BpfProgram>,
    missing: OnceLock<Vec<MissingFeature>>,
}

impl Sandbox {
    /// Prepares the restrictions; nothing is in force yet.
    ///
    /// # Errors
    /// They cannot be expressed on this machine.
    pub fn new(rules: Rules) -> Result<Sandbox, SandboxError> {
        let Rules { capabilities, user, files, signals, attaches } = rules;
        Ok(Sandbox {
            capabilities,
            user,
            files: files.ruleset()?,
            system_calls: system_calls::filters(signals, attaches)?,
            missing: OnceLock::new(),
        })
    }

    /// Confines the calling thread, and all that it creates from now on. What the kernel lacks is left out, and listed by
    /// [`missing`](Self::missing).
    ///
    /// # Errors
    /// The kernel refused.
    fn enter(&self) -> Result<(), SandboxError> {
        let missing = [
            capabilities::reduce(self.capabilities, self.user.as_ref())?,
            files::restrict(&self.files)?,
            system_calls::restrict(&self.system_calls)?,
        ];
        let _ = self.missing.set(missing.into_iter().flatten().collect());
        Ok(())
    }

    /// What this kernel lacks, once a thread has entered.
    pub fn missing(&self) -> &[MissingFeature] {
        self.missing.get().map_or(&[], Vec::as_slice)
    }
}

/// Adds what was tried to an error.
fn refused(action: &'static str) -> impl Fn(rustix::io::Errno) -> SandboxError {
    move |reason| SandboxError::Refused { action, reason: reason.into() }
}

/// The resolver's and the dynamic linker's files, for looking up names.
pub fn name_service_files() -> Vec<PathBuf> {
    let directories =
        ["/etc", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/run/systemd/resolve"];
    let mut paths: Vec<PathBuf> = directories.into_iter().map(PathBuf::from).collect();
    // A link to where a network manager writes it.
    let resolver = std::fs::canonicalize("/etc/resolv.conf").ok();
    paths.extend(resolver.and_then(|file| file.parent().map(PathBuf::from)));
    paths
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::net::TcpListener;
    use std::process::Command;
    use std::thread;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// Runs `work` in a thread that has entered a sandbox without capabilities, which can manage the files below a directory.
    /// `None`, with a message, if this kernel lacks a part.
    fn confined<T: Send>(directory: PathBuf, work: impl FnOnce() -> T + Send) -> Option<T> {
        let files = Files { manage: vec![directory], ..Files::default() };
        let rules =
            Rules { capabilities: CapabilitySet::empty(), user: None, files, signals: None, attaches: false };
        let sandbox = Sandbox::new(rules).expect("rules that can be expressed");
        thread::scope(|scope| {
            let inside = || {
                sandbox.enter().expect("a thread may give up privileges");
                if let [missing, ..] = sandbox.missing() {
                    println!("SKIP sandbox: {missing}");
                    return None;
                }
                Some(work())
            };
            scope.spawn(inside).join().expect("no panic")
        })
    }

    #[test]
    fn only_listed_files_are_accessible() {
        let [inside, outside] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let file = outside.path().join("file");
        fs::write(&file, "text").expect("writable");
        confined(inside.path().to_owned(), || {
            for error in [
                fs::read(&file).expect_err("not readable"),
                fs::write(&file, "other").expect_err("not writable"),
                fs::remove_file(&file).expect_err("not removable"),
                fs::write(outside.path().join("new"), "").expect_err("not creatable"),
            ] {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            }
            fs::write(inside.path().join("partial"), "text").expect("creatable");
            fs::rename(inside.path().join("partial"), inside.path().join("whole")).expect("replaceable");
            fs::remove_file(inside.path().join("whole")).expect("removable");
        });
        assert_eq!(fs::read(&file).expect("readable outside"), b"text");
    }

    #[test]
    fn other_system_calls_fail_and_do_not_kill() {
        let directory = tempfile::tempdir().expect("a directory");
        confined(directory.path().to_owned(), || {
            let error = Command::new("true").spawn().expect_err("no programs");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
            let error = Socket::new(Domain::PACKET, Type::RAW, None).expect_err("no packet sockets");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
            TcpListener::bind("127.0.0.1:0").expect("TCP");
        });
    }

    #[test]
    fn threads_inherit_the_sandbox() {
        let directory = tempfile::tempdir().expect("a directory");
        confined(directory.path().to_owned(), || {
            let inside = thread::spawn(|| {
                let (file, program) = (fs::read("/etc/passwd"), Command::new("true").spawn());
                (file.expect_err("not readable").kind(), program.expect_err("no programs").raw_os_error())
            });
            assert_eq!(inside.join().expect("no panic"), (ErrorKind::PermissionDenied, Some(libc::EPERM)));
        });
    }
}
