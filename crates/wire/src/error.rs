use thiserror::Error;

/// Bytes that are not what the protocol says they must be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// Fewer bytes than the part needs: a short packet, or one cut by the capture's snap length.
    #[error("{what}: {expected} bytes expected, {got} present")]
    Truncated {
        /// The part being read.
        what: &'static str,
        /// How many bytes it needs.
        expected: usize,
        /// How many there are.
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

/// A value that has no form on the wire.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BuildError {
    /// More bytes than a length field can say.
    #[error("{what}: at most {max} bytes fit, got {got}")]
    TooLong {
        /// The part being built.
        what: &'static str,
        /// How many bytes can be expressed.
        max: usize,
        /// How many were given.
        got: usize,
    },
    /// Bytes that do not fill the units in which the protocol counts.
    #[error("{what}: {expected} expected, got {got} bytes")]
    Unit {
        /// The part being built.
        what: &'static str,
        /// The rule for the length.
        expected: &'static str,
        /// How many were given.
        got: usize,
    },
}
