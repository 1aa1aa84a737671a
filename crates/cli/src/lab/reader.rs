//! Ending with whoever reads what this process prints.
//!
//! A notebook that is killed ends nothing that it has started. What it started can see, though, that the pipe it prints
//! to has no reader any more, and that holds however, and from whichever thread, it was started.

use std::{io, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

/// From now on, a pipe as stdout that nobody reads any more is a SIGTERM. A file or a terminal changes nothing.
pub(super) fn end_without_reader() {
    thread::spawn(|| {
        let stdout = io::stdout();
        // Asked for nothing, poll(2) tells of errors and ends only.
        let mut wait = [PollFd::new(&stdout, PollFlags::empty())];
        while poll(&mut wait, None) == Err(Errno::INTR) {}
        if wait[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            // A process may always signal itself.
            let _ = kill_process(getpid(), Signal::TERM);
        }
    });
}
