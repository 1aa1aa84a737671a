//! What the "not-every-not-any" papers considered for path dispersion and rejected, as reference implementations.
//!
//! **For comparison only.** No mode of plait offers them, they do not wipe what they hold, and they are written to be
//! read. They answer what each would cost and give:
//!
//! | candidate | bytes on all paths for each byte | paths that may fail | what one path of two reveals |
//! |---|---|---|---|
//! | [`xor_sharing`], n of n | n | none | nothing, whatever is computed |
//! | [`shamir`], k of n | n | n - k | nothing, whatever is computed, if k is at least 2 |
//! | [`packet_pairs`], half coded | 1 | none | every second packet, or the XOR of every two |
//! | [`packet_pairs`], coded | 1 | none | one combination of every two packets: who knows one has the other |
//! | [`block_chaining`] | 1 | none | all but the first block of every contiguous run |
//!
//! Secret sharing is the only one of them that keeps its promise, and it multiplies the traffic, so that two paths
//! together carry no more than one could. The others add no bytes and no secrecy: without a key or fresh randomness
//! a transform that does not expand shows on each path as many bytes of information as it carries there. What plait
//! offers instead are [`stream`](crate::codec::stream) and [`records`](crate::codec::records).

pub mod block_chaining;
mod gf256;
pub mod packet_pairs;
pub mod shamir;
pub mod xor_sharing;

/// Pieces that do not belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer shares than the scheme can work with.
    #[error("{got} shares, expected at least {expected}")]
    Shares {
        /// The fewest that there may be.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A threshold that is none.
    #[error("{threshold} of {shares} shares, expected 1 to 255 shares and a threshold of 1 to as many")]
    Threshold {
        /// How many shares are to be needed.
        threshold: usize,
        /// How many shares there are to be.
        shares: usize,
    },
    /// A share of a point that no share is made for, or of one that another share has.
    #[error("a share of point {got}, expected points from 1 to 255 and each only once")]
    Point {
        /// The point.
        got: u8,
    },
    /// Pieces that are to be combined, of different lengths.
    #[error("{got} bytes, expected {expected} as in the other pieces")]
    Length {
        /// The other piece's length in bytes.
        expected: usize,
        /// This piece's length in bytes.
        got: usize,
    },
}

fn same_length(expected: usize, piece: &[u8]) -> Result<(), Error> {
    if piece.len() == expected { Ok(()) } else { Err(Error::Length { expected, got: piece.len() }) }
}

fn add(into: &mut [u8], bytes: &[u8]) {
    for (into, byte) in into.iter_mut().zip(bytes) {
        *into ^= byte;
    }
}
