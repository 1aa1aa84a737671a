//! What is told of a text that is wrong.

use std::borrow::Cow;

/// A text that does not say what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {found:?}")]
pub struct TextError {
    /// What was expected, with an example.
    pub expected: Cow<'static, str>,
    /// The text.
    pub found: String,
}

impl TextError {
    /// Something else than `found` was expected.
    pub fn new(expected: impl Into<Cow<'static, str>>, found: &str) -> Self {
        Self { expected: expected.into(), found: found.into() }
    }
}
