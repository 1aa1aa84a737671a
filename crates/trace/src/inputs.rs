use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use plait_wire::Role;
use plait_wire::capture::{CaptureError, CaptureReader};

use crate::companion::{Companion, CompanionError};
use crate::{AnalyzeError, Capture};

/// The files of a measurement: directories stand for the captures in them, and for what `plait capture` recorded beside
/// those. What is not a directory stays as it is.
///
/// # Errors
/// A directory cannot be read, or has no captures.
pub fn inputs(paths: &[PathBuf]) -> Result<Vec<PathBuf>, AnalyzeError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let open = |source| AnalyzeError::Open { path: path.display().to_string(), source };
        let entries = fs::read_dir(path).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let entries = entries.map_err(open)?.into_iter().map(|entry| entry.path());
        let (mut captures, others): (Vec<_>, Vec<_>) =
            entries.filter(|file| file.is_file()).partition(|file| is_named_as_capture(file));
        if captures.is_empty() {
            let none = "expected captures (.pcap, .pcapng, .cap) in the directory, found none";
            return Err(open(io::Error::new(io::ErrorKind::NotFound, none)));
        }
        captures.extend(others.into_iter().filter(|file| is_recorded_beside(file)));
        captures.sort();
        files.extend(captures);
    }
    Ok(files)
}

fn is_named_as_capture(file: &Path) -> bool {
    let name = file.to_string_lossy();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    [".pcap", ".pcapng", ".cap"].iter().any(|ending| name.ends_with(ending))
}

/// By `plait capture`. A host without MPTCP connections leaves these empty.
fn is_recorded_beside(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    matches!(name, Some("samples.jsonl" | "counters.jsonl"))
        && fs::metadata(file).is_ok_and(|metadata| metadata.len() > 0)
}

/// What an input turned out to be.
pub(crate) enum Input<R: Read> {
    Capture(Box<Capture<R>>),
    Companions(Vec<Companion>),
}

/// Opens a file, or stdin where it is called `-`. `wrap` gets what captures are read from.
pub(crate) fn open<R: Read>(
    path: &Path,
    wrap: impl FnOnce(Box<dyn Read>) -> R,
) -> Result<Input<R>, AnalyzeError> {
    let name = path.display().to_string();
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => match File::open(path) {
            Ok(file) => Box::new(file),
            Err(source) => return Err(AnalyzeError::Open { path: name, source }),
        },
    };
    match CaptureReader::new(wrap(input)) {
        Ok(reader) => {
            let path = crate::Path { name, role: Role::Untrusted };
            Ok(Input::Capture(Box::new(Capture { path, reader })))
        }
        // Only a regular file can be read once more from its start.
        Err(CaptureError::NotACapture { got }) if path.is_file() => match Companion::read(path) {
            Ok(companions) => Ok(Input::Companions(companions)),
            Err(CompanionError::Unknown { .. }) => {
                Err(AnalyzeError::Capture { path: name, source: CaptureError::NotACapture { got } })
            }
            Err(CompanionError::Read { source, .. }) => Err(AnalyzeError::Open { path: name, source }),
        },
        Err(source) => Err(AnalyzeError::Capture { path: name, source }),
    }
}
