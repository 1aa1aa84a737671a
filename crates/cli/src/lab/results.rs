//! `plait lab results`: a Markdown page from results.json files.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use plait_lab::experiment::{MetricResult, Results, VariantResult};

use super::number::{format_limits, format_number};

/// Arguments of `plait lab results`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directories that `plait lab run` wrote, in the order of the page
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// The page to write; pictures go into a directory of its name beside it
    #[arg(short, long, value_name = "FILE", default_value = "results.md")]
    output: PathBuf,
}

/// A directory that `plait lab run` wrote.
struct Found {
    directory: PathBuf,
    results: Results,
}

impl Found {
    /// The directory's own name, which distinguishes runs of one experiment with different parameters.
    fn name(&self) -> Cow<'_, str> {
        self.directory.file_name().map_or(Cow::from(&self.results.experiment), |name| name.to_string_lossy())
    }

    /// What the page calls the picture of a plot.
    fn picture(&self, svg: &str) -> String {
        let plot = Path::new(svg).file_name().unwrap_or_default().to_string_lossy();
        format!("{}-{plot}", self.name())
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for directory in &args.directories {
        let file = directory.join("results.json");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let results = serde_json::from_str(&text)
            .with_context(|| format!("{} is no results.json of `plait lab run`", file.display()))?;
        let next = Found { directory: directory.clone(), results };
        if found.iter().any(|other: &Found| other.name() == next.name()) {
            bail!(
                "expected directories of different names, as pictures have these, got {} twice",
                next.name()
            );
        }
        found.push(next);
    }
    let pictures = args.output.with_extension("");
    let pictures_name = pictures.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let page = page(&found, &pictures_name);
    copy_pictures(&found, &pictures)?;
    fs::write(&args.output, page).with_context(|| format!("cannot write {}", args.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The pictures of these experiments, and no older ones of them.
fn copy_pictures(found: &[Found], into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    for found in found {
        let prefix = format!("{}-", found.name());
        for entry in fs::read_dir(into)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let rest = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".svg"));
            // Plots are numbered: those of a directory whose name only begins alike stay.
            if rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit())) {
                fs::remove_file(&path)?;
            }
        }
        for plot in &found.results.plots {
            let (from, to) = (found.directory.join(&plot.svg), into.join(found.picture(&plot.svg)));
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    Ok(())
}

fn page(found: &[Found], pictures: &str) -> String {
    let mut page = String::from(
        "# Results\n\n\
         Results of published experiments, results of the same set-up in plait's lab, and whether the shape agrees.\n\
         `plait lab results` wrote this page: every number comes from the `results.json` named with it. Means\n\
         are over all valid repetitions; sigma is the sample's standard deviation, the interval that of the mean with 95 %\n\
         confidence (Student's t). A repetition in which the emulator was late, a capture incomplete or a program failed is\n\
         discarded, not averaged. [The guide](../guide/lab.md) defines each metric.\n",
    );
    if found.iter().any(|found| found.results.quick) {
        page += "\n> **QUICK**: some of this is from shortened runs, marked so below. Do not quote it.\n";
    }
    for found in found {
        // Writing into a string does not fail.
        let _ = section(&mut page, found, pictures);
    }
    page
}

fn section(page: &mut String, found: &Found, pictures: &str) -> std::fmt::Result {
    let Found { directory, results } = found;
    let quick = if results.quick { " (QUICK)" } else { "" };
    writeln!(
        page,
        "\n## {}{quick}\n\n*{}.* {}\n",
        results.title,
        capitalised(&results.source),
        results.description
    )?;
    if results.quick {
        writeln!(
            page,
            "> **QUICK**: a shortened run: fewer repetitions or values than the experiment asks for.\n"
        )?;
    }
    if !results.valid {
        writeln!(page, "> **NOT VALID**: {}.\n", results.invalid_because.join("; "))?;
    }
    table(page, results)?;
    writeln!(page, "\n{}", verdict(results))?;
    if let Some(note) = &results.note {
        writeln!(page, "{note}")?;
    }
    for plot in &results.plots {
        writeln!(page, "\n![{}]({pictures}/{})", plot.title, found.picture(&plot.svg))?;
    }
    writeln!(page, "\n<sub>{}; `{}`</sub>", circumstances(results), directory.join("results.json").display())
}

/// How it was measured, in a line.
fn circumstances(results: &Results) -> String {
    let Results { experiment, repetitions, backend, kernel, machine, started, .. } = results;
    let runs = || results.variants.iter().flat_map(|variant| &variant.repetitions);
    let discarded = runs().filter(|run| !run.valid).count();
    let variants = match results.variants.len() {
        1 => String::new(),
        count => format!(" of each of {count} variants"),
    };
    let links = runs().filter(|run| run.valid).flat_map(|run| run.links.values());
    let latest = links.filter_map(|link| link.lateness_p99_ms).reduce(f64::max);
    let lateness = latest.map_or(String::new(), |latest| {
        format!(
            "; lateness p99 {} ms (limit {} ms)",
            format_number(latest),
            format_number(results.lateness_limit_ms)
        )
    });
    let repetitions =
        if *repetitions == 1 { "1 repetition".into() } else { format!("{repetitions} repetitions") };
    let versions = results.versions.iter().map(|(name, version)| match name.as_str() {
        "plait" => format!("plait {version}"),
        // What it was built with stands in results.json.
        _ => version.split(" (").next().unwrap_or(version).to_owned(),
    });
    format!(
        "{experiment}: {repetitions}{variants}, {discarded} discarded{lateness}; backend {backend}; kernel {kernel}; \
         {} x {}, {} MiB; {}; {started}, {} s",
        machine.processors,
        machine.processor,
        machine.memory_mib,
        versions.collect::<Vec<_>>().join(", "),
        format_number(results.duration_s.round()),
    )
}

