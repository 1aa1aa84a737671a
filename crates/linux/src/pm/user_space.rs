//! MPTCP sockets managed from user space, in a namespace whose other sockets use the in-kernel path manager.
//!
//! The kernel chooses the path manager of a connection when its socket is *created*, by a sysctl of the network
//! namespace. So the sysctl is changed for the few microseconds that it takes to create the sockets, and then restored.
//! A socket that another program creates in this window has no path manager: its connection works, with a single
//! subflow.
//!
//! A file in the run directory guards the window: it is locked, so that processes do not interfere, and contains the
//! previous value while the window is open, so that the next process restores it if this one is killed. That process may not
//! see the namespace, as one that has given up its privileges: then the entry stays for one that does.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{FlockOperation, flock};
use socket2::{Domain, Socket, Type};

use crate::netns::{self, Identity, NetNs};
use crate::run_directory::run_directory;

/// Why such sockets cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum UserSpaceError {
    /// The kernel has neither sysctl.
    #[error(
        "expected {PATH_MANAGER} or {PM_TYPE}, got neither: \
         path management from user space requires a kernel of version 5.19 or later with MPTCP"
    )]
    Missing,
    /// The sysctl cannot be changed.
    #[error("cannot set {path} to '{value}': {reason}; this requires root and a writable /proc/sys")]
    Setting {
        /// The sysctl.
        path: &'static str,
        /// The new value.
        value: String,
        /// The reason.
        reason: io::Error,
    },
    /// The file that records the change cannot be used.
    #[error("cannot record the change of the MPTCP path manager in {}: {reason}", .path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// A socket cannot be created.
    #[error("cannot create an MPTCP socket: {0}")]
    Socket(io::Error),
}

/// Creates up to `count` unconnected MPTCP sockets, at least one, as many as there are descriptors, whose subflows only [`PathManager`](super::PathManager) creates.
///
/// This does not apply to connections *accepted* by such a socket: the kernel reads the sysctl again for each. Takes a
/// few microseconds per socket; blocks while another process does the same.
///
/// # Errors
/// See [`UserSpaceError`]. The sysctl has its previous value again, unless restoring it failed, which is an error
/// [`Setting`](UserSpaceError::Setting) with that value; the next call or [`restore_after_crash`] retries.
pub fn user_space_sockets(count: usize, domain: Domain) -> Result<Vec<Socket>, UserSpaceError> {
    let mut record = Record::lock()?;
    record.restore()?;
    let setting = Setting::find().ok_or(UserSpaceError::Missing)?;
    let before = setting.value()?;
    if before == setting.user_space {
        return create(count, domain).map_err(UserSpaceError::Socket);
    }
    let mut window = Window::open(record, setting, before)?;
    let sockets = create(count, domain);
    window.close()?;
    sockets.map_err(UserSpaceError::Socket)
}

fn create(count: usize, domain: Domain) -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        match Socket::new(domain, Type::STREAM, Some(socket2::Protocol::MPTCP)) {
            Ok(socket) => sockets.push(socket),
            Err(error) if sockets.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sockets)
}

/// Restores the path manager sysctl if a process was killed while it had changed it. Returns a description of the
/// change.
///
/// # Errors
/// The record cannot be read, or the sysctl cannot be written.
pub fn restore_after_crash() -> Result<Option<String>, UserSpaceError> {
    Record::lock()?.restore()
}

/// The path manager sysctl of the calling thread's network namespace.
struct Setting {
    path: &'static str,
    user_space: &'static str,
}

/// A name, since kernel 6.16. `pm_type`, the number of older kernels, still exists.
const PATH_MANAGER: &str = "/proc/sys/net/mptcp/path_manager";
const PM_TYPE: &str = "/proc/sys/net/mptcp/pm_type";
const SETTINGS: [Setting; 2] =
    [Setting { path: PATH_MANAGER, user_space: "userspace" }, Setting { path: PM_TYPE, user_space: "1" }];

impl Setting {
    fn find() -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| fs::exists(setting.path).unwrap_or(false))
    }

    fn value(&self) -> Result<String, UserSpaceError> {
        fs::read_to_string(self.path)
            .map(|value| value.trim().to_owned())
            .map_err(|reason| self.error(self.user_space, reason))
    }

    fn set(&self, value: &str) -> Result<(), UserSpaceError> {
        fs::write(self.path, value).map_err(|reason| self.error(value, reason))
    }

    fn error(&self, value: &str, reason: io::Error) -> UserSpaceError {
        UserSpaceError::Setting { path: self.path, value: value.into(), reason }
    }
}

