//! `plait demo`: the published eavesdropping experiment, end to end, on this machine.
//!
//! Unmodified curl downloads a text from unmodified nginx over two emulated paths, once in each mode, while tcpdump captures
//! both. The capture of the untrusted path is what an eavesdropper has; that of the trusted path serves to find out which
//! part of the stream crossed which path. The report and the captures stay in a directory; nothing else remains.

mod analysis;
mod document;
mod excerpt;
mod report;
mod transfer;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use plait_lab::Rate;
use plait_linux::signal::StopSignal;
use plait_proto::option::Mode;
use serde_json::json;

use crate::stderr::{self, eprintln};
use crate::stdout::{Stdout, json_text, print_text};
use document::Document;
use report::Report;

/// Unprotected first, for comparison.
const MODES: [Mode; 4] = [Mode::Off, Mode::Xor64, Mode::Stream, Mode::Sealed];

/// Reproduce the eavesdropping experiment: what a listener on one path gets, without protection and in each mode
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory for summary.json, report.txt and the captures
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Print the content of summary.json instead of the table
    #[arg(long)]
    json: bool,
    /// Size of the text, at least 1000000; less if this machine has less text
    #[arg(long, value_name = "BYTES", default_value_t = 16_000_000,
          value_parser = clap::value_parser!(u64).range(document::MIN_SIZE..=1_000_000_000))]
    size: u64,
    /// Rate of the trusted path
    #[arg(long, value_name = "RATE", default_value = "100mbit")]
    rate_eth: Rate,
    /// Rate of the untrusted path
    #[arg(long, value_name = "RATE", default_value = "54mbit")]
    rate_wlan: Rate,
}

/// Runs the demo. Fails if it cannot run, is interrupted, or does not show what it should.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let interrupt = StopSignal::listen().context("cannot listen for signals")?;
    transfer::check_requirements()?;
    let progress = Progress::new(2 * MODES.len() as u64);
    let document = Document::collect(args.size)?;
    let mut runs = Vec::new();
    for mode in MODES {
        progress.step(&format!("{mode}: downloading {} bytes over both paths", document.text.len()));
        let directory = args.out.join(mode.to_string());
        let transfer =
            transfer::run(mode, &document, [args.rate_eth, args.rate_wlan], &directory, &interrupt)?;
        progress.step(&format!("{mode}: analyzing the captures"));
        runs.push(analysis::analyze(transfer, &document)?);
        interrupt.check()?;
    }
    drop(progress);

    let report = Report::new(&document, &runs);
    let (text, failures) = (report.text(), report.failures());
    let uname = rustix::system::uname();
    let summary = json!({
        "runs": runs,
        "document": {"bytes": document.text.len(), "sha256": hex::encode(document.sha256)},
        "kernel": format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        "failures": failures,
    });
    let summary = json_text(&summary)? + "\n";
    write(&args.out.join("summary.json"), &summary)?;
    write(&args.out.join("report.txt"), &text.plain())?;
    if args.json {
        print_text(&summary)?;
    } else {
        let mut out = Stdout::new();
        out.write_styled(&text)?;
        writeln!(out, "\nSaved in {}", args.out.display())?;
        out.flush()?;
    }
    ensure!(failures.is_empty(), "the demo did not show what it should: {}", failures.join("; "));
    Ok(())
}

fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Progress on stderr: a bar on a terminal, otherwise a line per step.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(steps: u64) -> Self {
        let style =
            ProgressStyle::with_template("[{pos}/{len}] {msg} ({elapsed})").expect("a valid template");
        Self(stderr::is_terminal().then(|| ProgressBar::new(steps).with_style(style)))
    }

    fn step(&self, what: &str) {
        match &self.0 {
            Some(bar) => {
                bar.inc(1);
                stderr::set_message(bar, what);
            }
            None => eprintln!("plait demo: {what}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
