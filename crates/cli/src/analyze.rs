//! `plait analyze`: connections and subflows in captures, as tables, JSON, CSV and Parquet.

mod batch;
mod rates;
mod table;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Command;
use indicatif::{ProgressBar, ProgressStyle};
use plait_config::{TextError, parse_duration_or_seconds};
use plait_trace::export::{Exporter, JsonWriter};
use plait_trace::{AnalyzeError, Interval, analyze, document};

use crate::stderr::eprintln;
use crate::stdout::{self, Stdout};
use table::Table;

/// Arguments of `plait analyze`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Captures of one measurement, or directories of captures; - reads stdin. Output of iperf3 -J, ss or nstat may be added
    #[arg(required = true, value_name = "CAPTURE|DIR")]
    captures: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write analysis.json, tables, series, plots and the report to this directory
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Length of the intervals of series, such as 0.1s or 50ms [default: 0.1s]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,
    /// Print all connections, not only the largest
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Analyze each capture separately, into DIR/NAME, and list all connections in DIR/index.csv
    #[arg(long, requires = "output", conflicts_with = "all")]
    each: bool,
}

const INTERVAL: Duration = Duration::from_millis(100);

/// Analyzes the captures and prints the result.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.json && args.output.is_none() && args.interval.is_some() {
        let unused = "--interval requires tables or --output; --json alone does not use it";
        <Args as clap::Args>::augment_args(Command::new("plait analyze"))
            .error(clap::error::ErrorKind::ArgumentConflict, unused)
            .exit();
    }
    let interval = args.interval.unwrap_or(INTERVAL);
    match &args.output {
        Some(directory) if args.each => batch::run(&args.captures, directory, interval, args.json),
        directory => analyze_together(&args, directory.as_deref(), interval),
    }
}

/// Analyzes all captures as one measurement.
fn analyze_together(args: &Args, directory: Option<&Path>, interval: Duration) -> anyhow::Result<()> {
    let prints_while_reading = (args.json || args.all) && stdout::is_terminal();
    let progress = match prints_while_reading {
        true => ProgressBar::hidden(),
        false => progress_bar(&plait_trace::input_files(&args.captures)?),
    };
    let out = if directory.is_some() { Stdout::new() } else { Stdout::until_closed() };
    let printer = Printer {
        kind: match args.json {
            true => Kind::Json(JsonWriter::new(out)),
            false => Kind::Table(Table::new(out, args.all, interval)),
        },
        connections: 0,
        multipath: false,
        progress: progress.clone(),
    };
    let done = analyze(&args.captures, directory, interval, printer, &|bytes| {
        progress.inc(bytes);
        Ok(())
    });
    progress.finish_and_clear();
    match done {
        Ok(totals) => warn_if_damaged(&totals),
        // The reader of the output has closed it.
        Err(AnalyzeError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            if let AnalyzeError::NoTcp(totals) = &error {
                warn_if_damaged(totals);
            }
            return Err(error.into());
        }
    }
    Ok(())
}

/// Prints to stdout.
struct Printer {
    kind: Kind,
    connections: u64,
    multipath: bool,
    progress: ProgressBar,
}

enum Kind {
    Json(JsonWriter<Stdout>),
    Table(Table),
}

impl Exporter for Printer {
    fn wants_intervals(&self) -> bool {
        matches!(self.kind, Kind::Table(_))
    }

    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        match &mut self.kind {
            Kind::Json(_) => Ok(()),
            Kind::Table(table) => table.interval(interval),
        }
    }

    fn connection(&mut self, connection: &document::Connection) -> io::Result<()> {
        self.connections += 1;
        self.multipath |= connection.version.is_some();
        match &mut self.kind {
            Kind::Json(json) => json.connection(connection),
            Kind::Table(table) => table.connection(connection),
        }
    }

    fn finish(self, totals: &document::Totals) -> io::Result<()> {
        self.progress.finish_and_clear();
        if !self.multipath {
            warn(format_args!("no MPTCP in the capture, only {} plain TCP connections", self.connections));
        }
        match self.kind {
            Kind::Json(json) => json.finish(totals),
            Kind::Table(table) => table.finish(totals),
        }
    }
}

/// A progress bar over the bytes of the captures, if stderr is a terminal.
pub(crate) fn progress_bar(captures: &[PathBuf]) -> ProgressBar {
    let lengths = captures.iter().map(|path| fs::metadata(path).map(|metadata| metadata.len()));
    match lengths.sum::<io::Result<u64>>() {
        Ok(length) if length > 0 => {
            let style = ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta} to go");
            ProgressBar::new(length).with_style(style.expect("a template of known fields"))
        }
        // Stdin, a pipe, or a file that cannot be read.
        _ => {
            let style = ProgressStyle::with_template("{spinner} {bytes} read");
            ProgressBar::new_spinner().with_style(style.expect("a template of known fields"))
        }
    }
}

pub(crate) fn warn_if_damaged(totals: &document::Totals) {
    for document::DamagedCapture { capture, error } in &totals.damaged {
        warn(format_args!("{capture}: {error}; packets before that are used"));
    }
}

fn warn(message: std::fmt::Arguments) {
    eprintln!("plait: {message}");
}

/// From a microsecond to an hour.
fn interval(text: &str) -> Result<Duration, TextError> {
    parse_duration_or_seconds(text, &(Duration::from_micros(1)..=Duration::from_secs(3600)))
}
