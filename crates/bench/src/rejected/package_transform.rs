//! The package transform (Rivest, "All-or-nothing encryption and the package transform", FSE 1997), an all-or-nothing
//! transform (AONT): there is no shared key, and no part of a package can be read without all of its blocks.
//!
//! `M'[i] = M[i] ^ E(K', i)` with a random key `K'`, and a last block `K' ^ H[1] ^ ... ^ H[s]` with
//! `H[i] = E(K0, M'[i] ^ i)`, where `K0` is published. Advantage: nothing but one block is added, and nothing is secret
//! in advance. A package must cross several paths, every path must carry a block of each package, and the receiver can
//! deliver nothing before the whole package is there. No integrity.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, InOutBuf, KeyInit};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 16;

/// `K0`.
const PUBLISHED_KEY: [u8; BLOCK] = *b"a published key.";

/// The transform, with memory for the blocks that are XORed into a package.
pub(crate) struct PackageTransform {
    published: Aes128,
    masks: Vec<u8>,
}

impl PackageTransform {
    pub(crate) fn new() -> Self {
        Self { published: Aes128::new(&PUBLISHED_KEY.into()), masks: Vec::new() }
    }

    /// Replaces the blocks of a message by those of its package, and returns the package's last block. `key` must be
    /// random and of this package alone.
    pub(crate) fn encode(&mut self, key: [u8; BLOCK], message: &mut [u8]) -> [u8; BLOCK] {
        self.mask(key, message);
        xor(key, self.digest(message))
    }

    /// Replaces the blocks of a package by those of its message.
    pub(crate) fn decode(&mut self, last: [u8; BLOCK], package: &mut [u8]) {
        let key = xor(last, self.digest(package));
        self.mask(key, package);
    }

    fn mask(&mut self, key: [u8; BLOCK], blocks: &mut [u8]) {
        self.number(blocks.len());
        encrypt(&Aes128::new(&key.into()), &mut self.masks);
        xor_into(blocks, &self.masks);
    }

    /// `H[1] ^ ... ^ H[s]`.
    fn digest(&mut self, blocks: &[u8]) -> [u8; BLOCK] {
        self.number(blocks.len());
        xor_into(&mut self.masks, blocks);
        encrypt(&self.published, &mut self.masks);
        self.masks.as_chunks().0.iter().copied().fold([0; BLOCK], xor)
    }

    /// Makes the masks the numbers of the blocks, from 1.
    fn number(&mut self, len: usize) {
        self.masks.resize(len, 0);
        for (block, number) in self.masks.as_chunks_mut::<BLOCK>().0.iter_mut().zip(1u128..) {
            *block = number.to_be_bytes();
        }
    }
}

fn encrypt(cipher: &Aes128, blocks: &mut [u8]) {
    cipher.encrypt_blocks_inout(InOutBuf::from(blocks).into_chunks().0);
}

fn xor_into(bytes: &mut [u8], others: &[u8]) {
    bytes.iter_mut().zip(others).for_each(|(byte, other)| *byte ^= other);
}

fn xor(a: [u8; BLOCK], b: [u8; BLOCK]) -> [u8; BLOCK] {
    std::array::from_fn(|i| a[i] ^ b[i])
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn encrypted(key: [u8; BLOCK], block: [u8; BLOCK]) -> [u8; BLOCK] {
        let mut block = block.into();
        Aes128::new(&key.into()).encrypt_block(&mut block);
        block.into()
    }

    proptest! {
        /// Compares with the definition, block by block.
        #[test]
        fn package_is_as_defined_and_decodes(
            message in vec(any::<[u8; BLOCK]>(), 1..40),
            key in any::<[u8; BLOCK]>(),
        ) {
            let mut package = message.concat();
            let last = PackageTransform::new().encode(key, &mut package);
            let mut expected_last = key;
            for ((block, plain), number) in package.as_chunks::<BLOCK>().0.iter().zip(&message).zip(1u128..) {
                let number = number.to_be_bytes();
                prop_assert_eq!(*block, xor(*plain, encrypted(key, number)));
                expected_last = xor(expected_last, encrypted(PUBLISHED_KEY, xor(*block, number)));
            }
            prop_assert_eq!(last, expected_last);
            PackageTransform::new().decode(last, &mut package);
            prop_assert_eq!(package, message.concat());
        }

        /// With all of a package but one bit, no block of it can be decoded.
        #[test]
        fn a_wrong_bit_hides_every_block(
            message in vec(any::<[u8; BLOCK]>(), 1..40),
            key in any::<[u8; BLOCK]>(),
            place in any::<prop::sample::Index>(),
        ) {
            let mut package = message.concat();
            let last = PackageTransform::new().encode(key, &mut package);
            package[place.index(message.len() * BLOCK)] ^= 1;
            PackageTransform::new().decode(last, &mut package);
            for (decoded, plain) in package.as_chunks::<BLOCK>().0.iter().zip(&message) {
                prop_assert_ne!(decoded, plain);
            }
        }
    }
}
