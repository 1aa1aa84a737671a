//! `plait._plait`, the native part of the Python package. `python/plait` documents and types its functions.

#![forbid(unsafe_code)]

mod gateway;
mod logs;
mod policy;

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use plait_trace::export::JsonWriter;
use plait_trace::{AnalyzeError, InputError};
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    plait,
    CaptureError,
    PyValueError,
    "A file is not a capture, or contains nothing to analyze."
);

/// How often Python's signals are checked, so that Ctrl-C stops a long analysis.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

#[pymodule]
fn _plait(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CaptureError", module.py().get_type::<CaptureError>())?;
    module.add_function(wrap_pyfunction!(analyze, module)?)?;
    gateway::add_to(module)?;
    logs::add_to(module)?;
    policy::add_to(module)
}

/// The document of `plait analyze --json`, as text. Releases the GIL.
#[pyfunction]
fn analyze(
    py: Python<'_>,
    captures: Vec<PathBuf>,
    output: Option<PathBuf>,
    interval: f64,
) -> PyResult<String> {
    if !(1e-6..=3600.0).contains(&interval) {
        let text = format!("expected an interval from 0.000001 to 3600 seconds, got {interval}");
        return Err(PyValueError::new_err(text));
    }
    if captures.is_empty() {
        return Err(PyValueError::new_err("expected at least one capture, got none"));
    }
    py.detach(|| {
        let mut document = Vec::new();
        let interrupted = RefCell::new(None);
        let last_check = Cell::new(Instant::now());
        let check_signals = |_: u64| {
            if last_check.get().elapsed() < SIGNAL_INTERVAL {
                return Ok(());
            }
            last_check.set(Instant::now());
            Python::attach(|py| py.check_signals()).map_err(|error| {
                interrupted.replace(Some(error));
                io::Error::other("a signal")
            })
        };
        let interval = Duration::from_secs_f64(interval);
        let done = plait_trace::analyze(
            &captures,
            output.as_deref(),
            interval,
            JsonWriter::new(&mut document),
            &check_signals,
        );
        match (done, interrupted.take()) {
            (_, Some(signal)) => Err(signal),
            (Err(error), None) => Err(exception(error)),
            (Ok(_), None) => Ok(String::from_utf8(document)?),
        }
    })
}

/// The Python exception for an error.
fn exception(error: AnalyzeError) -> PyErr {
    match error {
        AnalyzeError::Input(InputError::Open { path, source }) => match source.raw_os_error() {
            // From these arguments Python selects FileNotFoundError and similar subclasses.
            Some(number) => PyOSError::new_err((number, source.to_string(), path)),
            None => PyOSError::new_err(format!("{path}: {source}")),
        },
        AnalyzeError::Output(error) => error.into(),
        AnalyzeError::Read(_) => PyOSError::new_err(text(&error)),
        AnalyzeError::Input(InputError::Capture { .. })
        | AnalyzeError::NoCapture
        | AnalyzeError::NoTcp(_) => CaptureError::new_err(text(&error)),
    }
}

/// An error with its causes.
fn text(mut error: &dyn Error) -> String {
    let mut text = error.to_string();
    while let Some(cause) = error.source() {
        text += &format!(": {cause}");
        error = cause;
    }
    text
}
