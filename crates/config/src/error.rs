//! The error of a text that cannot be parsed.

use std::borrow::Cow;

/// A text that is not in the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got {got:?}")]
pub struct TextError {
    /// What was expected, with an example.
    pub expected: Cow<'static, str>,
    /// The text.
    pub got: String,
}

impl TextError {
    /// Expected this, got that.
    pub fn new(expected: impl Into<Cow<'static, str>>, got: &str) -> Self {
        Self { expected: expected.into(), got: got.into() }
    }
}
