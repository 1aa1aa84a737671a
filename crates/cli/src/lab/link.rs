//! `plait lab link`: runs one link between two network namespaces.

mod arguments;
mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use plait_emulator::{Backend, End, Link};
use plait_lab::{Lab, remove_leftovers};
use plait_linux::netns::NetNs;
use plait_linux::signal::StopSignal;

use crate::stderr::eprintln;
use crate::stdout::{print_json, print_text};
pub(crate) use arguments::Args;
use arguments::{LinkEnd, Timed};
use report::Report;

/// How often the stop signal is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the link until a signal or the end of its time. The exit status is 1 if frames were later than allowed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    Lab::check_permitted()?;
    if let Err(error) = remove_leftovers() {
        tracing::warn!("cannot remove what an earlier run left: {error}");
    }
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    let spec = args.spec()?;
    let (a, b) = (open(&args.a, "--a")?, open(&args.b, "--b")?);
    ensure!(
        a.identity()? != b.identity()? || args.a.interface != args.b.interface,
        "expected two different ends, got {} twice",
        args.a
    );
    if let (Some(end), Some(timed)) = (args.duration, args.at.iter().max_by_key(|timed| timed.at)) {
        ensure!(timed.at <= end, "expected changes before the end after {end:?}, got --at {}", timed.text);
    }
    let changes = || args.at.iter().map(|timed| &timed.change);
    let backend = args.backend.map_or_else(|| Backend::for_link(&spec, changes()), Ok)?;
    backend.check(&spec, changes())?;
    let ends = [
        End { namespace: &a, interface: &args.a.interface },
        End { namespace: &b, interface: &args.b.interface },
    ];
    let mut link = Link::make(&spec, backend, ends[0], ends[1])?;
    let start = Instant::now();
    eprintln!("plait lab link: ready: {} to {} by {backend}", args.a, args.b);

    keep(&mut link, args, start, &stop)?;
    let report = Report::new(backend, start.elapsed(), link.statistics()?, args.lateness_limit);
    drop(link);
    if args.json {
        print_json(&report)?
    } else {
        print_text(&report.text())?
    }
    if let Some(reason) = &report.invalid_because {
        eprintln!("plait: {reason}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn open(end: &LinkEnd, option: &str) -> anyhow::Result<NetNs> {
    let namespace = &end.namespace;
    let opened = match namespace.contains('/') {
        true => NetNs::at(namespace.as_ref()),
        false => NetNs::named(namespace),
    };
    opened.with_context(|| {
        format!(
            "{option}: expected the name of a namespace that `ip netns` lists, or a path, got {namespace:?}"
        )
    })
}

/// Applies the changes at their times, until the end.
fn keep(link: &mut Link, args: &Args, start: Instant, stop: &StopSignal) -> anyhow::Result<()> {
    let mut changes: Vec<&Timed> = args.at.iter().collect();
    changes.sort_by_key(|timed| timed.at);
    for timed in changes {
        if stop.sleep_until(start + timed.at).is_err() {
            return Ok(());
        }
        link.apply(&timed.change).with_context(|| format!("--at {}", timed.text))?;
        eprintln!("plait lab link: {}", timed.text);
    }
    match args.duration {
        Some(duration) => _ = stop.sleep_until(start + duration),
        None => while stop.sleep_until(Instant::now() + POLL_INTERVAL).is_ok() {},
    }
    Ok(())
}
