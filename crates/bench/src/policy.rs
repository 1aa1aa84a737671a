//! `plait-bench policy`: what a policy costs each packet.
//!
//! # Method
//!
//! - The kernel runs the programs of loaded policies on packets (`BPF_PROG_TEST_RUN`), at XDP, or at TC for what goes out,
//!   and reports the time they took in nanoseconds. Nothing is received or sent.
//! - Cases that do not change a packet run on it 10^6 times in a row; the kernel reports the average. An actor that changes
//!   a packet does so only once in such a row. So packets of actors, and those of many subflows, run one at a time, 10^5
//!   times in a turn, and the mean of the middle half of the times counts. Such times include the kernel's clock reads; the
//!   difference to the reference does not.
//! - Each case is measured next to its reference: the empty program, or the same packets with a policy that matches none of
//!   them. The printed figures are medians over the *rounds*. The cases of group `cost` take turns: each runs once in each
//!   round, so that a disturbance of the machine affects all of them.
//! - Beside packets of many subflows, reads each of which finds the address of the next show how long the processor waits for
//!   memory, in random order over as much of it as the packets need of their subflows' records.
//! - The counters of the chains confirm that an actor acted on each packet that counts.

mod case;
mod cost;
mod frames;
mod memory;
mod operators;
mod report;
mod subflows;
mod trial;

use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;

use self::case::{Case, Group, Measurement, Sample};
use crate::machine::{median, progress_bar};

/// Arguments of `plait-bench policy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure: cost (chains of several lengths, and packets that match none), operators (each actor and each kind
    /// of selector alone; a minute), subflows (chains with 1 to 10,000 subflows), all, or names of cases
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "cost")]
    cases: Vec<String>,
    /// Number of turns of each case
    #[arg(long, value_name = "NUMBER", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures the chosen cases; the result is a table or JSON.
pub(crate) fn run(args: &Args) -> anyhow::Result<String> {
    let cases = select(&args.cases)?;
    let progress = progress_bar(u64::from(args.rounds) * cases.len() as u64)?;
    let (together, alone): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.group == Group::Cost);
    let mut results = measure(&together, args.rounds, &progress)?;
    for case in alone {
        results.extend(measure(&[case], args.rounds, &progress)?);
    }
    progress.finish_and_clear();
    let bounds = cost::bounds(&results);
    if args.json {
        report::json(&results, &bounds, args.rounds)
    } else {
        Ok(report::text(&results, &bounds, args.rounds))
    }
}

/// The cases with these names, or of these groups, each once.
fn select(names: &[String]) -> anyhow::Result<Vec<Case>> {
    let mut cases = cost::cases();
    cases.extend(operators::cases());
    cases.extend(subflows::cases());
    for name in names {
        let known = || cases.iter().map(|case| case.name.as_str()).collect::<Vec<_>>().join(", ");
        ensure!(
            cases.iter().any(|case| case.is_selected_by(name)),
            "expected cost, operators, subflows, all, or some of {}; got '{name}'",
            known()
        );
    }
    cases.retain(|case| names.iter().any(|name| case.is_selected_by(name)));
    Ok(cases)
}

/// Measures cases that take turns.
fn measure(cases: &[Case], rounds: u32, progress: &ProgressBar) -> anyhow::Result<Vec<Measurement>> {
    let mut turns = Vec::new();
    for case in cases {
        progress.set_message(case.name.clone());
        turns.push((case.prepare)().with_context(|| case.name.clone())?);
    }
    let mut samples: Vec<Vec<Sample>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((case, turn), samples) in cases.iter().zip(&mut turns).zip(&mut samples) {
            progress.set_message(case.name.clone());
            samples.push(turn().with_context(|| case.name.clone())?);
            progress.inc(1);
        }
    }
    Ok(cases.iter().zip(&samples).map(|(case, samples)| summarize(case, samples)).collect())
}

fn summarize(case: &Case, samples: &[Sample]) -> Measurement {
    let turns: Vec<_> = samples.iter().map(|sample| sample.ns).collect();
    let memory: Vec<_> = samples.iter().filter_map(|sample| sample.memory_ns).collect();
    let above = Some(median(samples.iter().map(|sample| sample.ns - sample.reference_ns)));
    Measurement {
        case: case.name.clone(),
        ns: median(turns.iter().copied()),
        above_empty_ns: above.filter(|_| case.group == Group::Cost),
        above_no_match_ns: above.filter(|_| case.group != Group::Cost),
        memory_ns: (!memory.is_empty()).then(|| median(memory.into_iter())),
        turns,
    }
}
