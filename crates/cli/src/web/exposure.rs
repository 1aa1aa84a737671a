//! What somebody on a path could read of what it carries now.

use plait_proto::option::Mode;
use serde::Serialize;

/// How the bytes of a connection are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Protection {
    /// Mode `sealed`: nothing can be read.
    Sealed,
    /// Mode `stream`: nothing can be read without having listened on the trusted path as well.
    Stream,
    /// Mode `xor64`: what an attack on the codec recovers.
    Xor64,
    /// Carried by plait as it is.
    Off,
    /// Not carried by plait: as the program sends it.
    None,
}

impl From<Mode> for Protection {
    fn from(mode: Mode) -> Protection {
        match mode {
            Mode::Sealed => Protection::Sealed,
            Mode::Stream => Protection::Stream,
            Mode::Xor64 => Protection::Xor64,
            Mode::Off => Protection::Off,
        }
    }
}

/// The rates of a path in bits per second, both directions, by protection.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Exposure {
    sealed_bps: f64,
    stream_bps: f64,
    xor64_bps: f64,
    off_bps: f64,
    none_bps: f64,
}

impl Exposure {
    /// Adds what a subflow carries.
    pub(super) fn add(&mut self, protection: Protection, bps: f64) {
        *match protection {
            Protection::Sealed => &mut self.sealed_bps,
            Protection::Stream => &mut self.stream_bps,
            Protection::Xor64 => &mut self.xor64_bps,
            Protection::Off => &mut self.off_bps,
            Protection::None => &mut self.none_bps,
        } += bps;
    }
}
