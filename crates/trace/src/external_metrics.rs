//! Time series of other tools, recorded during a capture: `iperf3 -J`, repeated `ss -tMino` and `nstat`, and the recordings
//! of `plait capture`.
//!
//! Neither ss nor nstat prints the time. Each of their outputs therefore follows a line with the time, as `date +%s.%N`
//! prints it:
//!
//! ```sh
//! while sleep 0.1; do date +%s.%N; ss -tMinoOH; done >ss.txt
//! while sleep 0.1; do date +%s.%N; nstat -asz; done >nstat.txt
//! ```
//!
//! No input, however damaged, causes a panic; unknown lines are skipped.

mod iperf3;
mod nstat;
mod plait_capture;
mod ss;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

/// A time series measured by another tool.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct ExternalMetric {
    /// The tool: `iperf3`, `ss`, `nstat` or `plait`.
    #[schemars(extend("enum" = ["iperf3", "ss", "nstat", "plait"]))]
    pub source: &'static str,
    /// What was measured: a stream, a subflow by its addresses, or `host`.
    pub subject: String,
    /// The name of the metric, as the tool has it.
    pub metric: String,
    /// Its unit: `Mb/s`, `ms`, `B`, `segments` or none.
    #[schemars(extend("enum" = ["Mb/s", "ms", "B", "segments", ""]))]
    pub unit: &'static str,
    /// Times in seconds since 1970, and values; at most 10,000.
    pub points: Vec<(f64, f64)>,
}

/// A file that cannot be used.
#[derive(Debug, Error)]
pub enum ExternalMetricError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// Its format is unknown, or it is empty.
    #[error(
        "{file}: expected output of iperf3 -J, plait capture, ss -tMinoOH or nstat (of the last two, each behind a line with \
         the time: date +%s.%N), got something else"
    )]
    Unknown {
        /// The file.
        file: String,
    },
}

/// Maximum number of points of a metric. Beyond it, every second point is dropped.
const MAX_POINTS: usize = 10_000;

/// Maximum number of metrics; later ones are dropped.
const MAX_METRICS: usize = 2_000;

/// Maximum length of a line in bytes: far more than that of a host with hundreds of subflows.
const MAX_LINE: u64 = 16 << 20;

impl ExternalMetric {
    /// Reads the output of any of the tools from a file.
    ///
    /// # Errors
    /// The file cannot be read, or its format is unknown.
    pub fn read(file: &Path) -> Result<Vec<Self>, ExternalMetricError> {
        let name = file.display().to_string();
        let read = File::open(file).and_then(|input| Collector::read(BufReader::new(input)));
        let collector = read.map_err(|source| ExternalMetricError::Read { file: name.clone(), source })?;
        if collector.found.is_empty() && !collector.is_plait_recording {
            return Err(ExternalMetricError::Unknown { file: name });
        }
        Ok(collector.finish())
    }
}

/// Collects time series.
#[derive(Default)]
struct Collector {
    found: Vec<Downsampled>,
    /// Whether the input is a recording of `plait capture`, which is valid even if nothing of it is kept.
    is_plait_recording: bool,
    indices: HashMap<(String, String), usize>,
}

struct Downsampled {
    series: ExternalMetric,
    /// Keep every n-th point, after skipping this many.
    step: u32,
    skip: u32,
}

impl Collector {
    fn read(mut input: impl BufRead) -> io::Result<Self> {
        let mut collector = Self::default();
        let mut time = None;
        let mut line = String::new();
        // JSON on several lines, as iperf3 writes it.
        let mut document = String::new();
        loop {
            line.clear();
            if io::Read::take(&mut input, MAX_LINE).read_line(&mut line)? == 0 {
                break;
            }
            let text = line.trim();
            if let Some(stamp) = text.parse::<f64>().ok().filter(|stamp| stamp.is_finite() && *stamp >= 0.0) {
                time = Some(stamp);
                continue;
            }
            if !document.is_empty() || text == "{" {
                if document.len() as u64 <= MAX_LINE {
                    document.push_str(text);
                }
            } else if let Ok(value) = serde_json::from_str(text) {
                plait_capture::add(&value, &mut collector);
                iperf3::add(&value, &mut collector);
                if let Some(time) = time {
                    nstat::add_json(time, &value, &mut collector);
                }
            } else if let Some(time) = time {
                ss::add(time, text, &mut collector);
                nstat::add_text(time, text, &mut collector);
            }
        }
        if let Ok(value) = serde_json::from_str(&document) {
            iperf3::add(&value, &mut collector);
        }
        Ok(collector)
    }

