//! AVX2: doubling (3) on vectors of 32 bytes.
//!
//! Byte shifts of such a vector do not cross its middle, so that a full shift takes two instructions, and processors
//! have fewer ports for shifts than for XORs. Loads have separate ports: `w(4)` uses four loads, at the block and 1, 2
//! and 3 bytes before it. `w(8)` and `w(16)` are shifted in registers, `w(32)` moves half vectors, and all further
//! shifts are by whole vectors, which only selects other registers. Per vector these are 13 instructions on vector
//! ports, 5 of them shuffles, and 4 loads, 3 of which straddle a cache line every other time.
//!
//! The loads extend into the previous block, which is overwritten in place. A block is therefore stored only after the
//! loads for the next one.

use std::arch::x86_64::{
    __m256i, _mm256_alignr_epi8, _mm256_loadu_si256, _mm256_permute2x128_si256, _mm256_setzero_si256,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::{WINDOW, encode_by_blocks, rows};

/// Bytes in a vector.
const BLOCK: usize = 32;
/// Bytes encoded between two checks of the remaining length: unrolls the loop.
const GROUP: usize = 4 * BLOCK;
/// How far `w(4)` reaches back.
const BEFORE: usize = 3;
/// The bytes that `w(4)` of a block needs: the block and the three bytes before it.
type Span = [u8; BEFORE + BLOCK];

/// Encodes `buf` in place and advances the window.
#[target_feature(enable = "avx2")]
pub(super) fn encode(window: &mut [u8; WINDOW], buf: &mut [u8]) {
    encode_by_blocks::<BLOCK>(window, buf, |window, blocks| encode_blocks(window, blocks.as_flattened_mut()));
}

/// Decodes `buf` in place and advances the window.
#[target_feature(enable = "avx2")]
pub(super) fn decode(window: &mut [u8; WINDOW], buf: &mut [u8]) {
    rows::decode(window, buf);
}

/// Encodes `bytes`, one block or more, that follow `window`.
#[target_feature(enable = "avx2")]
fn encode_blocks(window: &[u8; WINDOW], bytes: &mut [u8]) {
    let mut head = [0; BEFORE + WINDOW + BLOCK];
    head[BEFORE..][..WINDOW].copy_from_slice(window);
    head[BEFORE + WINDOW..].copy_from_slice(&bytes[..BLOCK]);

    let mut sums = Sums::zero();
    for at in [0, BLOCK] {
        sums.encode(Block::load(span(&head, at)));
    }
    let mut block = Block::load(span(&head, WINDOW));
    let mut rest = bytes;
    while let Some((group, _)) = rest.split_first_chunk_mut::<{ GROUP + BLOCK }>() {
        block = sums.encode_all_but_last(block, group);
        rest = &mut rest[GROUP..];
    }
    block = sums.encode_all_but_last(block, rest);
    let last = rest.len() - BLOCK;
    store(&mut rest[last..], sums.encode(block));
}

fn span(bytes: &[u8], at: usize) -> &Span {
    bytes[at..].first_chunk().expect("blocks are whole")
}

/// 32 bytes of plaintext and their `w(4)`.
#[derive(Clone, Copy)]
struct Block {
    plain: __m256i,
    w4: __m256i,
}

impl Block {
    #[target_feature(enable = "avx2")]
    fn load(span: &Span) -> Self {
        let plain = load(span, 3);
        let w2 = xor(plain, load(span, 2));
        Self { plain, w4: xor(w2, xor(load(span, 1), load(span, 0))) }
    }
}

/// What encoding a block needs of the blocks before it.
struct Sums {
    w4: __m256i,
    w8: __m256i,
    w16: __m256i,
    w32: __m256i,
    /// The plaintext of the previous block, and of the one before it.
    plain: [__m256i; 2],
}

impl Sums {
    /// The state after zeros only.
    #[target_feature(enable = "avx2")]
    fn zero() -> Self {
        let zero = _mm256_setzero_si256();
        Self { w4: zero, w8: zero, w16: zero, w32: zero, plain: [zero; 2] }
    }

    /// Encodes the blocks of `bytes`, the first of which is `block`, except the last one, which it returns.
    ///
    /// Inlined, so that for an array it becomes straight-line code without bounds checks.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn encode_all_but_last(&mut self, mut block: Block, bytes: &mut [u8]) -> Block {
        let mut at = 0;
        while at + BLOCK < bytes.len() {
            let next = Block::load(span(bytes, at + BLOCK - BEFORE));
            store(&mut bytes[at..], self.encode(block));
            block = next;
            at += BLOCK;
        }
        block
    }

    /// The wire form of `block`, which becomes the previous block.
    #[target_feature(enable = "avx2")]
    fn encode(&mut self, Block { plain, w4 }: Block) -> __m256i {
        let w8 = xor(w4, _mm256_alignr_epi8::<12>(w4, straddle(self.w4, w4)));
        let w16 = xor(w8, _mm256_alignr_epi8::<8>(w8, straddle(self.w8, w8)));
        let w32 = xor(w16, straddle(self.w16, w16));
        let w64 = xor(w32, self.w32);
        let wire = xor(w64, self.plain[1]);
        *self = Self { w4, w8, w16, w32, plain: [plain, self.plain[0]] };
        wire
    }
}

/// The vector shifted by half a vector: the upper half of `before`, then the lower half of `now`.
#[target_feature(enable = "avx2")]
fn straddle(before: __m256i, now: __m256i) -> __m256i {
    _mm256_permute2x128_si256::<0x21>(before, now)
}

#[target_feature(enable = "avx2")]
fn xor(a: __m256i, b: __m256i) -> __m256i {
    _mm256_xor_si256(a, b)
}

#[target_feature(enable = "avx2")]
fn load(span: &Span, at: usize) -> __m256i {
    let bytes: &[u8; BLOCK] = span[at..].first_chunk().expect("`at` is 0 to 3");
    // SAFETY: `bytes` is 32 readable bytes; the instruction requires no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn store(bytes: &mut [u8], vector: __m256i) {
    let bytes: &mut [u8; BLOCK] = bytes.first_chunk_mut().expect("blocks are whole");
    // SAFETY: `bytes` is 32 writable bytes; the instruction requires no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}