/// The time window in which the sysctl is changed.
struct Window<'a> {
    record: Record,
    setting: &'a Setting,
    before: Option<String>,
}

impl<'a> Window<'a> {
    fn open(mut record: Record, setting: &'a Setting, before: String) -> Result<Window<'a>, UserSpaceError> {
        record.write(setting, &before)?;
        let window = Window { record, setting, before: Some(before) };
        setting.set(setting.user_space)?;
        Ok(window)
    }

    fn close(&mut self) -> Result<(), UserSpaceError> {
        if let Some(before) = self.before.take() {
            self.setting.set(&before)?;
            self.record.clear()?;
        }
        Ok(())
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        // If this fails, the record remains, and the next process that locks it retries.
        let _ = self.close();
    }
}

/// The name of the file that guards the window.
const RECORD_NAME: &str = "path-manager";

/// The file that guards the window, whether it exists or not.
///
/// # Errors
/// As [`run_directory`].
pub fn path_manager_record() -> io::Result<PathBuf> {
    Ok(run_directory()?.join(RECORD_NAME))
}

/// Removes the file from the run directory, which only this process uses, unless a setting is to be restored.
pub(crate) fn remove_empty_path_manager_record(run_directory: &Path) -> io::Result<()> {
    let record = run_directory.join(RECORD_NAME);
    if fs::metadata(&record)?.len() > 0 {
        return Ok(());
    }
    fs::remove_file(record)
}

/// Opens the file that guards the window, for use when this process may no longer open it, as another user.
///
/// # Errors
/// See [`UserSpaceError::Record`].
pub fn keep_record_open() -> Result<(), UserSpaceError> {
    let record = Record::open()?;
    let _ = OPEN_RECORD.set(Mutex::new(record));
    Ok(())
}

/// A descriptor of the file, and its path. Locks of the file are those of the descriptor, so threads exclude each other here.
static OPEN_RECORD: OnceLock<Mutex<(PathBuf, File)>> = OnceLock::new();

/// The file that is locked during the window. It has a line for each changed sysctl, with its namespace and its previous value;
/// that of this process is the last one.
struct Record {
    path: PathBuf,
    file: File,
    /// The length of the lines that killed processes left, and that this process cannot restore.
    others: u64,
    /// Held with the lock of a descriptor that is kept open.
    _kept: Option<MutexGuard<'static, (PathBuf, File)>>,
}

impl Drop for Record {
    fn drop(&mut self) {
        // Closing a duplicate does not release it.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Record {
    fn lock() -> Result<Record, UserSpaceError> {
        let kept = OPEN_RECORD.get().map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner));
        let (path, file) = match &kept {
            Some(kept) => {
                let duplicate = kept.1.try_clone();
                (kept.0.clone(), duplicate)
            }
            None => Record::open().map(|(path, file)| (path, Ok(file)))?,
        };
        let locked = file.and_then(|mut file| {
            rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            file.rewind()?;
            Ok(file)
        });
        match locked {
            Ok(file) => Ok(Record { path, file, others: 0, _kept: kept }),
            Err(reason) => Err(UserSpaceError::Record { path, reason }),
        }
    }

    fn open() -> Result<(PathBuf, File), UserSpaceError> {
        let path = path_manager_record()
            .map_err(|reason| UserSpaceError::Record { path: "/run/plait".into(), reason })?;
        let mut options = File::options();
        match options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path) {
            Ok(file) => Ok((path, file)),
            Err(reason) => Err(UserSpaceError::Record { path, reason }),
        }
    }

    fn write(&mut self, setting: &Setting, before: &str) -> Result<(), UserSpaceError> {
        let mut write = || {
            let Identity { device, inode } = NetNs::current()?.identity()?;
            // A single write, so that the line is never partial.
            let line = format!("{device} {inode} {} {before}\n", setting.path);
            self.file.seek(SeekFrom::Start(self.others))?;
            self.file.write_all(line.as_bytes())
        };
        write().map_err(|reason| UserSpaceError::Record { path: self.path.clone(), reason })
    }

    fn clear(&mut self) -> Result<(), UserSpaceError> {
        self.file
            .set_len(self.others)
            .map_err(|reason| UserSpaceError::Record { path: self.path.clone(), reason })
    }

    /// Restores the values recorded by killed processes. Returns a description of the changes.
    fn restore(&mut self) -> Result<Option<String>, UserSpaceError> {
        let mut text = String::new();
        self.file
            .read_to_string(&mut text)
            .map_err(|reason| UserSpaceError::Record { path: self.path.clone(), reason })?;
        let (mut restored, mut others) = (Vec::new(), String::new());
        for line in text.lines() {
            let Some((identity, setting, before)) = parse(line) else { continue };
            match namespace_of(identity) {
                Some(namespace) => restored.extend(restore_in(&namespace, setting, before)?),
                // Without privileges, a namespace that exists may be invisible.
                None if self._kept.is_some() => others.extend([line, "\n"]),
                // Neither does its sysctl exist.
                None => {}
            }
        }
        if !text.is_empty() && text != others {
            self.replace(&others)?;
        }
        self.others = others.len() as u64;
        Ok((!restored.is_empty()).then(|| restored.join(", ")))
    }

    fn replace(&mut self, text: &str) -> Result<(), UserSpaceError> {
        let written = (|| {
            self.file.rewind()?;
            self.file.write_all(text.as_bytes())?;
            self.file.set_len(text.len() as u64)
        })();
        written.map_err(|reason| UserSpaceError::Record { path: self.path.clone(), reason })
    }
}

