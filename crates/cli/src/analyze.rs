//! `plait analyze`: what captures say about connections and their subflows, as tables, JSON and CSV.

mod series;
mod table;

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use plait_trace::{Capture, Connections, ReadOptions, document};
use plait_wire::Role;
use plait_wire::capture::CaptureReader;


/// The whole document.
#[derive(serde::Serialize)]
struct Summary {
    connections: Vec<document::Connection>,
    #[serde(flatten)]
    totals: document::Totals,
}

/// Arguments of `plait analyze`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Pcap files that together hold each packet once, as one per interface; - reads stdin
    #[arg(required = true, value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write summary.json and series.csv into this folder
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// The intervals of series.csv, such as 0.1s or 50ms
    #[arg(long, value_name = "TIME", default_value = "0.1s", value_parser = interval, requires = "output")]
    interval: Duration,
}

/// Reads the captures, merged by time, and shows what is in them.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let progress = ProgressBar::new(0);
    let captures =
        args.captures.iter().map(|path| open(path, &progress)).collect::<anyhow::Result<Vec<_>>>()?;
    let interval = args.output.is_some().then_some(args.interval);
    let found =
        Connections::read(captures, ReadOptions { payload_limit: 0, interval, ..Default::default() })?;
    progress.finish_and_clear();
    let summary = Summary {
        connections: found.connections.iter().map(document::Connection::of).collect(),
        totals: document::Totals::of(&found.totals),
    };
    for damaged in &summary.totals.damaged {
        eprintln!("plait: {}: {}; what comes before that is used", damaged.capture, damaged.error);
    }
    ensure!(
        !found.connections.is_empty(),
        "expected TCP in the capture, found none: {} packets read, {}",
        found.totals.packets,
        summary.totals.skipped
    );
    if summary.connections.iter().all(|connection| connection.version.is_none()) {
        eprintln!("plait: no MPTCP in the capture, only {} TCP connections", found.connections.len());
    }
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
        write(&folder.join("summary.json"), |out| Ok(serde_json::to_writer_pretty(out, &summary)?))?;
        write(&folder.join("series.csv"), |out| series::write(&found, args.interval, out))?;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = match args.json {
        true => serde_json::to_writer_pretty(&mut out, &summary).map_err(io::Error::from),
        false => table::write(&summary, &mut out),
    };
    printed.and_then(|()| writeln!(out)).and_then(|()| out.flush()).context("cannot write to stdout")
}

fn open(path: &Path, progress: &ProgressBar) -> anyhow::Result<Capture<Box<dyn Read>>> {
    let name = path.display().to_string();
    let input: Box<dyn Read> = if name == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        progress.inc_length(file.metadata().map_or(0, |metadata| metadata.len()));
        Box::new(progress.wrap_read(file))
    };
    let reader = CaptureReader::new(input).with_context(|| name.clone())?;
    Ok(Capture { path: plait_trace::Path { name, role: Role::Untrusted }, reader })
}

fn write(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let write = || {
        let mut out = BufWriter::new(File::create(path)?);
        content(&mut out)?;
        Ok::<_, anyhow::Error>(out.flush()?)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// From a microsecond to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    match number.trim().parse::<f64>().map(|number| number * unit) {
        Ok(seconds) if (1e-6..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a time from 0.001ms to 3600s, such as 0.1s or 50ms".into()),
    }
}
