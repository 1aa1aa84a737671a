//! The inputs of an analysis: captures, directories, stdin and the output of other tools.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use plait_config::Role;
use plait_wire::capture::{CaptureError, CaptureReader};
use thiserror::Error;

use crate::external_metrics::{ExternalMetric, ExternalMetricError};
use crate::read::Capture;

/// Something to analyze.
pub enum Source {
    /// A file, a directory with captures, or stdin for `-`.
    Path(PathBuf),
    /// A capture that is already open.
    Reader {
        /// What errors and the report call it.
        name: String,
        /// Its content, from the start.
        input: Box<dyn Read>,
    },
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.fmt(f),
            Self::Reader { name, .. } => name.fmt(f),
        }
    }
}

/// Replaces directories by what [`input_files`] finds in them.
pub(crate) fn without_directories(sources: Vec<Source>) -> Result<Vec<Source>, InputError> {
    let mut found = Vec::new();
    for source in sources {
        match source {
            Source::Path(path) => found.extend(input_files(&[path])?.into_iter().map(Source::Path)),
            reader @ Source::Reader { .. } => found.push(reader),
        }
    }
    Ok(found)
}

/// An input that cannot be used.
#[derive(Debug, Error)]
pub enum InputError {
    /// A file cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// A file is not a capture, or is damaged at its start.
    #[error("{path}")]
    Capture {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: CaptureError,
    },
}

/// Replaces directories by the captures and the recordings of `plait capture` in them. Other paths are returned
/// unchanged.
///
/// # Errors
/// A directory cannot be read or has no captures.
pub fn input_files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, InputError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let open = |source| InputError::Open { path: path.display().to_string(), source };
        let entries = fs::read_dir(path).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let entries = entries.map_err(open)?.into_iter().map(|entry| entry.path());
        let (mut captures, others): (Vec<_>, Vec<_>) =
            entries.filter(|file| file.is_file()).partition(|file| has_capture_extension(file));
        if captures.is_empty() {
            let none = "expected captures (.pcap, .pcapng, .cap) in the directory, got none";
            return Err(open(io::Error::new(io::ErrorKind::NotFound, none)));
        }
        captures.extend(others.into_iter().filter(|file| is_plait_recording(file)));
        captures.sort();
        files.extend(captures);
    }
    Ok(files)
}

fn has_capture_extension(file: &Path) -> bool {
    let name = file.to_string_lossy();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    [".pcap", ".pcapng", ".cap"].iter().any(|ending| name.ends_with(ending))
}

/// Whether a file is a recording of `plait capture`, which is empty on a host without MPTCP connections.
fn is_plait_recording(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    matches!(name, Some("samples.jsonl" | "counters.jsonl"))
        && fs::metadata(file).is_ok_and(|metadata| metadata.len() > 0)
}

/// The content of an input.
pub(crate) enum Input<R: Read> {
    Capture(Box<Capture<R>>),
    ExternalMetrics(Vec<ExternalMetric>),
}

/// Opens a source that is not a directory. Captures are read through what `wrap` returns.
pub(crate) fn open<R: Read>(
    source: Source,
    wrap: impl FnOnce(Box<dyn Read>) -> R,
) -> Result<Input<R>, InputError> {
    let (name, file, input) = match source {
        Source::Reader { name, input } => (name, None, input),
        Source::Path(path) => {
            let name = path.display().to_string();
            let input: Box<dyn Read> = match path.to_str() {
                Some("-") => Box::new(io::stdin().lock()),
                _ => match File::open(&path) {
                    Ok(file) => Box::new(file),
                    Err(source) => return Err(InputError::Open { path: name, source }),
                },
            };
            // Only a regular file can be read again from its start.
            (name, path.is_file().then_some(path), input)
        }
    };
    match (CaptureReader::new(wrap(input)), file) {
        (Ok(reader), _) => {
            let path = crate::path::Path { name, role: Role::Untrusted };
            Ok(Input::Capture(Box::new(Capture { path, reader })))
        }
        (Err(CaptureError::NotACapture { got }), Some(file)) => match ExternalMetric::read(&file) {
            Ok(external_metrics) => Ok(Input::ExternalMetrics(external_metrics)),
            Err(ExternalMetricError::Unknown { .. }) => {
                Err(InputError::Capture { path: name, source: CaptureError::NotACapture { got } })
            }
            Err(ExternalMetricError::Read { source, .. }) => Err(InputError::Open { path: name, source }),
        },
        (Err(source), _) => Err(InputError::Capture { path: name, source }),
    }
}
