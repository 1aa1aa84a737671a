//! Captures to be read twice.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use plait_trace::AnalyzeError;
use plait_trace::companion::Companion;
use plait_wire::capture::{CaptureError, CaptureReader};

/// A capture, and what the path that it was taken on is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What the user calls the path.
    pub name: String,
    /// The capture; `-` is stdin.
    pub file: PathBuf,
}

impl Source {
    /// The captures of a measurement, named by their files, as `plait analyze` does: directories stand for the captures in
    /// them.
    ///
    /// # Errors
    /// A directory cannot be read, or has no captures.
    pub fn all(measurement: &[PathBuf]) -> Result<Vec<Self>, AnalyzeError> {
        let files = plait_trace::inputs(measurement)?;
        Ok(files.into_iter().map(|file| Self { name: file.display().to_string(), file }).collect())
    }
}

/// A capture that can be read from its start as often as needed.
pub(crate) struct Input {
    pub(crate) name: String,
    file: File,
}

impl Input {
    /// Opens a capture; what cannot be read twice is copied to a temporary file. `None` for what other tools measured
    /// beside captures.
    pub(crate) fn open(source: &Source) -> Result<Option<Self>, AnalyzeError> {
        let name = source.name.clone();
        let failed = |source| AnalyzeError::Open { path: name.clone(), source };
        let file = match source.file.to_str() {
            Some("-") => spooled(io::stdin().lock()).map_err(failed)?,
            _ => {
                let file = File::open(&source.file).map_err(failed)?;
                if source.file.is_file() { file } else { spooled(file).map_err(failed)? }
            }
        };
        let input = Self { name, file };
        match input.capture(|input| input) {
            Ok(_) => Ok(Some(input)),
            Err(AnalyzeError::Capture { source: CaptureError::NotACapture { .. }, .. })
                if is_companion(&source.file) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A reader from the start. `wrap` gets what it reads from.
    pub(crate) fn capture<R: Read>(
        &self,
        wrap: impl FnOnce(File) -> R,
    ) -> Result<CaptureReader<R>, AnalyzeError> {
        let rewound = self.file.try_clone().and_then(|mut file| file.rewind().map(|()| file));
        let file = rewound.map_err(|source| AnalyzeError::Open { path: self.name.clone(), source })?;
        CaptureReader::new(wrap(file))
            .map_err(|source| AnalyzeError::Capture { path: self.name.clone(), source })
    }
}

fn spooled(mut input: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut input, &mut file)?;
    Ok(file)
}

fn is_companion(file: &Path) -> bool {
    file.is_file() && Companion::read(file).is_ok()
}
