//! How the parts of a specification stand in TOML and JSON: the texts that people write, or tables of them.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use plait_config::{Found, Table, TextError, deserialize_delay};
use serde::de::{Deserialize, Deserializer, Error as _};

use crate::{Adjustment, Error, Jitter, Loss, Pace, Probability, Queue, Rate, Trace};

const LOSS: &str =
    "a probability such as 1% or 0.01, or a table with enter_bad, leave_bad, in_good and in_bad";
const LOSS_TEXT: &str = "a probability such as 1%, or ENTER:LEAVE[:IN_GOOD:IN_BAD] such as 0.1%:20%";
const JITTER: &str = "a time such as 2ms, or a table with deviation and reorder";
const JITTER_TEXT: &str = "a time such as 2ms, or 2ms:reorder";
const PROPERTIES: &str =
    "NAME=VALUE,... of rate, trace, delay, jitter, loss, duplicate, queue and red, each once";
const TRACE: &str = "the path of a file with one delivery opportunity in ms per line";

/// Keys: `rate` (`"2.74mbit"`) or `trace` (`"FILE"`), `delay` (`"21.5ms"`), `jitter`, `loss`, `duplication` (`"1%"`),
/// `queue` (`"30kB"`), `red` (`true`).
impl<'de> Deserialize<'de> for Adjustment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = AdjustmentForm::deserialize(deserializer)?;
        let pace = match (form.rate, form.trace) {
            (Some(_), Some(_)) => {
                return Err(D::Error::custom(
                    "expected rate or trace, found both: a trace has a rate of its own",
                ));
            }
            (Some(rate), None) => Some(Pace::Rate(rate)),
            (None, Some(TraceFile(trace))) => Some(Pace::Trace(Arc::new(trace))),
            (None, None) => None,
        };
        let AdjustmentForm { delay, jitter, loss, duplication, queue, red, .. } = form;
        let (delay, queue) = (delay.map(|Delay(delay)| delay), queue.map(Queue::bytes));
        Ok(Self { pace, delay, jitter, loss, duplication, queue, red })
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct AdjustmentForm {
    rate: Option<Rate>,
    trace: Option<TraceFile>,
    delay: Option<Delay>,
    jitter: Option<Jitter>,
    loss: Option<Loss>,
    duplication: Option<Probability>,
    queue: Option<Queue>,
    red: Option<bool>,
}

#[derive(serde::Deserialize)]
struct Delay(#[serde(deserialize_with = "deserialize_delay")] Duration);

struct TraceFile(Trace);

impl<'de> Deserialize<'de> for TraceFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = Found::<()>::deserialize(deserializer)?.text(TRACE)?;
        Trace::named(&file).map(Self).map_err(D::Error::custom)
    }
}

impl FromStr for Adjustment {
    type Err = Error;

    /// Reads `rate=1mbit,delay=5ms`.
    fn from_str(given: &str) -> Result<Self, Error> {
        let mut to = Self::default();
        for property in given.split(',') {
            let (name, value) = property.split_once('=').ok_or_else(|| Error::text(PROPERTIES, given))?;
            let twice = match name.trim() {
                "rate" => to.pace.replace(Pace::Rate(value.parse()?)).is_some(),
                "trace" => to.pace.replace(Pace::Trace(Arc::new(Trace::named(value)?))).is_some(),
                "delay" => to.delay.replace(plait_config::delay(value)?).is_some(),
                "jitter" => to.jitter.replace(value.parse()?).is_some(),
                "loss" => to.loss.replace(value.parse()?).is_some(),
                "duplicate" => to.duplication.replace(value.parse()?).is_some(),
                "queue" => to.queue.replace(value.parse::<Queue>()?.bytes()).is_some(),
                "red" => to.red.replace(yes(value)?).is_some(),
                _ => true,
            };
            if twice {
                return Err(Error::text(PROPERTIES, given));
            }
        }
        Ok(to)
    }
}

fn yes(given: &str) -> Result<bool, Error> {
    given.parse().map_err(|_| Error::text("true or false", given))
}

impl FromStr for Jitter {
    type Err = TextError;

    /// Reads `2ms` or `2ms:reorder`.
    fn from_str(given: &str) -> Result<Self, TextError> {
        let (deviation, reorder) = match given.split_once(':') {
            None => (given, false),
            Some((deviation, "reorder")) => (deviation, true),
            Some(_) => return Err(TextError::new(JITTER_TEXT, given)),
        };
        Ok(Self { deviation: plait_config::delay(deviation)?, reorder })
    }
}

impl FromStr for Loss {
    type Err = TextError;

    /// Reads `1%`, or `ENTER:LEAVE[:IN_GOOD:IN_BAD]` such as `0.1%:20%`.
    fn from_str(given: &str) -> Result<Self, TextError> {
        let parts: Result<Vec<Probability>, _> = given.split(':').map(str::parse).collect();
        match parts.map_err(|_| TextError::new(LOSS_TEXT, given))?[..] {
            [probability] => Ok(Self::Random(probability)),
            [enter_bad, leave_bad] => {
                let (in_good, in_bad) = (Probability::default(), Probability::certain());
                Ok(Self::GilbertElliott { enter_bad, leave_bad, in_good, in_bad })
            }
            [enter_bad, leave_bad, in_good, in_bad] => {
                Ok(Self::GilbertElliott { enter_bad, leave_bad, in_good, in_bad })
            }
            _ => Err(TextError::new(LOSS_TEXT, given)),
        }
    }
}

