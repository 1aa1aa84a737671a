//! `plait report`: one page that shows what is in captures.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use plait_trace::output::{Output, WholeFile};
use plait_trace::{Interval, Report, analyze, document};

use crate::analyze::{bar, warn_of_damage};

/// Arguments of `plait report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Captures of one measurement, or folders of captures; - reads stdin
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
    let mut captures = Vec::new();
    for path in args.captures {
        match path.is_dir() {
            true => captures.extend(captures_in(&path)?),
            false => captures.push(path),
        }
    }
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

/// The files of a folder that are named as captures are.
fn captures_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        Ok(paths.into_iter().filter(|path| path.is_file() && is_named_as_capture(path)).collect())
    };
    let mut captures = read().with_context(|| format!("cannot read the folder {}", folder.display()))?;
    captures.sort();
    ensure!(!captures.is_empty(), "expected captures (.pcap, .pcapng) in {}, found none", folder.display());
    Ok(captures)
}

fn is_named_as_capture(path: &Path) -> bool {
    let name = path.to_string_lossy();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    [".pcap", ".pcapng", ".cap"].iter().any(|ending| name.ends_with(ending))
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
