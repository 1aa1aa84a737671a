use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use crate::Payload;

/// The length of a shingle, in bytes.
pub const SHINGLE_LEN: usize = 16;

/// How many distinct shingles are held at once: at most about 70 MB of memory, whatever the document's length.
const SHINGLES_AT_ONCE: usize = 2 << 20;

/// How much of a document a listener can read in what he captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable {
    /// The distinct shingles of the document: its substrings of [`SHINGLE_LEN`] bytes, from every offset.
    pub distinct: u64,
    /// Those of them that occur in the payload.
    pub found: u64,
}

impl Readable {
    /// The share that was found, 0 to 1; 0 of a document shorter than a shingle.
    pub fn fraction(self) -> f64 {
        if self.distinct == 0 { 0.0 } else { self.found as f64 / self.distinct as f64 }
    }
}

/// Searches `payload` for the shingles of `document`. A shingle is found wherever all its bytes were captured next
/// to each other in the stream, in one packet or in several, in whatever order they came.
///
/// The comparison is exact. A long document is searched for in several passes, so that memory stays bounded.
pub fn readable(document: &[u8], payload: &Payload) -> Readable {
    // A power of two, so that bits of the hash say in which pass a shingle has its turn.
    let passes = document.len().div_ceil(SHINGLES_AT_ONCE).next_power_of_two() as u64;
    let mut result = Readable { distinct: 0, found: 0 };
    let mut wanted = HashSet::with_hasher(BuildHasherDefault::<ShingleHasher>::default());
    for pass in 0..passes {
        let mine = |shingle: u128| (mix(shingle) >> 32) & (passes - 1) == pass;
        shingles(std::iter::once(document), |shingle| {
            if mine(shingle) {
                wanted.insert(shingle);
            }
        });
        result.distinct += wanted.len() as u64;
        let before = wanted.len();
        for run in payload.present().runs() {
            shingles(payload.chunks(run.clone()), |shingle| {
                if mine(shingle) {
                    wanted.remove(&shingle);
                }
            });
        }
        result.found += (before - wanted.len()) as u64;
        wanted.clear();
    }
    result
}

/// Calls `each` with every shingle of the bytes that `chunks` make one after the other.
fn shingles<'a>(chunks: impl Iterator<Item = &'a [u8]>, mut each: impl FnMut(u128)) {
    // The last 16 bytes, which are exactly a shingle.
    let mut window = 0u128;
    let mut missing = SHINGLE_LEN - 1;
    for chunk in chunks {
        let (head, rest) = chunk.split_at(missing.min(chunk.len()));
        missing -= head.len();
        for byte in head {
            window = window << 8 | u128::from(*byte);
        }
        for byte in rest {
            window = window << 8 | u128::from(*byte);
            each(window);
        }
    }
}

/// Spreads a shingle over 64 bits: the folded product of its halves, each of them first changed by a constant of
/// random digits, since text has few bits that differ.
fn mix(shingle: u128) -> u64 {
    let product = u128::from(shingle as u64 ^ 0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(u128::from((shingle >> 64) as u64 ^ 0xd1b5_4a32_d192_ed03));
    let folded = product as u64 ^ (product >> 64) as u64;
    folded.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ folded >> 29
}

#[derive(Default)]
struct ShingleHasher(u64);

impl Hasher for ShingleHasher {
    fn write_u128(&mut self, shingle: u128) {
        self.0 = mix(shingle);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(u128::from(self.0) << 64 | u128::from(*byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Against a set of slices. Letters of a small alphabet, so that shingles repeat.
        #[test]
        fn same_as_a_set_of_slices(
            document in vec(0..3u8, 0..300),
            pieces in vec((0..400u64, 0..100usize, 0..300usize), 0..8),
        ) {
            let (mut payload, mut budget) = (Payload::default(), u64::MAX);
            let mut array = vec![None; 600];
            for (position, len, from) in pieces {
                let piece: Vec<u8> = document.iter().skip(from).take(len).copied().collect();
                payload.write(position, &piece, &mut budget);
                for (index, byte) in piece.into_iter().enumerate() {
                    array[position as usize + index] = Some(byte);
                }
            }
            let distinct: HashSet<&[u8]> = document.windows(SHINGLE_LEN).collect();
            let seen: HashSet<Vec<u8>> =
                array.windows(SHINGLE_LEN).filter_map(|window| window.iter().copied().collect()).collect();
            let found = distinct.iter().filter(|shingle| seen.contains(**shingle)).count() as u64;
            let expected = Readable { distinct: distinct.len() as u64, found };
            prop_assert_eq!(readable(&document, &payload), expected);
        }
    }

    /// Longer than one pass: every byte is told apart by its place, and half of the document was captured.
    #[test]
    fn a_long_document_takes_several_passes() {
        let len = 2 * SHINGLES_AT_ONCE + SHINGLES_AT_ONCE / 2;
        let document: Vec<u8> = (0..len as u64 / 8).flat_map(|n| mix(n.into()).to_be_bytes()).collect();
        let (mut payload, mut budget) = (Payload::default(), u64::MAX);
        payload.write(1000, &document[..len / 2], &mut budget);
        let readable = readable(&document, &payload);
        assert_eq!(readable.distinct, (len - SHINGLE_LEN + 1) as u64);
        assert_eq!(readable.found, (len / 2 - SHINGLE_LEN + 1) as u64);
    }
}
