//! Safe Rust for any processor, written so that the compiler vectorises it.
//!
//! Encoding evaluates doubling (3) as `w(4)`, `w(16)`, then `w(64)` and the last tap at once. Each is a loop of
//! independent byte operations from one array to another, over a tile small enough for the first-level cache: a shift
//! of the stream is then just a load from another address.
//!
//! To check the vectorisation, emit the assembly and look for `pxor` (SSE2) or `eor ... .16b` (NEON) on registers of 16
//! bytes in `portable::encode` and `portable::decode`, which are not inlined for this purpose:
//!
//! ```text
//! cargo rustc -p plait-proto --release -- --emit asm -C codegen-units=1
//! ```

use super::{WINDOW, rows};

/// Bytes encoded at a time. The three arrays of a tile are 3.3 KB.
const TILE: usize = 1024;

/// Encodes `buf` in place and advances the window.
#[inline(never)]
pub(super) fn encode(window: &mut [u8; WINDOW], buf: &mut [u8]) {
    let mut plain = [0; WINDOW + TILE];
    let mut w4 = [0; WINDOW + TILE];
    let mut w16 = [0; WINDOW + TILE];
    for tile in buf.chunks_mut(TILE) {
        let end = WINDOW + tile.len();
        plain[..WINDOW].copy_from_slice(window);
        plain[WINDOW..end].copy_from_slice(tile);
        sum_of_four::<1>(&plain[..end], &mut w4[..end]);
        sum_of_four::<4>(&w4[..end], &mut w16[..end]);
        for (i, byte) in tile.iter_mut().enumerate() {
            let at = WINDOW + i;
            *byte = w16[at] ^ w16[at - 16] ^ w16[at - 32] ^ w16[at - 48] ^ plain[at - 64];
        }
        window.copy_from_slice(&plain[end - WINDOW..end]);
    }
}

/// Decodes `buf` in place and advances the window.
#[inline(never)]
pub(super) fn decode(window: &mut [u8; WINDOW], buf: &mut [u8]) {
    rows::decode(window, buf);
}

/// `to[i]` becomes the sum of `from[i]` and the three bytes that are 1, 2 and 3 `STEP`s before it.
#[inline(always)]
fn sum_of_four<const STEP: usize>(from: &[u8], to: &mut [u8]) {
    let first = 3 * STEP;
    let n = from.len() - first;
    let (a, b, c, d) = (&from[..n], &from[STEP..][..n], &from[2 * STEP..][..n], &from[first..][..n]);
    for (i, sum) in to[first..].iter_mut().enumerate() {
        *sum = a[i] ^ b[i] ^ c[i] ^ d[i];
    }
}
