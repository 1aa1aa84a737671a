//! The document `results.json` of an experiment; docs/reference/schema/results.schema.json is generated from it.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::machine::{Machine, versions};
use super::measure::{Measure, Operand};
use super::model::{Experiment, Metric, Variant};
use super::paper::Comparison;
use super::statistics::Summary;
use crate::seed::Seed;

/// The results of an experiment, with everything required to judge them. docs/guide/lab.md defines the figures. Fields
/// may be added.
#[derive(Debug, Clone, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The experiment's name.
    pub experiment: String,
    /// A one-line title.
    pub title: String,
    /// The publication.
    pub source: String,
    /// The procedure, and what the paper found.
    pub description: String,
    /// What readers of the results should know.
    pub note: Option<String>,
    /// Whether every variant has the requested number of valid repetitions.
    pub valid: bool,
    /// The reasons if not.
    pub invalid_because: Vec<String>,
    /// Whether this is the quick form.
    pub quick: bool,
    /// The kernel release.
    pub kernel: String,
    /// The backends of the links, separated by commas; `none` without links.
    pub backend: String,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The versions of the programs used.
    pub versions: IndexMap<String, String>,
    /// The start time in UTC (RFC 3339).
    #[schemars(regex(pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"))]
    pub started: String,
    /// The duration.
    #[schemars(range(min = 0.0))]
    pub duration_s: f64,
    /// The seed of the random generators: of the loss, duplication and jitter of links of the backend `emu`, of served
    /// documents, and of programs that read `PLAIT_SEED`. Null if it was not recorded.
    #[serde(default)]
    pub seed: Option<u32>,
    /// The number of discarded repetitions.
    #[serde(default)]
    pub discarded: u32,
    /// The maximum 99th percentile of lateness on any link in a valid repetition; null if it was not measured.
    #[serde(default)]
    pub lateness_p99_ms: Option<f64>,
    /// The requested number of repetitions of each variant.
    #[schemars(range(min = 1))]
    pub repetitions: u32,
    /// The maximum 99th percentile of lateness.
    pub lateness_limit_ms: f64,
    /// The parameters and their values: text, numbers or booleans.
    pub parameters: IndexMap<String, Vec<Value>>,
    /// The metrics, by name if there is one variant, else by `name[parameter=value,parameter=value]`; empty in a
    /// summary.
    #[serde(default)]
    pub metrics: IndexMap<String, MetricResult>,
    /// The variants.
    pub variants: Vec<VariantResult>,
    /// The charts drawn.
    pub plots: Vec<PlotFile>,
}

/// A metric over all valid repetitions.
#[derive(Debug, Clone, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct MetricResult {
    /// Summary statistics of its values.
    #[serde(flatten)]
    pub summary: Summary,
    /// The unit; empty for dimensionless values.
    pub unit: String,
    /// The published value, and the comparison with it; null if nothing is published.
    pub paper: Option<Comparison>,
    /// The experiment's own bounds of the mean, if any.
    pub expect: Option<Expectation>,
}

/// An experiment's own bounds of a mean, and whether the mean is within them.
#[derive(Debug, Clone, Copy, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// The minimum.
    pub at_least: Option<f64>,
    /// The maximum.
    pub at_most: Option<f64>,
    /// Whether the mean is in the range; false without a mean.
    pub met: bool,
}

/// The results of a variant.
#[derive(Debug, Clone, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct VariantResult {
    /// The parameters for display; empty without parameters.
    pub name: String,
    /// Its parameters.
    pub parameters: IndexMap<String, Value>,
    /// Its metrics.
    pub metrics: IndexMap<String, MetricResult>,
    /// The backend of each link: `emu`, `netem` or `none`.
    pub backends: IndexMap<String, String>,
    /// Every repetition, including discarded ones; empty in a summary.
    #[serde(default)]
    pub repetitions: Vec<Repetition>,
    /// The analysis of the first valid repetition, if it was kept.
    pub analysis: Option<Analysis>,
}

