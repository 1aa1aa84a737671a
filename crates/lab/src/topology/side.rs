//! The ends of a link.

use serde::Deserialize;

/// One of the two ends of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The first end.
    #[default]
    A,
    /// The second end.
    B,
}

impl Side {
    /// Both ends, in order.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The opposite end.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}
