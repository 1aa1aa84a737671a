//! Errors of links.

use std::io;
use std::path::PathBuf;

use plait_config::TextError;

use crate::backend::Backend;

/// Why a link could not be specified, created or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A malformed text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A malformed line of a file.
    #[error("{}:{line}: expected {expected}, got {got}", .file.display())]
    Line {
        /// The path of the file.
        file: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The expected form.
        expected: &'static str,
        /// The contents of the line.
        got: String,
    },
    /// The backend does not work here.
    #[error("the backend {backend} cannot be used here: {why}")]
    Unavailable {
        /// The backend.
        backend: Backend,
        /// The failed step, and how to fix it.
        why: String,
    },
    /// The interface to create already exists.
    #[error(
        "expected a free interface name at the end of the link, got {interface}; an interface of this name exists"
    )]
    Taken {
        /// The interface's name.
        interface: String,
    },
    /// The backend does not support a property.
    #[error("the backend {backend} does not support {property}")]
    Unsupported {
        /// The backend.
        backend: Backend,
        /// The property.
        property: String,
    },
    /// The kernel or a program rejected a step.
    #[error("cannot {step}: {source}")]
    Refused {
        /// The step.
        step: String,
        /// The reason.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn refused(step: impl Into<String>) -> impl Fn(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Refused { step: step.clone(), source }
    }

    pub(crate) fn unsupported(backend: Backend, property: impl Into<String>) -> Self {
        Self::Unsupported { backend, property: property.into() }
    }

    pub(crate) fn text(expected: &'static str, got: &str) -> Self {
        Self::Text(TextError::new(expected, got))
    }
}
