//! What other tools measured beside a capture, on the same time line: `iperf3 -J`, `ss -tMino` and `nstat` taken
//! repeatedly, and what `plait capture` records of subflows and counters.
//!
//! Neither ss nor nstat says when it ran. Their files are therefore what this writes: each output behind a line with
//! the time, as `date +%s.%N` prints it.
//!
//! ```sh
//! while sleep 0.1; do date +%s.%N; ss -tMinoOH; done >ss.txt
//! while sleep 0.1; do date +%s.%N; nstat -asz; done >nstat.txt
//! ```
//!
//! No input, however damaged, makes this panic; lines that it cannot understand are passed over.

mod iperf3;
mod nstat;
mod recorded;
mod ss;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Serialize;
use thiserror::Error;

/// A figure over time, measured by another tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Companion {
    /// The tool: `iperf3`, `ss`, `nstat` or `plait`.
    pub source: &'static str,
    /// What was measured: a stream, a subflow by its addresses, or `host`.
    pub of: String,
    /// Which figure of it, as the tool names it.
    pub figure: String,
    /// Its unit: `Mb/s`, `ms`, `B`, `segments` or none.
    pub unit: &'static str,
    /// Times in seconds since 1970, and values.
    pub points: Vec<(f64, f64)>,
}

/// Why a file is of no use beside a capture.
#[derive(Debug, Error)]
pub enum CompanionError {
    /// It cannot be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// What failed.
        source: io::Error,
    },
    /// It is something else, or there is nothing in it.
    #[error(
        "{file}: expected the output of iperf3 -J, a recording of plait capture, or outputs of ss -tMinoOH or nstat, each \
         behind a line with the time (date +%s.%N); found nothing of the kind"
    )]
    Unknown {
        /// The file.
        file: String,
    },
}

/// How many points a figure has at most. Beyond it every second one is dropped.
const POINTS: usize = 10_000;

/// How many figures are kept at most; those that come later are not.
const FIGURES: usize = 2_000;

/// The longest line that is looked at, in bytes: much longer than that of a host with hundreds of subflows.
const LINE: u64 = 16 << 20;

impl Companion {
    /// Reads what other tools measured from a file, whichever of them wrote it.
    ///
    /// # Errors
    /// It cannot be read, or nothing in it is known.
    pub fn read(file: &Path) -> Result<Vec<Self>, CompanionError> {
        let name = file.display().to_string();
        let read = File::open(file).and_then(|input| Figures::read(BufReader::new(input)));
        let found = read.map_err(|source| CompanionError::Read { file: name.clone(), source })?;
        if found.is_empty() { Err(CompanionError::Unknown { file: name }) } else { Ok(found) }
    }
}

/// Collects figures.
#[derive(Default)]
struct Figures {
    found: Vec<Thinned>,
    places: HashMap<(String, String), usize>,
}

struct Thinned {
    companion: Companion,
    /// Every how manieth point is kept, and how many come before the next.
    step: u32,
    skip: u32,
}

impl Figures {
    fn read(mut input: impl BufRead) -> io::Result<Vec<Companion>> {
        let mut figures = Self::default();
        let mut time = None;
        let mut line = String::new();
        // JSON of several lines, as iperf3 writes it.
        let mut document = String::new();
        loop {
            line.clear();
            if io::Read::take(&mut input, LINE).read_line(&mut line)? == 0 {
                break;
            }
            let text = line.trim();
            if let Some(stamp) = text.parse::<f64>().ok().filter(|stamp| stamp.is_finite() && *stamp >= 0.0) {
                time = Some(stamp);
                continue;
            }
            if !document.is_empty() || text == "{" {
                if document.len() as u64 <= LINE {
                    document.push_str(text);
                }
            } else if let Ok(value) = serde_json::from_str(text) {
                recorded::add(&value, &mut figures);
                iperf3::add(&value, &mut figures);
                if let Some(time) = time {
                    nstat::add_json(time, &value, &mut figures);
                }
            } else if let Some(time) = time {
                ss::add(time, text, &mut figures);
                nstat::add_text(time, text, &mut figures);
            }
        }
        if let Ok(value) = serde_json::from_str(&document) {
            iperf3::add(&value, &mut figures);
        }
        Ok(figures.finish())
    }

    fn add(
        &mut self,
        source: &'static str,
        of: &str,
        figure: &str,
        unit: &'static str,
        (time, value): (f64, f64),
    ) {
        if !time.is_finite() || !value.is_finite() {
            return;
        }
        let place = match self.places.get(&(of.to_owned(), figure.to_owned())) {
            Some(place) => *place,
            None if self.found.len() == FIGURES => return,
            None => {
                let companion =
                    Companion { source, of: of.into(), figure: figure.into(), unit, points: Vec::new() };
                self.found.push(Thinned { companion, step: 1, skip: 0 });
                self.places.insert((of.into(), figure.into()), self.found.len() - 1);
                self.found.len() - 1
            }
        };
        let Thinned { companion: Companion { points, .. }, step, skip } = &mut self.found[place];
        if *skip > 0 {
            *skip -= 1;
            return;
        }
        points.push((time, value));
        *skip = *step - 1;
        if points.len() == POINTS {
            // The last of an even number goes too, so that the next one is kept.
            let mut index = 0;
            points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            *step *= 2;
        }
    }

    fn finish(self) -> Vec<Companion> {
        let mut found: Vec<_> = self.found.into_iter().map(|thinned| thinned.companion).collect();
        // A counter that never moved tells nothing.
        found.retain(|companion| {
            companion.source != nstat::SOURCE
                || companion.points.iter().any(|(_, value)| *value != companion.points[0].1)
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn read(text: &str) -> Vec<Companion> {
        Figures::read(text.as_bytes()).expect("memory does not fail")
    }

    pub(super) fn points<'a>(found: &'a [Companion], of: &str, figure: &str) -> &'a [(f64, f64)] {
        let is = |companion: &&Companion| (companion.of.as_str(), companion.figure.as_str()) == (of, figure);
        &found.iter().find(is).unwrap_or_else(|| panic!("no {figure} of {of} in {found:#?}")).points
    }

    #[test]
    fn many_points_are_thinned_evenly() {
        let mut figures = Figures::default();
        for index in 0..100_000 {
            figures.add("ss", "a", "rtt", "ms", (f64::from(index), 1.0));
        }
        let found = figures.finish();
        let points = &found[0].points;
        assert!(points.len() < POINTS && points.len() > POINTS / 4);
        let step = points[1].0 - points[0].0;
        assert!(points.windows(2).all(|pair| pair[1].0 - pair[0].0 == step));
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(read("hello\nworld\n"), []);
        assert_eq!(read("{\"a\": [1, 2]}\n12\n"), []);
    }

    proptest! {
        #[test]
        fn anything_can_be_read(text in ".*", lines in proptest::collection::vec("[ -~]{0,80}", 0..20)) {
            read(&text);
            read(&format!("12.5\n{}", lines.join("\n")));
        }
    }
}
