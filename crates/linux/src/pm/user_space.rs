//! MPTCP sockets managed from user space, in a namespace where all others use the kernel's path manager.
//!
//! The kernel determines the path manager of a connection when its socket is *created*, from a sysctl of the network
//! namespace. So the sysctl is changed for the few microseconds that creating the sockets takes, and
//! put back. A socket that another program makes within that window has no path manager either: its connection
//! works, over one path.
//!
//! A file in the run directory guards this window: it is locked, so that processes never overlap, and contains the
//! previous value while the window is open, so that the next process restores it if this one was killed.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use socket2::{Domain, Socket, Type};

use crate::leftovers::run_directory;
use crate::netns::{self, Identity, NetNs};

/// Why no such sockets could be made.
#[derive(Debug, thiserror::Error)]
pub enum UserSpaceError {
    /// The kernel has no such setting.
    #[error(
        "expected the setting {PATH_MANAGER} or {PM_TYPE}, found neither: \
         path management from user space takes MPTCP in a kernel of version 5.19 or later"
    )]
    Missing,
    /// The setting cannot be changed.
    #[error("cannot set {path} to '{value}': {reason}; this requires root and a writable /proc/sys")]
    Setting {
        /// The setting.
        path: &'static str,
        /// The value meant for it.
        value: String,
        /// Why not.
        reason: io::Error,
    },
    /// The file that guards the change cannot be used.
    #[error("cannot record the change of the MPTCP path manager in {}: {reason}", .path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// No socket could be made.
    #[error("cannot make an MPTCP socket: {0}")]
    Socket(io::Error),
}

/// Creates `count` unconnected MPTCP sockets whose subflows only [`PathManager`](super::PathManager) creates.
///
/// Connections *accepted* by a listening socket are not covered: the kernel reads the sysctl again for each.
/// A few microseconds per socket; blocks while another process does the same.
///
/// # Errors
/// See [`UserSpaceError`]. The setting is back at its old value in any case, unless the error is
/// [`Setting`](UserSpaceError::Setting) with that value, when the next call or [`restore_after_crash`] tries again.
pub fn user_space_sockets(count: usize, domain: Domain) -> Result<Vec<Socket>, UserSpaceError> {
    let mut record = Record::lock()?;
    record.restore()?;
    let setting = Setting::find().ok_or(UserSpaceError::Missing)?;
    let before = setting.value()?;
    let make = || Socket::new(domain, Type::STREAM, Some(socket2::Protocol::MPTCP));
    if before == setting.user_space {
        return (0..count).map(|_| make()).collect::<Result<_, _>>().map_err(UserSpaceError::Socket);
    }
    let mut window = Window::open(record, setting, before)?;
    let sockets: Result<Vec<_>, _> = (0..count).map(|_| make()).collect();
    window.close()?;
    sockets.map_err(UserSpaceError::Socket)
}

/// Restores the path manager sysctl if a process was killed while it had changed it; a description of the change.
///
/// # Errors
/// The record cannot be read, or the setting not be written.
pub fn restore_after_crash() -> Result<Option<String>, UserSpaceError> {
    Record::lock()?.restore()
}

/// The setting, of the namespace of the thread that uses it.
struct Setting {
    path: &'static str,
    user_space: &'static str,
}

/// By name since kernel 6.16; the number used by older ones still exists.
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

/// The time during which the setting is changed.
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
        // If this fails, the record remains, and the next process to lock it tries again.
        let _ = self.close();
    }
}

/// The file that is locked during the window, and contains what to restore and where.
struct Record {
    path: PathBuf,
    file: File,
}

impl Record {
    fn lock() -> Result<Record, UserSpaceError> {
        let path = run_directory()
            .map_err(|reason| UserSpaceError::Record { path: "/run/plait".into(), reason })?
            .join("path-manager");
        let lock = || {
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            Ok(file)
        };
        match lock() {
            Ok(file) => Ok(Record { path, file }),
            Err(reason) => Err(UserSpaceError::Record { path, reason }),
        }
    }

    fn write(&mut self, setting: &Setting, before: &str) -> Result<(), UserSpaceError> {
        let mut write = || {
            let Identity { device, inode } = NetNs::current()?.identity()?;
            // In one write, so that a record is there as a whole or not at all.
            let line = format!("{device} {inode} {} {before}\n", setting.path);
            self.file.write_all(line.as_bytes())
        };
        write().map_err(|reason| UserSpaceError::Record { path: self.path.clone(), reason })
    }

    fn clear(&mut self) -> Result<(), UserSpaceError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .map_err(|reason| UserSpaceError::Record { path: self.path.clone(), reason })
    }

    /// Restores what a killed process recorded.
    fn restore(&mut self) -> Result<Option<String>, UserSpaceError> {
        let mut text = String::new();
        self.file
            .read_to_string(&mut text)
            .map_err(|reason| UserSpaceError::Record { path: self.path.clone(), reason })?;
        if text.is_empty() {
            return Ok(None);
        }
        let mut done = None;
        // If the namespace no longer exists, neither does its setting.
        if let Some((identity, setting, before)) = parse(&text)
            && let Some(namespace) = netns::find(identity)
        {
            let restored = namespace.run(|| {
                // It was changed on purpose since then.
                if setting.value()? != setting.user_space {
                    return Ok(None);
                }
                setting.set(before)?;
                Ok(Some(format!("{} set back to '{before}'", setting.path)))
            });
            done = restored.map_err(|reason| setting.error(before, reason))??;
        }
        self.clear()?;
        Ok(done)
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
    fn only_a_whole_record_is_acted_upon() {
        let (identity, setting, before) =
            parse("4 4026531840 /proc/sys/net/mptcp/pm_type 0\n").expect("a record");
        assert_eq!(identity, Identity { device: 4, inode: 4026531840 });
        assert_eq!((setting.path, before), (PM_TYPE, "0"));
        for text in ["", "4", "4 5 /etc/passwd x", "4 5 /proc/sys/net/mptcp/pm_type", "a b c d"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
