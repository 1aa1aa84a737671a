//! The mode of a connection: from its handshake if that was captured, else estimated from its bytes.

use std::fmt;

use plait_proto::option;
use schemars::JsonSchema;
use serde::Serialize;

use crate::histogram::Histogram;

/// How a connection, or all connections on a path, are protected, as far as captures tell.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Not protected.
    Off,
    /// Scrambled as in the papers.
    Xor64,
    /// Encrypted with a key stream derived from secrets that crossed the trusted path.
    Stream,
    /// Authenticated encryption.
    Sealed,
    /// The handshake was not captured and the bytes are inconclusive: encrypted in some way, or compressed.
    Unknown,
    /// The connections of a path have different modes.
    Mixed,
}

impl Mode {
    /// The name, as in documents and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Xor64 => "xor64",
            Self::Stream => "stream",
            Self::Sealed => "sealed",
            Self::Unknown => "unknown",
            Self::Mixed => "mixed",
        }
    }
}

impl From<option::Mode> for Mode {
    fn from(mode: option::Mode) -> Self {
        match mode {
            option::Mode::Off => Self::Off,
            option::Mode::Xor64 => Self::Xor64,
            option::Mode::Stream => Self::Stream,
            option::Mode::Sealed => Self::Sealed,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where the mode of a connection is known from.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeSource {
    /// plait's option in the handshake, or a handshake without it.
    Handshake,
    /// The bytes that were captured.
    Bytes,
}

/// Fewer bytes are inconclusive.
const MIN_CLASSIFIED: u64 = 64;

/// The share of printable characters above which bytes are text. Scrambled text reaches it for at most a few hundred
/// bytes.
const MIN_PRINTABLE: f64 = 0.999;

/// Estimates the mode from contiguous runs: `bytes` counts their bytes, `deltas` the XORs of neighbouring bytes.
///
/// `xor64` makes bytes nearly uniform but exposes `b[i] ^ b[i-65]` as the XOR of neighbours. For plain content it is
/// mostly the other way round.
pub(crate) fn classify(bytes: &Histogram, deltas: &Histogram) -> Mode {
    if bytes.total() < MIN_CLASSIFIED || (bytes.looks_random() && deltas.looks_random()) {
        return Mode::Unknown;
    }
    // Text with many blanks or similar lines has deltas less uniform than its bytes.
    let is_text = bytes.printable() as f64 >= MIN_PRINTABLE * bytes.total() as f64;
    let (bytes, deltas) = (bytes.excess_coincidence(), deltas.excess_coincidence());
    if is_text || bytes > deltas {
        Mode::Off
    } else if deltas > 1.2 * bytes + 0.2 {
        Mode::Xor64
    } else {
        Mode::Unknown
    }
}
