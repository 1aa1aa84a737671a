//! Experiments, checked: every reference resolves.

use std::time::Duration;

use serde_json::Value;

use super::measure::Measure;
use crate::topology::Topology;

/// An experiment, checked: every name leads somewhere.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Its name, fit for a file's.
    pub name: String,
    /// What it is, in a line.
    pub title: String,
    /// Where it was published: paper, table, figure.
    pub source: String,
    /// What is done and what the paper found.
    pub description: String,
    /// What readers of the result have to know.
    pub note: Option<String>,
    /// How often each variant is measured, at least once.
    pub repetitions: u32,
    /// How late the emulator may deliver 99 of 100 frames; a repetition in which it was later is thrown away.
    pub lateness_limit: Duration,
    /// What is parameters_of, and over which values.
    pub parameters: Vec<(String, Vec<Value>)>,
    /// Every combination of the parameters' values, the last parameter varying fastest; one if there are none.
    pub variants: Vec<Variant>,
    /// Charts of the results.
    pub plots: Vec<Plot>,
    /// Whether this is the short form.
    pub quick: bool,
}

/// What of an experiment is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Form {
    /// The short form that its key `quick` describes.
    pub quick: bool,
    /// Other values for some parameters, as they would stand in a text; they precede those of the short form.
    pub parameters: Vec<(String, Vec<String>)>,
}

/// An experiment with one combination of its parameters.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The parameters and their values.
    pub parameters: Vec<(String, Value)>,
    /// The hosts, links and services.
    pub topology: Topology,
    /// What runs, one after the other; at least one.
    pub steps: Vec<Step>,
    /// Whose packets are captured.
    pub capture: Captured,
    /// What is measured, by name, in the file's order.
    pub metrics: Vec<(String, Metric)>,
}

/// A program that runs to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// The host it runs on.
    pub host: String,
    /// The program and its arguments. `plait` is this program.
    pub command: Vec<String>,
    /// Whether its sockets are made MPTCP ones, by `mptcpize run`.
    pub mptcp: bool,
    /// How long it may take; beyond that it has failed.
    pub timeout: Duration,
    /// Whether the clock of events and windows starts with it.
    pub starts_clock: bool,
    /// Whether a repetition counts although this failed.
    pub allow_failure: bool,
}

/// Whose packets are captured, on all its links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The hosts.
    pub on: Vec<String>,
    /// How many bytes of each frame are kept.
    pub snaplen: u32,
}

/// Something that is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// How.
    pub measure: Measure,
    /// What the value is multiplied by.
    pub scale: f64,
    /// The unit, as people write it.
    pub unit: String,
    /// What the paper printed for this variant.
    pub paper: Option<f64>,
    /// The least mean of the expected shape.
    pub at_least: Option<f64>,
    /// The greatest.
    pub at_most: Option<f64>,
}

/// A chart of the results.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// What it shows.
    pub shows: Shows,
    /// Only variants with these values are in it.
    pub when: Condition,
}

/// What a chart shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Shows {
    /// A metric over a parameter.
    Sweep {
        /// The metric.
        metric: String,
        /// The parameter of the horizontal axis.
        x: String,
        /// The parameter that has a line or colour for each value.
        series: Option<String>,
    },
    /// What each subflow carried over time, in the first valid repetition of the first variant.
    Throughput,
    /// Its round-trip times, likewise.
    RoundTrip,
    /// What place in the stream each subflow carried, likewise.
    Sequence,
}

/// Values that some parameters may have; an empty one always holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Condition(pub Vec<(String, Vec<Value>)>);

impl Condition {
    /// Whether these parameters fit.
    pub fn holds(&self, parameters: &[(String, Value)]) -> bool {
        self.0.iter().all(|(name, wanted)| {
            parameters.iter().any(|(parameter, value)| parameter == name && wanted.contains(value))
        })
    }
}

impl Variant {
    /// Its parameters as people read them, such as `mode=xor64, megabytes=20`; empty without any.
    pub fn name(&self) -> String {
        name_of(&self.parameters)
    }

    /// The step with this name.
    pub fn step(&self, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.name == name)
    }
}

/// Parameters as people read them.
pub(super) fn name_of(parameters: &[(String, Value)]) -> String {
    let words = parameters.iter().map(|(name, value)| format!("{name}={}", text_of(value)));
    words.collect::<Vec<_>>().join(", ")
}

/// A parameter's value as people read it.
pub(super) fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
