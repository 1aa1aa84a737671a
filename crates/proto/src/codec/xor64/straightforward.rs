//! The literal definition, equations (1) and (2): the papers' first form, and the reference for the others.

use zeroize::Zeroizing;

use super::{Seed, WINDOW};

/// The last 64 plaintext bytes, oldest first.
pub(super) struct Straightforward {
    window: Zeroizing<[u8; WINDOW]>,
}

impl Straightforward {
    pub(super) fn new(seed: &Seed) -> Self {
        Self { window: Zeroizing::new(*seed.window()) }
    }

    pub(super) fn encode(&mut self, buf: &mut [u8]) {
        for byte in buf {
            let plain = *byte;
            *byte = plain ^ self.sum();
            self.shift_in(plain);
        }
    }

    pub(super) fn decode(&mut self, buf: &mut [u8]) {
        for byte in buf {
            *byte ^= self.sum();
            self.shift_in(*byte);
        }
    }

    fn sum(&self) -> u8 {
        self.window.iter().fold(0, |sum, byte| sum ^ byte)
    }

    fn shift_in(&mut self, plain: u8) {
        self.window.copy_within(1.., 0);
        self.window[WINDOW - 1] = plain;
    }
}
