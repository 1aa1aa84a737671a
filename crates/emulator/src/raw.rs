//! The properties of a direction as TOML files write them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plait_config::{
    Diagnostic, Shorthand, Source, Spanned, TextError, deserialize_delay, deserialize_shorthand,
};
use serde::de::{Deserialize, Deserializer};

use crate::probability::Probability;
use crate::spec::{Adjustment, Jitter, Loss, Pace, Queue};
use crate::trace::Trace;
use plait_config::Rate;

/// An [`Adjustment`] as TOML files write it. Keys: `rate` (`"2.74mbit"`) or `trace` (`"FILE"`), `delay` (`"21.5ms"`),
/// `jitter`, `loss`, `duplication` (`"1%"`), `queue` (`"30kB"`), `red` (`true`).
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { rate = \"2.74mbit\", delay = \"21.5ms\" }")]
pub struct RawAdjustment {
    rate: Option<Rate>,
    trace: Option<Spanned<TracePath>>,
    delay: Option<Delay>,
    jitter: Option<Jitter>,
    loss: Option<Loss>,
    duplication: Option<Probability>,
    queue: Option<Queue>,
    red: Option<bool>,
}

#[derive(Debug, Clone, serde::Deserialize)]
#[serde(expecting = "the path of a file with one delivery opportunity in ms per line")]
struct TracePath(PathBuf);

