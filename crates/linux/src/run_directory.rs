//! The directory for runtime files of all plait processes of a user. The last one removes it.

use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

use crate::pm;

static LOCK: Mutex<DirectoryLock> = Mutex::new(DirectoryLock::None);

/// How this process keeps others from removing the directory: only a process that has it alone may remove it.
enum DirectoryLock {
    None,
    /// The directory, with a shared lock, and its path.
    Shared(File, PathBuf),
    /// Its monitor has the lock.
    HeldByMonitor,
}

/// The directory for runtime files: `/run/plait` for root, otherwise `plait` in `$XDG_RUNTIME_DIR`. It is created if
/// needed, accessible only to its owner, and stays until this process exits. The last process removes it, unless there are files in it.
///
/// # Errors
/// It cannot be created, belongs to another user, or `XDG_RUNTIME_DIR` is not set for an ordinary user.
pub fn run_directory() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid();
    let base = if user.is_root() {
        PathBuf::from("/run")
    } else {
        let directory =
            std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| Path::new(directory).is_absolute());
        directory.map(PathBuf::from).ok_or_else(|| {
            let text =
                "expected XDG_RUNTIME_DIR to name a directory for runtime files: set it, or run as root";
            io::Error::new(io::ErrorKind::NotFound, text)
        })?
    };
    let directory = base.join("plait");
    let mut lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let locked = match mem::replace(&mut *lock, DirectoryLock::None) {
        DirectoryLock::None => None,
        DirectoryLock::Shared(file, _) => Some(file),
        DirectoryLock::HeldByMonitor => {
            *lock = DirectoryLock::HeldByMonitor;
            create(&directory)?;
            check_private(&directory, user.as_raw(), &fs::symlink_metadata(&directory)?)?;
            return Ok(directory);
        }
    };
    *lock = DirectoryLock::Shared(lock_shared(&directory, locked)?, directory.clone());
    REMOVE_AT_EXIT.call_once(|| {
        // SAFETY: the function takes no arguments, does not unwind, and uses only what lives as long as the process.
        unsafe { libc::atexit(remove_at_exit) };
    });
    Ok(directory)
}

/// Leaves the lock, which takes a descriptor, to the monitor of this process, which uses the directory as long as this one does.
pub fn leave_run_directory_lock_to_monitor() {
    *LOCK.lock().unwrap_or_else(PoisonError::into_inner) = DirectoryLock::HeldByMonitor;
}

static REMOVE_AT_EXIT: Once = Once::new();

extern "C" fn remove_at_exit() {
    // Another thread that is about to use the directory keeps it.
    if let Ok(lock) = LOCK.try_lock()
        && let DirectoryLock::Shared(file, path) = &*lock
    {
        remove_if_unused(path, file);
    }
}

/// Whether this is still the file at a path.
pub fn is_same_file(file: &File, path: &Path) -> bool {
    let (own, present) = (file.metadata(), fs::metadata(path));
    matches!((own, present), (Ok(own), Ok(present)) if (own.dev(), own.ino()) == (present.dev(), present.ino()))
}

/// Locks a run directory, which is created if needed, until the result is dropped. `locked`: the directory, if this process has
/// locked it.
pub(crate) fn lock_shared(directory: &Path, mut locked: Option<File>) -> io::Result<File> {
    let owner = rustix::process::geteuid().as_raw();
    // Until it is locked, another process may remove it.
    let is_removed = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    loop {
        create(directory)?;
        match fs::symlink_metadata(directory) {
            Err(error) if is_removed(&error) => continue,
            metadata => check_private(directory, owner, &metadata?)?,
        }
        if let Some(locked) = locked.take_if(|locked| is_same_file(locked, directory)) {
            return Ok(locked);
        }
        let opened = match File::open(directory) {
            Err(error) if is_removed(&error) => continue,
            opened => opened?,
        };
        retry_on_intr(|| flock(&opened, FlockOperation::LockShared))?;
        locked = Some(opened);
    }
}

fn remove_if_unused(directory: &Path, lock: &File) {
    if flock(lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    // What cannot be removed has a use, or a sandbox keeps this process from it.
    let _ = pm::remove_empty_path_manager_record(directory);
    let _ = fs::remove_dir(directory);
}

fn create(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let text = format!("cannot create the directory {}: {error}", directory.display());
            Err(io::Error::new(error.kind(), text))
        }
        _ => Ok(()),
    }
}

fn check_private(directory: &Path, owner: u32, metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_dir() && metadata.uid() == owner && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!(
        "expected {} to be a directory of user {owner} that no other user can open, got user {} and mode {:o}: \
         remove it, so that it is created again",
        directory.display(),
        metadata.uid(),
        metadata.mode()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// As another process.
    fn locked(directory: &Path) -> File {
        lock_shared(directory, None).expect("directory is locked")
    }

    #[test]
    fn last_process_removes_the_directory() {
        let base = tempfile::tempdir().expect("directory is created");
        let directory = base.path().join("plait");
        let (first, second) = (locked(&directory), locked(&directory));
        fs::write(directory.join("path-manager"), "").expect("file is written");
        remove_if_unused(&directory, &first);
        assert!(directory.join("path-manager").exists());
        drop(first);
        remove_if_unused(&directory, &second);
        assert!(!directory.exists());
    }

    #[test]
    fn directory_with_files_remains() {
        let base = tempfile::tempdir().expect("directory is created");
        let directory = base.path().join("plait");
        for (name, text) in [("path-manager", "4 1 /proc/sys/net/mptcp/pm_type 0\n"), ("gateway-1.sock", "")]
        {
            let used = locked(&directory);
            fs::write(directory.join(name), text).expect("file is written");
            remove_if_unused(&directory, &used);
            fs::remove_file(directory.join(name)).expect("file remains");
        }
    }

    #[test]
    fn directory_in_use_is_not_removed() {
        let base = tempfile::tempdir().expect("directory is created");
        let directory = base.path().join("plait");
        std::thread::scope(|scope| {
            for number in 0..4 {
                let directory = &directory;
                scope.spawn(move || {
                    for _ in 0..500 {
                        let used = locked(directory);
                        let file = directory.join(format!("file{number}"));
                        fs::write(&file, "").expect("directory exists");
                        fs::remove_file(&file).expect("file remains");
                        remove_if_unused(directory, &used);
                    }
                });
            }
        });
        assert!(!directory.exists());
    }

    #[test]
    fn rejects_directories_accessible_to_others() {
        let base = tempfile::tempdir().expect("directory is created");
        let directory = base.path().join("plait");
        drop(locked(&directory));
        assert_eq!(fs::metadata(&directory).expect("metadata is readable").mode() & 0o777, 0o700);
        drop(locked(&directory));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("mode changes");
        let error = lock_shared(&directory, None).expect_err("request is rejected");
        assert!(error.to_string().contains("40755"), "{error}");
    }
}
