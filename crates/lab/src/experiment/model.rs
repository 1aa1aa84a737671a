//! The checked model of an experiment: every reference resolves.

use std::time::Duration;

use serde_json::Value;

use super::measure::Measure;
use super::paper::PaperValue;
use crate::topology::Topology;

/// A checked experiment.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// The name, valid as a file name.
    pub name: String,
    /// A one-line title.
    pub title: String,
    /// The publication: paper, table, figure.
    pub source: String,
    /// The procedure, and what the paper found.
    pub description: String,
    /// What readers of the results should know.
    pub note: Option<String>,
    /// The number of repetitions of each variant, at least 1.
    pub repetitions: u32,
    /// The maximum 99th percentile of lateness of the emulator; a repetition that exceeds it is discarded.
    pub lateness_limit: Duration,
    /// The parameters and their values.
    pub parameters: Vec<(String, Vec<Value>)>,
    /// Every combination of parameter values, the last parameter varying fastest; one variant without parameters.
    pub variants: Vec<Variant>,
    /// The charts of the results.
    pub plots: Vec<Plot>,
    /// Whether this is the quick form.
    pub quick: bool,
}

/// How to read an experiment file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Form {
    /// Use the quick form, which the key `quick` describes.
    pub quick: bool,
    /// Parameter values as text, which override those of the file and of the quick form.
    pub parameters: Vec<(String, Vec<String>)>,
}

/// An experiment with one combination of its parameters.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The parameters and their values.
    pub parameters: Vec<(String, Value)>,
    /// The topology.
    pub topology: Topology,
    /// The steps, in order; at least one.
    pub steps: Vec<Step>,
    /// What is captured.
    pub capture: Captured,
    /// The metrics by name, in the order of the file.
    pub metrics: Vec<(String, Metric)>,
}

/// A program that runs to completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The step's name.
    pub name: String,
    /// The host it runs on.
    pub host: String,
    /// The program and its arguments. `plait` runs this executable.
    pub command: Vec<String>,
    /// Whether `mptcpize run` makes its sockets MPTCP sockets.
    pub mptcp: bool,
    /// The time limit, after which the step fails.
    pub timeout: Duration,
    /// Whether the clock of events and windows starts with this step.
    pub starts_clock: bool,
    /// Whether a repetition stays valid if this step fails.
    pub allow_failure: bool,
}

/// The hosts to capture on; all their links are captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The hosts.
    pub on: Vec<String>,
    /// The bytes kept of each frame.
    pub snaplen: u32,
}

/// A metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// How it is computed.
    pub measure: Measure,
    /// The factor applied to the value.
    pub scale: f64,
    /// The unit for display.
    pub unit: String,
    /// The published value for this variant.
    pub paper: Option<PaperValue>,
    /// The minimum of the mean, a bound of this experiment's own.
    pub at_least: Option<f64>,
    /// The maximum of the mean, a bound of this experiment's own.
    pub at_most: Option<f64>,
}

/// A chart of the results.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// The published figure that it corresponds to, as PAPER/ITEM.
    pub figure: Option<String>,
    /// The content.
    pub shows: Shows,
    /// Restricts the chart to variants that fulfil this condition.
    pub when: Condition,
}

/// The content of a chart.
#[derive(Debug, Clone, PartialEq)]
pub enum Shows {
    /// A metric over a parameter.
    Sweep {
        /// The metric.
        metric: String,
        /// The parameter of the horizontal axis.
        x: String,
        /// The parameter whose values become lines or colours.
        series: Option<String>,
    },
    /// The throughput of each subflow over time, in the first valid repetition of the first variant.
    Throughput,
    /// The round-trip times of each subflow, in the same repetition.
    RoundTrip,
    /// The sequence numbers that each subflow carried, in the same repetition.
    Sequence,
}

/// A condition on parameter values; an empty one always holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Condition(pub Vec<(String, Vec<Value>)>);

impl Condition {
    /// Whether the parameters fulfil the condition.
    pub fn holds(&self, parameters: &[(String, Value)]) -> bool {
        self.0.iter().all(|(name, wanted)| {
            parameters.iter().any(|(parameter, value)| parameter == name && wanted.contains(value))
        })
    }
}

impl Variant {
    /// The parameters for display, such as `mode=xor64, megabytes=20`; empty without parameters.
    pub fn name(&self) -> String {
        name_of(&self.parameters)
    }

    /// The step with this name.
    pub fn step(&self, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.name == name)
    }
}

/// Formats parameters for display.
pub(super) fn name_of(parameters: &[(String, Value)]) -> String {
    let words = parameters.iter().map(|(name, value)| format!("{name}={}", text_of(value)));
    words.collect::<Vec<_>>().join(", ")
}

/// Formats a parameter value for display.
pub(super) fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
