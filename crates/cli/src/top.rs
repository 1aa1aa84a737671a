//! `plait top`: what the MPTCP connections of this host do now, as a full-screen view that goes on or printed once.

mod keys;
mod list;
mod live;
#[cfg(test)]
mod sample;
mod screen;
mod table;
mod view;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use plait_linux::diag::{Growth, Watch};

use crate::stdout::Stdout;
use crate::time;
use view::View;

/// Arguments of `plait top`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Time between samples, such as 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Take two samples, print what happened between them, and end
    #[arg(long)]
    once: bool,
    /// With --once: print JSON
    #[arg(long, requires = "once")]
    json: bool,
}

/// Shows every connection of this network namespace.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.once {
        return once(&args);
    }
    ensure!(
        io::stdout().is_terminal(),
        "expected a terminal to draw on, found something else as stdout: use --once to print the connections once"
    );
    live::run(args.interval)
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
    let view = View::new(samples, &grown, elapsed);
    let text = match args.json {
        true => serde_json::to_string_pretty(&view)? + "\n",
        false => table::text(&view),
    };
    let mut out = Stdout::until_closed();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// From 50 ms, below which counters hardly move and looking costs more than it shows, to an hour.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    time::duration(text, time::SHORT, 0.05..=3600.0)
        .ok_or_else(|| "expected a time from 50ms to 3600s, such as 1s or 500ms".into())
}
