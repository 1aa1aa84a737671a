//! 32-byte secrets.

use std::fmt;

use ring::rand::{SecureRandom, SystemRandom};
use zeroize::{Zeroize, Zeroizing};

/// 32 secret bytes: wiped when dropped, hidden from `Debug`. Boxed, so that moving them leaves no copies behind.
pub struct Secret(Box<Zeroizing<[u8; Self::LEN]>>);

/// The system's random number generator failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system's random number generator failed")]
pub struct RandomError;

impl Secret {
    pub(crate) const LEN: usize = 32;

    /// A fresh random secret.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub fn random() -> Result<Secret, RandomError> {
        Secret::fill_with(|bytes| SystemRandom::new().fill(bytes)).map_err(|_| RandomError)
    }

    /// Copies the bytes, which the caller has to wipe.
    #[must_use]
    pub fn copy_of(bytes: &[u8; Self::LEN]) -> Secret {
        let mut secret = Secret(Box::default());
        secret.0.copy_from_slice(bytes);
        secret
    }

    /// Moves the bytes here: the original is wiped.
    pub(crate) fn take(bytes: &mut [u8; Self::LEN]) -> Secret {
        let secret = Secret::copy_of(bytes);
        bytes.zeroize();
        secret
    }

    pub(crate) fn fill_with<E>(fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Secret, E> {
        let mut secret = Secret(Box::default());
        fill(&mut secret.0[..])?;
        Ok(secret)
    }

    /// The secret itself.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_secrets_differ_and_debug_hides_them() {
        let (one, other) = (Secret::random().expect("random"), Secret::random().expect("random"));
        assert_ne!(one.as_bytes(), other.as_bytes());
        assert_eq!(format!("{one:?}"), "Secret(..)");
    }

    #[test]
    fn take_wipes_the_original() {
        let mut bytes = [7; 32];
        assert_eq!(Secret::take(&mut bytes).as_bytes(), &[7; 32]);
        assert_eq!(bytes, [0; 32]);
    }
}
