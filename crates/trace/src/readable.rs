//! How much of a known document captured payload reveals.

use std::thread;

use crate::stream::Payload;

/// The length of a shingle, in bytes.
pub const SHINGLE_LEN: usize = 16;

/// Average number of distinct shingles of document and payload per pass. Twice as many hashes are held before they are
/// deduplicated: 128 MiB each for document and payload, whatever their lengths.
const SHINGLES_AT_ONCE: usize = 8 << 20;

/// How much of a document an eavesdropper can read in captured payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable {
    /// The distinct shingles of the document: its substrings of [`SHINGLE_LEN`] bytes, from every offset.
    pub distinct: u64,
    /// Those that occur in the payload.
    pub found: u64,
}

impl Readable {
    /// The share that was found, 0 to 1; 0 for a document shorter than a shingle.
    pub fn fraction(self) -> f64 {
        if self.distinct == 0 { 0.0 } else { self.found as f64 / self.distinct as f64 }
    }
}

/// Searches `payload` for the shingles of `document`. A shingle is found if all its bytes were captured at consecutive
/// positions of the stream, whatever packets carried them.
///
/// Shingles are compared by 64-bit hashes: two of the 50 million of a 50 MB document are mistaken for each other with a
/// probability of less than 10^-4. Long inputs take several passes, each over the shingles whose hashes are selected
/// for it, so that memory stays bounded.
pub fn readable(document: &[u8], payload: &Payload) -> Readable {
    search(document, payload, SHINGLES_AT_ONCE)
}

fn search(document: &[u8], payload: &Payload, at_once: usize) -> Readable {
    let longer = document.len().max(usize::try_from(payload.present().total()).unwrap_or(usize::MAX));
    // A power of two, so that the low bits of a hash select its pass.
    let passes = longer.div_ceil(at_once).next_power_of_two() as u64;
    let mut result = Readable { distinct: 0, found: 0 };
    for pass in 0..passes {
        let selected = |hash: u64| hash & (passes - 1) == pass;
        let (wanted, captured) = thread::scope(|scope| {
            let captured = scope.spawn(|| {
                let runs = payload.present().runs().iter();
                distinct(runs.map(|run| payload.chunks(run.clone())), 2 * at_once, selected)
            });
            let wanted = distinct(std::iter::once(std::iter::once(document)), 2 * at_once, selected);
            (wanted, captured.join().expect("a loop over bytes does not panic"))
        });
        result.distinct += wanted.len() as u64;
        result.found += common(&wanted, &captured);
    }
    result
}

/// The distinct hashes, ascending, of the shingles of several byte strings, given in chunks, that are selected for this
/// pass. Holds `held` of them at a time, or twice the result if that is more.
fn distinct<'a, S>(strings: impl Iterator<Item = S>, held: usize, selected: impl Fn(u64) -> bool) -> Vec<u64>
where
    S: Iterator<Item = &'a [u8]>,
{
    let mut hashes = Vec::new();
    let mut limit = held;
    for chunks in strings {
        shingles(chunks, |shingle| {
            let hash = mix(shingle);
            if selected(hash) {
                if hashes.len() == limit {
                    sort_and_dedup(&mut hashes);
                    limit = held.max(2 * hashes.len());
                }
                hashes.push(hash);
            }
        });
    }
    sort_and_dedup(&mut hashes);
    hashes
}

fn sort_and_dedup(hashes: &mut Vec<u64>) {
    hashes.sort_unstable();
    hashes.dedup();
}

/// Number of values that two ascending lists have in common.
fn common(a: &[u64], b: &[u64]) -> u64 {
    let mut b = b.iter().peekable();
    let mut count = 0;
    for value in a {
        while b.next_if(|other| *other < value).is_some() {}
        count += u64::from(b.peek() == Some(&value));
    }
    count
}

/// Calls `each` with every shingle of the concatenated `chunks`.
fn shingles<'a>(chunks: impl Iterator<Item = &'a [u8]>, mut each: impl FnMut(u128)) {
    // The last 16 bytes: exactly one shingle.
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

/// Hashes a shingle to 64 bits: two rounds of multiplying its halves and folding the product, with random constants, since
/// text has little entropy.
fn mix(shingle: u128) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let (low, high) = (shingle as u64, (shingle >> 64) as u64);
    let first = fold(low ^ 0x9e37_79b9_7f4a_7c15, high ^ 0xd1b5_4a32_d192_ed03);
    fold(first ^ low.rotate_left(32) ^ 0x8cb9_2ba7_2f3d_8dd7, high ^ 0xff51_afd7_ed55_8ccd)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a set of slices, in one pass or many. A small alphabet makes shingles repeat.
        #[test]
        fn equals_a_set_of_slices(
            document in vec(0..3u8, 0..300),
            pieces in vec((0..400u64, 0..100usize, 0..300usize), 0..8),
            at_once in 1..400usize,
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
            prop_assert_eq!(search(&document, &payload, at_once), expected);
        }
    }
}
