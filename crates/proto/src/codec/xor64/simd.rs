//! Vectorised `xor64`: doubling (3) to encode, telescoping (4) to decode.
//!
//! Decoding is one piece of safe Rust ([`rows`]) that the compiler vectorises for every instruction set. It is limited
//! by loads and stores: measurements show vectors of 64 bytes to be no faster than those of 32. Encoding needs the
//! stream shifted by a few bytes, which is done differently for each instruction set: [`portable`], [`avx2`],
//! [`avx512`].
//!
//! Between two calls the state is the last 64 plaintext bytes, the window. The kernels rebuild their other registers
//! from it at the start of a call, which costs about as much as 64 more bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod rows;

use std::fmt;

use zeroize::Zeroizing;

use super::{Seed, WINDOW};

/// A set of vector instructions that this processor supports.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstructionSet(Kernels);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kernels {
    /// The baseline of the target: SSE2 on x86-64, NEON on AArch64.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512F and GFNI: Intel from Ice Lake on, AMD from Zen 4 on.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernels {
    /// All instruction sets, slowest first.
    const ALL: &[Self] = &[
        Self::Portable,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
    ];

    fn detected(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.detected()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("gfni")
            }
        }
    }
}

impl InstructionSet {
    /// All that this processor supports, slowest first. They always include the portable one.
    pub fn available() -> impl Iterator<Item = Self> {
        Kernels::ALL.iter().copied().filter(|kernels| kernels.detected()).map(Self)
    }

    /// The fastest that this processor supports.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().expect("the portable one is always available")
    }

    /// Its name: `portable`, `avx2` or `avx512`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Kernels::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 => "avx512",
        }
    }
}

impl fmt::Debug for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One direction's state: the last 64 plaintext bytes, oldest first.
///
/// Each call begins by loading the window that the previous call has just stored. That is fast only if none of its
/// vectors straddles two cache lines, hence the alignment with the window in front.
#[repr(C, align(64))]
pub(super) struct Simd {
    window: Zeroizing<[u8; WINDOW]>,
    instructions: InstructionSet,
}

impl Simd {
    pub(super) fn new(seed: &Seed, instructions: InstructionSet) -> Self {
        Self { window: Zeroizing::new(*seed.window()), instructions }
    }

    pub(super) fn encode(&mut self, buf: &mut [u8]) {
        let window = &mut *self.window;
        match self.instructions.0 {
            Kernels::Portable => portable::encode(window, buf),
            // SAFETY: the value exists only if AVX2 was detected.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 => unsafe { avx2::encode(window, buf) },
            // SAFETY: the value exists only if AVX-512F and GFNI were detected.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 => unsafe { avx512::encode(window, buf) },
        }
    }

    pub(super) fn decode(&mut self, buf: &mut [u8]) {
        let window = &mut *self.window;
        match self.instructions.0 {
            Kernels::Portable => portable::decode(window, buf),
            // SAFETY: the values exist only if AVX2 was detected.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 | Kernels::Avx512 => unsafe { avx2::decode(window, buf) },
        }
    }
}

/// Encodes `buf` with a kernel for whole blocks of `N` bytes, and advances the window.
///
/// The kernel receives the window before its blocks. The remainder becomes one block, padded with zeros, whose surplus
/// is discarded: no byte depends on a later one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn encode_by_blocks<const N: usize>(
    window: &mut [u8; WINDOW],
    buf: &mut [u8],
    kernel: impl Fn(&[u8; WINDOW], &mut [[u8; N]]),
) {
    let (blocks, rest) = buf.as_chunks_mut::<N>();
    if !blocks.is_empty() {
        let next = after(window, blocks.as_flattened());
        kernel(window, blocks);
        *window = next;
    }
    if !rest.is_empty() {
        let mut block = [0; N];
        block[..rest.len()].copy_from_slice(rest);
        let next = after(window, rest);
        kernel(window, std::slice::from_mut(&mut block));
        rest.copy_from_slice(&block[..rest.len()]);
        *window = next;
    }
}

/// The window after `plain`.
#[inline(always)]
fn after(window: &[u8; WINDOW], plain: &[u8]) -> [u8; WINDOW] {
    if let Some(last) = plain.last_chunk() {
        return *last;
    }
    let mut next = [0; WINDOW];
    let (kept, new) = next.split_at_mut(WINDOW - plain.len());
    kept.copy_from_slice(&window[plain.len()..]);
    new.copy_from_slice(plain);
    next
}
