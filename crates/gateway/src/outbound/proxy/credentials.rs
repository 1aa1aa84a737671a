//! The user name and password that a proxy client must present.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use ring::hmac;
use zeroize::Zeroizing;

/// A user name and password, stored as a keyed digest.
#[derive(Clone)]
pub struct Credentials {
    key: hmac::Key,
    expected: hmac::Tag,
}

/// A file with credentials could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// It could not be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// Its first line has another format.
    #[error("{0}: expected one line 'user:password'")]
    Format(PathBuf),
    /// The system has no random bytes.
    #[error("the system's random number generator failed")]
    Random,
}

impl Credentials {
    /// Reads a file whose first line is `user:password`: a file, because command lines are public.
    pub fn from_file(path: &Path) -> Result<Credentials, CredentialsError> {
        let text = fs::read_to_string(path)
            .map_err(|reason| CredentialsError::Read { path: path.to_owned(), reason })?;
        let text = Zeroizing::new(text);
        match text.lines().next().and_then(|line| line.split_once(':')) {
            Some((user, password)) if !user.is_empty() => Credentials::new(user, password),
            _ => Err(CredentialsError::Format(path.to_owned())),
        }
    }

    fn new(user: &str, password: &str) -> Result<Credentials, CredentialsError> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new())
            .map_err(|_| CredentialsError::Random)?;
        let expected = hmac::sign(&key, &joined(user, password));
        Ok(Credentials { key, expected })
    }

    /// Whether these are the credentials, in time that does not depend on where they differ.
    pub(super) fn verify(&self, user: &str, password: &str) -> bool {
        hmac::verify(&self.key, &joined(user, password), self.expected.as_ref()).is_ok()
    }
}

/// Unambiguous, because a user name contains no NUL.
fn joined(user: &str, password: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new([user.as_bytes(), &[0], password.as_bytes()].concat())
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_pair_is_accepted() {
        let credentials = Credentials::new("ada", "se:cret").unwrap();
        assert!(credentials.verify("ada", "se:cret"));
        for (user, password) in [("ada", "secret"), ("Ada", "se:cret"), ("", ""), ("ada:se", "cret")] {
            assert!(!credentials.verify(user, password), "{user} {password}");
        }
    }

    #[test]
    fn file_without_a_pair_is_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        for text in ["", "nopassword\n", ":x\n"] {
            fs::write(path, text).unwrap();
            assert!(matches!(Credentials::from_file(path), Err(CredentialsError::Format(_))), "{text:?}");
        }
        fs::write(path, "ada:se:cret\n").unwrap();
        assert!(Credentials::from_file(path).unwrap().verify("ada", "se:cret"));
    }
}
