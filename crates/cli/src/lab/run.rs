//! `plait lab run`: runs an experiment and prints its results.

use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use plait_lab::experiment::{
    Experiment, Form, MetricResult, Options, Progress, Results, Verdict, run as run_experiment,
};
use plait_lab::{Backend, Seed};
use plait_linux::signal::StopSignal;

use super::broken_pipe::terminate_without_reader;
use super::number::{format_limits, format_number};
use crate::stderr::{self, eprintln};
use crate::stdout::{Stdout, aligned, json_text};

/// Arguments of `plait lab run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The experiment's TOML file; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Repetitions of each variant, instead of the file's
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Directory for results.json, plots and the analysis of each variant [default: out/NAME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Run the short form that the file describes
    #[arg(long)]
    quick: bool,
    /// Other values for a parameter
    #[arg(short, long = "parameter", value_name = "NAME=VALUE[,VALUE...]", value_parser = parameter)]
    parameters: Vec<(String, Vec<String>)>,
    /// The backend of all links, instead of the file's: emu, netem or none
    #[arg(long, value_name = "BACKEND")]
    backend: Option<Backend>,
    /// Seed of everything random, to repeat a run [default: random; results.json names it]
    #[arg(long, value_name = "N")]
    seed: Option<Seed>,
    /// Print results.json; stop early if the reader of stdout closes it
    #[arg(long)]
    json: bool,
    /// Report progress on stderr in lines of JSON
    #[arg(long)]
    progress: bool,
}

fn parameter(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = text.split_once('=').ok_or("expected NAME=VALUE, such as mode=off,xor64")?;
    Ok((name.into(), values.split(',').map(str::to_owned).collect()))
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let form = Form { quick: args.quick, parameters: args.parameters.clone() };
    let experiment = match args.file.to_str() {
        Some("-") => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            Experiment::parse(&text, "-", &form).map_err(plait_lab::Error::from)?
        }
        _ => Experiment::read(&args.file, &form)?,
    };
    let directory = args.output.clone().unwrap_or_else(|| Path::new("out").join(&experiment.name));
    std::fs::create_dir_all(&directory)
        .map_err(|error| anyhow::anyhow!("{}: {error}", directory.display()))?;
    let bar = if args.progress { ProgressBar::hidden() } else { bar() };
    let stop = StopSignal::listen()?;
    if args.json {
        terminate_without_reader();
    }
    let options = Options {
        repetitions: args.repetitions,
        backend: args.backend,
        directory: Some(&directory),
        seed: args.seed.unwrap_or_else(Seed::random),
        stop,
    };
    let results = run_experiment(&experiment, &options, &mut |progress| match args.progress {
        true => say(progress),
        false => show(&bar, progress),
    });
    bar.finish_and_clear();
    let results = results?;
    let mut out = Stdout::new();
    if args.json {
        writeln!(out, "{}", json_text(&results)?)?;
    } else {
        table(&results, &mut out)?;
        writeln!(out, "\n{}", directory.join("results.json").display())?;
    }
    out.flush()?;
    if results.valid {
        return Ok(ExitCode::SUCCESS);
    }
    for reason in &results.invalid_because {
        eprintln!("plait: invalid: {reason}");
    }
    Ok(ExitCode::FAILURE)
}

fn bar() -> ProgressBar {
    if !stderr::is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len}, {elapsed}, {msg}");
    ProgressBar::new(0).with_style(style.expect("a template of known fields"))
}

fn say(progress: &Progress) {
    eprintln!("{}", serde_json::to_string(progress).unwrap_or_default());
}

fn show(bar: &ProgressBar, progress: &Progress) {
    if let Some(why) = &progress.discarded {
        bar.suspend(|| eprintln!("plait: discarded a repetition: {why}"));
    }
    bar.set_length(progress.total.into());
    bar.set_position(progress.done.into());
    stderr::set_message(bar, &progress.activity);
    bar.tick();
}

/// What was measured, for people.
fn table(results: &Results, out: &mut impl Write) -> io::Result<()> {
    let Results { experiment, title, repetitions, backend, kernel, machine, duration_s, .. } = results;
    let quick = if results.quick { "QUICK, " } else { "" };
    writeln!(out, "{experiment}: {title}")?;
    let seed = results.seed.unwrap_or_default();
    writeln!(
        out,
        "{quick}repetitions {repetitions}, seed {seed}, backend {backend}, kernel {kernel}, {} x {}, {duration_s:.0} s",
        machine.processors, machine.processor
    )?;
    for variant in &results.variants {
        let heading = [variant.name.as_str(), " mean", "sigma", " \u{b1}95%", "    n", "paper", "verdict"];
        let mut rows = vec![heading.map(String::from)];
        rows.extend(variant.metrics.iter().map(|(name, measured)| row(name, measured)));
        writeln!(out, "\n{}", aligned(&rows, &[0, 6]).join("\n"))?;
    }
    Ok(())
}

fn row(name: &str, measured: &MetricResult) -> [String; 7] {
    let number = |value: Option<f64>| value.map_or("-".into(), format_number);
    let MetricResult { summary, unit, paper, expect } = measured;
    let verdict = paper.as_ref().and_then(|paper| paper.verdict).map(|verdict| match verdict {
        Verdict::Reproduced => "reproduced".to_owned(),
        Verdict::Differs => "differs".to_owned(),
        Verdict::NotComparable => "not comparable".to_owned(),
    });
    let bound = expect.map(|bound| {
        let met = if bound.met { "met" } else { "NOT met" };
        format!("own bound {met} ({})", format_limits(&bound))
    });
    let published = paper.as_ref().and_then(|paper| paper.value);
    [
        if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") },
        number(summary.mean),
        number(summary.stddev),
        number(summary.confidence),
        summary.n.to_string(),
        number(published),
        verdict.into_iter().chain(bound).collect::<Vec<_>>().join(", "),
    ]
}
