//! The error of rejected designs, and arithmetic that they share.

/// Shares or packets that do not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// Fewer shares than the scheme can work with.
    #[error("expected at least {expected} shares, got {got}")]
    Shares {
        /// The minimum.
        expected: usize,
        /// The number given.
        got: usize,
    },
    /// A threshold out of range.
    #[error("expected 1 to 255 shares and a threshold of 1 to as many, got {threshold} of {shares}")]
    Threshold {
        /// The requested threshold.
        threshold: usize,
        /// The requested number of shares.
        shares: usize,
    },
    /// A share of point 0, or of the same point as another share.
    #[error("expected different points from 1 to 255, got {got}")]
    Point {
        /// The point.
        got: u8,
    },
    /// Shares or packets of different lengths.
    #[error("expected {expected} bytes as in the others, got {got}")]
    Length {
        /// The length of the others in bytes.
        expected: usize,
        /// The length of this one in bytes.
        got: usize,
    },
}

/// Checks that `piece` has the expected length.
pub(super) fn same_length(expected: usize, piece: &[u8]) -> Result<(), Error> {
    if piece.len() == expected { Ok(()) } else { Err(Error::Length { expected, got: piece.len() }) }
}

/// Adds `bytes` in GF(2): XOR.
pub(super) fn add(into: &mut [u8], bytes: &[u8]) {
    for (into, byte) in into.iter_mut().zip(bytes) {
        *into ^= byte;
    }
}
