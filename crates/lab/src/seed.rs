//! Seeds: the same seed gives a lab the same random inputs again.

use std::fmt;
use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// A seed, from which everything random in a lab is derived: losses, duplicates and jitter of emulated links, served
/// documents, and whatever programs derive from the variable `PLAIT_SEED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u32);

impl Seed {
    /// The variable in which programs of a lab find the seed.
    pub const VARIABLE: &str = "PLAIT_SEED";

    /// A seed drawn by the system.
    pub fn random() -> Self {
        Self(rand::make_rng::<SmallRng>().random())
    }

    /// A seed for one purpose; the same for the same purpose.
    pub(crate) fn derive(self, purpose: &str) -> Self {
        // FNV-1a, which is stable across versions, unlike the standard library's hashes.
        let bytes = self.0.to_le_bytes().into_iter().chain(purpose.bytes());
        let hash =
            bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self(SmallRng::seed_from_u64(hash.into()).random())
    }

    /// A random generator for one purpose.
    pub(crate) fn generator(self, purpose: &str) -> SmallRng {
        SmallRng::seed_from_u64(self.derive(purpose).0.into())
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("expected a number from 0 to {}, got {text:?}", u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_seeds_of_their_own() {
        let seeds = [Seed(1).derive("a"), Seed(1).derive("b"), Seed(2).derive("a")];
        assert_eq!(seeds[0], Seed(1).derive("a"));
        assert!(seeds[0] != seeds[1] && seeds[0] != seeds[2] && seeds[1] != seeds[2]);
    }
}
