//! The error for text that cannot be parsed.

use std::borrow::Cow;

/// A text that does not have the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got {got:?}")]
pub struct TextError {
    /// The expected form, with an example.
    pub expected: Cow<'static, str>,
    /// The rejected text.
    pub got: String,
}

impl TextError {
    /// An error with the expected form and the rejected text.
    pub fn new(expected: impl Into<Cow<'static, str>>, got: &str) -> Self {
        Self { expected: expected.into(), got: got.into() }
    }
}
