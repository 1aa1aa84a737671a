//! What a contiguous run of wire bytes says without any guess.

use std::ops::Range;

/// How far apart plaintext bytes are whose exclusive or is known: the window of `xor64` and one.
pub(crate) const LAG: usize = 65;

/// How many plaintext bytes before a run take part in it.
pub(crate) const BEFORE: usize = 64;

/// The plaintext bytes of a run, and the [`BEFORE`] ones before it, as far as the wire tells.
///
/// With wire bytes `B[0..n]`, count plaintext bytes from the first that takes part, so that `x[t]` is that of
/// `B[t - 64]`. Two neighbours `B[i] + B[i-1] = b[i] + b[i-65]` leave one unknown byte for all `x[t]` of the same
/// `t % 65`, its *class*: `x[t] = links[t] + k[t % 65]`, with `+` for exclusive or. Of the 65 unknown bytes the
/// first wire byte tells the sum, `B[0] = x[0] + ... + x[64]`.
pub(crate) struct Chain {
    links: Vec<u8>,
    sum: u8,
    /// Which plaintext bytes are content: those before, if any, are zeros and the seed.
    content: Range<usize>,
}

/// The unknown byte of each class, as far as it is known.
pub(crate) type Keys = [Option<u8>; LAG];

impl Chain {
    /// Of a run that is not empty; `content_from` is the first plaintext byte that belongs to the content.
    pub(crate) fn new(wire: &[u8], content_from: usize) -> Self {
        let mut links = vec![0; wire.len() + BEFORE];
        for t in LAG..links.len() {
            links[t] = links[t - LAG] ^ wire[t - BEFORE] ^ wire[t - LAG];
        }
        let end = links.len();
        Self { links, sum: wire.first().copied().unwrap_or(0), content: content_from.min(end)..end }
    }

    /// The plaintext bytes that are content.
    pub(crate) fn content(&self) -> Range<usize> {
        self.content.clone()
    }

    /// The exclusive or of a plaintext byte and its class's unknown byte.
    pub(crate) fn link(&self, t: usize) -> u8 {
        self.links[t]
    }

    /// The exclusive or of all unknown bytes.
    pub(crate) fn sum(&self) -> u8 {
        self.sum
    }

    /// The unknown bytes, given `plain` from plaintext byte `from` on; with 64 of them or more all.
    pub(crate) fn keys_from(&self, from: usize, plain: impl IntoIterator<Item = u8>) -> Keys {
        let mut keys = [None; LAG];
        for (t, byte) in (from..self.links.len()).zip(plain) {
            keys[t % LAG] = Some(byte ^ self.links[t]);
        }
        self.complete(&mut keys);
        keys
    }

    /// Finds the last unknown byte when all others are known.
    pub(crate) fn complete(&self, keys: &mut Keys) {
        let mut missing = (0..LAG).filter(|class| keys[*class].is_none());
        if let (Some(class), None) = (missing.next(), missing.next()) {
            keys[class] = Some(keys.iter().flatten().fold(self.sum, |sum, key| sum ^ key));
        }
    }
}
