use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use plait_wire::capture::CaptureError;
use thiserror::Error;

use crate::inputs::{Input, inputs, open};
use crate::output::{Directory, Output};
use crate::{Connection, Interval, ReadError, ReadOptions, Sink, document, read};

/// Why captures could not be analysed, or what was found could not be written.
#[derive(Debug, Error)]
pub enum AnalyzeError {
    /// A file cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file is no capture, or damaged from its start on.
    #[error("{path}")]
    Capture {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: CaptureError,
    },
    /// Only what other tools measured was given.
    #[error("expected a capture beside what other tools measured, found none")]
    NoCapture,
    /// A capture cannot be read on.
    #[error(transparent)]
    Read(ReadError),
    /// An output cannot be written.
    #[error(transparent)]
    Output(io::Error),
    /// There is nothing to tell of.
    #[error("expected TCP in the capture, found none: {} packets read, {}", .0.packets, .0.skipped)]
    NoTcp(document::Totals),
}

/// Analyses captures of one measurement, files in and files out: the step to repeat for each of many measurements.
///
/// The captures are merged by time; `-` is stdin, and a directory stands for the captures in it. What other tools measured
/// beside them ([`Companion`](crate::companion::Companion)) may be given too, and is part of the result. Where a
/// `directory` is given it gets the files of a [`Directory`], with a series of intervals of this length. What is found is also
/// given to `shown` (`()`: to nobody), and to `progress` how many bytes were read since it was called last; an error
/// from either ends the analysis. Memory does not grow with the captures.
///
/// # Errors
/// A file cannot be opened, read or written, is no capture, or there is no TCP in any. A capture that is damaged further
/// on is used up to there and listed in [`damaged`](document::Totals::damaged).
pub fn analyze<O: Output>(
    measurement: &[PathBuf],
    directory: Option<&Path>,
    interval: Duration,
    shown: O,
    progress: &dyn Fn(u64) -> io::Result<()>,
) -> Result<document::Totals, AnalyzeError> {
    let (mut captures, mut companions) = (Vec::new(), Vec::new());
    for path in inputs(measurement)? {
        match open(&path, |input| Watched { input, progress })? {
            Input::Capture(capture) => captures.push(*capture),
            Input::Companions(found) => companions.extend(found),
        }
    }
    if captures.is_empty() {
        return Err(AnalyzeError::NoCapture);
    }
    let names = || captures.iter().map(|capture| capture.path.name.clone()).collect();
    let directory = directory.map(|path| Directory::create(path, names(), interval)).transpose();
    let directory = directory.map_err(AnalyzeError::Output)?;
    let counted = (directory.is_some() || shown.intervals()).then_some(interval);
    let options = ReadOptions { payload_limit: 0, interval: counted, ..Default::default() };
    let mut outputs = Outputs { directory, shown, connections: 0 };
    let mut totals = match read(captures, options, &mut outputs) {
        Ok(totals) => document::Totals::of(&totals),
        Err(ReadError::Sink(error)) => return Err(AnalyzeError::Output(error)),
        Err(error) => return Err(AnalyzeError::Read(error)),
    };
    totals.companions = companions;
    let Outputs { directory, shown, connections } = outputs;
    if connections == 0 {
        return Err(AnalyzeError::NoTcp(totals));
    }
    directory
        .map_or(Ok(()), |directory| directory.finish(&totals))
        .and_then(|()| shown.finish(&totals))
        .map_err(AnalyzeError::Output)?;
    Ok(totals)
}

struct Watched<'a, R> {
    input: R,
    progress: &'a dyn Fn(u64) -> io::Result<()>,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buf)?;
        (self.progress)(count as u64)?;
        Ok(count)
    }
}

struct Outputs<O> {
    directory: Option<Directory>,
    shown: O,
    connections: u64,
}

impl<O: Output> Sink for Outputs<O> {
    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        if let Some(directory) = &mut self.directory {
            directory.interval(interval)?;
        }
        self.shown.interval(interval)
    }

    fn connection(&mut self, connection: Connection) -> io::Result<()> {
        self.connections += 1;
        let connection = document::Connection::of(&connection);
        if let Some(directory) = &mut self.directory {
            directory.connection(&connection)?;
        }
        self.shown.connection(&connection)
    }
}
