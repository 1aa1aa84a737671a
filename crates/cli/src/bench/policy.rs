//! `plait bench policy`: what a policy costs each packet.
//!
//! # Method
//!
//! - The kernel runs the programs that policies are loaded with on packets (`BPF_PROG_TEST_RUN`), at XDP, or at TC what
//!   goes out, and says how long they took, to the nanosecond. Nothing is received or sent.
//! - What does not change a packet runs on it 10^6 times in a row, and the kernel says how long it took on average.
//!   An actor that changes a packet does so once only in such a row. So packets of actors, and those of many subflows, run
//!   each by itself, 10^5 times in a turn, and the mean of the middle half of the times counts. These times have in them
//!   what it takes the kernel to look at its clock; what a case costs above another packet has not.
//! - Each case is measured beside what it is compared with: the empty program, or the same packets with a policy that
//!   matches none of them. What is printed are medians over the *rounds*. The cases of the cost take turns: each runs once
//!   in each round, so that a slower or disturbed spell of the machine meets all of them.
//! - That an actor did what it is for, with each packet that counts, is seen by the chains' counters.

mod cost;
mod frames;
mod operators;
mod report;
mod subflows;

use std::fmt;
use std::rc::Rc;

use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use plait_policy::Policy;
use plait_policy::engine::{Frame, Trial};
use serde::Serialize;

use self::frames::Passing;
use super::measure::median;

/// Arguments of `plait bench policy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What is measured: cost (chains of some lengths, and what passes them by), operators (each actor and each kind of
    /// selector alone; a minute), subflows (chains with 1 to 10,000 of them), all, or names of cases
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "cost")]
    cases: Vec<String>,
    /// How often each case has its turn
    #[arg(long, value_name = "NUMBER", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How often a packet runs in a turn, in a row.
const REPEATS: u32 = 1_000_000;
/// How many packets that count run in a turn, each by itself.
const SINGLE: u32 = 100_000;

/// Something to measure.
struct Case {
    name: String,
    group: Group,
    /// Loads what it takes.
    begin: Box<dyn Fn() -> anyhow::Result<Turn>>,
}

impl Case {
    fn is_meant_by(&self, name: &str) -> bool {
        name == "all" || name == self.group.to_string() || name == self.name
    }
}

/// What cases are asked for by, and what they are compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Cost,
    Operators,
    Subflows,
}

type Turn = Box<dyn FnMut() -> anyhow::Result<Took>>;

/// What a packet took in a turn, in nanoseconds.
struct Took {
    ns: f64,
    /// What the one took that it is compared with.
    reference: f64,
}

/// What was measured of a case.
#[derive(Serialize)]
struct Measured {
    case: String,
    ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    above_empty_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    above_no_match_ns: Option<f64>,
    /// By round.
    #[serde(skip)]
    turns: Vec<f64>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let chosen = chosen(&args.cases)?;
    let progress = ProgressBar::new(u64::from(args.rounds) * chosen.len() as u64).with_style(
        ProgressStyle::with_template("{msg} [{bar:40}] {percent}%, {eta} left")?.progress_chars("=> "),
    );
    let (together, alone): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|case| case.group == Group::Cost);
    let mut measured = measure(&together, args.rounds, &progress)?;
    for case in alone {
        measured.extend(measure(&[case], args.rounds, &progress)?);
    }
    progress.finish_and_clear();
    let bounds = cost::bounds(&measured);
    if args.json {
        report::json(&measured, &bounds, args.rounds)
    } else {
        report::text(&measured, &bounds, args.rounds)
    }
}

/// The cases that are asked for, each once.
fn chosen(names: &[String]) -> anyhow::Result<Vec<Case>> {
    let mut cases = cost::cases();
    cases.extend(operators::cases());
    cases.extend(subflows::cases());
    for name in names {
        let known = || cases.iter().map(|case| case.name.as_str()).collect::<Vec<_>>().join(", ");
        ensure!(
            cases.iter().any(|case| case.is_meant_by(name)),
            "expected cost, operators, subflows, all, or some of {}; found '{name}'",
            known()
        );
    }
    cases.retain(|case| names.iter().any(|name| case.is_meant_by(name)));
    Ok(cases)
}

/// Cases that take turns.
fn measure(cases: &[Case], rounds: u32, progress: &ProgressBar) -> anyhow::Result<Vec<Measured>> {
    let mut turns = Vec::new();
    for case in cases {
        progress.set_message(case.name.clone());
        turns.push((case.begin)().with_context(|| case.name.clone())?);
    }
    let mut took: Vec<Vec<Took>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((case, turn), took) in cases.iter().zip(&mut turns).zip(&mut took) {
            progress.set_message(case.name.clone());
            took.push(turn().with_context(|| case.name.clone())?);
            progress.inc(1);
        }
    }
    Ok(cases.iter().zip(&took).map(|(case, took)| summary(case, took)).collect())
}

fn summary(case: &Case, took: &[Took]) -> Measured {
    let turns: Vec<_> = took.iter().map(|took| took.ns).collect();
    let above = Some(median(took.iter().map(|took| took.ns - took.reference)));
    Measured {
        case: case.name.clone(),
        ns: median(turns.iter().copied()),
        above_empty_ns: above.filter(|_| case.group == Group::Cost),
        above_no_match_ns: above.filter(|_| case.group != Group::Cost),
        turns,
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Group::Cost => "cost",
            Group::Operators => "operators",
            Group::Subflows => "subflows",
        })
    }
}

/// Chains, loaded.
fn trial(chains: &str) -> anyhow::Result<Rc<Trial>> {
    let text = format!("name = \"bench\"\ninterfaces = [\"*\"]\n{chains}");
    let policy = Policy::parse(&text, "bench").context("the policy of this benchmark")?;
    Ok(Rc::new(Trial::new(&[policy], None)?))
}

fn chain(name: &str, hook: &str, select: &str, actors: &str) -> String {
    format!("[[chains]]\nname = \"{name}\"\nhook = \"{hook}\"\nselect = \"{select}\"\nactors = [{actors}]\n")
}

/// Chains for packets that are none of those of the operators and subflows.
fn no_match() -> anyhow::Result<Rc<Trial>> {
    let other = |hook| chain(hook, hook, "packet(mp_fail)", "\"drop\"");
    trial(&(other("ingress") + &other("egress")))
}

/// Shows packets to chains.
fn show(trial: &Trial, packets: &[Passing]) -> anyhow::Result<()> {
    trial.durations(&frames_of(packets), 1)?;
    Ok(())
}

/// What a packet takes by itself: of those that count, by their places, in turn with the others.
fn singly(trial: &Trial, packets: &[Passing], counting: &[usize]) -> anyhow::Result<f64> {
    let rounds = (SINGLE / counting.len() as u32).max(1);
    let durations = trial.durations(&frames_of(packets), rounds)?;
    let counts = |place: usize| counting.contains(&(place % packets.len()));
    let counted = durations.into_iter().enumerate().filter(|(place, _)| counts(*place));
    let mut counted: Vec<u32> = counted.map(|(_, nanoseconds)| nanoseconds).collect();
    counted.sort_unstable();
    let quarter = counted.len() / 4;
    let middle = &counted[quarter..counted.len() - quarter];
    Ok(middle.iter().copied().map(f64::from).sum::<f64>() / middle.len() as f64)
}

fn frames_of(packets: &[Passing]) -> Vec<Frame<'_>> {
    packets.iter().map(Passing::frame).collect()
}
