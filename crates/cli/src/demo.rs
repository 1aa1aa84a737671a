//! `plait demo`: the published eavesdropping experiment, end to end, on this machine.
//!
//! A client and a server, each in its own network namespace, are joined by a trusted path `eth` and an untrusted path
//! `wlan`. Unmodified curl fetches a real text from unmodified nginx through `plait run` and `plait serve`, once in
//! each mode, while a real tcpdump listens on `wlan`. Then the demo shows what the listener has. A second tcpdump, on `eth`, is no eavesdropper but the judge: only who sees both paths knows the whole stream,
//! and so which part of it crossed each.
//!
//! Nothing outside the demo's own namespaces is touched, and nothing of it remains but the directory with the results.

mod document;
mod judge;
mod piece;
mod report;
mod summary;
mod transfer;

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use plait_lab::Rate;
use plait_linux::signal::StopSignal;
use plait_proto::option::Mode;

use document::Document;
use report::Report;

/// The plain run shows the danger, the others the protection.
const MODES: [Mode; 4] = [Mode::Off, Mode::Xor64, Mode::Stream, Mode::Sealed];

/// Show what a listener on one path gets of an unmodified program's connection, without and with protection
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory for summary.json, report.txt and the captures
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
    /// Print the content of summary.json instead of the table
    #[arg(long)]
    json: bool,
    /// Size of the document, at least 1000000; less is used if this machine has less text
    #[arg(long, value_name = "BYTES", default_value_t = 16_000_000,
          value_parser = clap::value_parser!(u64).range(document::SMALLEST..=1_000_000_000))]
    size: u64,
    /// Rate of the trusted path
    #[arg(long, value_name = "RATE", default_value = "100mbit")]
    rate_eth: Rate,
    /// Rate of the untrusted path
    #[arg(long, value_name = "RATE", default_value = "54mbit")]
    rate_wlan: Rate,
}

/// Runs the demo; an error if it could not be run, was interrupted, or did not show what it should.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let interrupt = StopSignal::listen().context("cannot listen for signals")?;
    transfer::check_requirements()?;
    let steps = Steps::new(2 + 2 * MODES.len() as u64);

    steps.next("gathering a text from this machine's documentation");
    let document = Document::gather(args.size)?;
    let mut transfers = Vec::new();
    for mode in MODES {
        steps.next(&format!("{}: curl fetches {} bytes over both paths", mode, document.text.len()));
        let directory = args.out.join(mode.to_string());
        let rates = [args.rate_eth, args.rate_wlan];
        transfers.push(transfer::run(mode, &document, rates, &directory, &interrupt)?);
    }
    let mut judged = Vec::new();
    for transfer in transfers {
        steps.next(&format!("{}: reading the captures", transfer.mode));
        judged.push(judge::judge(transfer, &document, &interrupt)?);
    }
    steps.next("comparing what the listener has");
    let report = Report::new(&document, &judged);
    interrupt.check()?;
    drop(steps);

    let (text, failures) = (report.text(), report.failures());
    let json = summary::json(&document, &judged, &failures)?;
    write(&args.out.join("summary.json"), &json)?;
    write(&args.out.join("report.txt"), &anstream::adapter::strip_str(&text).to_string())?;
    let printed = if args.json { json } else { format!("{text}\nSaved in {}\n", args.out.display()) };
    anstream::stdout().write_all(printed.as_bytes()).context("cannot write to stdout")?;
    ensure!(failures.is_empty(), "the demo did not show what it should: {}", failures.join("; "));
    Ok(())
}

fn write(path: &PathBuf, content: &str) -> anyhow::Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// What goes on, on stderr: a bar on a terminal, otherwise a line per step.
struct Steps {
    bar: Option<ProgressBar>,
}

impl Steps {
    fn new(count: u64) -> Self {
        let style = ProgressStyle::with_template("{spinner} [{pos}/{len}] {msg} ({elapsed})");
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::new(count).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar }
    }

    fn next(&self, what: &str) {
        match &self.bar {
            Some(bar) => {
                bar.inc(1);
                bar.set_message(what.to_owned());
            }
            None => eprintln!("plait demo: {what}"),
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
