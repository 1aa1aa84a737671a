//! Errors of links.

use std::io;
use std::path::PathBuf;

use plait_config::TextError;

use crate::backend::Backend;

/// Why a link could not be specified, made or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A malformed text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A malformed line of a file.
    #[error("{}:{line}: expected {expected}, got {got}", .file.display())]
    Line {
        /// Which file.
        file: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What was expected.
        expected: &'static str,
        /// What the line contains.
        got: String,
    },
    /// The backend does not work here.
    #[error("the backend {backend} cannot be used here: {why}")]
    Unavailable {
        /// Which backend.
        backend: Backend,
        /// What failed, and what to do about it.
        why: String,
    },
    /// The interface to create exists already.
    #[error(
        "expected a free interface name at the end of the link, got {interface}; an interface of this name exists"
    )]
    Taken {
        /// Its name.
        interface: String,
    },
    /// A property that the backend does not support.
    #[error("the backend {backend} does not support {property}")]
    Unsupported {
        /// Which backend.
        backend: Backend,
        /// The property.
        property: String,
    },
    /// The kernel or a program refused a step.
    #[error("cannot {step}: {source}")]
    Refused {
        /// The step.
        step: String,
        /// The reason.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn text(expected: &'static str, got: &str) -> Self {
        Self::Text(TextError::new(expected, got))
    }
}
