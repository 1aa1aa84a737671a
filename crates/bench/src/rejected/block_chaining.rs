//! Block chaining without a cipher: every block is XORed with the block before it, as it went over the wire.
//!
//! `C[j] = P[j] ^ C[j-1]`, where `C[-1]` is an initial block that both ends know: cipher block chaining (NIST SP
//! 800-38A, section 6.2) with the cipher left out. Advantage: no overhead, and the wire does not show
//! the text. No secrecy: `C[j]` and `C[j-1]` together reveal `P[j]`. Only a block whose predecessor took another path
//! is hidden. No integrity: a changed block changes only itself and the next.

/// Bytes of a block, as of AES.
pub(crate) const BLOCK: usize = 16;

/// One direction, in either role.
pub(crate) struct Chain {
    previous: [u8; BLOCK],
}

impl Chain {
    /// A direction that begins after the block `initial`.
    #[must_use]
    pub(crate) fn new(initial: [u8; BLOCK]) -> Self {
        Self { previous: initial }
    }

    /// Replaces the next blocks of plaintext by their form on the wire.
    pub(crate) fn encode(&mut self, blocks: &mut [[u8; BLOCK]]) {
        for block in blocks {
            for (byte, previous) in block.iter_mut().zip(&mut self.previous) {
                *byte ^= *previous;
                *previous = *byte;
            }
        }
    }

    /// Replaces the next blocks on the wire by their plaintext.
    pub(crate) fn decode(&mut self, blocks: &mut [[u8; BLOCK]]) {
        for block in blocks {
            let wire = *block;
            for (byte, previous) in block.iter_mut().zip(self.previous) {
                *byte ^= previous;
            }
            self.previous = wire;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decodes_blocks_in_pieces_of_any_size(
            plain in prop::collection::vec(any::<[u8; BLOCK]>(), 0..60),
            initial in any::<[u8; BLOCK]>(),
            pieces in prop::collection::vec(1..20_usize, 0..10),
        ) {
            let mut wire = plain.clone();
            Chain::new(initial).encode(&mut wire);
            prop_assert_eq!(wire.first().copied(), plain.first().map(|first| xor(first, &initial)));
            let mut chain = Chain::new(initial);
            let mut rest = &mut wire[..];
            for piece in pieces {
                let piece = piece.min(rest.len());
                let (now, later) = std::mem::take(&mut rest).split_at_mut(piece);
                chain.decode(now);
                rest = later;
            }
            chain.decode(rest);
            prop_assert_eq!(wire, plain);
        }
    }

    /// Segments of 80 blocks take two paths in turn. An eavesdropper on one of them, without any secret, recovers all
    /// blocks of each segment but its first.
    #[test]
    fn one_path_of_two_reveals_all_but_the_first_block_of_each_segment() {
        let text = b"In cipher block chaining it is the cipher that hides, and not the chaining. ";
        let plain: Vec<u8> = text.iter().copied().cycle().take(100 * 80 * BLOCK).collect();
        let plain = plain.as_chunks::<BLOCK>().0;
        let mut wire = plain.to_vec();
        Chain::new(*b"an unknown block").encode(&mut wire);

        let (mut captured, mut recovered) = (0, 0);
        for (segment, plain) in wire.chunks(80).zip(plain.chunks(80)).step_by(2) {
            captured += segment.len();
            for (neighbours, plain) in segment.windows(2).zip(&plain[1..]) {
                assert_eq!(xor(&neighbours[0], &neighbours[1]), *plain);
                recovered += 1;
            }
        }
        assert_eq!((captured, recovered), (50 * 80, 50 * 79));
    }

    fn xor(a: &[u8; BLOCK], b: &[u8; BLOCK]) -> [u8; BLOCK] {
        std::array::from_fn(|i| a[i] ^ b[i])
    }
}
