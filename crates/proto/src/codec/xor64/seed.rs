//! The secret before the first byte.

use std::fmt;

use zeroize::Zeroizing;

use super::WINDOW;

/// What stands before the first byte of a stream: 1 to 64 bytes known to the two ends, one seed per direction.
///
/// Wiped when dropped; its `Debug` form shows nothing of it. Since zeros are put before it, a seed and the same
/// seed with zeros in front are one and the same.
pub struct Seed {
    window: Zeroizing<[u8; WINDOW]>,
}

impl Seed {
    /// The seed made of `bytes`, its last byte being the one just before the stream.
    ///
    /// # Errors
    ///
    /// [`SeedLength`] if there are none or more than 64.
    pub fn new(bytes: &[u8]) -> Result<Self, SeedLength> {
        if bytes.is_empty() || bytes.len() > WINDOW {
            return Err(SeedLength { got: bytes.len() });
        }
        let mut window = Zeroizing::new([0; WINDOW]);
        window[WINDOW - bytes.len()..].copy_from_slice(bytes);
        Ok(Self { window })
    }

    /// The 64 bytes before the stream, newest last.
    pub(super) fn window(&self) -> &[u8; WINDOW] {
        &self.window
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seed").finish_non_exhaustive()
    }
}

/// A [`Seed`] of an impossible length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an xor64 seed has 1 to 64 bytes, got {got}")]
pub struct SeedLength {
    /// The number of bytes given.
    pub got: usize,
}
