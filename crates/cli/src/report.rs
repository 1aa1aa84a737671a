//! `plait report`: one page that shows what is in captures.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use plait_trace::output::{Output, WholeFile};
use plait_trace::{Interval, Report, analyze, document};

use crate::analyze::{bar, warn_of_damage};

/// Arguments of `plait report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Captures of one measurement, or directories of captures; - reads stdin
    #[arg(required = true, value_name = "CAPTURE|DIR")]
    captures: Vec<PathBuf>,
    /// The page to write
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// The page makes them longer where there are many.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reads the captures and writes the page.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let captures = plait_trace::inputs(&args.captures)?;
    let names = captures.iter().map(|path| path.display().to_string()).collect();
    let page = Page { report: Report::new(names, INTERVAL), file: WholeFile::create(args.output)? };
    let progress = bar(&captures);
    let totals = analyze(&captures, None, INTERVAL, page, &|bytes| {
        progress.inc(bytes);
        Ok(())
    })?;
    progress.finish_and_clear();
    warn_of_damage(&totals);
    Ok(())
}

struct Page {
    report: Report,
    file: WholeFile,
}

impl Output for Page {
    fn intervals(&self) -> bool {
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

    fn finish(mut self, totals: &document::Totals) -> io::Result<()> {
        self.report.write_html(totals, &mut self.file)?;
        self.file.publish()
    }
}
