//! `plait bench policy`: what a policy costs each packet.
//!
//! # Method
//!
//! - The kernel runs the programs that policies are loaded with on one packet, 10^6 times in a row
//!   (`BPF_PROG_TEST_RUN`), at XDP, and says how long it took on average, to the nanosecond. Nothing is received or sent.
//! - The cases take turns: each runs once in each *round*, so that a slower or disturbed spell of the machine meets all
//!   of them. What is printed are medians over the rounds; what a case costs above the empty program is the median of the
//!   differences within a round.
//! - A chain of N has N/2 selectors joined by `and`, all of which hold, and N/2 actors: of record, rate_limit,
//!   set_backup and get_connection, on a packet with data of a known subflow. `rate_limit` finds the window as
//!   its first run has left it; to change one takes some 20 ns more, once for a packet.
//! - With 10,000 subflows remembered, packets of 100 of them take turns.

mod frames;

use std::io::Write as _;

use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use plait_policy::engine::{Frame, Trial};
use plait_policy::{Hook, Policy};
use serde::Serialize;
use serde_json::json;

use super::measure::median;
use super::report::{cpu, kernel};
use crate::stdout::Stdout;

/// Arguments of `plait bench policy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How often each case has its turn.
const ROUNDS: usize = 11;
/// How often a packet runs in a turn.
const REPEATS: u32 = 1_000_000;
/// Subflows that are remembered, and those whose packets take turns.
const SUBFLOWS: u16 = 10_000;
const TAKING_TURNS: u16 = 100;

/// One thing to measure: nanoseconds of a packet.
struct Case {
    name: &'static str,
    turn: Box<dyn FnMut() -> anyhow::Result<f64>>,
}

/// What was measured of a case.
#[derive(Serialize)]
struct Measured {
    case: &'static str,
    ns: f64,
    above_empty_ns: f64,
}

/// What a case shall not exceed.
#[derive(Serialize)]
struct Bound {
    what: &'static str,
    most: f64,
    found: f64,
    unit: &'static str,
    met: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut cases = cases()?;
    let progress = ProgressBar::new((ROUNDS * cases.len()) as u64).with_style(
        ProgressStyle::with_template("{msg} [{bar:40}] {percent}%, {eta} left")?.progress_chars("=> "),
    );
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    for _ in 0..ROUNDS {
        let mut round = Vec::new();
        for case in &mut cases {
            progress.set_message(case.name);
            round.push((case.turn)()?);
            progress.inc(1);
        }
        rounds.push(round);
    }
    progress.finish_and_clear();
    let names: Vec<_> = cases.iter().map(|case| case.name).collect();
    let measured: Vec<_> =
        names.iter().enumerate().map(|(place, name)| summary(name, place, &rounds)).collect();
    report(&measured, &bounds(&measured, &names, &rounds), args.json)
}

fn cases() -> anyhow::Result<Vec<Case>> {
    let data = frames::data(0);
    Ok(vec![
        Case { name: "empty", turn: idle(trial(&chain(4))?, data.clone()) },
        Case { name: "non-mptcp", turn: ingress(trial(&chain(4))?, vec![frames::plain()], false)? },
        Case { name: "no-match", turn: ingress(trial(NO_MATCH)?, vec![data.clone()], false)? },
        Case { name: "chain-2", turn: ingress(trial(&chain(1))?, vec![data.clone()], true)? },
        Case { name: "chain-4", turn: ingress(trial(&chain(2))?, vec![data.clone()], true)? },
        Case { name: "chain-8", turn: ingress(trial(&chain(4))?, vec![data], true)? },
        Case { name: "chain-8-10000-subflows", turn: among_many()? },
    ])
}

const SELECTORS: [&str; 4] = [
    "packet(data)",
    "subflow(src = 192.0.2.0/24, dport = 443)",
    "sequence(data = 1-1000000)",
    "size(0-900GB)",
];
const ACTORS: [&str; 4] =
    ["\"record\"", "{ rate_limit = { window = \"32kB\" } }", "\"set_backup\"", "\"get_connection\""];

/// A chain of the first of the selectors and actors.
fn chain(length: usize) -> String {
    let (select, actors) = (SELECTORS[..length].join(" and "), ACTORS[..length].join(", "));
    format!("[[chains]]\nname = \"chain\"\nhook = \"ingress\"\nselect = \"{select}\"\nactors = [{actors}]\n")
}