/// `"2ms"`, or `{ deviation = "2ms", reorder = true }`.
impl<'de> Deserialize<'de> for Jitter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Found::<JitterForm>::deserialize(deserializer)? {
            Found::Text(text) => text.parse().map_err(D::Error::custom),
            Found::Table(JitterForm { deviation: Delay(deviation), reorder }) => {
                Ok(Self { deviation, reorder })
            }
            other => Err(other.unexpected(JITTER)),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct JitterForm {
    deviation: Delay,
    #[serde(default)]
    reorder: bool,
}

impl Table for JitterForm {}

/// `"1%"`, `0.01`, or `{ enter_bad = "0.1%", leave_bad = "20%", in_good = "0%", in_bad = "100%" }`, of which the last two
/// may be left out and are then what is shown here.
impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Found::<BurstForm>::deserialize(deserializer)? {
            Found::Text(text) => text.parse().map_err(D::Error::custom),
            Found::Table(BurstForm { enter_bad, leave_bad, in_good, in_bad }) => {
                Ok(Self::GilbertElliott { enter_bad, leave_bad, in_good, in_bad })
            }
            Found::Number(number) => match Probability::new(number) {
                Some(probability) => Ok(Self::Random(probability)),
                None => Err(Found::<()>::Number(number).unexpected(LOSS)),
            },
            other => Err(other.unexpected(LOSS)),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BurstForm {
    enter_bad: Probability,
    leave_bad: Probability,
    #[serde(default)]
    in_good: Probability,
    #[serde(default = "Probability::certain")]
    in_bad: Probability,
}

impl Table for BurstForm {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Direction;

    fn read(toml: &str) -> Result<Adjustment, String> {
        toml::from_str(toml).map_err(|error: toml::de::Error| error.to_string())
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
    fn what_stands_on_command_lines_means_the_same() {
        let text: Adjustment =
            "rate=2.74mbit,delay=21.5ms,jitter=2ms:reorder,loss=0.1%:20%,duplicate=1%,queue=30kB,red=true"
                .parse()
                .expect("all");
        let toml = r#"
            rate = "2.74mbit"
            delay = "21.5ms"
            jitter = { deviation = "2ms", reorder = true }
            loss = { enter_bad = "0.1%", leave_bad = "20%" }
            duplication = "1%"
            queue = "30kB"
            red = true
        "#;
        assert_eq!(text, read(toml).expect("all properties"));
        let full: Loss = "0.1%:20%:0%:100%".parse().expect("the whole form");
        assert_eq!(Some(full), text.loss);
        for wrong in [
            "",
            "rate",
            "rate=1mbit,rate=2mbit",
            "speed=1mbit",
            "rate=1mbit,",
            "loss=1%:2%:3%",
            "jitter=1ms:x",
            "red=yes",
        ] {
            let error = wrong.parse::<Adjustment>().expect_err(wrong).to_string();
            assert!(error.starts_with("expected "), "{error}");
        }
    }

    #[test]
    fn errors_name_the_place_what_was_expected_and_what_was_found() {
        let cases = [
            (
                "rate = 5",
                "expected a rate from 1bit to 1000gbit in bit, kbit, mbit or gbit, such as 4mbit, found the number 5",
            ),
            ("rate = '5'", "such as 4mbit, found \"5\""),
            ("delay = 5", "such as 21.5ms, found the number 5"),
            ("delay = ['5ms']", "such as 21.5ms, found a list"),
            (
                "jitter = true",
                "expected a time such as 2ms, or a table with deviation and reorder, found true",
            ),
            ("jitter = { deviation = '2' }", "such as 21.5ms, found \"2\""),
            ("jitter = { reorder = true }", "missing field `deviation`"),
            ("loss = 1.5", "or a table with enter_bad, leave_bad, in_good and in_bad, found the number 1.5"),
            (
                "loss = { enter_bad = '1%', leave_bad = '1%', bad = 1 }",
                "unknown field `bad`, expected one of",
            ),
            ("duplication = { p = 1 }", "found a table"),
            ("queue = 30000", "such as 30kB, found the number 30000"),
            ("trace = 1", "expected the path of a file with one delivery opportunity"),
            ("trace = '/nonexistent'", "cannot read the trace /nonexistent"),
            ("speed = '1mbit'", "unknown field `speed`, expected one of `rate`, `trace`"),
        ];
        for (line, message) in cases {
            let toml = format!("delay = '1ms'\n[set]\n{line}\n");
            #[derive(Debug, serde::Deserialize)]
            struct File {
                #[serde(rename = "delay")]
                _delay: String,
                #[serde(rename = "set")]
                _set: Adjustment,
            }
            let error = toml::from_str::<File>(&toml).expect_err(line).to_string();
            assert!(error.contains(message) && error.contains("line 3"), "{error}");
        }
    }

    #[test]
    fn rate_and_trace_exclude_each_other() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("lte.trace"), "1\n2\n").expect("a trace");
        let both = Trace::relative_to(directory.path(), || read("rate = '1mbit'\ntrace = 'lte.trace'"));
        assert!(both.expect_err("both").contains("expected rate or trace, found both"));
        let trace =
            Trace::relative_to(directory.path(), || read("trace = 'lte.trace'")).expect("a trace").pace;
        assert!(matches!(trace, Some(Pace::Trace(trace)) if trace.period() == Duration::from_millis(2)));
        assert!(read("trace = 'lte.trace'").is_err(), "the directory holds only while it is asked for");
    }

    #[test]
    fn an_adjustment_sets_what_it_names_and_leaves_the_rest() {
        let before =
            Direction { delay: Duration::from_millis(7), queue: Some(9_000), ..Direction::default() };
        let after = before.adjusted(&read("rate = '1mbit'\nqueue = '30kB'").expect("two properties"));
        let expected = Direction { pace: Pace::Rate(Rate::mbit(1)), queue: Some(30_000), ..before.clone() };
        assert_eq!(after, expected);
        assert_eq!(before.adjusted(&Adjustment::default()), before);
    }
}
