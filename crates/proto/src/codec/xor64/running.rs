//! The papers' revised form: a running sum of the window, which is a ring, so that each byte costs two XORs besides its
//! load and store.

use zeroize::Zeroizing;

use super::{Seed, WINDOW};

/// The last 64 plaintext bytes as a ring, and their sum.
pub(super) struct Running {
    ring: Zeroizing<[u8; WINDOW]>,
    oldest: usize,
    sum: Zeroizing<u8>,
}

impl Running {
    pub(super) fn new(seed: &Seed) -> Self {
        let ring = Zeroizing::new(*seed.window());
        let sum = Zeroizing::new(ring.iter().fold(0, |sum, byte| sum ^ byte));
        Self { ring, oldest: 0, sum }
    }

    pub(super) fn encode(&mut self, buf: &mut [u8]) {
        self.each(buf, |byte, sum| {
            let plain = *byte;
            *byte = plain ^ sum;
            plain
        });
    }

    pub(super) fn decode(&mut self, buf: &mut [u8]) {
        self.each(buf, |byte, sum| {
            *byte ^= sum;
            *byte
        });
    }

    /// Applies `transform`, which returns the plaintext, to every byte and the sum of the window before it.
    #[inline(always)]
    fn each(&mut self, buf: &mut [u8], transform: impl Fn(&mut u8, u8) -> u8) {
        let (mut sum, mut oldest) = (*self.sum, self.oldest);
        for byte in buf {
            let plain = transform(byte, sum);
            sum ^= plain ^ self.ring[oldest];
            self.ring[oldest] = plain;
            oldest = (oldest + 1) % WINDOW;
        }
        (*self.sum, self.oldest) = (sum, oldest);
    }
}
