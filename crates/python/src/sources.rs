//! The inputs of an analysis: paths, and file objects of Python.

use std::cell::RefCell;
use std::fs;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::rc::Rc;

use plait_trace::{Source, input_files};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

/// How much is asked of a file object at once: each call takes the GIL.
const BUFFER: usize = 256 << 10;

/// Where an exception of Python is kept while errors of Rust are returned.
pub(crate) type Raised = Rc<RefCell<Option<PyErr>>>;

/// A path, or a name, a file object and its size, if known.
#[derive(FromPyObject)]
pub(crate) enum PySource {
    Path(PathBuf),
    File(String, Py<PyAny>, Option<u64>),
}

impl PySource {
    /// What the report calls it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::File(name, ..) => name.clone(),
        }
    }

    fn size(&self) -> Option<u64> {
        match self {
            Self::File(_, _, size) => *size,
            Self::Path(path) => input_files(std::slice::from_ref(path)).ok()?.iter().map(file_size).sum(),
        }
    }
}

/// The bytes of all sources together; `None` if a pipe or the like is among them.
pub(crate) fn total_size(sources: &[PySource]) -> Option<u64> {
    sources.iter().map(PySource::size).sum()
}

fn file_size(path: &PathBuf) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
}

/// Opens a source. An exception of a file object is kept in `raised`.
pub(crate) fn open(source: PySource, raised: &Raised) -> Source {
    match source {
        PySource::Path(path) => Source::Path(path),
        PySource::File(name, object, _) => {
            let file = FileObject { object, raised: Rc::clone(raised) };
            Source::Reader { name, input: Box::new(BufReader::with_capacity(BUFFER, file)) }
        }
    }
}

struct FileObject {
    object: Py<PyAny>,
    raised: Raised,
}

impl Read for FileObject {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = Python::attach(|py| {
            py.check_signals()?;
            let found = self.object.call_method1(py, "read", (buf.len(),))?;
            let bytes: PyBackedBytes = found.extract(py).map_err(|_| {
                PyTypeError::new_err("expected a file opened in binary mode: its read() did not return bytes")
            })?;
            let room = buf.get_mut(..bytes.len()).ok_or_else(|| {
                PyValueError::new_err("expected at most as many bytes as asked for, got more from read()")
            })?;
            room.copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        read.map_err(|error| {
            self.raised.replace(Some(error));
            io::Error::other("the file object raised an exception")
        })
    }
}
