//! The secret that precedes the first byte of a stream.

use zeroize::Zeroizing;

use super::WINDOW;
use crate::derive::opaque_debug;

/// The bytes before the first byte of a stream: 1 to 64 bytes known to the two ends, one seed per direction.
///
/// Wiped when dropped; its `Debug` output does not reveal it. Since the seed is padded with zeros in front, leading
/// zeros make no difference.
pub struct Seed {
    window: Zeroizing<[u8; WINDOW]>,
}

impl Seed {
    /// A seed of `bytes`, the last of which is the one just before the stream.
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

opaque_debug!(Seed);

/// A [`Seed`] of an impossible length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an xor64 seed has 1 to 64 bytes, got {got}")]
pub struct SeedLength {
    /// The number of bytes given.
    pub got: usize,
}
