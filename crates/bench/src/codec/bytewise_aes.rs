//! AES as FIPS 197 writes it down: byte by byte, with a table for the S-box alone. Programs of textbooks do so; the papers' AES was
//! about as slow as their DES. For comparison only: its lookups depend on the key, and it wipes nothing.

use std::sync::LazyLock;

/// Bytes of a block.
pub(super) const BLOCK: usize = 16;

/// A key of 16, 24 or 32 bytes, expanded.
pub(super) struct BytewiseAes {
    round_keys: Vec<[u8; BLOCK]>,
    s_box: &'static SBox,
}

struct SBox {
    forward: [u8; 256],
    inverse: [u8; 256],
}

static S_BOX: LazyLock<SBox> = LazyLock::new(|| {
    let (mut forward, mut inverse) = ([0; 256], [0; 256]);
    for value in 0..=255u8 {
        // Section 5.1.1: the inverse in GF(2^8), then an affine map.
        let inverted = (0..=255).find(|other| multiply(value, *other) == 1).unwrap_or(0);
        let mapped = (1..5).fold(inverted, |sum, turn| sum ^ inverted.rotate_left(turn)) ^ 0x63;
        forward[usize::from(value)] = mapped;
        inverse[usize::from(mapped)] = value;
    }
    SBox { forward, inverse }
});

impl BytewiseAes {
    /// Section 5.2.
    pub(super) fn new(key: &[u8]) -> Self {
        let s_box = &*S_BOX;
        let substitute = |byte: u8| s_box.forward[usize::from(byte)];
        let (words, rounds) = (key.len() / 4, key.len() / 4 + 6);
        let mut expanded: Vec<[u8; 4]> = key.as_chunks().0.to_vec();
        let mut constant = 1;
        for index in words..4 * (rounds + 1) {
            let mut word = expanded[index - 1];
            if index % words == 0 {
                word.rotate_left(1);
                word = word.map(substitute);
                word[0] ^= constant;
                constant = double(constant);
            } else if words > 6 && index % words == 4 {
                word = word.map(substitute);
            }
            let before = expanded[index - words];
            expanded.push(std::array::from_fn(|byte| before[byte] ^ word[byte]));
        }
        Self { round_keys: expanded.concat().as_chunks().0.to_vec(), s_box }
    }

    /// Section 5.1.
    pub(super) fn encrypt(&self, state: &mut [u8; BLOCK]) {
        let (first, last) = (&self.round_keys[0], self.round_keys.len() - 1);
        let substitute = |byte: u8| self.s_box.forward[usize::from(byte)];
        add_round_key(state, first);
        for round_key in &self.round_keys[1..last] {
            *state = state.map(substitute);
            shift_rows(state, 1);
            mix_columns(state, [2, 3, 1, 1]);
            add_round_key(state, round_key);
        }
        *state = state.map(substitute);
        shift_rows(state, 1);
        add_round_key(state, &self.round_keys[last]);
    }

    /// Section 5.3.
    pub(super) fn decrypt(&self, state: &mut [u8; BLOCK]) {
        let last = self.round_keys.len() - 1;
        let substitute_back = |byte: u8| self.s_box.inverse[usize::from(byte)];
        add_round_key(state, &self.round_keys[last]);
        for round_key in self.round_keys[1..last].iter().rev() {
            shift_rows(state, 3);
            *state = state.map(substitute_back);
            add_round_key(state, round_key);
            mix_columns(state, [14, 11, 13, 9]);
        }
        shift_rows(state, 3);
        *state = state.map(substitute_back);
        add_round_key(state, &self.round_keys[0]);
    }
}

fn add_round_key(state: &mut [u8; BLOCK], round_key: &[u8; BLOCK]) {
    state.iter_mut().zip(round_key).for_each(|(byte, key)| *byte ^= key);
}

/// Shifts row number n to the left by `step` times n. The state is stored by columns.
fn shift_rows(state: &mut [u8; BLOCK], step: usize) {
    let before = *state;
    for (index, byte) in state.iter_mut().enumerate() {
        *byte = before[(index + 4 * step * (index % 4)) % BLOCK];
    }
}

/// Multiplies each column by the circulant matrix with this first row.
fn mix_columns(state: &mut [u8; BLOCK], row: [u8; 4]) {
    for column in state.as_chunks_mut::<4>().0 {
        let before = *column;
        for (number, byte) in column.iter_mut().enumerate() {
            *byte = (0..4).fold(0, |sum, index| sum ^ multiply(row[(4 + index - number) % 4], before[index]));
        }
    }
}

/// In GF(2^8), with the polynomial of section 4.2.
fn multiply(mut factor: u8, mut value: u8) -> u8 {
    let mut product = 0;
    while factor != 0 {
        if factor & 1 == 1 {
            product ^= value;
        }
        value = double(value);
        factor >>= 1;
    }
    product
}

fn double(value: u8) -> u8 {
    value << 1 ^ if value & 0x80 == 0 { 0 } else { 0x1b }
}

#[cfg(test)]
mod tests {
    use aes::cipher::{BlockCipherEncrypt, KeyInit};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_the_library(key in any::<[u8; 32]>(), plain in any::<[u8; BLOCK]>()) {
            let by_library = |bytes: usize| {
                let mut block = plain.into();
                match bytes {
                    16 => aes::Aes128::new_from_slice(&key[..16]).expect("16 bytes").encrypt_block(&mut block),
                    24 => aes::Aes192::new_from_slice(&key[..24]).expect("24 bytes").encrypt_block(&mut block),
                    _ => aes::Aes256::new_from_slice(&key).expect("32 bytes").encrypt_block(&mut block),
                }
                <[u8; BLOCK]>::from(block)
            };
            for bytes in [16, 24, 32] {
                let (cipher, mut state) = (BytewiseAes::new(&key[..bytes]), plain);
                cipher.encrypt(&mut state);
                prop_assert_eq!(state, by_library(bytes), "{} bytes", bytes);
                cipher.decrypt(&mut state);
                prop_assert_eq!(state, plain);
            }
        }
    }
}
