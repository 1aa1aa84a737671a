//! `plait.analyze`: captures to tables, without the GIL.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use plait_trace::document::{Connection, Totals};
use plait_trace::export::table::{
    ConnectionRows, ConnectionTable, EventTable, FailoverTable, IntervalRow, SeriesTable, SubflowTable,
};
use plait_trace::export::{Exporter, JsonWriter};
use plait_trace::{AnalyzeError, InputError, Interval, Report, analyze_sources};
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::arrow::{Table, TableBuilder};
use crate::sources::{PySource, open, total_size};

create_exception!(
    plait,
    CaptureError,
    PyValueError,
    "An input is not a capture, or contains nothing to analyze."
);
create_exception!(plait, NoTcpError, CaptureError, "The captures can be read, but contain no TCP.");

/// How often Python's signals are checked, so that Ctrl-C stops a long analysis, and progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CaptureError", module.py().get_type::<CaptureError>())?;
    module.add("NoTcpError", module.py().get_type::<NoTcpError>())?;
    module.add_class::<Analysis>()?;
    module.add_class::<Table>()?;
    module.add_function(wrap_pyfunction!(analyze, module)?)
}

/// The results of an analysis.
#[pyclass(frozen, module = "plait._plait")]
struct Analysis {
    connections: Vec<Connection>,
    series: Py<Table>,
    totals: Totals,
    report: Report,
}

#[pymethods]
impl Analysis {
    fn connections(&self, py: Python<'_>) -> PyResult<Table> {
        self.table::<ConnectionTable>(py)
    }

    fn subflows(&self, py: Python<'_>) -> PyResult<Table> {
        self.table::<SubflowTable>(py)
    }

    fn failovers(&self, py: Python<'_>) -> PyResult<Table> {
        self.table::<FailoverTable>(py)
    }

    fn events(&self, py: Python<'_>) -> PyResult<Table> {
        self.table::<EventTable>(py)
    }

    fn series(&self, py: Python<'_>) -> Py<Table> {
        self.series.clone_ref(py)
    }

    /// The document of `plait analyze --json`.
    fn document(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| {
            let mut text = Vec::new();
            let mut writer = JsonWriter::new(&mut text);
            self.connections.iter().try_for_each(|connection| writer.connection(connection))?;
            writer.finish(&self.totals)?;
            Ok(String::from_utf8(text)?)
        })
    }

    /// The document without its connections.
    fn totals(&self) -> PyResult<String> {
        serde_json::to_string(&self.totals).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The HTML report.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| {
            let mut page = Vec::new();
            self.report.write_html(&self.totals, &mut page)?;
            Ok(String::from_utf8(page)?)
        })
    }
}

impl Analysis {
    fn table<T: ConnectionRows>(&self, py: Python<'_>) -> PyResult<Table> {
        py.detach(|| {
            let mut table = TableBuilder::<T>::new();
            self.connections.iter().flat_map(T::rows).try_for_each(|row| table.push(&row))?;
            Ok(table.finish()?)
        })
    }
}

/// Analyzes captures. Calls `progress` with the bytes read and the bytes of all captures, if known.
#[pyfunction]
fn analyze(
    py: Python<'_>,
    sources: Vec<PySource>,
    output: Option<PathBuf>,
    interval: f64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Analysis> {
    if !(1e-6..=3600.0).contains(&interval) {
        let text = format!("expected an interval from 0.000001 to 3600 seconds, got {interval}");
        return Err(PyValueError::new_err(text));
    }
    if sources.is_empty() {
        return Err(PyValueError::new_err("expected at least one capture, got none"));
    }
    py.detach(|| run(sources, output.as_deref(), Duration::from_secs_f64(interval), progress))
}

fn run(
    sources: Vec<PySource>,
    output: Option<&Path>,
    interval: Duration,
    callback: Option<Py<PyAny>>,
) -> PyResult<Analysis> {
    let total = total_size(&sources);
    let names = sources.iter().map(PySource::name).collect();
    // An exception of a file object, of the callback, or a signal's.
    let raised = Rc::new(RefCell::new(None));
    let progress = Progress { callback, total, done: Cell::new(0), last_call: Cell::new(Instant::now()) };
    let mut collector = Collector {
        connections: Vec::new(),
        series: TableBuilder::new(),
        report: Report::new(names, interval),
        length: interval,
    };
    let sources = sources.into_iter().map(|source| open(source, &raised)).collect();
    let read = analyze_sources(sources, output, interval, &mut collector, &|bytes| {
        progress.advance(bytes).map_err(|error| {
            raised.replace(Some(error));
            io::Error::other("interrupted")
        })
    });
    let totals = match (read, raised.take()) {
        (_, Some(error)) => return Err(error),
        (Err(error), None) => return Err(exception(error)),
        (Ok(totals), None) => totals,
    };
    progress.report()?;
    let series = collector.series.finish()?;
    let series = Python::attach(|py| Py::new(py, series))?;
    let Collector { connections, report, .. } = collector;
    Ok(Analysis { connections, series, totals, report })
}

/// Counts bytes, and calls Python from time to time.
struct Progress {
    callback: Option<Py<PyAny>>,
    total: Option<u64>,
    done: Cell<u64>,
    last_call: Cell<Instant>,
}

impl Progress {
    fn advance(&self, bytes: u64) -> PyResult<()> {
        self.done.update(|done| done + bytes);
        if self.last_call.get().elapsed() < PROGRESS_INTERVAL {
            return Ok(());
        }
        self.last_call.set(Instant::now());
        Python::attach(|py| py.check_signals())?;
        self.report()
    }

    fn report(&self) -> PyResult<()> {
        let Some(callback) = &self.callback else { return Ok(()) };
        Python::attach(|py| callback.call1(py, (self.done.get(), self.total))).map(drop)
    }
}

/// Keeps all results.
struct Collector {
    connections: Vec<Connection>,
    series: TableBuilder<SeriesTable>,
    report: Report,
    length: Duration,
}

impl Exporter for &mut Collector {
    fn wants_intervals(&self) -> bool {
        true
    }

    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        self.report.interval(interval);
        self.series.push(&IntervalRow { interval, length: self.length })
    }

    fn connection(&mut self, connection: &Connection) -> io::Result<()> {
        self.report.connection(connection);
        self.connections.push(connection.clone());
        Ok(())
    }

    fn finish(self, _totals: &Totals) -> io::Result<()> {
        Ok(())
    }
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
        AnalyzeError::NoTcp(_) => NoTcpError::new_err(text(&error)),
        AnalyzeError::Input(InputError::Capture { .. }) | AnalyzeError::NoCapture => {
            CaptureError::new_err(text(&error))
        }
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
