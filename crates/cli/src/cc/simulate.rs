//! `plait cc simulate`: what theory expects of flows over links, from a file that describes both.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use plait_config::{Mistake, Rate, Size, Source, deserialize_delay};
use plait_congestion::Algorithm;
use plait_congestion::simulation::{self, Discipline, Flow, Link, Outcome};
use serde_json::{Value, json};
use toml::Spanned;

use crate::stdout::Stdout;

/// What theory expects of flows that share links: simulated packet by packet, without the kernel
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Links and flows in TOML (docs/guide/congestion-control.md)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Seconds that are simulated, of which the first sixth does not count
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Runs, each with other beginnings of its flows; figures are means
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    links: Vec<DescribedLink>,
    flows: Vec<DescribedFlow>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedLink {
    name: String,
    rate: Spanned<Rate>,
    #[serde(deserialize_with = "deserialize_delay")]
    delay: Duration,
    queue: Size<1_000_000_000>,
    /// Whether it drops packets by chance before the queue is full.
    #[serde(default)]
    red: bool,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedFlow {
    algorithm: Spanned<String>,
    /// Of each, the links that it crosses.
    paths: Spanned<Vec<Vec<Spanned<String>>>>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let (links, flows) = read(&args.file)?;
    let seconds = f64::from(args.seconds);
    let runs: Vec<_> = (0..args.runs)
        .map(|seed| simulation::run(&links, &flows, seconds, seconds / 6.0, seed.into()))
        .collect();
    let documents: Vec<_> =
        flows.iter().enumerate().map(|(place, flow)| document(flow, place, &runs)).collect();
    let mut out = Stdout::new();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&json!({ "flows": documents }))?)?;
        return Ok(out.flush()?);
    }
    for flow in documents {
        let numbers = |name: &str| {
            let all = flow[name].as_array().into_iter().flatten().filter_map(Value::as_f64);
            all.map(|number| format!("{number:.2}")).collect::<Vec<_>>().join(", ")
        };
        writeln!(
            out,
            "{:8} {:8.2} Mb/s  (paths {}; windows {})",
            flow["algorithm"].as_str().unwrap_or_default(),
            flow["mbps"].as_f64().unwrap_or_default(),
            numbers("paths_mbps"),
            numbers("windows"),
        )?;
    }
    Ok(out.flush()?)
}

/// Of a flow: the means of all runs.
fn document(flow: &Flow, place: usize, runs: &[Vec<Outcome>]) -> Value {
    let mean = |of: &dyn Fn(&Outcome) -> f64| {
        runs.iter().map(|outcomes| of(&outcomes[place])).sum::<f64>() / runs.len() as f64
    };
    let paths = |of: &dyn Fn(&Outcome, usize) -> f64| -> Vec<f64> {
        (0..flow.paths.len()).map(|path| mean(&|outcome| of(outcome, path))).collect()
    };
    json!({
        "algorithm": flow.algorithm.map_or("reno", Algorithm::name),
        "mbps": mean(&Outcome::rate) * MEGABITS,
        "paths_mbps": paths(&|outcome, path| outcome.rates[path] * MEGABITS),
        "windows": paths(&|outcome, path| outcome.windows[path]),
        "losses": paths(&|outcome, path| outcome.losses[path]),
    })
}

fn read(file: &Path) -> anyhow::Result<(Vec<Link>, Vec<Flow>)> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let source = Source::new(&name, &text);
    let described: Described = toml::from_str(&text).map_err(|error| source.refused(&error))?;
    let links = described.links.iter().map(|link| link_of(link, &source)).collect::<Result<_, _>>()?;
    let flows = described.flows.iter().map(|flow| flow_of(flow, &described.links, &source));
    Ok((links, flows.collect::<Result<_, _>>()?))
}

fn link_of(link: &DescribedLink, source: &Source) -> Result<Link, Mistake> {
    let rate = link.rate.get_ref().bits_per_second() as f64 / PACKET_BITS;
    // A simulated packet takes its time: so many of them, and a run would not end.
    if rate > MAX_RATE {
        let text = format!("expected a rate of at most 1gbit, found {}", link.rate.get_ref());
        return Err(source.mistake(link.rate.span(), text));
    }
    let delay = link.delay.as_secs_f64();
    let queue = ((link.queue.bytes() * 8) as f64 / PACKET_BITS).ceil() as usize;
    let discipline = match link.red {
        false => Discipline::DropTail,
        true => {
            Discipline::Red { least: queue as f64 / 12.0, most: queue as f64 / 3.0, most_probability: 0.1 }
        }
    };
    Ok(Link { rate, delay, queue, discipline })
}

fn flow_of(flow: &DescribedFlow, links: &[DescribedLink], source: &Source) -> Result<Flow, Mistake> {
    let algorithm = match flow.algorithm.get_ref().as_str() {
        "reno" => None,
        name => Some(
            name.parse()
                .map_err(|error| source.mistake(flow.algorithm.span(), format!("{error}; or reno")))?,
        ),
    };
    let place = |name: &Spanned<String>| {
        let names = || links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
        links.iter().position(|link| link.name == *name.get_ref()).ok_or_else(|| {
            let text = format!("expected one of the links {}, found \"{}\"", names(), name.get_ref());
            source.mistake(name.span(), text)
        })
    };
    let path = |path: &Vec<Spanned<String>>| path.iter().map(place).collect::<Result<Vec<_>, _>>();
    let paths: Vec<_> = flow.paths.get_ref().iter().map(path).collect::<Result<_, _>>()?;
    if paths.is_empty() || paths.iter().any(Vec::is_empty) {
        let text = "expected one or more paths of one or more links, found none";
        return Err(source.mistake(flow.paths.span(), text));
    }
    Ok(Flow { algorithm, paths })
}

/// Packets are of 1500 bytes.
const PACKET_BITS: f64 = 12_000.0;
const MEGABITS: f64 = PACKET_BITS / 1e6;
/// Packets per second.
const MAX_RATE: f64 = 1e9 / PACKET_BITS;
