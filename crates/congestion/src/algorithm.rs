//! The algorithms and their names.

use std::fmt;
use std::str::FromStr;

use libbpf_rs::Object;
use serde::{Serialize, Serializer};

use crate::kernel_algorithm::{KernelAlgorithm, PREFIX};
use crate::{Error, object};

/// A coupled congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Equally weighted TCP (Wischik et al., NSDI 2011).
    Ewtcp,
    /// The fully coupled algorithm (the same paper).
    Coupled,
    /// Linked increases (RFC 6356).
    Lia,
    /// Opportunistic linked increases (Khalili et al., CoNEXT 2012).
    Olia,
    /// Balanced linked adaptation (Peng, Walid and Low, 2013).
    Balia,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 5] =
        [Algorithm::Ewtcp, Algorithm::Coupled, Algorithm::Lia, Algorithm::Olia, Algorithm::Balia];

    /// The name on the command line, such as `lia`.
    pub fn name(self) -> &'static str {
        &self.kernel_name()[PREFIX.len()..]
    }

    /// The name in the kernel, such as `plait_lia`; at most 15 bytes.
    pub fn kernel_name(self) -> &'static str {
        match self {
            Algorithm::Ewtcp => "plait_ewtcp",
            Algorithm::Coupled => "plait_coupled",
            Algorithm::Lia => "plait_lia",
            Algorithm::Olia => "plait_olia",
            Algorithm::Balia => "plait_balia",
        }
    }

    /// A short description.
    pub fn description(self) -> &'static str {
        match self {
            Algorithm::Ewtcp => "equally weighted TCP: each subflow increases by 1/sqrt(n) of reno",
            Algorithm::Coupled => {
                "fully coupled: all subflows together act as one reno flow, on the least congested paths"
            }
            Algorithm::Lia => "linked increases (RFC 6356)",
            Algorithm::Olia => {
                "opportunistic linked increases: shifts more traffic off congested paths than lia"
            }
            Algorithm::Balia => "balanced linked adaptation: between lia and olia",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not that of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected ewtcp, coupled, lia, olia or balia, got '{0}'")]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Algorithm, UnknownAlgorithm> {
        Algorithm::named(text).ok_or_else(|| UnknownAlgorithm(text.into()))
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl KernelAlgorithm for Algorithm {
    const ALL: &'static [Algorithm] = &Algorithm::ALL;
    const KIND: &'static str = "algorithm";

    fn name(self) -> &'static str {
        self.name()
    }

    fn kernel_name(self) -> &'static str {
        self.kernel_name()
    }

    fn description(self) -> &'static str {
        self.description()
    }

    fn load(self) -> Result<Object, Error> {
        object::load(object::program_of(self), &["steps"], &["calculate"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_names_of_algorithms() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
            assert_eq!(algorithm.kernel_name().parse(), Ok(algorithm));
            assert!(algorithm.kernel_name().len() < 16);
        }
        for wrong in ["", "plait_", "cubic", "LIA", "lia "] {
            assert!(wrong.parse::<Algorithm>().is_err(), "{wrong}");
        }
    }
}
