//! `plait analyze`: what captures say about connections and their subflows, as tables, JSON, CSV and Parquet.

mod each;
mod rates;
mod table;

use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::CommandFactory;
use clap::error::ErrorKind as Usage;
use indicatif::{ProgressBar, ProgressStyle};
use plait_trace::output::{Json, Output};
use plait_trace::{AnalyzeError, Interval, analyze, document};

use crate::stdout::Stdout;
use crate::time;
use table::Table;

/// Arguments of `plait analyze`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Captures of one measurement, or directories of them; - reads stdin. Output of iperf3 -J, ss or nstat beside them
    /// goes on the same time line
    #[arg(required = true, value_name = "CAPTURE|DIR")]
    captures: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write analysis.json, tables, series and the report into this directory
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// The intervals of series, such as 0.1s or 50ms [default: 0.1s]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,
    /// Print all connections in full, not only the largest
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Analyse each capture on its own, into DIR/NAME, and list all connections in DIR/index.csv
    #[arg(long, requires = "output", conflicts_with = "all")]
    each: bool,
}

const INTERVAL: Duration = Duration::from_millis(100);

/// Reads the captures and shows what is in them.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.json && args.output.is_none() && args.interval.is_some() {
        let unused = "--interval is for tables and for the files of --output, not for --json alone";
        crate::Cli::command().error(Usage::ArgumentConflict, unused).exit();
    }
    let interval = args.interval.unwrap_or(INTERVAL);
    match &args.output {
        Some(directory) if args.each => each::run(&args.captures, directory, interval, args.json),
        directory => together(&args, directory.as_deref(), interval),
    }
}

/// All captures as one measurement.
fn together(args: &Args, directory: Option<&Path>, interval: Duration) -> anyhow::Result<()> {
    let prints_while_reading = (args.json || args.all) && io::stdout().is_terminal();
    let progress = match prints_while_reading {
        true => ProgressBar::hidden(),
        false => bar(&plait_trace::inputs(&args.captures)?),
    };
    let out = if directory.is_some() { Stdout::new() } else { Stdout::until_closed() };
    let shown = Shown {
        kind: match args.json {
            true => Kind::Json(Json::new(out)),
            false => Kind::Table(Table::new(out, args.all, interval)),
        },
        connections: 0,
        multipath: false,
        progress: progress.clone(),
    };
    let done = analyze(&args.captures, directory, interval, shown, &|bytes| {
        progress.inc(bytes);
        Ok(())
    });
    progress.finish_and_clear();
    match done {
        Ok(totals) => warn_of_damage(&totals),
        // Whoever read the output has enough of it.
        Err(AnalyzeError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            if let AnalyzeError::NoTcp(totals) = &error {
                warn_of_damage(totals);
            }
            return Err(error.into());
        }
    }
    Ok(())
}

/// What goes to stdout.
struct Shown {
    kind: Kind,
    connections: u64,
    multipath: bool,
    progress: ProgressBar,
}

enum Kind {
    Json(Json<Stdout>),
    Table(Table<Stdout>),
}

impl Output for Shown {
    fn intervals(&self) -> bool {
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
            warn(format_args!("no MPTCP in the capture, only {} TCP connections", self.connections));
        }
        match self.kind {
            Kind::Json(json) => json.finish(totals),
            Kind::Table(table) => table.finish(totals),
        }
    }
}

/// How much of the captures was read, where stderr is a terminal.
pub(crate) fn bar(captures: &[PathBuf]) -> ProgressBar {
    let lengths = captures.iter().map(|path| fs::metadata(path).map(|metadata| metadata.len()));
    match lengths.sum::<io::Result<u64>>() {
        Ok(length) if length > 0 => {
            let style = ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta} to go");
            ProgressBar::new(length).with_style(style.expect("a template of known fields"))
        }
        // Stdin, a pipe, or what cannot be read.
        _ => {
            let style = ProgressStyle::with_template("{spinner} {bytes} read");
            ProgressBar::new_spinner().with_style(style.expect("a template of known fields"))
        }
    }
}

pub(crate) fn warn_of_damage(totals: &document::Totals) {
    for document::Damaged { capture, error } in &totals.damaged {
        warn(format_args!("{capture}: {error}; what comes before that is used"));
    }
}

/// Says something beside the result; nothing depends on whether anybody hears it.
fn warn(what: std::fmt::Arguments) {
    let _ = writeln!(io::stderr(), "plait: {what}");
}

/// From a microsecond to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    time::duration(text, time::SHORT, 1e-6..=3600.0)
        .ok_or_else(|| "expected a time from 0.001ms to 3600s, such as 0.1s or 50ms".into())
}