#[derive(Debug, Clone, serde::Deserialize)]
struct Delay(#[serde(deserialize_with = "deserialize_delay")] Duration);

impl RawAdjustment {
    /// Reads the trace, whose path is relative to the directory of `source`.
    ///
    /// # Errors
    /// The trace cannot be read, or a rate is given as well.
    pub fn resolve(self, source: &Source) -> Result<Adjustment, Diagnostic> {
        let Self { rate, trace, delay, jitter, loss, duplication, queue, red } = self;
        let pace = match (rate, trace) {
            (Some(_), Some(trace)) => {
                let message = "expected rate or trace, got both";
                let diagnostic = source.diagnostic(trace.span(), message);
                return Err(diagnostic.with_help("a trace sets the rate by itself: remove one of the two"));
            }
            (Some(rate), None) => Some(Pace::Rate(rate)),
            (None, Some(trace)) => {
                let read = Trace::read(&source.directory().join(&trace.get_ref().0));
                let read = read.map_err(|error| source.diagnostic(trace.span(), error.to_string()))?;
                Some(Pace::Trace(Arc::new(read)))
            }
            (None, None) => None,
        };
        let (delay, queue) = (delay.map(|Delay(delay)| delay), queue.map(Queue::bytes));
        Ok(Adjustment { pace, delay, jitter, loss, duplication, queue, red })
    }
}

/// Accepts `"2ms"` or `{ deviation = "2ms", reorder = true }`.
impl<'de> Deserialize<'de> for Jitter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_shorthand(deserializer)
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JitterTable {
    deviation: Delay,
    #[serde(default)]
    reorder: bool,
}

impl Shorthand for Jitter {
    type Table = JitterTable;
    const EXPECTED: &'static str = "a duration such as 2ms, or a table with deviation and reorder";

    fn from_text(text: &str) -> Result<Self, TextError> {
        text.parse()
    }
}

impl From<JitterTable> for Jitter {
    fn from(JitterTable { deviation: Delay(deviation), reorder }: JitterTable) -> Self {
        Self { deviation, reorder }
    }
}

/// Accepts `"1%"`, `0.01`, or `{ enter_bad = "0.1%", leave_bad = "20%", in_good = "0%", in_bad = "100%" }`, where the
/// last two default to these values.
impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_shorthand(deserializer)
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertElliottTable {
    enter_bad: Probability,
    leave_bad: Probability,
    #[serde(default)]
    in_good: Probability,
    #[serde(default = "Probability::certain")]
    in_bad: Probability,
}

impl Shorthand for Loss {
    type Table = GilbertElliottTable;
    const EXPECTED: &'static str =
        "a probability such as 1% or 0.01, or a table with enter_bad, leave_bad, in_good and in_bad";

    fn from_text(text: &str) -> Result<Self, TextError> {
        text.parse()
    }

    fn from_number(number: f64) -> Option<Self> {
        Probability::new(number).map(Self::Random)
    }
}

impl From<GilbertElliottTable> for Loss {
    fn from(table: GilbertElliottTable) -> Self {
        let GilbertElliottTable { enter_bad, leave_bad, in_good, in_bad } = table;
        Self::GilbertElliott { enter_bad, leave_bad, in_good, in_bad }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DirectionSpec;

    fn read(toml: &str) -> Result<Adjustment, Diagnostic> {
        read_in("", toml)
    }

    fn read_in(directory: &str, toml: &str) -> Result<Adjustment, Diagnostic> {
        let source = Source::new(&format!("{directory}lab.toml"), toml);
        source.parse::<RawAdjustment>()?.resolve(&source)
    }

    fn probability(value: f64) -> Probability {
        Probability::new(value).expect("from 0 to 1")
    }

    #[test]
    fn every_property_is_read_as_people_write_it() {
        let toml = r#"
            rate = "2.74mbit"
            delay = "21.5ms"
            jitter = { deviation = "2ms", reorder = true }
            loss = { enter_bad = "0.1%", leave_bad = 0.2, in_good = "0%", in_bad = "100%" }
            duplication = "1%"
            queue = "30kB"
            red = true
        "#;
        let expected = Adjustment {
            pace: Some(Pace::Rate("2740kbit".parse().expect("a rate"))),
            delay: Some(Duration::from_micros(21_500)),
            jitter: Some(Jitter { deviation: Duration::from_millis(2), reorder: true }),
            loss: Some(Loss::GilbertElliott {
                enter_bad: probability(0.001),
                leave_bad: probability(0.2),
                in_good: probability(0.0),
                in_bad: probability(1.0),
            }),
            duplication: Some(probability(0.01)),
            queue: Some(30_000),
            red: Some(true),
        };
        assert_eq!(read(toml).expect("all properties"), expected);
    }

    #[test]
    fn short_forms() {
        let read = |toml: &str| read(toml).expect(toml);
        let jitter = Jitter { deviation: Duration::from_millis(2), reorder: false };
        assert_eq!(read("jitter = '2ms'").jitter, Some(jitter));
        for toml in ["loss = '1%'", "loss = 0.01"] {
            assert_eq!(read(toml).loss, Some(Loss::Random(probability(0.01))));
        }
        let bursts = read("loss = { enter_bad = 0, leave_bad = 1 }").loss;
        let all_and_nothing = |in_good, in_bad| {
            let (enter_bad, leave_bad) = (probability(0.0), probability(1.0));
            Some(Loss::GilbertElliott { enter_bad, leave_bad, in_good, in_bad })
        };
        assert_eq!(bursts, all_and_nothing(probability(0.0), probability(1.0)));
        assert_eq!(read(""), Adjustment::default());
    }

    #[test]
    fn errors_say_what_was_expected_and_what_is_there() {
        let cases = [
            (
                "rate = 5",
                "invalid type: integer `5`, expected a rate from 1bit to 1000gbit in bit, kbit, mbit or gbit",
            ),
            ("rate = '5'", "such as 4mbit, got \"5\""),
            ("delay = 5", "invalid type: integer `5`, expected a duration from 0s to 60s"),
            ("delay = ['5ms']", "invalid type: sequence, expected a duration"),
            (
                "jitter = true",
                "invalid type: boolean `true`, expected a duration such as 2ms, or a table with deviation and reorder",
            ),
            ("jitter = { deviation = '2' }", "such as 21.5ms or 16s, got \"2\""),
            ("jitter = { reorder = true }", "missing field `deviation`"),
            (
                "loss = 1.5",
                "invalid value: floating point `1.5`, expected a probability such as 1% or 0.01, or a table with enter_bad",
            ),
            (
                "loss = { enter_bad = '1%', leave_bad = '1%', bad = 1 }",
                "unknown field `bad`, expected one of",
            ),
            ("duplication = { p = 1 }", "invalid type: map, expected a probability from 0 to 1"),
            ("duplication = 2", "invalid value: integer `2`, expected a probability from 0 to 1"),
            ("queue = 30000", "invalid type: integer `30000`, expected a size from 1B to 1GB"),
            ("trace = 1", "invalid type: integer `1`, expected "),
            ("trace = '/nonexistent'", "cannot read the trace /nonexistent"),
            ("speed = '1mbit'", "unknown field `speed`, expected one of `rate`, `trace`"),
        ];
        for (line, message) in cases {
            let error = read(&format!("red = true\n\n{line}\n")).expect_err(line);
            assert!(error.message.contains(message) && error.line == 3, "{error}");
        }
    }

    #[test]
    fn a_trace_is_relative_to_the_file_and_excludes_a_rate() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("lte.trace"), "1\n2\n").expect("a trace");
        let directory = format!("{}/", directory.path().display());
        let both = read_in(&directory, "rate = '1mbit'\ntrace = 'lte.trace'").expect_err("both");
        assert!(both.message.contains("expected rate or trace, got both") && both.line == 2, "{both}");
        let trace = read_in(&directory, "trace = 'lte.trace'").expect("a trace").pace;
        assert!(matches!(trace, Some(Pace::Trace(trace)) if trace.period() == Duration::from_millis(2)));
        assert!(read("trace = 'lte.trace'").is_err(), "there is none in the current directory");
    }

    #[test]
    fn an_adjustment_sets_what_it_names_and_leaves_the_rest() {
        let before =
            DirectionSpec { delay: Duration::from_millis(7), queue: Some(9_000), ..DirectionSpec::default() };
        let after = before.adjusted(&read("rate = '1mbit'\nqueue = '30kB'").expect("two properties"));
        let expected =
            DirectionSpec { pace: Pace::Rate(Rate::mbit(1)), queue: Some(30_000), ..before.clone() };
        assert_eq!(after, expected);
        assert_eq!(before.adjusted(&Adjustment::default()), before);
    }
}
