//! Experiments as TOML files write them.

use std::collections::BTreeMap;
use std::time::Duration;

use plait_config::{Spanned, deserialize_time};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;

use super::metric::RawMetric;
use super::model::text_of;
use super::one_or_many::OneOrMany;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    pub(super) experiment: Heading,
    #[serde(default, rename = "parameters")]
    _parameters: BTreeMap<String, Value>,
    #[serde(default)]
    pub(super) plots: Vec<Spanned<RawPlot>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Heading {
    pub(super) name: Spanned<String>,
    pub(super) title: String,
    pub(super) source: String,
    pub(super) description: String,
    pub(super) note: Option<String>,
    pub(super) repetitions: Spanned<u32>,
    #[serde(default)]
    pub(super) quick: Quick,
    #[serde(default = "lateness_limit", deserialize_with = "deserialize_time")]
    pub(super) lateness_limit: Duration,
}

fn lateness_limit() -> Duration {
    Duration::from_micros(500)
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Quick {
    pub(super) repetitions: Option<Spanned<u32>>,
    #[serde(default, rename = "parameters")]
    _parameters: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPlot {
    pub(super) title: String,
    pub(super) figure: Option<String>,
    pub(super) kind: Option<Kind>,
    pub(super) metric: Option<Spanned<String>>,
    pub(super) x: Option<Spanned<String>>,
    pub(super) series: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) when: BTreeMap<Spanned<String>, OneOrMany<Value>>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Sweep,
    Throughput,
    Rtt,
    Sequence,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    pub(super) steps: Spanned<Vec<Spanned<RawStep>>>,
    #[serde(default)]
    pub(super) capture: RawCapture,
    #[serde(default)]
    pub(super) metrics: BTreeMap<Spanned<String>, Spanned<RawMetric>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStep {
    pub(super) name: Spanned<String>,
    pub(super) host: Spanned<String>,
    pub(super) command: Spanned<Vec<Spanned<Word>>>,
    #[serde(default)]
    pub(super) mptcp: bool,
    #[serde(default = "step_timeout", deserialize_with = "deserialize_time")]
    pub(super) timeout: Duration,
    #[serde(default)]
    pub(super) starts_clock: bool,
    #[serde(default)]
    pub(super) allow_failure: bool,
}

fn step_timeout() -> Duration {
    Duration::from_secs(60)
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCapture {
    #[serde(default)]
    pub(super) on: Vec<Spanned<String>>,
    pub(super) snaplen: Option<Spanned<u32>>,
}

/// An argument of a command: a string, or a number from a substituted parameter.
pub(super) struct Word(pub(super) String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            word @ (Value::String(_) | Value::Number(_) | Value::Bool(_)) => Ok(Self(text_of(&word))),
            _ => Err(D::Error::custom("expected a word of a command, got a list or table")),
        }
    }
}
