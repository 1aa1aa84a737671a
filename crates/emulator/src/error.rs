//! What can go wrong with a link, in sentences a person can act on.

use std::io;
use std::path::PathBuf;

use plait_config::TextError;

use crate::Backend;

/// Why a link could not be specified, made or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A text that does not say what it should.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A line of a file that does not say what it should.
    #[error("{}:{line}: expected {expected}, got {got}", .file.display())]
    Line {
        /// Which file.
        file: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What was expected.
        expected: &'static str,
        /// What stands there.
        got: String,
    },
    /// The backend that was asked for is not there.
    #[error("the backend {backend} cannot be used here: {why}")]
    Unavailable {
        /// Which backend.
        backend: Backend,
        /// What happened when one was really made, and what to do about it.
        why: String,
    },
    /// An interface that should be made is there already.
    #[error(
        "expected a free interface name at the end of the link, got {interface}; an interface of this name exists"
    )]
    Taken {
        /// Its name.
        interface: String,
    },
    /// A property that the backend cannot give.
    #[error("the backend {backend} has no {property}")]
    Unsupported {
        /// Which backend.
        backend: Backend,
        /// What was asked of it.
        property: String,
    },
    /// The kernel or a program refused a step of making or changing the link.
    #[error("cannot {step}: {source}")]
    Refused {
        /// What was being done.
        step: String,
        /// What was said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn text(expected: &'static str, got: &str) -> Self {
        Self::Text(TextError::new(expected, got))
    }
}
