//! What a contiguous run of wire bytes reveals with certainty.

use std::ops::Range;

/// The distance of plaintext bytes whose XOR is known: the window of `xor64` plus one.
pub(crate) const LAG: usize = 65;

/// How many plaintext bytes before a run influence it: the window of `xor64`.
pub(crate) const WINDOW: usize = 64;

/// The plaintext bytes of a run and the [`WINDOW`] bytes before it, up to 65 unknown bytes.
///
/// For wire bytes `B[0..n]`, let `x[t]` be the plaintext byte of `B[t - 64]`, so that `x[0]` is the first one that
/// influences the run. With `+` for XOR, neighbouring wire bytes give `B[i] + B[i-1] = b[i] + b[i-65]`. All `x[t]` of the
/// same residue class `t % 65` therefore share one unknown byte: `x[t] = deltas[t] + k[t % 65]`. The first wire byte
/// reveals the sum of the 65 unknown bytes, `B[0] = x[0] + ... + x[64]`.
pub(crate) struct WireRun {
    deltas: Vec<u8>,
    sum: u8,
    /// Which plaintext bytes are content: those before it are zeros and the seed.
    content: Range<usize>,
}

/// The unknown byte of each residue class, as far as it was found.
pub(crate) type ClassKeys = [Option<u8>; LAG];

impl WireRun {
    /// `wire` must not be empty; `content_from` is the first plaintext byte that is content.
    pub(crate) fn new(wire: &[u8], content_from: usize) -> Self {
        let mut deltas = vec![0; wire.len() + WINDOW];
        for t in LAG..deltas.len() {
            deltas[t] = deltas[t - LAG] ^ wire[t - WINDOW] ^ wire[t - LAG];
        }
        let end = deltas.len();
        Self { deltas, sum: wire.first().copied().unwrap_or(0), content: content_from.min(end)..end }
    }

    /// The plaintext bytes that are content.
    pub(crate) fn content(&self) -> Range<usize> {
        self.content.clone()
    }

    /// The XOR of a plaintext byte and the unknown byte of its class.
    pub(crate) fn delta(&self, t: usize) -> u8 {
        self.deltas[t]
    }

    /// The XOR of all unknown bytes.
    pub(crate) fn sum(&self) -> u8 {
        self.sum
    }

    /// The unknown bytes that follow from plaintext `plain` at byte `from`; 64 plaintext bytes determine all of them.
    pub(crate) fn keys_from(&self, from: usize, plain: impl IntoIterator<Item = u8>) -> ClassKeys {
        let mut keys = [None; LAG];
        for (t, byte) in (from..self.deltas.len()).zip(plain) {
            keys[t % LAG] = Some(byte ^ self.deltas[t]);
        }
        self.complete(&mut keys);
        keys
    }

    /// Computes the last unknown byte if all others are known.
    pub(crate) fn complete(&self, keys: &mut ClassKeys) {
        let mut missing = (0..LAG).filter(|class| keys[*class].is_none());
        if let (Some(class), None) = (missing.next(), missing.next()) {
            keys[class] = Some(keys.iter().flatten().fold(self.sum, |sum, key| sum ^ key));
        }
    }
}
