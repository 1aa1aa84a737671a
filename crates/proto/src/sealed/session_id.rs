//! The name of a session on all its paths.

use std::fmt;

use ring::rand::{SecureRandom, SystemRandom};

use crate::secret::RandomError;

/// Identifies a session on all its paths: random, sent in clear.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId([u8; Self::LEN]);

impl SessionId {
    pub(super) const LEN: usize = 32;

    pub(super) fn random() -> Result<SessionId, RandomError> {
        let mut id = [0; Self::LEN];
        SystemRandom::new().fill(&mut id).map_err(|_| RandomError)?;
        Ok(SessionId(id))
    }

    pub(super) fn new(id: [u8; Self::LEN]) -> SessionId {
        SessionId(id)
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// The first 8 hexadecimal digits, enough to tell sessions apart in a log.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