/// The figures: a row for each, or, of several variants, a row for each variant.
fn table(page: &mut String, results: &Results) -> std::fmt::Result {
    match &results.variants[..] {
        [variant] if variant.parameters.is_empty() => figures(page, variant),
        variants => by_variant(page, results, variants),
    }
}

fn figures(page: &mut String, variant: &VariantResult) -> std::fmt::Result {
    writeln!(page, "| metric | paper | mean | sigma | 95 % | n | expected |")?;
    writeln!(page, "|---|---:|---:|---:|---:|---:|---|")?;
    for (name, measured) in &variant.metrics {
        let number = |value: Option<f64>| value.map_or(String::new(), format_number);
        let summary = &measured.summary;
        let expected = measured.expect.map_or(String::new(), |expect| {
            format!("{}: {}", format_limits(&expect), if expect.met { "yes" } else { "**no**" })
        });
        let interval = summary.mean.zip(summary.confidence);
        let interval = interval.map_or(String::new(), |(mean, half)| {
            format!("{} to {}", format_number(mean - half), format_number(mean + half))
        });
        writeln!(
            page,
            "| {} | {} | {} | {} | {interval} | {} | {expected} |",
            named(name, &measured.unit),
            number(measured.paper),
            summary.mean.map_or("none".into(), format_number),
            number(summary.stddev),
            summary.n,
        )?;
    }
    Ok(())
}

fn by_variant(page: &mut String, results: &Results, variants: &[VariantResult]) -> std::fmt::Result {
    let mut metrics: Vec<(&String, &str)> = Vec::new();
    for (name, measured) in variants.iter().flat_map(|variant| &variant.metrics) {
        if metrics.iter().all(|(known, _)| *known != name) {
            metrics.push((name, &measured.unit));
        }
    }
    let parameters = results.parameters.keys().map(|name| words(name));
    let headings = parameters.chain(metrics.iter().map(|(name, unit)| named(name, unit)));
    writeln!(page, "Mean \u{b1} sigma, and what the paper printed.\n")?;
    writeln!(page, "| {} | n |", headings.collect::<Vec<_>>().join(" | "))?;
    let columns = results.parameters.len();
    writeln!(page, "{}{}|---:|", "|---".repeat(columns), "|---:".repeat(metrics.len()))?;
    for variant in variants {
        let values =
            results.parameters.keys().map(|name| variant.parameters.get(name).map_or(String::new(), text));
        let cells = metrics.iter().map(|(name, _)| variant.metrics.get(*name).map_or(String::new(), cell));
        let n = variant.metrics.values().map(|measured| measured.summary.n).max().unwrap_or_default();
        writeln!(page, "| {} | {n} |", values.chain(cells).collect::<Vec<_>>().join(" | "))?;
    }
    Ok(())
}

fn cell(measured: &MetricResult) -> String {
    let Some(mean) = measured.summary.mean else { return "none".into() };
    let stddev =
        measured.summary.stddev.map_or(String::new(), |stddev| format!(" \u{b1} {}", format_number(stddev)));
    let paper = measured.paper.map_or(String::new(), |paper| format!(" (paper: {})", format_number(paper)));
    let met = if measured.expect.is_some_and(|expect| !expect.met) { " **not as expected**" } else { "" };
    format!("{}{stddev}{paper}{met}", format_number(mean))
}

/// One sentence: whether the shape is that of the paper, or the expected one where nothing was printed, and by which figures
/// that is text.
fn verdict(results: &Results) -> String {
    let expected = || {
        results.variants.iter().flat_map(|variant| {
            let metrics = variant.metrics.iter();
            metrics.filter_map(move |(name, measured)| Some((variant, name, measured, measured.expect?)))
        })
    };
    let (count, met) = (expected().count(), expected().filter(|(.., expect)| expect.met).count());
    let found = |variant: &VariantResult, name: &str, measured: &MetricResult| {
        let of = if variant.name.is_empty() { String::new() } else { format!(" with {}", variant.name) };
        let unit = if measured.unit.is_empty() { String::new() } else { format!(" {}", measured.unit) };
        let mean = measured.summary.mean.map_or("none".into(), format_number);
        format!("{}{of} is {mean}{unit}", words(name))
    };
    if count == 0 {
        return "**Shape**: the experiment states no expectation.".into();
    }
    let printed = results.metrics.values().any(|measured| measured.paper.is_some());
    let [same, other] = match printed {
        true => ["Same shape", "Not the same shape"],
        false => ["As expected", "Not as expected"],
    };
    let list: Vec<_> = expected()
        .filter(|(.., expect)| expect.met == (met == count))
        .map(|(variant, name, measured, expect)| {
            format!("{}, expected {}", found(variant, name, measured), format_limits(&expect))
        })
        .collect();
    match met == count {
        true => format!("**{same}**: {} as expected ({}).", all_of(count), list.join("; ")),
        false => format!("**{other}**: {met} of {count} expectations hold; not: {}.", list.join("; ")),
    }
}

fn all_of(count: usize) -> String {
    if count == 1 { "the metric is".into() } else { format!("all {count} metrics are") }
}

fn named(name: &str, unit: &str) -> String {
    if unit.is_empty() { words(name) } else { format!("{}, {unit}", words(name)) }
}

/// A name of the file in words; its last one is dropped where it is the unit, which stands beside it.
fn words(name: &str) -> String {
    let units = ["_mbps", "_ms", "_s"];
    let name = units.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    name.replace('_', " ")
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
