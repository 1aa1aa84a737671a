//! Errors of parsing and building packets.

use thiserror::Error;

/// Bytes that violate the protocol.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// Fewer bytes than the part needs: a short packet, or one truncated to the snap length of the capture.
    #[error("{what}: {expected} bytes expected, {got} present")]
    Truncated {
        /// The part being read.
        what: &'static str,
        /// How many bytes it needs.
        expected: usize,
        /// How many are present.
        got: usize,
    },
    /// A length field, or the length of an option, that the protocol does not allow.
    #[error("{what}: length {expected} expected, got {got}")]
    Length {
        /// The part being read.
        what: &'static str,
        /// The lengths allowed.
        expected: &'static str,
        /// The length found.
        got: usize,
    },
    /// A field with a value that the protocol does not allow there.
    #[error("{what}: {expected} expected, got {got}")]
    Value {
        /// The field.
        what: &'static str,
        /// The values allowed.
        expected: &'static str,
        /// The value found.
        got: u64,
    },
}

/// More bytes than a header or a length field can express.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{what}: at most {max} bytes fit, got {got}")]
pub struct BuildError {
    /// The part being built.
    pub what: &'static str,
    /// How many bytes can be expressed.
    pub max: usize,
    /// How many were given.
    pub got: usize,
}