    fn add(
        &mut self,
        source: &'static str,
        subject: &str,
        metric: &str,
        unit: &'static str,
        (time, value): (f64, f64),
    ) {
        if !time.is_finite() || !value.is_finite() {
            return;
        }
        let index = match self.indices.get(&(subject.to_owned(), metric.to_owned())) {
            Some(index) => *index,
            None if self.found.len() == MAX_METRICS => return,
            None => {
                let (subject, metric, points) = (subject.to_owned(), metric.to_owned(), Vec::new());
                self.indices.insert((subject.clone(), metric.clone()), self.found.len());
                let series = ExternalMetric { source, subject, metric, unit, points };
                self.found.push(Downsampled { series, step: 1, skip: 0 });
                self.found.len() - 1
            }
        };
        let Downsampled { series: ExternalMetric { points, .. }, step, skip } = &mut self.found[index];
        if *skip > 0 {
            *skip -= 1;
            return;
        }
        points.push((time, value));
        *skip = *step - 1;
        if points.len() == MAX_POINTS {
            // Drops the last of an even number, so that the next one is kept.
            let mut count = 0;
            points.retain(|_| {
                count += 1;
                count % 2 == 1
            });
            *step *= 2;
        }
    }

    fn finish(self) -> Vec<ExternalMetric> {
        let mut found: Vec<_> = self.found.into_iter().map(|downsampled| downsampled.series).collect();
        // Drops counters that never changed.
        found.retain(|series| {
            series.source != nstat::SOURCE
                || series.points.iter().any(|(_, value)| *value != series.points[0].1)
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn read(text: &str) -> Vec<ExternalMetric> {
        Collector::read(text.as_bytes()).expect("memory does not fail").finish()
    }

    pub(super) fn points<'a>(found: &'a [ExternalMetric], subject: &str, metric: &str) -> &'a [(f64, f64)] {
        let is =
            |series: &&ExternalMetric| (series.subject.as_str(), series.metric.as_str()) == (subject, metric);
        &found.iter().find(is).unwrap_or_else(|| panic!("no {metric} of {subject} in {found:#?}")).points
    }

    #[test]
    fn downsamples_evenly() {
        let mut collector = Collector::default();
        for index in 0..100_000 {
            collector.add("ss", "a", "rtt", "ms", (f64::from(index), 1.0));
        }
        let found = collector.finish();
        let points = &found[0].points;
        assert!(points.len() < MAX_POINTS && points.len() > MAX_POINTS / 4);
        let step = points[1].0 - points[0].0;
        assert!(points.windows(2).all(|pair| pair[1].0 - pair[0].0 == step));
    }

    #[test]
    fn rejects_other_files() {
        assert_eq!(read("hello\nworld\n"), []);
        assert_eq!(read("{\"a\": [1, 2]}\n12\n"), []);
    }

    #[test]
    fn accepts_a_recording_without_mptcp_counters() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("counters.jsonl");
        std::fs::write(&file, "{\"time\":1.5,\"kernel\":{\"TcpActiveOpens\":2}}\n").expect("writes");
        assert_eq!(ExternalMetric::read(&file).expect("is recognized"), []);
    }

    proptest! {
        #[test]
        fn reads_any_text(text in ".*", lines in proptest::collection::vec("[ -~]{0,80}", 0..20)) {
            read(&text);
            read(&format!("12.5\n{}", lines.join("\n")));
        }
    }
}
