//! The analysis of captures, from input files to output files, as in `plait analyze`.

mod input;
mod output_directory;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::connection::Connection;
use crate::export::{Exporter, document};
use crate::external_metrics::ExternalMetric;
use crate::interval::Interval;
use crate::options::ReadOptions;
use crate::read::{Capture, ReadError, read};
use crate::sink::Sink;
use input::{Input, open, without_directories};
use output_directory::OutputDirectory;

pub use input::{InputError, Source, input_files};

/// An error that ends an analysis.
#[derive(Debug, Error)]
pub enum AnalyzeError {
    /// An input cannot be opened.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Only the output of other tools was given.
    #[error("expected a capture, got only output of other tools")]
    NoCapture,
    /// A capture cannot be read.
    #[error(transparent)]
    Read(ReadError),
    /// An output cannot be written.
    #[error(transparent)]
    Output(io::Error),
    /// The captures contain no TCP.
    #[error("expected TCP in the capture, got none: {} packets read, {}", .0.packets, .0.skipped)]
    NoTcp(Box<document::Totals>),
}

/// Analyses the captures of one measurement.
///
/// The captures are merged by time; `-` is stdin, and a directory means the captures in it. The inputs may include
/// output of other tools ([`ExternalMetric`](crate::external_metrics::ExternalMetric)), which becomes part of the result.
/// If a `directory` is given, it receives the document, tables, a series with intervals of this length, the HTML page and
/// plots. Results also go to `exporter` (`()` for none), and the number of bytes read since the last call to `progress`;
/// an error from either ends the analysis. Memory does not grow with the captures.
///
/// # Errors
/// A file cannot be opened, read or written, is not a capture, or no capture contains TCP. A damaged capture is used up to
/// the damage and listed in [`damaged`](document::Totals::damaged).
pub fn analyze<O: Exporter>(
    measurement: &[PathBuf],
    directory: Option<&Path>,
    interval: Duration,
    exporter: O,
    progress: &dyn Fn(u64) -> io::Result<()>,
) -> Result<document::Totals, AnalyzeError> {
    analyze_sources(paths(measurement), directory, interval, exporter, progress)
}

/// [`analyze`] for captures that may already be open.
///
/// # Errors
/// As [`analyze`].
pub fn analyze_sources<O: Exporter>(
    measurement: Vec<Source>,
    directory: Option<&Path>,
    interval: Duration,
    exporter: O,
    progress: &dyn Fn(u64) -> io::Result<()>,
) -> Result<document::Totals, AnalyzeError> {
    let (captures, external_metrics) = open_all(measurement, progress)?;
    let names = || captures.iter().map(|capture| capture.path.name.clone()).collect();
    let directory = directory.map(|path| OutputDirectory::create(path, names(), interval)).transpose();
    let directory = directory.map_err(AnalyzeError::Output)?;
    let counted = (directory.is_some() || exporter.wants_intervals()).then_some(interval);
    let options = ReadOptions { payload_limit: 0, interval: counted, ..Default::default() };
    let mut outputs = Outputs { directory, exporter, connections: 0 };
    let mut totals = read_into(captures, options, &mut outputs)?;
    totals.external_metrics = external_metrics;
    let Outputs { directory, exporter, connections } = outputs;
    if connections == 0 {
        return Err(AnalyzeError::NoTcp(Box::new(totals)));
    }
    directory
        .map_or(Ok(()), |directory| directory.finish(&totals))
        .and_then(|()| exporter.finish(&totals))
        .map_err(AnalyzeError::Output)?;
    Ok(totals)
}

/// Reads the captures of one measurement into a sink, as [`analyze`] does.
pub(crate) fn read_captures(
    measurement: &[PathBuf],
    options: ReadOptions,
    sink: &mut impl Sink,
    progress: &dyn Fn(u64) -> io::Result<()>,
) -> Result<document::Totals, AnalyzeError> {
    let (captures, _) = open_all(paths(measurement), progress)?;
    read_into(captures, options, sink)
}

fn paths(measurement: &[PathBuf]) -> Vec<Source> {
    measurement.iter().cloned().map(Source::Path).collect()
}

type Captures<'a> = Vec<Capture<ProgressReader<'a, Box<dyn Read>>>>;

/// Opens the captures of a measurement; there is at least one.
fn open_all<'a>(
    measurement: Vec<Source>,
    progress: &'a dyn Fn(u64) -> io::Result<()>,
) -> Result<(Captures<'a>, Vec<ExternalMetric>), AnalyzeError> {
    let (mut captures, mut external_metrics) = (Vec::new(), Vec::new());
    for source in without_directories(measurement)? {
        match open(source, |input| ProgressReader { input, progress })? {
            Input::Capture(capture) => captures.push(*capture),
            Input::ExternalMetrics(found) => external_metrics.extend(found),
        }
    }
    if captures.is_empty() {
        return Err(AnalyzeError::NoCapture);
    }
    Ok((captures, external_metrics))
}

fn read_into<R: Read>(
    captures: Vec<Capture<R>>,
    options: ReadOptions,
    sink: &mut impl Sink,
) -> Result<document::Totals, AnalyzeError> {
    match read(captures, options, sink) {
        Ok(totals) => Ok(document::Totals::from(&totals)),
        Err(ReadError::Sink(error)) => Err(AnalyzeError::Output(error)),
        Err(error) => Err(AnalyzeError::Read(error)),
    }
}

struct ProgressReader<'a, R> {
    input: R,
    progress: &'a dyn Fn(u64) -> io::Result<()>,
}

impl<R: Read> Read for ProgressReader<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buf)?;
        (self.progress)(count as u64)?;
        Ok(count)
    }
}

struct Outputs<O> {
    directory: Option<OutputDirectory>,
    exporter: O,
    connections: u64,
}

impl<O: Exporter> Sink for Outputs<O> {
    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        if let Some(directory) = &mut self.directory {
            directory.interval(interval)?;
        }
        self.exporter.interval(interval)
    }

    fn connection(&mut self, connection: Connection) -> io::Result<()> {
        self.connections += 1;
        let connection = document::Connection::from(&connection);
        if let Some(directory) = &mut self.directory {
            directory.connection(&connection)?;
        }
        self.exporter.connection(&connection)
    }
}