/// Four chains, each for something else.
const NO_MATCH: &str = r#"
[[chains]]
name = "elsewhere"
hook = "ingress"
select = "subflow(src = 203.0.113.0/24)"
actors = ["drop"]
[[chains]]
name = "announcements"
hook = "ingress"
select = "packet(add_addr, remove_addr)"
actors = ["drop"]
[[chains]]
name = "joins"
hook = "ingress"
select = "packet(mp_join) and not src(10.0.0.0/8)"
actors = ["drop"]
[[chains]]
name = "far"
hook = "ingress"
select = "sequence(data = 5000000-6000000)"
actors = ["drop"]
"#;

fn trial(chains: &str) -> anyhow::Result<Trial> {
    let text = format!("name = \"bench\"\ninterfaces = [\"*\"]\n{chains}");
    let policy = Policy::parse(&text, "bench").context("the policy of this benchmark")?;
    Ok(Trial::new(&[policy], None)?)
}

type Turn = Box<dyn FnMut() -> anyhow::Result<f64>>;

fn idle(trial: Trial, frame: Vec<u8>) -> Turn {
    Box::new(move || Ok(trial.idle(&frame, REPEATS)?.into()))
}

/// Runs these packets in equal parts; each is checked to match, or not to, as is meant.
fn ingress(trial: Trial, frames: Vec<Vec<u8>>, matches: bool) -> anyhow::Result<Turn> {
    for handshake in frames::handshake(0) {
        trial.run(&handshake.frame(), 1)?;
    }
    let repeats = REPEATS / frames.len() as u32;
    Ok(Box::new(move || {
        let mut sum = 0.0;
        for frame in &frames {
            let ran = trial.run(&incoming(frame), repeats)?;
            ensure!(
                ran.chains.is_empty() != matches,
                "a packet of this benchmark did not match what it was made for"
            );
            sum += f64::from(ran.nanoseconds);
        }
        Ok(sum / frames.len() as f64)
    }))
}

fn among_many() -> anyhow::Result<Turn> {
    let trial = trial(&chain(4))?;
    for subflow in 0..SUBFLOWS {
        for handshake in frames::handshake(subflow) {
            trial.run(&handshake.frame(), 1)?;
        }
    }
    let known = trial.statistics()?.flows_seen;
    ensure!(known == u64::from(SUBFLOWS), "expected {SUBFLOWS} subflows to be remembered, found {known}");
    let frames = (0..TAKING_TURNS).map(|number| frames::data(number * (SUBFLOWS / TAKING_TURNS))).collect();
    ingress(trial, frames, true)
}

fn incoming(bytes: &[u8]) -> Frame<'_> {
    Frame { hook: Hook::Ingress, by_tc: false, bytes, mark: 0 }
}

fn summary(case: &'static str, place: usize, rounds: &[Vec<f64>]) -> Measured {
    let ns = median(rounds.iter().map(|round| round[place]));
    let above_empty_ns = median(rounds.iter().map(|round| round[place] - round[0]));
    Measured { case, ns, above_empty_ns }
}

fn bounds(measured: &[Measured], names: &[&str], rounds: &[Vec<f64>]) -> Vec<Bound> {
    let place = |name: &str| names.iter().position(|other| *other == name).unwrap_or_default();
    let (alone, many) = (place("chain-8"), place("chain-8-10000-subflows"));
    let more = median(rounds.iter().map(|round| (round[many] / round[alone] - 1.0) * 100.0));
    let bound = |what, most, found: f64, unit| Bound { what, most, found, unit, met: found <= most };
    vec![
        bound("non-mptcp above empty", 40.0, measured[place("non-mptcp")].above_empty_ns, "ns"),
        bound("no-match above empty", 100.0, measured[place("no-match")].above_empty_ns, "ns"),
        bound("chain-8", 400.0, measured[alone].ns, "ns"),
        bound("10,000 subflows change chain-8 by", 20.0, more, "%"),
    ]
}

fn report(measured: &[Measured], bounds: &[Bound], as_json: bool) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    if as_json {
        let document = json!({
            "cpu": cpu(),
            "kernel": kernel(),
            "rounds": ROUNDS,
            "repeats": REPEATS,
            "results": measured,
            "bounds": bounds,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        return Ok(out.flush()?);
    }
    writeln!(
        out,
        "{}, Linux {}, BPF test runs at XDP, {REPEATS} repeats, medians of {ROUNDS} rounds\n",
        cpu(),
        kernel()
    )?;
    writeln!(out, "{:24}{:>10}{:>16}", "", "ns", "above empty")?;
    for Measured { case, ns, above_empty_ns } in measured {
        writeln!(out, "{case:24}{ns:>10.0}{above_empty_ns:>16.0}")?;
    }
    writeln!(out)?;
    for Bound { what, most, found, unit, met } in bounds {
        let met = if *met { "met" } else { "MISSED" };
        writeln!(out, "{what}: {found:.1} {unit}, at most {most}: {met}")?;
    }
    Ok(out.flush()?)
}
