//! `plait policy stats`: the counters of chains and actors.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use plait_linux::signal::StopSignal;
use plait_policy::engine::{Attachment, Counters, Engine, SkipCounters, Statistics};
use serde::Serialize;

use super::NOTHING_LOADED;
use super::list::attachment_text;
use crate::stdout::{self, Stdout, aligned, json_line, json_text};
use crate::top::interval;

/// Print the counters of chains and actors
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print only this policy
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Measure for this long how much time chains and actors take, and print the counters of that period [1s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s",
          value_parser = interval)]
    timing: Option<Duration>,
    /// Print again at this interval, until Ctrl-C [1s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s",
          value_parser = interval, conflicts_with = "timing")]
    watch: Option<Duration>,
    /// Print JSON; with --watch, one line each time
    #[arg(long)]
    json: bool,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    statistics: Statistics,
    attachments: Vec<Attachment>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let engine = Engine::current()?;
    match (args.watch, args.timing) {
        (Some(pause), _) => watch(args, &engine, pause),
        (None, Some(time)) => {
            let timed = timed(&engine, time)?;
            print(args, &engine, timed)
        }
        (None, None) => print(args, &engine, engine.statistics()?),
    }
}

/// The counters of a period in which time is measured.
fn timed(engine: &Engine, time: Duration) -> anyhow::Result<Statistics> {
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    let timing = engine.measure_time()?;
    ensure!(timing.is_some(), "{NOTHING_LOADED}");
    let before = engine.statistics()?;
    let _ = stop.sleep_until(Instant::now() + time);
    Ok(since(engine.statistics()?, &before))
}

fn watch(args: &Args, engine: &Engine, pause: Duration) -> anyhow::Result<()> {
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    let clears = stdout::is_terminal() && !args.json;
    while !stop.is_requested() {
        if clears {
            Stdout::until_closed().clear_screen()?;
        }
        print(args, engine, engine.statistics()?)?;
        let _ = stop.sleep_until(Instant::now() + pause);
    }
    Ok(())
}

fn print(args: &Args, engine: &Engine, mut statistics: Statistics) -> anyhow::Result<()> {
    if let Some(name) = &args.name {
        let names: Vec<_> = statistics.policies.iter().map(|policy| policy.name.clone()).collect();
        statistics.policies.retain(|policy| policy.name == *name);
        if statistics.policies.is_empty() {
            let unknown = plait_policy::engine::EngineError::Unknown { name: name.clone(), loaded: names };
            return Err(unknown.into());
        }
    }
    let document = Document { statistics, attachments: engine.attachments()? };
    // With --watch, the reader may close the pipe.
    let mut out = Stdout::until_closed();
    if args.json {
        let text = match args.watch {
            Some(_) => json_line(&document)?,
            None => json_text(&document)?,
        };
        writeln!(out, "{text}")?;
    } else if document.statistics.policies.is_empty() {
        writeln!(out, "no policy is loaded")?;
    } else {
        write!(out, "{}", table(&document.statistics, args.timing.is_some()))?;
        for attachment in &document.attachments {
            writeln!(out, "  {}", attachment_text(attachment))?;
        }
    }
    Ok(out.flush()?)
}

/// Formats statistics as a table; `timed` adds the time per packet.
pub(super) fn table(statistics: &Statistics, timed: bool) -> String {
    let time = if timed { "ns/packet" } else { "" };
    let mut rows = vec![["", "hook", "packets", "bytes", "hits", "errors", time].map(String::from)];
    for policy in &statistics.policies {
        for chain in &policy.chains {
            rows.push(row(format!("{}/{}", policy.name, chain.name), chain.hook.name(), &chain.count, timed));
            let actors = chain.actors.iter();
            rows.extend(actors.map(|actor| row(format!("  {}", actor.name), "", &actor.count, timed)));
        }
    }
    let mut text = aligned(&rows, &[0, 1]).join("\n") + "\n";
    let Statistics { flows, flows_seen, connections_seen, .. } = statistics;
    let _ = writeln!(
        text,
        "  subflows: {flows} tracked, {flows_seen} seen; connections seen: {connections_seen}"
    );
    let skipped: Vec<_> = reasons(&statistics.skipped).filter(|(_, count)| *count > 0).collect();
    for (reason, count) in skipped {
        let _ = writeln!(text, "  skipped: {count} ({reason})");
    }
    text
}

fn row(name: String, hook: &str, count: &Counters, timed: bool) -> [String; 7] {
    let Counters { packets, bytes, hits, errors, nanoseconds } = count;
    let each = match timed && *nanoseconds > 0 {
        true => format!("{:.0}", *nanoseconds as f64 / (*packets).max(1) as f64),
        false => String::new(),
    };
    let number = |number: &u64| number.to_string();
    [name, hook.into(), number(packets), number(bytes), number(hits), number(errors), each]
}

fn reasons(skipped: &SkipCounters) -> impl Iterator<Item = (&'static str, u64)> {
    let SkipCounters {
        fragments,
        extension_headers,
        malformed,
        bad_options,
        wrong_checksum,
        no_memory,
        lost_events,
    } = *skipped;
    [
        ("fragments", fragments),
        ("IPv6 extension headers", extension_headers),
        ("malformed headers", malformed),
        ("malformed TCP options", bad_options),
        ("wrong checksums", wrong_checksum),
        ("subflow table full", no_memory),
        ("events lost because they were not read in time", lost_events),
    ]
    .into_iter()
}

/// The difference of two samples. Chains that are new began at zero.
fn since(mut now: Statistics, before: &Statistics) -> Statistics {
    for policy in &mut now.policies {
        let old = before.policies.iter().find(|old| old.name == policy.name);
        for chain in &mut policy.chains {
            let old = old.and_then(|old| old.chains.iter().find(|old| old.name == chain.name));
            let Some(old) = old else { continue };
            subtract(&mut chain.count, &old.count);
            for (actor, old) in chain.actors.iter_mut().zip(&old.actors) {
                subtract(&mut actor.count, &old.count);
            }
        }
    }
    now
}

/// Saturates, as an actor that was replaced in between has lower counters.
fn subtract(count: &mut Counters, before: &Counters) {
    count.packets = count.packets.saturating_sub(before.packets);
    count.bytes = count.bytes.saturating_sub(before.bytes);
    count.hits = count.hits.saturating_sub(before.hits);
    count.errors = count.errors.saturating_sub(before.errors);
    count.nanoseconds = count.nanoseconds.saturating_sub(before.nanoseconds);
}
