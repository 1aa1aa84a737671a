//! AVX-512 with GFNI: sums over the eight bytes of a quadword by bit matrices, doubling (3) over quadwords.
//!
//! Let `prefix(q)[m]` be the sum of bytes 0 to `m` of quadword `q`, and `total(q)` the sum of all eight. The 65 bytes
//! that are summed for wire byte `m` of quadword `q` begin at byte `m` of quadword `q-8`, so
//!
//! ```text
//! B(q)[m] = prefix(q)[m] + total(q-1) + ... + total(q-7) + total(q-8) + prefix(q-8)[m] + b(q-8)[m]
//! ```
//!
//! where the last three terms sum bytes `m` to 7 of `q-8`. A vector has eight quadwords, so those come unshifted from
//! the previous vector; the seven totals in between are summed by doubling, 1 + 2 + 4 quadwords, and a shift by
//! quadwords across two vectors is one instruction.
//!
//! `prefix` and `total` are linear maps of eight bytes. GFNI's affine instruction computes, with a matrix `A` of eight
//! bytes and a vector of bytes `x`, bit `i` of result byte `m` as the parity of `A[7-i] & x[m]`. With the data as `A`
//! it therefore mixes bytes, but transposes them; with the result as `A` again, it transposes them back. With a mirror
//! matrix as the first `x` and masks that select the bytes to sum as the second, two instructions compute a linear map
//! of eight bytes, and both maps share the first instruction.

use std::arch::x86_64::{
    __m512i, _mm512_alignr_epi64, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use super::{WINDOW, encode_by_blocks};

/// Bytes in a vector.
const BLOCK: usize = 64;

/// Byte `k` has bit `7-k`: transposes and mirrors, so that a second transposition brings the bits back in order.
const MIRROR: i64 = i64::from_le_bytes([0x80, 0x40, 0x20, 0x10, 0x08, 0x04, 0x02, 0x01]);
/// Byte `m` has the topmost `m+1` bits, which after [`MIRROR`] select bytes 0 to `m`.
const PREFIX: i64 = i64::from_le_bytes([0x80, 0xc0, 0xe0, 0xf0, 0xf8, 0xfc, 0xfe, 0xff]);
/// Every byte has all bits: all eight bytes.
const TOTAL: i64 = -1;

/// Encodes `buf` in place and advances the window.
#[target_feature(enable = "avx512f,gfni")]
pub(super) fn encode(window: &mut [u8; WINDOW], buf: &mut [u8]) {
    encode_by_blocks::<BLOCK>(window, buf, |window, blocks| {
        let mut before = Before::zero();
        before.encode(load(window));
        for block in blocks {
            store(block, before.encode(load(block)));
        }
    });
}

/// State of the previous block that is needed to encode a block.
struct Before {
    /// The sum of each byte with those after it in its quadword.
    suffix: __m512i,
    /// The totals of one quadword, of two and of four, up to each quadword.
    total: __m512i,
    total2: __m512i,
    total4: __m512i,
}

impl Before {
    /// The state after zeros only.
    #[target_feature(enable = "avx512f,gfni")]
    fn zero() -> Self {
        let zero = _mm512_setzero_si512();
        Self { suffix: zero, total: zero, total2: zero, total4: zero }
    }

    /// The wire form of `plain`, which becomes the previous block.
    #[target_feature(enable = "avx512f,gfni")]
    fn encode(&mut self, plain: __m512i) -> __m512i {
        let transposed = affine(_mm512_set1_epi64(MIRROR), plain);
        let prefix = affine(_mm512_set1_epi64(PREFIX), transposed);
        let total = affine(_mm512_set1_epi64(TOTAL), transposed);

        let total_1 = _mm512_alignr_epi64::<7>(total, self.total);
        let total2 = _mm512_xor_si512(total, total_1);
        let totals_2_3 = _mm512_alignr_epi64::<6>(total2, self.total2);
        let total4 = _mm512_xor_si512(total2, totals_2_3);
        let totals_4_to_7 = _mm512_alignr_epi64::<4>(total4, self.total4);

        let wire = xor3(xor3(total_1, totals_2_3, totals_4_to_7), prefix, self.suffix);
        *self = Self { suffix: xor3(prefix, total, plain), total, total2, total4 };
        wire
    }
}

#[target_feature(enable = "avx512f,gfni")]
fn affine(x: __m512i, matrix: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(x, matrix)
}

#[target_feature(enable = "avx512f,gfni")]
fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    const ODD: i32 = 0b1001_0110;
    _mm512_ternarylogic_epi64::<ODD>(a, b, c)
}

#[target_feature(enable = "avx512f,gfni")]
fn load(bytes: &[u8; BLOCK]) -> __m512i {
    // SAFETY: `bytes` is 64 readable bytes; the instruction requires no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,gfni")]
fn store(bytes: &mut [u8; BLOCK], vector: __m512i) {
    // SAFETY: `bytes` is 64 writable bytes; the instruction requires no alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}
