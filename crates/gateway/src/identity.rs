//! A gateway's long-term key pair, by which its peers know it again (mode `sealed`): in memory, in a file, and its public
//! half as text.
//!
//! The file has one line, `plait-private-key:` and 43 characters of base64url (RFC 4648, section 5, without padding). The
//! public half is written `plait-key:` and 43 characters. Both are X25519 keys (RFC 7748).

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{env, fmt, fs, io, process};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Deserialize;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::Zeroizing;

use crate::sealed::{RandomError, Secret};

const PUBLIC: &str = "plait-key:";
const PRIVATE: &str = "plait-private-key:";

/// Characters of 32 bytes in base64 without padding.
const DIGITS: usize = 43;

/// The public half of a key pair, which may be shown to anybody: `plait-key:` and 43 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicKey([u8; 32]);

/// A text is no public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {PUBLIC} and {DIGITS} characters of base64url, as `plait identity` shows it, found '{0}'")]
pub struct NoPublicKey(String);

impl PublicKey {
    pub(crate) fn new(key: [u8; 32]) -> PublicKey {
        PublicKey(key)
    }

    #[cfg(test)]
    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}{}", BASE64_URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = NoPublicKey;

    fn from_str(text: &str) -> Result<PublicKey, NoPublicKey> {
        let key = text.strip_prefix(PUBLIC).and_then(decoded);
        key.map(|key| PublicKey(*key)).ok_or_else(|| {
            // Who takes the wrong line of the two must not find it in a log.
            let shown = if text.starts_with(PRIVATE) { "a private key" } else { text };
            NoPublicKey(shown.to_owned())
        })
    }
}

impl TryFrom<String> for PublicKey {
    type Error = NoPublicKey;

    fn try_from(text: String) -> Result<PublicKey, NoPublicKey> {
        text.parse()
    }
}

/// A long-term key pair. The private half is wiped when it is dropped, and never shown.
#[derive(Debug)]
pub struct KeyPair {
    private: Secret,
    public: PublicKey,
}

/// A key pair could not be read or made.
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
    /// The file could not be made.
    #[error("cannot keep an identity in {path}: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// Others than its owner may read the file.
    #[error("others can read the identity in {0}: chmod 600 it, or make another one if somebody may have")]
    Open(PathBuf),
    /// The file holds something else.
    #[error("{0}: expected one line {PRIVATE}..., as `plait identity` writes it")]
    Format(PathBuf),
    /// There is no directory for it.
    #[error(
        "expected XDG_STATE_HOME or HOME to say where this user's state is kept, or --file or --identity FILE"
    )]
    NoDirectory,
    /// The system gave no random bytes.
    #[error("the system's random number generator failed")]
    Random,
}

fn hint(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::NotFound => " (`plait identity --file FILE` makes one)",
        _ => "",
    }
}

impl From<RandomError> for IdentityError {
    fn from(_: RandomError) -> IdentityError {
        IdentityError::Random
    }
}

impl KeyPair {
    /// Where this user's is kept unless another file is named: `/var/lib/plait/identity.key` for root, else
    /// `$XDG_STATE_HOME/plait/identity.key`, by default below `~/.local/state`.
    ///
    /// # Errors
    /// The environment does not say where.
    pub fn default_file() -> Result<PathBuf, IdentityError> {
        let directory =
            |variable| env::var_os(variable).map(PathBuf::from).filter(|directory| directory.is_absolute());
        let state = if rustix::process::geteuid().is_root() {
            Some("/var/lib".into())
        } else {
            directory("XDG_STATE_HOME").or_else(|| directory("HOME").map(|home| home.join(".local/state")))
        };
        Ok(state.ok_or(IdentityError::NoDirectory)?.join("plait/identity.key"))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, can be read by others than its owner, or holds something else.
    pub fn from_file(path: &Path) -> Result<KeyPair, IdentityError> {
        let read = |reason| IdentityError::Read { path: path.to_owned(), reason };
        let file = File::open(path).map_err(read)?;
        let permissions = file.metadata().map_err(read)?.permissions();
        if permissions.mode() & 0o077 != 0 {
            return Err(IdentityError::Open(path.to_owned()));
        }
        // More than there can be, so that no copies are left behind where it would have to grow.
        let mut text = Zeroizing::new(Vec::with_capacity(256));
        file.take(200).read_to_end(&mut text).map_err(read)?;
        let line = std::str::from_utf8(&text).ok().map(str::trim_ascii_end);
        let private = line.and_then(|line| line.strip_prefix(PRIVATE)).and_then(decoded);
        let private = private.ok_or_else(|| IdentityError::Format(path.to_owned()))?;
        Ok(KeyPair::from_private(Secret::copy_of(&private)))
    }

    /// Makes a new one and keeps it in a file that only its owner can read. A file that is there is not overwritten, but
    /// read: `false` tells that.
    ///
    /// # Errors
    /// The file cannot be written, or as [`from_file`](Self::from_file).
    pub fn of_file(path: &Path) -> Result<(KeyPair, bool), IdentityError> {
        match path.try_exists() {
            Ok(true) => return Ok((KeyPair::from_file(path)?, false)),
            Ok(false) => {}
            Err(reason) => return Err(IdentityError::Read { path: path.to_owned(), reason }),
        }
        let made = KeyPair::fresh()?;
        match made.keep(path) {
            Ok(()) => Ok((made, true)),
            // Somebody else made one at the same time.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok((KeyPair::from_file(path)?, false))
            }
            Err(reason) => Err(IdentityError::Write { path: path.to_owned(), reason }),
        }
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// One that nobody has seen.
    pub(crate) fn fresh() -> Result<KeyPair, RandomError> {
        Ok(KeyPair::from_private(Secret::random()?))
    }

    pub(crate) fn from_private(private: Secret) -> KeyPair {
        let curve = DefaultResolver.resolve_dh(&DHChoice::Curve25519);
        let mut curve = curve.expect("the library is built with X25519");
        curve.set(private.as_bytes());
        let public = PublicKey(curve.pubkey().try_into().expect("X25519 keys have 32 bytes"));
        KeyPair { private, public }
    }

    pub(crate) fn private(&self) -> &Secret {
        &self.private
    }

    /// All of the file or none of it is there, whatever happens meanwhile.
    fn keep(&self, path: &Path) -> io::Result<()> {
        private_directory(path)?;
        let mut line = Zeroizing::new(String::with_capacity(PRIVATE.len() + DIGITS + 1));
        line.push_str(PRIVATE);
        BASE64_URL_SAFE_NO_PAD.encode_string(self.private.as_bytes(), &mut line);
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
}

/// Makes the directory of a file, for its owner alone, if there is none.
pub(crate) fn private_directory(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(directory) if directory != Path::new("") => {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)
        }
        _ => Ok(()),
    }
}

