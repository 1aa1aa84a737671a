//! Parses the properties of a direction on command lines: `rate=1mbit,delay=5ms`.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use plait_config::{TextError, parse_delay};

use crate::error::Error;
use crate::probability::Probability;
use crate::spec::{Adjustment, Jitter, Loss, Pace, Queue};
use crate::trace::Trace;

const LOSS: &str = "a probability such as 1%, or ENTER:LEAVE[:IN_GOOD:IN_BAD] such as 0.1%:20%";
const JITTER: &str = "a duration such as 2ms, or 2ms:reorder";
const PROPERTIES: &str =
    "NAME=VALUE,... of rate, trace, delay, jitter, loss, duplicate, queue and red, each once";

impl Adjustment {
    /// Parses `rate=1mbit,delay=5ms`; the path of a trace is relative to `directory`.
    ///
    /// # Errors
    /// A property is unknown, repeated or malformed, or the trace cannot be read.
    pub fn parse(text: &str, directory: &Path) -> Result<Self, Error> {
        let trace = |path| Trace::read(&directory.join(path)).map(|trace| Pace::Trace(Arc::new(trace)));
        let mut to = Self::default();
        for property in text.split(',') {
            let (name, value) = property.split_once('=').ok_or_else(|| Error::text(PROPERTIES, text))?;
            let is_set_twice = match name.trim() {
                "rate" => to.pace.replace(Pace::Rate(value.parse()?)).is_some(),
                "trace" => to.pace.replace(trace(value)?).is_some(),
                "delay" => to.delay.replace(parse_delay(value)?).is_some(),
                "jitter" => to.jitter.replace(value.parse()?).is_some(),
                "loss" => to.loss.replace(value.parse()?).is_some(),
                "duplicate" => to.duplication.replace(value.parse()?).is_some(),
                "queue" => to.queue.replace(value.parse::<Queue>()?.bytes()).is_some(),
                "red" => to.red.replace(boolean(value)?).is_some(),
                _ => true,
            };
            if is_set_twice {
                return Err(Error::text(PROPERTIES, text));
            }
        }
        Ok(to)
    }
}

fn boolean(text: &str) -> Result<bool, Error> {
    text.parse().map_err(|_| Error::text("true or false", text))
}

impl FromStr for Jitter {
    type Err = TextError;

    /// Parses `2ms` or `2ms:reorder`.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let (deviation, reorder) = match text.split_once(':') {
            None => (text, false),
            Some((deviation, "reorder")) => (deviation, true),
            Some(_) => return Err(TextError::new(JITTER, text)),
        };
        Ok(Self { deviation: parse_delay(deviation)?, reorder })
    }
}

impl FromStr for Loss {
    type Err = TextError;

    /// Parses `1%`, or `ENTER:LEAVE[:IN_GOOD:IN_BAD]` such as `0.1%:20%`.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let parts: Result<Vec<Probability>, _> = text.split(':').map(str::parse).collect();
        match parts.map_err(|_| TextError::new(LOSS, text))?[..] {
            [probability] => Ok(Self::Random(probability)),
            [enter_bad, leave_bad] => {
                let (in_good, in_bad) = (Probability::default(), Probability::certain());
                Ok(Self::GilbertElliott { enter_bad, leave_bad, in_good, in_bad })
            }
            [enter_bad, leave_bad, in_good, in_bad] => {
                Ok(Self::GilbertElliott { enter_bad, leave_bad, in_good, in_bad })
            }
            _ => Err(TextError::new(LOSS, text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use plait_config::Source;

    use super::*;
    use crate::raw::RawAdjustment;

    fn parse(text: &str) -> Result<Adjustment, Error> {
        Adjustment::parse(text, Path::new(""))
    }

    #[test]
    fn command_lines_and_files_agree() {
        let text = parse(
            "rate=2.74mbit,delay=21.5ms,jitter=2ms:reorder,loss=0.1%:20%,duplicate=1%,queue=30kB,red=true",
        );
        let text = text.expect("all properties");
        let toml = r#"
            rate = "2.74mbit"
            delay = "21.5ms"
            jitter = { deviation = "2ms", reorder = true }
            loss = { enter_bad = "0.1%", leave_bad = "20%" }
            duplication = "1%"
            queue = "30kB"
            red = true
        "#;
        let source = Source::new("lab.toml", toml);
        let raw: RawAdjustment = source.parse().expect("all properties");
        assert_eq!(text, raw.resolve(&source).expect("no trace"));
        let full: Loss = "0.1%:20%:0%:100%".parse().expect("the whole form");
        assert_eq!(Some(full), text.loss);
    }

    #[test]
    fn rejects_unknown_repeated_and_malformed_properties() {
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
            let error = parse(wrong).expect_err(wrong).to_string();
            assert!(error.starts_with("expected "), "{error}");
        }
    }
}
