//! A scheduler with what is wanted of each path.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use plait_config::{Rate, TextError, parse_delay};
use serde::Deserialize;

use crate::bindings::PLAIT_MAX_WEIGHT;
use crate::scheduler::UnknownScheduler;
use crate::{MAX_PATHS, Scheduler};

/// A scheduler and its options, such as `weighted:wlan0=3,lte0=1`. As text: the scheduler's name, a colon, and options
/// separated by commas:
///
/// - `PATH=NUMBER`: the weight of a path (`weighted`), its tier (`tiers`) or its rank by cost (`cheapest-first`). A path is an
///   interface of this host, or an address of either end.
/// - `PATH=NUMBER@RATE`: each subflow on that path carries at most this rate.
/// - `rate=RATE`, `rtt=TIME` (`cheapest-first`): what more expensive paths are used for, if cheaper ones lack it.
///
/// Or the name of a file with a scheduler of one's own, a C source or an object (`.c`, `.o`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SchedulerConfig {
    scheduler: Scheduler,
    /// That of [`Scheduler::File`].
    pub(crate) file: Option<PathBuf>,
    pub(crate) paths: BTreeMap<PathName, PathOptions>,
    pub(crate) rate: Option<Rate>,
    pub(crate) rtt: Option<Duration>,
}

/// What paths are known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathName {
    /// The interface of this host that the packets leave by.
    Interface(String),
    /// The address of either end.
    Address(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathOptions {
    /// The weight, the tier or the rank, from 1.
    pub(crate) number: u32,
    pub(crate) max_rate: Option<Rate>,
}

/// A text that is not a scheduler with its options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ParseSchedulerConfigError {
    #[error(transparent)]
    Scheduler(#[from] UnknownScheduler),
    #[error("expected no options, as {scheduler} has none, got '{text}'")]
    Options { scheduler: Scheduler, text: String },
    #[error("expected {expected}, got '{text}'")]
    Option { expected: &'static str, text: String },
    #[error(transparent)]
    Value(#[from] TextError),
    #[error("expected each path once, got '{0}' twice")]
    Twice(PathName),
    #[error("expected at most {MAX_PATHS} paths, got {0}")]
    TooMany(usize),
}

impl SchedulerConfig {
    /// The scheduler.
    pub fn scheduler(&self) -> Scheduler {
        self.scheduler
    }

    /// Whether paths have tiers, or ranks, by this scheduler.
    pub fn has_tiers(&self) -> bool {
        matches!(self.scheduler, Scheduler::Tiers | Scheduler::CheapestFirst)
    }

    /// Whether paths have weights by this scheduler.
    pub fn has_weights(&self) -> bool {
        self.scheduler == Scheduler::Weighted
    }

    /// This configuration, with these weights, tiers or ranks of interfaces by name, as far as it does not name them itself.
    #[must_use]
    pub fn with_interfaces(&self, numbers: &BTreeMap<String, u32>) -> SchedulerConfig {
        let mut all = self.clone();
        for (name, number) in numbers {
            let options = PathOptions { number: *number, max_rate: None };
            all.paths.entry(PathName::Interface(name.clone())).or_insert(options);
        }
        all
    }

    /// The tier or rank of paths without options: after all others.
    pub(crate) fn last_level(&self) -> u32 {
        self.paths.values().map(|options| options.number).max().unwrap_or(0) + 1
    }

    fn read_option(&mut self, text: &str) -> Result<(), ParseSchedulerConfigError> {
        let expected = match self.scheduler {
            Scheduler::Weighted => "PATH=WEIGHT with a weight from 1 to 1000, such as wlan0=3",
            Scheduler::Tiers => "PATH=TIER with a tier from 1 to 1000, such as wlan0=1",
            Scheduler::CheapestFirst => {
                "PATH=RANK with a rank from 1 to 1000, such as wlan0=1, or rate=RATE or rtt=TIME"
            }
            scheduler => return Err(ParseSchedulerConfigError::Options { scheduler, text: text.into() }),
        };
        let invalid = || ParseSchedulerConfigError::Option { expected, text: text.into() };
        let (name, value) = text.split_once('=').ok_or_else(invalid)?;
        match (self.scheduler, name) {
            (Scheduler::CheapestFirst, "rate") => self.rate = Some(value.parse()?),
            (Scheduler::CheapestFirst, "rtt") => self.rtt = Some(parse_delay(value)?),
            _ => {
                let name: PathName = name.parse().map_err(|()| invalid())?;
                let (number, max_rate) = match value.split_once('@') {
                    Some((number, rate)) => (number, Some(rate.parse()?)),
                    None => (value, None),
                };
                let number = number.parse().ok().filter(|number| (1..=PLAIT_MAX_WEIGHT).contains(number));
                let options = PathOptions { number: number.ok_or_else(invalid)?, max_rate };
                if self.paths.insert(name.clone(), options).is_some() {
                    return Err(ParseSchedulerConfigError::Twice(name));
                }
            }
        }
        Ok(())
    }
}

impl From<Scheduler> for SchedulerConfig {
    fn from(scheduler: Scheduler) -> SchedulerConfig {
        SchedulerConfig { scheduler, file: None, paths: BTreeMap::new(), rate: None, rtt: None }
    }
}

impl FromStr for SchedulerConfig {
    type Err = ParseSchedulerConfigError;

    fn from_str(text: &str) -> Result<SchedulerConfig, ParseSchedulerConfigError> {
        if text.ends_with(".c") || text.ends_with(".o") {
            return Ok(SchedulerConfig { file: Some(text.into()), ..Scheduler::File.into() });
        }
        let (name, options) = match text.split_once(':') {
            Some((name, options)) => (name, Some(options)),
            None => (text, None),
        };
        let mut configuration = SchedulerConfig::from(name.parse::<Scheduler>()?);
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            configuration.read_option(option)?;
        }
        match configuration.paths.len() {
            ..=MAX_PATHS => Ok(configuration),
            number => Err(ParseSchedulerConfigError::TooMany(number)),
        }
    }
}

impl TryFrom<String> for SchedulerConfig {
    type Error = ParseSchedulerConfigError;

    fn try_from(text: String) -> Result<SchedulerConfig, ParseSchedulerConfigError> {
        text.parse()
    }
}

impl fmt::Display for SchedulerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            return file.display().fmt(f);
        }
        let paths = self.paths.iter().map(|(name, PathOptions { number, max_rate })| match max_rate {
            Some(rate) => format!("{name}={number}@{rate}"),
            None => format!("{name}={number}"),
        });
        let rate = self.rate.map(|rate| format!("rate={rate}"));
        let rtt = self.rtt.map(|rtt| format!("rtt={}us", rtt.as_micros()));
        let options: Vec<String> = paths.chain(rate).chain(rtt).collect();
        let separator = if options.is_empty() { "" } else { ":" };
        write!(f, "{}{separator}{}", self.scheduler, options.join(","))
    }
}

