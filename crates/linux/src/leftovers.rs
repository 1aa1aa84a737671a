//! Leftovers of killed processes, identified by the process id in their names.
//!
//! The names of cgroups have the form `plait-PID-ROLE`; those of files in the [run directory](crate::run_directory),
//! `WHAT-PID` or `WHAT-PID.EXTENSION`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use crate::run_directory::run_directory;

/// Removes the files of dead processes from the run directory. Returns their paths.
///
/// # Errors
/// As [`run_directory`], or a file cannot be removed.
pub fn clean_run_directory() -> io::Result<Vec<PathBuf>> {
    clean(&run_directory()?)
}

fn clean(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let dead = name.to_str().and_then(pid_of_file).is_some_and(has_ended);
        if !dead || entry.file_type()?.is_dir() {
            continue;
        }
        match fs::remove_file(entry.path()) {
            Ok(()) => removed.push(entry.path()),
            // Another process is cleaning the directory, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let text = format!("cannot remove {}: {error}", entry.path().display());
                return Err(io::Error::new(error.kind(), text));
            }
        }
    }
    Ok(removed)
}

/// Whether a name has the form `plait-PID-ROLE` and that process is dead.
pub(crate) fn is_of_dead_process(name: &str) -> bool {
    let pid =
        name.strip_prefix("plait-").and_then(|rest| rest.split_once('-')).and_then(|(pid, _)| pid_of(pid));
    pid.is_some_and(has_ended)
}

fn pid_of_file(name: &str) -> Option<Pid> {
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    pid_of(stem.rsplit_once('-')?.1)
}

fn pid_of(digits: &str) -> Option<Pid> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().and_then(Pid::from_raw)
}

/// Whether a process no longer exists, or no longer runs a program: it is exiting, or a zombie.
pub fn has_ended(pid: Pid) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", pid.as_raw_pid()));
    program.is_err_and(|error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of a process that has ended.
    fn dead() -> u32 {
        let mut child = std::process::Command::new("true").spawn().expect("process starts");
        child.wait().expect("process ends");
        child.id()
    }

    #[test]
    fn leftovers_are_named_after_dead_processes() {
        let (dead, own) = (dead(), std::process::id());
        assert!(is_of_dead_process(&format!("plait-{dead}-client")));
        for name in [format!("plait-{own}-client"), format!("plait-{dead}"), format!("other-{dead}-x")] {
            assert!(!is_of_dead_process(&name), "{name}");
        }
        for name in ["plait--x", "plait-0-x", "plait--1-x", "plait-+1-x", "plait-99999999999999999999-x"] {
            assert!(!is_of_dead_process(name), "{name}");
        }
        assert_eq!(pid_of_file("serve-17.sock").map(Pid::as_raw_pid), Some(17));
        assert_eq!(pid_of_file("a-b-17").map(Pid::as_raw_pid), Some(17));
        assert_eq!(pid_of_file("path-manager"), None);
    }

    #[test]
    fn zombies_count_as_ended() {
        let mut child = std::process::Command::new("true").spawn().expect("process starts");
        let pid = Pid::from_child(&child);
        let begin = std::time::Instant::now();
        while !has_ended(pid) {
            assert!(begin.elapsed().as_secs() < 10, "the process did not end in time");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().expect("process ends");
        assert!(has_ended(pid) && !has_ended(rustix::process::getpid()));
    }

    #[test]
    fn directory_can_be_cleaned_by_several_processes_at_once() {
        const FILES: usize = 500;
        let base = tempfile::tempdir().expect("directory is created");
        let dead = dead();
        for number in 0..FILES {
            fs::write(base.path().join(format!("file{number}-{dead}.sock")), "").expect("file is written");
        }
        let removed = std::thread::scope(|scope| {
            let cleaners: Vec<_> = (0..4).map(|_| scope.spawn(|| clean(base.path()))).collect();
            let removed = cleaners.into_iter().map(|cleaner| cleaner.join().expect("cleaner does not panic"));
            removed.map(|paths| paths.expect("the directory is cleaned").len()).sum::<usize>()
        });
        assert_eq!(removed, FILES);
    }
}
