//! Starts and stops the process that runs [`guard`](super::guard()).

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The guard process, started on demand and killed on drop.
#[derive(Debug, Default)]
pub(super) struct GuardProcess {
    command: Option<Command>,
    process: Option<Child>,
    /// Open until the process may look for the policy.
    stdin: Option<ChildStdin>,
}

impl GuardProcess {
    /// A guard that is started with this command.
    pub(super) fn new(mut command: Command) -> GuardProcess {
        // In its own process group, so that Ctrl-C does not reach it, and without the terminal of its parent.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.current_dir("/");
        GuardProcess { command: Some(command), process: None, stdin: None }
    }

    /// Starts the process unless it is running, and waits until it can guard the policy even if this process is killed.
    /// It then waits for [`policy_loaded`](Self::policy_loaded). If it cannot be started, or fails, this warns and gives
    /// up.
    pub(super) fn ensure_running(&mut self) {
        let Some(command) = &mut self.command else { return };
        let failed = match self.process.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => return,
            Some(Err(error)) => error.to_string(),
            Some(Ok(Some(status))) if status.code().is_some_and(|code| code != 0) => status.to_string(),
            // Not started yet, killed, or ended because no policy was loaded when it looked.
            _ => match start(command) {
                Ok(mut process) => {
                    self.stdin = process.stdin.take();
                    self.process = Some(process);
                    return;
                }
                Err(error) => error.to_string(),
            },
        };
        tracing::warn!("cannot run {command:?} ({failed}): subflows stay backups if this process is killed");
        self.command = None;
    }

    /// Tells the process that the policy to guard is loaded, as the end of this process would.
    pub(super) fn policy_loaded(&mut self) {
        self.stdin = None;
    }

    /// Lets the process outlive this value.
    pub(super) fn detach(&mut self) {
        self.process = None;
    }
}

impl Drop for GuardProcess {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // Fails if the process has already ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Starts the process and waits until it writes a byte.
fn start(command: &mut Command) -> io::Result<Child> {
    let mut process = command.spawn()?;
    let ready = process.stdout.take().map_or(Ok(()), |mut stdout| stdout.read_exact(&mut [0]));
    if ready.is_ok() {
        return Ok(process);
    }
    let _ = process.kill();
    Err(io::Error::other(process.wait()?.to_string()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;
    use std::time::Duration;

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    fn sleeping() -> GuardProcess {
        let mut command = Command::new("sh");
        command.args(["-c", "echo && exec sleep 60"]);
        let mut guard = GuardProcess::new(command);
        guard.ensure_running();
        guard
    }

    fn pid(guard: &GuardProcess) -> u32 {
        guard.process.as_ref().expect("a process").id()
    }

    fn exists(pid: u32) -> bool {
        Path::new("/proc").join(pid.to_string()).exists()
    }

    #[test]
    fn restarts_a_killed_process_and_kills_it_on_drop() {
        let mut guard = sleeping();
        let first = pid(&guard);
        guard.ensure_running();
        assert_eq!(pid(&guard), first);
        guard.process.as_mut().expect("a process").kill().expect("it can be killed");
        while pid(&guard) == first {
            guard.ensure_running();
            thread::sleep(Duration::from_millis(1));
        }
        let second = pid(&guard);
        assert!(exists(second));
        drop(guard);
        assert!(!exists(first) && !exists(second));
    }

    #[test]
    fn a_detached_process_outlives_the_guard() {
        let mut guard = sleeping();
        let detached = pid(&guard);
        guard.detach();
        drop(guard);
        assert!(exists(detached));
        let detached = Pid::from_raw(detached.cast_signed());
        kill_process(detached.expect("a process"), Signal::KILL).expect("it can be killed");
        waitpid(detached, WaitOptions::empty()).expect("it has ended");
    }

    #[test]
    fn process_learns_that_the_policy_is_loaded() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo && cat"]);
        let mut guard = GuardProcess::new(command);
        guard.ensure_running();
        assert!(exists(pid(&guard)));
        guard.policy_loaded();
        assert!(guard.process.as_mut().expect("a process").wait().expect("a status").success());
    }

    #[test]
    fn gives_up_on_a_command_that_fails() {
        for program in ["/nowhere/plait", "false"] {
            let mut guard = GuardProcess::new(Command::new(program));
            guard.ensure_running();
            assert!(guard.command.is_none());
        }
    }
}