/// A namespace that this process can see.
fn namespace_of(identity: Identity) -> Option<NetNs> {
    let own = NetNs::current().ok().filter(|own| own.identity().is_ok_and(|found| found == identity));
    own.or_else(|| netns::find(identity))
}

/// Restores a sysctl, unless it was changed in the meantime.
fn restore_in(
    namespace: &NetNs,
    setting: &'static Setting,
    before: &str,
) -> Result<Option<String>, UserSpaceError> {
    let restore = || {
        if setting.value()? != setting.user_space {
            return Ok(None);
        }
        setting.set(before)?;
        Ok(Some(format!("{} restored to '{before}'", setting.path)))
    };
    // Entering a namespace takes privileges.
    let is_own = NetNs::current().and_then(|own| Ok(own.identity()? == namespace.identity()?));
    match is_own {
        Ok(true) => restore(),
        _ => namespace.run(restore).map_err(|reason| setting.error(before, reason))?,
    }
}

fn parse(text: &str) -> Option<(Identity, &'static Setting, &str)> {
    let mut words = text.split_whitespace();
    let identity = Identity { device: words.next()?.parse().ok()?, inode: words.next()?.parse().ok()? };
    let path = words.next()?;
    let setting = SETTINGS.iter().find(|setting| setting.path == path)?;
    Some((identity, setting, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_malformed_records() {
        let (identity, setting, before) =
            parse("4 4026531840 /proc/sys/net/mptcp/pm_type 0\n").expect("record is valid");
        assert_eq!(identity, Identity { device: 4, inode: 4026531840 });
        assert_eq!((setting.path, before), (PM_TYPE, "0"));
        for text in ["", "4", "4 5 /etc/passwd x", "4 5 /proc/sys/net/mptcp/pm_type", "a b c d"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }

    const GONE: &str = "4 1 /proc/sys/net/mptcp/pm_type 0\n";

    fn record(file: File, kept: Option<MutexGuard<'static, (PathBuf, File)>>) -> Record {
        Record { path: "record".into(), file, others: 0, _kept: kept }
    }

    fn content(mut file: File) -> String {
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("it is readable");
        text
    }

    #[test]
    fn entries_of_invisible_namespaces_stay_for_processes_that_see_them() {
        let file = || tempfile::tempfile().expect("a temporary file");
        let mut left = file();
        left.write_all(GONE.as_bytes()).and_then(|()| left.rewind()).expect("it is writable");
        let opened = Mutex::new((PathBuf::new(), file()));
        let opened: &'static _ = Box::leak(Box::new(opened));
        let mut unprivileged =
            record(left.try_clone().expect("a duplicate"), Some(opened.lock().expect("not poisoned")));
        assert_eq!(unprivileged.restore().expect("it is readable"), None);
        unprivileged.write(&SETTINGS[1], "0").expect("it is writable");
        let both = content(left.try_clone().expect("a duplicate"));
        assert_eq!((both.starts_with(GONE), both.lines().count()), (true, 2));
        unprivileged.clear().expect("it is writable");
        assert_eq!(content(left.try_clone().expect("a duplicate")), GONE);

        left.rewind().expect("it is seekable");
        let mut privileged = record(left.try_clone().expect("a duplicate"), None);
        assert_eq!(privileged.restore().expect("it is readable"), None);
        assert_eq!(content(left), "", "no such namespace exists");
    }
}
