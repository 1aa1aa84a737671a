//! Terminating this process when the reader of its stdout is gone.
//!
//! A notebook that is killed does not end its child processes, but a child can detect that its stdout pipe has no reader
//! any more, regardless of how and from which thread it was started.

use std::{io, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

/// From now on, raises SIGTERM when stdout is a pipe without a reader. Has no effect on a file or a terminal.
#[expect(clippy::disallowed_methods, reason = "nothing is written")]
pub(super) fn terminate_without_reader() {
    thread::spawn(|| {
        let stdout = io::stdout();
        // Without requested events, poll(2) reports errors and hang-ups only.
        let mut wait = [PollFd::new(&stdout, PollFlags::empty())];
        while poll(&mut wait, None) == Err(Errno::INTR) {}
        if wait[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            // A process may always signal itself.
            let _ = kill_process(getpid(), Signal::TERM);
        }
    });
}