/// The output of `plait analyze` for a repetition.
#[derive(Debug, Clone, JsonSchema, PartialEq, Eq, Serialize, Deserialize)]
pub struct Analysis {
    /// The directory, relative to this document.
    pub directory: String,
    /// The main connection: MPTCP before TCP, then the one with most bytes.
    #[schemars(range(min = 1))]
    pub connection: u64,
}

/// A repetition.
#[derive(Debug, Clone, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct Repetition {
    /// The number among the requested repetitions, from 1. A repetition that replaces a discarded one has the same
    /// number.
    #[schemars(range(min = 1))]
    pub number: u32,
    /// Whether it is valid.
    pub valid: bool,
    /// Why it was discarded.
    pub invalid_because: Vec<String>,
    /// The start time in UTC (RFC 3339).
    #[schemars(regex(pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"))]
    pub started: String,
    /// The duration.
    #[schemars(range(min = 0.0))]
    pub duration_s: f64,
    /// The metrics; null if what they measure did not occur, or the repetition is invalid.
    pub metrics: IndexMap<String, Option<f64>>,
    /// The steps that ran.
    pub steps: Vec<StepResult>,
    /// The statistics of each link.
    pub links: IndexMap<String, LinkResult>,
    /// The events applied to links.
    pub events: Vec<EventResult>,
}

/// A step that ran.
#[derive(Debug, Clone, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Its name.
    pub step: String,
    /// The duration, in steps of 5 ms.
    #[schemars(range(min = 0.0))]
    pub duration_s: f64,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// Its stdout.
    #[serde(skip)]
    pub stdout: String,
}

/// The statistics of a link.
#[derive(Debug, Clone, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct LinkResult {
    /// The 99th percentile of lateness; null if unknown.
    pub lateness_p99_ms: Option<f64>,
    /// Frame counters, as in the output of `plait lab link`.
    #[schemars(with = "serde_json::Map<String, Value>")]
    pub statistics: Value,
}

/// An applied event.
#[derive(Debug, Clone, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct EventResult {
    /// The link.
    pub link: String,
    /// The action.
    pub action: String,
    /// The scheduled time in seconds, relative to the start of the clock.
    pub at_s: f64,
    /// The time at which it was applied.
    pub applied_s: f64,
}

/// A chart.
#[derive(Debug, Clone, JsonSchema, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlotFile {
    /// Its title.
    pub title: String,
    /// The SVG file, relative to this document.
    pub svg: String,
    /// The PNG file, relative to this document.
    pub png: String,
    /// The published figure that it corresponds to, as PAPER/ITEM in experiments/paper-values.toml; null if none.
    #[serde(default)]
    pub figure: Option<String>,
}

/// The outcome of all repetitions.
pub(super) struct CompletedRuns {
    pub(super) started: String,
    pub(super) duration_s: f64,
    pub(super) seed: Seed,
    pub(super) wanted: u32,
    /// In the order of the experiment's variants.
    pub(super) variants: Vec<CompletedVariant>,
}

/// The outcome of the repetitions of a variant.
#[derive(Default)]
pub(super) struct CompletedVariant {
    pub(super) repetitions: Vec<Repetition>,
    pub(super) backends: IndexMap<String, String>,
    pub(super) analysis: Option<Analysis>,
}

