//! `plait top`: the MPTCP connections of this host, as a live full-screen snapshot or printed once.

mod draw;
#[cfg(test)]
mod fixture;
mod keyboard;
mod list;
mod table;
mod terminal;

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use plait_config::{TextError, parse_duration_or_seconds};
use plait_linux::diag::{Growth, Watch};
use plait_scheduler::SteeredSubflows;

use crate::snapshot::{Snapshot, steered_subflows};
use crate::stdout::{self, Stdout, json_text};

/// Arguments of `plait top`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Time between samples, such as 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Take two samples, print the difference, and exit
    #[arg(long)]
    once: bool,
    /// Print JSON (requires --once)
    #[arg(long, requires = "once")]
    json: bool,
}

/// Shows the connections of this network namespace.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.once {
        return once(&args);
    }
    ensure!(
        stdout::is_terminal(),
        "expected stdout to be a terminal, got something else: use --once to print the connections once"
    );
    terminal::run(args.interval)
}

fn once(args: &Args) -> anyhow::Result<()> {
    let mut watch = Watch::open()?;
    let mut growth = Growth::default();
    growth.since_last(&watch.sample()?);
    let begin = Instant::now();
    thread::sleep(args.interval);
    let samples = watch.last_sample()?;
    let elapsed = begin.elapsed();
    let grown = growth.since_last(&samples).unwrap_or_default();
    let steered = steered_subflows(SteeredSubflows::open().ok().as_ref());
    let snapshot = Snapshot::new(samples, &grown, elapsed, &steered);
    let text = match args.json {
        true => json_text(&snapshot)? + "\n",
        false => table::text(&snapshot),
    };
    let mut out = Stdout::until_closed();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Parses an interval from 50 ms to an hour. Below 50 ms, counters hardly change and sampling costs more than it shows.
pub(crate) fn interval(text: &str) -> Result<Duration, TextError> {
    parse_duration_or_seconds(text, &(Duration::from_millis(50)..=Duration::from_secs(3600)))
}
