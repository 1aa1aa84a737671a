//! The directory of what a user's gateways keep: their key pair, and what they know of peers.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use plait_config::AtomicFile;

/// How long another process may hold the lock: it writes less than a megabyte.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// `$STATE_DIRECTORY`, which systemd sets for a service with `StateDirectory=`; else `/var/lib/plait` for root, and
/// `$XDG_STATE_HOME/plait`, by default below `~/.local/state`, for other users. `None` if the environment names none.
pub(crate) fn state_directory() -> Option<PathBuf> {
    let directory =
        |variable| env::var_os(variable).map(PathBuf::from).filter(|directory| directory.is_absolute());
    // Of a service with several directories, the first.
    let first = |directories: PathBuf| directories.to_str()?.split(':').next().map(PathBuf::from);
    if let Some(own) = directory("STATE_DIRECTORY").and_then(first) {
        return Some(own);
    }
    let state = if rustix::process::geteuid().is_root() {
        Some("/var/lib".into())
    } else {
        directory("XDG_STATE_HOME").or_else(|| directory("HOME").map(|home| home.join(".local/state")))
    };
    Some(state?.join("plait"))
}

/// The directories of a file: that of its name, which is created if there is none, and that of the file itself if the name is a
/// link. None that are inaccessible.
pub(crate) fn ensure_directories(file: &Path) -> Vec<PathBuf> {
    // If it cannot be created, the first attempt to write tells.
    let _ = private_directory(file);
    let names = [Some(file.to_owned()), file.canonicalize().ok()];
    names.into_iter().flatten().filter_map(|name| name.parent()?.canonicalize().ok()).collect()
}

/// Creates the directory of a file, for its owner alone, if there is none.
pub(crate) fn private_directory(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(directory) if directory != Path::new("") => {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)
        }
        _ => Ok(()),
    }
}

/// Waits for the lock of a file's directory; the file itself is replaced. The lock is released on drop.
pub(super) fn lock_directory(file: &Path) -> io::Result<File> {
    let directory = File::open(file.parent().unwrap_or(Path::new(".")))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(directory),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::TimedOut.into()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Replaces a file atomically by one that its owner alone can read. An error names it.
pub(super) fn replace_private(file: &Path, text: &str) -> io::Result<()> {
    let mut out = AtomicFile::create_private(file)?;
    out.write_all(text.as_bytes())?;
    out.publish()
}