impl Results {
    /// Computes the metrics and their statistics over all repetitions.
    pub(super) fn of(experiment: &Experiment, mut ran: CompletedRuns) -> Self {
        derive(&experiment.variants, &mut ran.variants);
        let mut invalid_because = Vec::new();
        let mut variants = Vec::new();
        for (variant, completed) in experiment.variants.iter().zip(ran.variants) {
            let CompletedVariant { repetitions, backends, analysis } = completed;
            invalid_because.extend(missing_repetitions(variant, &repetitions, ran.wanted));
            let metrics = variant.metrics.iter();
            variants.push(VariantResult {
                name: variant.name(),
                parameters: variant.parameters.iter().cloned().collect(),
                metrics: metrics
                    .map(|(name, metric)| (name.clone(), MetricResult::of(name, metric, &repetitions)))
                    .collect(),
                backends,
                repetitions,
                analysis,
            });
        }
        let repetitions = || variants.iter().flat_map(|variant| &variant.repetitions);
        let discarded = repetitions().filter(|repetition| !repetition.valid).count() as u32;
        let links = repetitions().filter(|repetition| repetition.valid).flat_map(|run| run.links.values());
        let lateness_p99_ms = links.filter_map(|link| link.lateness_p99_ms).reduce(f64::max);
        let mut used: Vec<&str> =
            variants.iter().flat_map(|variant| variant.backends.values().map(String::as_str)).collect();
        used.sort_unstable();
        used.dedup();
        Self {
            experiment: experiment.name.clone(),
            title: experiment.title.clone(),
            source: experiment.source.clone(),
            description: experiment.description.clone(),
            note: experiment.note.clone(),
            valid: invalid_because.is_empty(),
            invalid_because,
            quick: experiment.quick,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            backend: if used.is_empty() { "none".into() } else { used.join(", ") },
            machine: Machine::this(),
            versions: versions(experiment),
            started: ran.started,
            duration_s: ran.duration_s,
            seed: Some(ran.seed.0),
            discarded,
            lateness_p99_ms,
            repetitions: ran.wanted,
            lateness_limit_ms: experiment.lateness_limit.as_secs_f64() * 1e3,
            parameters: experiment.parameters.iter().cloned().collect(),
            metrics: all_metrics(&variants),
            variants,
            plots: Vec::new(),
        }
    }
}

impl Results {
    /// Reduces the document to what pages show: without the repetitions, and with metrics by variant only.
    pub fn summarize(&mut self) {
        self.metrics.clear();
        for variant in &mut self.variants {
            variant.repetitions.clear();
            variant.analysis = None;
        }
    }

    /// Takes texts, published values and bounds from a newer version of the experiment's file, and compares again. What
    /// was measured stays.
    pub fn compare_again(&mut self, experiment: &Experiment) {
        self.title.clone_from(&experiment.title);
        self.source.clone_from(&experiment.source);
        self.description.clone_from(&experiment.description);
        self.note.clone_from(&experiment.note);
        for plot in &mut self.plots {
            let newer = experiment.plots.iter().find(|newer| newer.title == plot.title);
            plot.figure = newer.and_then(|newer| newer.figure.clone());
        }
        for variant in &mut self.variants {
            let same = |other: &&Variant| {
                let parameters = other.parameters.iter();
                other.parameters.len() == variant.parameters.len()
                    && parameters.clone().all(|(name, value)| variant.parameters.get(name) == Some(value))
            };
            let Some(newer) = experiment.variants.iter().find(same) else { continue };
            for (name, metric) in &newer.metrics {
                if let Some(measured) = variant.metrics.get_mut(name) {
                    *measured = MetricResult::judged(measured.summary, metric);
                }
            }
        }
    }
}

fn all_metrics(variants: &[VariantResult]) -> IndexMap<String, MetricResult> {
    let named = |variant: &VariantResult, name: &String| match variant.parameters.is_empty() {
        true => name.clone(),
        false => {
            let values = variant.parameters.iter();
            let values: Vec<_> =
                values.map(|(name, value)| format!("{name}={}", super::model::text_of(value))).collect();
            format!("{name}[{}]", values.join(","))
        }
    };
    let metrics = variants.iter().flat_map(|variant| {
        variant.metrics.iter().map(move |(name, measured)| (named(variant, name), measured.clone()))
    });
    metrics.collect()
}

fn missing_repetitions(variant: &Variant, repetitions: &[Repetition], wanted: u32) -> Option<String> {
    let valid = repetitions.iter().filter(|repetition| repetition.valid).count();
    if valid >= wanted as usize {
        return None;
    }
    let of = if variant.parameters.is_empty() { String::new() } else { format!("{}: ", variant.name()) };
    let discarded = repetitions.len() - valid;
    let last = repetitions.iter().rfind(|repetition| !repetition.valid);
    let why = last.map_or(String::new(), |last| last.invalid_because.join("; "));
    Some(format!(
        "{of}{valid} of {wanted} repetitions are valid, {discarded} thrown away, the last of them because: {why}"
    ))
}

