//! `plait report`: an HTML page on captures.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use plait_config::AtomicFile;
use plait_trace::export::Exporter;
use plait_trace::{Interval, Report, analyze, document};

use crate::analyze::{progress_bar, warn_if_damaged};
use crate::stdout::Stdout;

/// Arguments of `plait report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Captures of one measurement, or directories of captures; - reads stdin
    #[arg(required = true, value_name = "CAPTURE|DIR")]
    captures: Vec<PathBuf>,
    /// The page to write; - writes stdout
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// Length of the intervals, which the page makes longer if there are many.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reads the captures and writes the page.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let captures = plait_trace::input_files(&args.captures)?;
    let names = captures.iter().map(|path| path.display().to_string()).collect();
    let output = if args.output.as_os_str() == "-" {
        Output::Stdout(Stdout::new())
    } else {
        Output::File(AtomicFile::create(args.output)?)
    };
    let page = Page { report: Report::new(names, INTERVAL), output };
    let progress = progress_bar(&captures);
    let totals = analyze(&captures, None, INTERVAL, page, &|bytes| {
        progress.inc(bytes);
        Ok(())
    })?;
    progress.finish_and_clear();
    warn_if_damaged(&totals);
    Ok(())
}

struct Page {
    report: Report,
    output: Output,
}

enum Output {
    File(AtomicFile),
    Stdout(Stdout),
}

impl Exporter for Page {
    fn wants_intervals(&self) -> bool {
        true
    }

    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        self.report.interval(interval);
        Ok(())
    }

    fn connection(&mut self, connection: &document::Connection) -> io::Result<()> {
        self.report.connection(connection);
        Ok(())
    }

    fn finish(self, totals: &document::Totals) -> io::Result<()> {
        match self.output {
            Output::File(mut file) => {
                self.report.write_html(totals, &mut file)?;
                file.publish()
            }
            Output::Stdout(mut out) => {
                self.report.write_html(totals, &mut out)?;
                out.flush()
            }
        }
    }
}
