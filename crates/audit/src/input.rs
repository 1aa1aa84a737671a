//! Captures that are read twice.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use plait_trace::InputError;
use plait_trace::external_metrics::ExternalMetric;
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
    /// The captures of a measurement, named by their files. As in `plait analyze`, a directory means the captures in
    /// it.
    ///
    /// # Errors
    /// A directory cannot be read or contains no captures.
    pub fn all(measurement: &[PathBuf]) -> Result<Vec<Self>, InputError> {
        let files = plait_trace::input_files(measurement)?;
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
    pub(crate) fn open(source: &Source) -> Result<Option<Self>, InputError> {
        let name = source.name.clone();
        let failed = |source| InputError::Open { path: name.clone(), source };
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
            Err(InputError::Capture { source: CaptureError::NotACapture { .. }, .. })
                if is_external_metrics(&source.file) =>
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
    ) -> Result<CaptureReader<R>, InputError> {
        let rewound = self.file.try_clone().and_then(|mut file| file.rewind().map(|()| file));
        let file = rewound.map_err(|source| InputError::Open { path: self.name.clone(), source })?;
        CaptureReader::new(wrap(file))
            .map_err(|source| InputError::Capture { path: self.name.clone(), source })
    }
}

fn spool(mut input: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut input, &mut file)?;
    Ok(file)
}

fn is_external_metrics(file: &Path) -> bool {
    file.is_file() && ExternalMetric::read(file).is_ok()
}
