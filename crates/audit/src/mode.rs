//! Which mode a connection is in: by its handshake where that was captured, else by its bytes.

use std::fmt;

use serde::Serialize;

use crate::randomness::Histogram;

/// How the bytes of a connection, or of all on a path, are protected, as far as captures tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Not at all.
    Off,
    /// By the papers' scrambling.
    Xor64,
    /// By a key stream whose key comes from secrets of the trusted path.
    Stream,
    /// By authenticated encryption.
    Sealed,
    /// The handshake was not captured, and the bytes do not tell: encrypted in some way, or compressed.
    Unknown,
    /// Of a path: its connections differ.
    Mixed,
}

impl Mode {
    /// The name by which documents and people know it.
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

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a mode is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeFrom {
    /// plait's option in the handshake, or a handshake without it.
    Handshake,
    /// The bytes that were captured.
    Bytes,
}

/// The one mode that a responder chose: a bit of the handshake option (docs/internals/protocol.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Xor64Key,
    Xor64Hmac,
    StreamChaCha20,
    StreamAes,
    Sealed,
}

impl Chosen {
    /// `None` of what is not one known bit.
    pub(crate) fn of(bits: u8) -> Option<Self> {
        Some(match bits {
            0x01 => Self::Xor64Key,
            0x02 => Self::Xor64Hmac,
            0x04 => Self::StreamChaCha20,
            0x08 => Self::StreamAes,
            0x10 | 0x20 => Self::Sealed,
            _ => return None,
        })
    }

    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Xor64Key | Self::Xor64Hmac => Mode::Xor64,
            Self::StreamChaCha20 | Self::StreamAes => Mode::Stream,
            Self::Sealed => Mode::Sealed,
        }
    }
}

/// Fewer bytes say nothing.
const JUDGED: u64 = 64;

/// The least share of text's characters in what is text for sure: scrambled text keeps to them for some hundred bytes.
const TEXT: f64 = 0.999;

/// Judges by the bytes of contiguous runs: `bytes` are those, `steps` the exclusive ors of neighbours in a run.
///
/// `xor64` makes bytes nearly uniform but keeps `b[i] + b[i-65]` in plain sight as the exclusive or of neighbours. Plain
/// content is mostly the other way round.
pub(crate) fn judged(bytes: &Histogram, steps: &Histogram) -> Mode {
    if bytes.total() < JUDGED || (bytes.looks_random() && steps.looks_random()) {
        return Mode::Unknown;
    }
    // With many blanks or lines that are alike, its steps are the more uneven ones, too.
    let is_text = bytes.text() as f64 >= TEXT * bytes.total() as f64;
    let (bytes, steps) = (bytes.unevenness(), steps.unevenness());
    if is_text || bytes > steps {
        Mode::Off
    } else if steps > 1.2 * bytes + 0.2 {
        Mode::Xor64
    } else {
        Mode::Unknown
    }
}