impl FromStr for PathName {
    type Err = ();

    fn from_str(text: &str) -> Result<PathName, ()> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(PathName::Address(address.to_canonical()));
        }
        // As the kernel accepts them (`dev_valid_name`), of at most 15 bytes.
        let is_invalid = |letter: char| letter == '/' || letter == ':' || letter.is_whitespace();
        if text.is_empty() || text.len() > 15 || text == "." || text == ".." || text.contains(is_invalid) {
            return Err(());
        }
        Ok(PathName::Interface(text.into()))
    }
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathName::Interface(name) => name.fmt(f),
            PathName::Address(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_options_of_each_scheduler() {
        for text in [
            "ecf",
            "mine.bpf.c",
            "weighted",
            "weighted:lte0=1,wlan0=3",
            "tiers:lte0=2@4mbit,wlan0=1,10.0.0.2=3",
            "cheapest-first:lte0=2,fd00::2=1,rate=10mbit,rtt=50000us",
        ] {
            let parsed: SchedulerConfig = text.parse().expect(text);
            assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()), "{text}");
        }
        let parsed: SchedulerConfig = "cheapest-first:wlan0=1,rtt=50ms".parse().expect("a configuration");
        assert_eq!((parsed.rtt, parsed.last_level()), (Some(Duration::from_millis(50)), 2));
    }

    #[test]
    fn errors_name_what_was_expected() {
        for (text, expected) in [
            ("blest", "expected ecf, lowest-rtt"),
            ("ecf:wlan0=1", "ecf has none"),
            ("weighted:", "PATH=WEIGHT"),
            ("weighted:wlan0", "PATH=WEIGHT"),
            ("weighted:wlan0=0", "from 1 to 1000"),
            ("weighted:wlan0=1001", "from 1 to 1000"),
            ("weighted:wlan0=1,wlan0=2", "'wlan0' twice"),
            ("weighted:rate=1mbit", "PATH=WEIGHT"),
            ("tiers:a/b=1", "PATH=TIER"),
            ("tiers:wlan0=1@fast", "a rate from"),
            ("cheapest-first:rtt=soon", "a duration from"),
        ] {
            let error = text.parse::<SchedulerConfig>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,60}") {
            let _ = text.parse::<SchedulerConfig>();
            let _ = format!("cheapest-first:{text}").parse::<SchedulerConfig>();
        }
    }
}
