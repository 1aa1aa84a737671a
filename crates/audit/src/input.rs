//! Captures that are read twice.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use plait_trace::AnalyzeError;
use plait_trace::companion::Companion;
use plait_wire::capture::{CaptureError, CaptureReader};

/// A capture and the name of the path it was taken on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The name of the path.
    pub name: String,
    /// The capture; `-` is stdin.
    pub file: PathBuf,
}

impl Source {
    /// The captures of a measurement, named by their files. As in `plait analyze`, a directory stands for the captures in
    /// it.
    ///
    /// # Errors
    /// A directory cannot be read or contains no captures.
    pub fn all(measurement: &[PathBuf]) -> Result<Vec<Self>, AnalyzeError> {
        let files = plait_trace::inputs(measurement)?;
        Ok(files.into_iter().map(|file| Self { name: file.display().to_string(), file }).collect())
    }
}

/// A capture that can be read from its start any number of times.
pub(crate) struct Input {
    pub(crate) name: String,
    file: File,
}

impl Input {
    /// Opens a capture, copying it to a temporary file if it is not seekable. `None` for a file of external metrics.
    pub(crate) fn open(source: &Source) -> Result<Option<Self>, AnalyzeError> {
        let name = source.name.clone();
        let failed = |source| AnalyzeError::Open { path: name.clone(), source };
        let file = match source.file.to_str() {
            Some("-") => spool(io::stdin().lock()).map_err(failed)?,
            _ => {
                let file = File::open(&source.file).map_err(failed)?;
                if source.file.is_file() { file } else { spool(file).map_err(failed)? }
            }
        };
        let input = Self { name, file };
        match input.reader(|file| file) {
            Ok(_) => Ok(Some(input)),
            Err(AnalyzeError::Capture { source: CaptureError::NotACapture { .. }, .. })
                if is_companion(&source.file) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A reader from the start, over what `wrap` makes of the file.
    pub(crate) fn reader<R: Read>(
        &self,
        wrap: impl FnOnce(File) -> R,
    ) -> Result<CaptureReader<R>, AnalyzeError> {
        let rewound = self.file.try_clone().and_then(|mut file| file.rewind().map(|()| file));
        let file = rewound.map_err(|source| AnalyzeError::Open { path: self.name.clone(), source })?;
        CaptureReader::new(wrap(file))
            .map_err(|source| AnalyzeError::Capture { path: self.name.clone(), source })
    }
}

fn spool(mut input: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut input, &mut file)?;
    Ok(file)
}

fn is_companion(file: &Path) -> bool {
    file.is_file() && Companion::read(file).is_ok()
}
