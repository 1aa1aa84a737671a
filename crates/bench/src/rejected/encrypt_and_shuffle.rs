//! Encrypt and shuffle: cipher blocks whose bytes take two paths in turn.
//!
//! A path carries half of the bytes of every cipher block. An eavesdropper on one path who later learns the key lacks 64 bits
//! of each block: 2^64 trials for a block. Advantage: no overhead. The confidentiality is that of the cipher, so the
//! ends must agree on a key, and then the cipher alone suffices. No integrity.

/// Brings the bytes with even indices to the front: the part of the first path. `shuffled` is scratch memory.
pub(crate) fn shuffle(bytes: &mut [u8], shuffled: &mut Vec<u8>) {
    shuffled.clear();
    shuffled.extend(bytes.iter().step_by(2));
    shuffled.extend(bytes.iter().skip(1).step_by(2));
    bytes.copy_from_slice(shuffled);
}

/// Inverts [`shuffle`].
pub(crate) fn unshuffle(bytes: &mut [u8], ordered: &mut Vec<u8>) {
    let (even, odd) = bytes.split_at(bytes.len().div_ceil(2));
    ordered.clear();
    ordered.extend(even.iter().zip(odd).flat_map(|(even, odd)| [even, odd]));
    ordered.extend(&even[odd.len()..]);
    bytes.copy_from_slice(ordered);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_half_has_every_second_byte(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut shuffled = bytes.clone();
            shuffle(&mut shuffled, &mut Vec::new());
            let half = bytes.len().div_ceil(2);
            for (index, byte) in bytes.iter().enumerate() {
                prop_assert_eq!(shuffled[index / 2 + (index % 2) * half], *byte);
            }
            unshuffle(&mut shuffled, &mut Vec::new());
            prop_assert_eq!(shuffled, bytes);
        }
    }
}
