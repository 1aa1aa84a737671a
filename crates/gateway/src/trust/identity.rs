//! The files of a gateway's long-term key pair (mode `sealed`): one line, `plait-private-key:` and 43 characters, readable
//! by its owner alone.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io, process};

use plait_proto::RandomError;
use plait_proto::identity::KeyPair;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use zeroize::Zeroizing;

use super::state_directory::{private_directory, state_directory};

/// A key pair could not be read or created.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file could not be read.
    #[error("cannot read the identity in {path}: {reason}{}", hint(reason))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The file could not be created.
    #[error("cannot create an identity in {path}: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// Other users than its owner can read the file.
    #[error(
        "other users can read the identity in {0}: chmod 600 it, or create another one if somebody may have read it"
    )]
    Open(PathBuf),
    /// The file holds something else.
    #[error("{0}: expected one line plait-private-key:..., as `plait identity` writes it")]
    Format(PathBuf),
    /// The environment names no directory.
    #[error("expected XDG_STATE_HOME or HOME in the environment, or --file or --identity FILE")]
    NoDirectory,
    /// The system has no random bytes.
    #[error("the system's random number generator failed")]
    Random,
}

fn hint(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::NotFound => " (`plait identity --file FILE` creates one)",
        _ => "",
    }
}

impl From<RandomError> for IdentityError {
    fn from(_: RandomError) -> IdentityError {
        IdentityError::Random
    }
}

/// The user's key file unless another one is named: `identity.key` in `$STATE_DIRECTORY`, which systemd sets for services;
/// else in `/var/lib/plait` for root, and in `$XDG_STATE_HOME/plait`, by default below `~/.local/state`, for other users.
///
/// # Errors
/// The environment names no directory.
pub fn default_file() -> Result<PathBuf, IdentityError> {
    Ok(state_directory().ok_or(IdentityError::NoDirectory)?.join("identity.key"))
}

/// Reads a key file.
///
/// # Errors
/// It cannot be read, can be read by others than its owner, or has another format.
pub fn load(path: &Path) -> Result<KeyPair, IdentityError> {
    let read = |reason| IdentityError::Read { path: path.to_owned(), reason };
    let file = File::open(path).map_err(read)?;
    let permissions = file.metadata().map_err(read)?.permissions();
    if permissions.mode() & 0o077 != 0 {
        return Err(IdentityError::Open(path.to_owned()));
    }
    // More than is read, so that it never grows, which would leave copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(256));
    file.take(200).read_to_end(&mut text).map_err(read)?;
    let line = std::str::from_utf8(&text).ok().map(str::trim_ascii_end);
    line.and_then(KeyPair::parse_private).ok_or_else(|| IdentityError::Format(path.to_owned()))
}

/// Reads a key file; if there is none, generates a key pair and creates the file. Returns whether it was created.
///
/// # Errors
/// The file cannot be written, or as [`load`].
pub fn load_or_create(path: &Path) -> Result<(KeyPair, bool), IdentityError> {
    match path.try_exists() {
        Ok(true) => return Ok((load(path)?, false)),
        Ok(false) => {}
        Err(reason) => return Err(IdentityError::Read { path: path.to_owned(), reason }),
    }
    let pair = KeyPair::generate()?;
    match create(path, &pair) {
        Ok(()) => Ok((pair, true)),
        // Another process created it at the same time.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((load(path)?, false)),
        Err(reason) => Err(IdentityError::Write { path: path.to_owned(), reason }),
    }
}

/// Creates the file atomically; an existing one is not overwritten.
fn create(path: &Path, pair: &KeyPair) -> io::Result<()> {
    private_directory(path)?;
    let mut line = pair.private_text();
    line.push('\n');
    let mut name = OsString::from(path);
    name.push(format!(".{}.new", process::id()));
    let unfinished = PathBuf::from(name);
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
    let written = written.and_then(|mut file| {
        file.write_all(line.as_bytes())?;
        file.sync_all()?;
        Ok(renameat_with(CWD, &unfinished, CWD, path, RenameFlags::NOREPLACE)?)
    });
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_round_trip_and_are_never_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("state/identity.key");
        let (made, new) = load_or_create(&file).expect("a writable directory");
        assert!(new);
        let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&directory.path().join("state"))), (0o600, 0o700));
        let text = fs::read_to_string(&file).expect("readable");
        assert!(text.starts_with("plait-private-key:") && text.len() == "plait-private-key:".len() + 43 + 1);
        let (read, new) = load_or_create(&file).expect("it exists");
        assert!(!new && read.public() == made.public());
        assert_eq!(read.private().as_bytes(), made.private().as_bytes());
        let other = KeyPair::generate().expect("random");
        assert_eq!(create(&file, &other).expect_err("it exists").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).expect("readable"), text);
        assert_eq!(
            fs::read_dir(directory.path().join("state")).expect("a directory").count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn rejects_key_files_that_others_can_read_or_with_another_format() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("identity.key");
        let (_, _) = load_or_create(&file).expect("a writable directory");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("writable");
        assert!(matches!(load(&file), Err(IdentityError::Open(_))));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("writable");
        let whole = fs::read_to_string(&file).expect("readable");
        let cut = &whole[..whole.len() - 2];
        for text in ["", "plait-private-key:", cut, &whole.replace("private-", ""), &format!("{whole}x")] {
            fs::write(&file, text).expect("writable");
            assert!(matches!(load(&file), Err(IdentityError::Format(_))), "{text:?}");
        }
        fs::remove_file(&file).expect("writable");
        let error = load(&file).expect_err("missing").to_string();
        assert!(error.contains("plait identity"), "{error}");
    }
}