fn decoded(digits: &str) -> Option<Zeroizing<[u8; 32]>> {
    // The decoder wants room for a multiple of 3.
    let mut bytes = Zeroizing::new([0; 33]);
    let length = BASE64_URL_SAFE_NO_PAD.decode_slice(digits, &mut *bytes).ok()?;
    let mut key = Zeroizing::new([0; 32]);
    key.copy_from_slice(bytes.get(..length).filter(|bytes| bytes.len() == 32)?);
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test's own, removed with it.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let directory = env::temp_dir().join(format!("plait-identity-{name}-{}", process::id()));
            let _ = fs::remove_dir_all(&directory);
            Directory(directory)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_public_half_is_that_of_rfc_7748() {
        // Section 6.1, Bob's.
        let public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
        let private = hex::decode("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let private: [u8; 32] = private.expect("digits").try_into().expect("32 bytes");
        let pair = KeyPair::from_private(Secret::copy_of(&private));
        assert_eq!(hex::encode(pair.public().0), public);
    }

    #[test]
    fn what_was_kept_is_read_again_and_never_overwritten() {
        let directory = Directory::new("kept");
        let file = directory.0.join("state/identity.key");
        let (made, new) = KeyPair::of_file(&file).expect("a writable directory");
        assert!(new);
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&directory.0.join("state"))), (0o600, 0o700));
        let text = fs::read_to_string(&file).expect("readable");
        assert!(text.starts_with(PRIVATE) && text.len() == PRIVATE.len() + DIGITS + 1);
        let (read, new) = KeyPair::of_file(&file).expect("it is there");
        assert!(!new && read.public() == made.public());
        assert_eq!(read.private().as_bytes(), made.private().as_bytes());
        let other = KeyPair::fresh().expect("random");
        assert_eq!(other.keep(&file).expect_err("it is there").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).expect("readable"), text);
        assert_eq!(
            fs::read_dir(directory.0.join("state")).expect("a directory").count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_something_else_is_refused() {
        let directory = Directory::new("refused");
        let file = directory.0.join("identity.key");
        let (_, _) = KeyPair::of_file(&file).expect("a writable directory");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("it is ours");
        assert!(matches!(KeyPair::from_file(&file), Err(IdentityError::Open(_))));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
        let whole = fs::read_to_string(&file).expect("readable");
        let cut = &whole[..whole.len() - 2];
        for text in ["", "plait-private-key:", cut, &whole.replace("private-", ""), &format!("{whole}x")] {
            fs::write(&file, text).expect("it is ours");
            assert!(matches!(KeyPair::from_file(&file), Err(IdentityError::Format(_))), "{text:?}");
        }
        fs::remove_file(&file).expect("it is ours");
        let error = KeyPair::from_file(&file).expect_err("it is gone").to_string();
        assert!(error.contains("plait identity"), "{error}");
    }

    #[test]
    fn a_public_key_has_one_form() {
        let key = PublicKey([0xfb; 32]);
        let text = key.to_string();
        assert_eq!(text.len(), PUBLIC.len() + DIGITS);
        assert!(text.contains(['-', '_']) && !text.contains(['+', '/', '=']));
        assert_eq!(text.parse(), Ok(key));
        let digits = &text[PUBLIC.len()..];
        for wrong in [digits, &text[..text.len() - 1], &format!("{text}A"), &format!("{text} "), "plait-key:"]
        {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
        // The last character stands for 4 bits; the others of it are zero.
        let mut other = text.clone();
        other.pop();
        assert!(format!("{other}9").parse::<PublicKey>().is_err());
    }

    #[test]
    fn a_private_key_is_not_shown() {
        let pair = KeyPair::from_private(Secret::copy_of(&[0xab; 32]));
        let digits = BASE64_URL_SAFE_NO_PAD.encode([0xab; 32]);
        let shown =
            format!("{pair:?} {}", format!("{PRIVATE}{digits}").parse::<PublicKey>().expect_err("private"));
        assert!(shown.contains(&pair.public().to_string()), "{shown}");
        assert!(!shown.contains(&digits) && !shown.contains("171") && !shown.contains("abab"), "{shown}");
    }
}
