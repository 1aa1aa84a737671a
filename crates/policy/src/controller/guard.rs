//! Who takes back, of what a controller has set, that which does not expire by itself.
//!
//! MP_PRIO holds until somebody says otherwise; and by a subflow that is a backup no packet passes to which the packet
//! path could add that it is none any more. So a process of its own waits, from the first backup on, for the moment from
//! which the controller's policy does nothing any more, and says so then. It ends with the controller if that ends well.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::control::{Control, Error};
use super::expiry_of;
use crate::Engine;
use crate::engine::Loaded;

/// What the process that guards a controller is to do: it waits until the controller's policy has lapsed, tells the
/// subflows that were backups that they are none, and removes the policy. It returns as soon as there is none.
///
/// # Errors
/// As those of [`Control`].
pub fn guard(name: &str) -> Result<(), Error> {
    // From who started this it has where policies are kept: it is asked for while that lives.
    let engine = Engine::current()?;
    while let Some(Loaded { policy, remaining: Some(remaining), .. }) = engine.policy(name)? {
        if !remaining.is_zero() {
            thread::sleep(remaining);
            continue;
        }
        return Control::with(engine, name, expiry_of(Duration::ZERO))?.end_lapsed(&policy);
    }
    Ok(())
}

/// The process that guards a controller, once there is something to guard.
#[derive(Debug, Default)]
pub(super) struct Guard {
    command: Option<Command>,
    process: Option<Child>,
}

impl Guard {
    /// What is to be run.
    pub(super) fn new(mut command: Command) -> Guard {
        // Ctrl-C is not meant for it, nor does anybody wait for the end of what it prints.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir("/");
        Guard { command: Some(command), process: None }
    }

    /// Sees to it that the process runs.
    pub(super) fn stand(&mut self) {
        let Some(command) = &mut self.command else { return };
        let failed = match self.process.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => return,
            Some(Err(error)) => error.to_string(),
            Some(Ok(Some(status))) if status.code().is_some_and(|code| code != 0) => status.to_string(),
            // There is none yet; or it was killed, or found no policy to wait for.
            _ => match command.spawn() {
                Ok(process) => {
                    self.process = Some(process);
                    return;
                }
                Err(error) => error.to_string(),
            },
        };
        tracing::warn!("{command:?} does not run ({failed}): backups stay backups if this process is killed");
        self.command = None;
    }

    /// Lets it run on when this process ends.
    pub(super) fn leave(&mut self) {
        self.process = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    fn sleeping() -> Guard {
        let mut command = Command::new("sleep");
        command.arg("60");
        let mut guard = Guard::new(command);
        guard.stand();
        guard
    }

    fn process(guard: &Guard) -> u32 {
        guard.process.as_ref().expect("a process").id()
    }

    fn is_there(process: u32) -> bool {
        Path::new("/proc").join(process.to_string()).exists()
    }

    #[test]
    fn there_is_one_as_long_as_there_is_a_controller() {
        let mut guard = sleeping();
        let first = process(&guard);
        guard.stand();
        assert_eq!(process(&guard), first);
        guard.process.as_mut().expect("a process").kill().expect("it can be killed");
        while process(&guard) == first {
            guard.stand();
            thread::sleep(Duration::from_millis(1));
        }
        let second = process(&guard);
        assert!(is_there(second));
        drop(guard);
        assert!(!is_there(first) && !is_there(second));
    }

    #[test]
    fn one_that_is_left_goes_on() {
        let mut guard = sleeping();
        let left = process(&guard);
        guard.leave();
        drop(guard);
        assert!(is_there(left));
        let left = Pid::from_raw(left.cast_signed());
        kill_process(left.expect("a process"), Signal::KILL).expect("it can be killed");
        waitpid(left, WaitOptions::empty()).expect("it has ended");
    }

    #[test]
    fn one_that_cannot_be_is_not_tried_again() {
        for program in ["/nowhere/plait", "false"] {
            let mut guard = Guard::new(Command::new(program));
            while guard.command.is_some() {
                guard.stand();
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