impl MetricResult {
    fn of(name: &str, metric: &Metric, repetitions: &[Repetition]) -> Self {
        let valid = repetitions.iter().filter(|repetition| repetition.valid);
        let values: Vec<_> = valid.filter_map(|repetition| *repetition.metrics.get(name)?).collect();
        let summary = Summary::of(&values);
        Self::judged(summary, metric)
    }

    /// Compares a summary with the metric's published value and with its own bounds.
    fn judged(summary: Summary, metric: &Metric) -> Self {
        let Metric { at_least, at_most, .. } = *metric;
        let expect = (at_least.is_some() || at_most.is_some()).then(|| {
            let keeps = |mean: f64| {
                at_least.is_none_or(|least| mean >= least) && at_most.is_none_or(|most| mean <= most)
            };
            Expectation { at_least, at_most, met: summary.mean.is_some_and(keeps) }
        });
        let paper = metric.paper.as_ref().map(|paper| paper.compare(&summary));
        Self { summary, unit: metric.unit.clone(), paper, expect }
    }
}

/// Computes derived metrics. An operand from another variant is taken from its repetition with the same number, which
/// ran at about the same time.
fn derive(variants: &[Variant], completed: &mut [CompletedVariant]) {
    let most = variants.iter().map(|variant| variant.metrics.len()).max().unwrap_or_default();
    for place in 0..most {
        for (index, variant) in variants.iter().enumerate() {
            let Some((name, metric)) =
                variant.metrics.get(place).filter(|(_, metric)| metric.measure.is_derived())
            else {
                continue;
            };
            for which in 0..completed[index].repetitions.len() {
                let repetition = &completed[index].repetitions[which];
                if !repetition.valid {
                    continue;
                }
                let number = repetition.number;
                let operand = |operand: &Operand| match operand {
                    Operand::Number(number) => Some(*number),
                    Operand::Metric { name, variant } if variant.is_empty() => {
                        *repetition.metrics.get(name)?
                    }
                    Operand::Metric { name, variant } => {
                        let other = variants.iter().position(|other| other.parameters == *variant)?;
                        let same = |other: &&Repetition| other.valid && other.number == number;
                        *completed[other].repetitions.iter().find(same)?.metrics.get(name)?
                    }
                };
                let value = match &metric.measure {
                    Measure::Ratio { of, to } => match (operand(of), operand(to)) {
                        (Some(of), Some(to)) if to != 0.0 => Some(of / to),
                        _ => None,
                    },
                    Measure::Gain { of, over } => match (operand(of), operand(over)) {
                        (Some(of), Some(over)) if over != 0.0 => Some(100.0 * (of / over - 1.0)),
                        _ => None,
                    },
                    Measure::Sum(of) => of.iter().map(operand).sum(),
                    _ => None,
                };
                let metrics = &mut completed[index].repetitions[which].metrics;
                metrics.insert(name.clone(), value.map(|value| value * metric.scale));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Form, Verdict};
    use serde_json::json;

    const FILE: &str = r#"
[experiment]
name = "x"
title = "t"
source = "s"
description = "x"
repetitions = 2
[parameters]
mode = ["a", "b"]
[hosts.h]
[[steps]]
name = "one"
host = "h"
command = ["true"]
[metrics.seconds]
measure = "duration_s"
paper = [{ when = { mode = "b" }, value = 3, factor = 1.5 }]
expect = { when = { mode = "b" }, at_least = 2.5 }
[metrics.of_a]
measure = "ratio"
numerator = "seconds"
denominator = "seconds"
denominator_variant = { mode = "a" }
[metrics.twice]
measure = "sum"
metrics = ["of_a", "of_a"]
"#;

    fn repetition(number: u32, seconds: Option<f64>) -> Repetition {
        Repetition {
            number,
            valid: seconds.is_some(),
            invalid_because: seconds.is_none().then(|| "too late".to_owned()).into_iter().collect(),
            started: String::new(),
            duration_s: 1.0,
            metrics: [("seconds".to_owned(), seconds)].into_iter().collect(),
            steps: Vec::new(),
            links: IndexMap::new(),
            events: Vec::new(),
        }
    }

    fn results(repetitions: Vec<Vec<Repetition>>) -> Results {
        let experiment = Experiment::parse(FILE, "x.toml", &Form::default()).expect("an experiment");
        let variant = |repetitions| CompletedVariant { repetitions, ..CompletedVariant::default() };
        let variants = repetitions.into_iter().map(variant).collect();
        Results::of(
            &experiment,
            CompletedRuns { started: String::new(), duration_s: 1.0, seed: Seed(7), wanted: 2, variants },
        )
    }

    #[test]
    fn figures_of_variants_are_paired_by_repetition() {
        let a = vec![repetition(1, Some(1.0)), repetition(2, None), repetition(2, Some(2.0))];
        let b = vec![repetition(1, Some(3.0)), repetition(2, Some(4.0))];
        let results = results(vec![a, b]);
        assert!(results.valid, "{:?}", results.invalid_because);
        let of_a = &results.metrics["of_a[mode=b]"].summary;
        assert_eq!((of_a.n, of_a.mean, of_a.min, of_a.max), (2, Some(2.5), Some(2.0), Some(3.0)));
        assert_eq!(results.metrics["twice[mode=b]"].summary.mean, Some(5.0));
        assert_eq!(results.metrics["of_a[mode=a]"].summary.mean, Some(1.0));
    }

    #[test]
    fn what_a_paper_printed_and_what_is_expected_belong_to_a_variant() {
        let results = results(vec![vec![repetition(1, Some(1.0)); 2], vec![repetition(1, Some(2.0)); 2]]);
        assert_eq!(results.metrics["seconds[mode=a]"].paper, None);
        assert_eq!(results.metrics["seconds[mode=a]"].expect, None);
        let paper = results.metrics["seconds[mode=b]"].paper.clone().expect("one");
        assert_eq!((paper.value, paper.verdict), (Some(3.0), Some(Verdict::Reproduced)));
        let expect = results.metrics["seconds[mode=b]"].expect.expect("one");
        assert_eq!((expect.at_least, expect.met), (Some(2.5), false));
    }

    #[test]
    fn too_few_valid_repetitions_are_said_and_why() {
        let results = results(vec![
            vec![repetition(1, Some(1.0)), repetition(2, None)],
            vec![repetition(1, Some(2.0)); 2],
        ]);
        assert!(!results.valid);
        assert_eq!(
            results.invalid_because,
            ["mode=a: 1 of 2 repetitions are valid, 1 thrown away, the last of them because: too late"]
        );
        assert_eq!(results.metrics["seconds[mode=a]"].summary.n, 1, "what was thrown away is not averaged");
    }

    #[test]
    fn a_newer_file_judges_what_an_older_one_measured() {
        let mut results = results(vec![vec![repetition(1, Some(1.0)); 2], vec![repetition(1, Some(2.0)); 2]]);
        results.summarize();
        let newer = FILE.replace("factor = 1.5", "factor = 1.1").replace("at_least = 2.5", "at_least = 1.5");
        results.compare_again(&Experiment::parse(&newer, "x.toml", &Form::default()).expect("an experiment"));
        let seconds = &results.variants[1].metrics["seconds"];
        assert_eq!(seconds.summary.mean, Some(2.0), "what was measured stays");
        assert_eq!(seconds.paper.as_ref().and_then(|paper| paper.verdict), Some(Verdict::Differs));
        assert!(seconds.expect.is_some_and(|expect| expect.met));
    }

    #[test]
    fn a_document_is_read_as_it_was_written() {
        let results = results(vec![vec![repetition(1, Some(1.0)); 2]; 2]);
        let text = serde_json::to_string(&results).expect("JSON");
        let read: Results = serde_json::from_str(&text).expect("the same document");
        assert_eq!(read, results);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["metrics"]["seconds[mode=a]"]["mean"], json!(1.0));
        assert_eq!(value["metrics"]["seconds[mode=a]"]["paper"], Value::Null);
    }
}
