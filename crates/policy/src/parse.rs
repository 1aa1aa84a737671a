//! From TOML to a [`Policy`], and from text to a [`Selector`](crate::model::Selector).
//!
//! Parsing needs no privileges and does not look at the host. All problems of a file are reported at once, each with
//! its line, what was expected and what was found.

mod document;
mod selector;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use plait_config::Diagnostic;

use crate::model::Policy;
pub use selector::SelectorError;

/// Why a policy file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file could not be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The file is not a valid policy: at least one diagnostic, by line.
    #[error("{}", lines(.0))]
    Invalid(Vec<Diagnostic>),
}

impl Policy {
    /// Reads a policy file. Relative paths in it are resolved against its directory.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid policy.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let failed = |reason| PolicyError::Read { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let mut policy = Self::parse(&text, &path.display().to_string())?;
        let directory = std::path::absolute(path).map_err(failed)?;
        let directory = directory.parent().unwrap_or(Path::new("/"));
        for program in policy.custom.values_mut() {
            program.file = directory.join(&program.file);
        }
        Ok(policy)
    }

    /// Parses a policy. Diagnostics refer to it as the file `name`, which is also the policy's name if the text sets
    /// none.
    ///
    /// # Errors
    /// The text is not a valid policy.
    pub fn parse(text: &str, name: &str) -> Result<Self, PolicyError> {
        document::parse(text, name).map_err(PolicyError::Invalid)
    }
}

fn lines(diagnostics: &[impl fmt::Display]) -> String {
    diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
