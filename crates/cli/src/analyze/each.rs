//! Many captures, each a measurement of its own.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use plait_trace::output::{Output, WholeFile};
use plait_trace::{analyze, document};
use serde_json::json;

use super::{bar, warn, warn_of_damage};
use crate::stdout::Stdout;

/// The list of all connections.
const INDEX: &str = "index.csv";

/// Analyses each capture into a directory of its own, on all cores. What is printed and listed comes in the order in which
/// the captures were given.
pub(super) fn run(
    captures: &[PathBuf],
    directory: &Path,
    interval: Duration,
    json: bool,
) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create the directory {}", directory.display()))?;
    let directories: Vec<PathBuf> = names(captures).into_iter().map(|name| directory.join(name)).collect();
    let progress = bar(captures);
    let mut results = Results {
        out: Stdout::new(),
        json,
        index: csv::Writer::from_writer(WholeFile::create(directory.join(INDEX))?),
        indexed: false,
        failed: 0,
    };
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from).min(captures.len());
    thread::scope(|scope| {
        let (sender, done) = mpsc::channel();
        for _ in 0..workers {
            let (sender, next, progress, directories) = (sender.clone(), &next, &progress, &directories);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(capture), Some(directory)) = (captures.get(number), directories.get(number))
                    else {
                        break;
                    };
                    let result = analyze_one(capture, directory, interval, progress);
                    // Nobody listens any more where results cannot be written.
                    if sender.send((number, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut expected = 0;
        for (number, result) in done {
            early.insert(number, result);
            while let Some(result) = early.remove(&expected) {
                progress.suspend(|| results.take(&captures[expected], &directories[expected], result))?;
                expected += 1;
            }
        }
        anyhow::Ok(())
    })?;
    progress.finish_and_clear();
    results.finish(captures.len())
}

/// A directory name for each capture: the capture's own, with a number where others have the same.
fn names(captures: &[PathBuf]) -> Vec<OsString> {
    let own = |path: &PathBuf| path.file_name().map_or_else(|| "capture".into(), OsString::from);
    // What somebody is called already is left to them.
    let mut taken: HashSet<OsString> = captures.iter().map(own).collect();
    taken.insert(INDEX.into());
    let mut seen = HashSet::from([OsString::from(INDEX)]);
    let named = captures.iter().map(own).map(|name| {
        if seen.insert(name.clone()) {
            return name;
        }
        let numbered = (2_u64..).map(|number| {
            let mut numbered = name.clone();
            numbered.push(format!("-{number}"));
            numbered
        });
        let free = numbered.into_iter().find(|name| taken.insert(name.clone()));
        free.expect("a number that is free")
    });
    named.collect()
}

/// What a capture holds.
#[derive(Default)]
struct Found {
    connections: u64,
    multipath: u64,
    bytes: u64,
    totals: document::Totals,
}

impl Output for &mut Found {
    fn connection(&mut self, connection: &document::Connection) -> io::Result<()> {
        self.connections += 1;
        self.multipath += u64::from(connection.version.is_some());
        self.bytes += connection.bytes.client_to_server + connection.bytes.server_to_client;
        Ok(())
    }

    fn finish(self, totals: &document::Totals) -> io::Result<()> {
        self.totals = totals.clone();
        Ok(())
    }
}

fn analyze_one(
    capture: &PathBuf,
    directory: &Path,
    interval: Duration,
    progress: &ProgressBar,
) -> anyhow::Result<Found> {
    let mut found = Found::default();
    analyze(slice::from_ref(capture), Some(directory), interval, &mut found, &|bytes| {
        progress.inc(bytes);
        Ok(())
    })?;
    Ok(found)
}

/// Prints and lists what was found.
struct Results {
    out: Stdout,
    json: bool,
    index: csv::Writer<WholeFile>,
    indexed: bool,
    failed: usize,
}

impl Results {
    fn take(
        &mut self,
        capture: &Path,
        directory: &Path,
        result: anyhow::Result<Found>,
    ) -> anyhow::Result<()> {
        let name = capture.display().to_string();
        match result {
            Ok(found) => {
                warn_of_damage(&found.totals);
                self.list(&name, directory)?;
                self.print(&name, directory, &found)?;
            }
            Err(error) => {
                self.failed += 1;
                // Most errors begin with the name.
                warn(format_args!("{name}: {error:#}"));
                if self.json {
                    writeln!(self.out, "{}", json!({ "capture": name, "error": format!("{error:#}") }))?;
                }
            }
        }
        Ok(())
    }

    /// Copies the capture's table of connections into the index.
    fn list(&mut self, name: &str, directory: &Path) -> anyhow::Result<()> {
        let mut table = csv::Reader::from_path(directory.join("connections.csv"))?;
        if !self.indexed {
            self.index.write_record(["capture"].into_iter().chain(table.headers()?))?;
            self.indexed = true;
        }
        for row in table.records() {
            self.index.write_record([name].into_iter().chain(&row?))?;
        }
        Ok(())
    }

    fn print(&mut self, name: &str, directory: &Path, found: &Found) -> anyhow::Result<()> {
        if !self.json {
            let Found { connections, multipath, bytes, totals } = found;
            let packets = totals.packets;
            writeln!(
                self.out,
                "{name}: {packets} packets, {connections} connections ({multipath} MPTCP), {bytes} bytes"
            )?;
            return Ok(());
        }
        let directory_name = directory.display().to_string();
        write!(self.out, r#"{{"capture":{},"directory":{},"analysis":"#, json!(name), json!(directory_name))?;
        // The document on one line: strings in it have no line ends of their own.
        for line in BufReader::new(File::open(directory.join("analysis.json"))?).split(b'\n') {
            self.out.write_all(&line?)?;
        }
        writeln!(self.out, "}}")?;
        Ok(())
    }

    fn finish(mut self, captures: usize) -> anyhow::Result<()> {
        self.out.flush()?;
        self.index.into_inner().map_err(|error| error.into_error())?.publish()?;
        ensure!(self.failed == 0, "{} of {captures} captures failed", self.failed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_capture_has_a_directory_of_its_own() {
        let paths = ["a/x", "b/x", "x-2", "c/x", "index.csv", ".."].map(PathBuf::from);
        let expected = ["x", "x-3", "x-2", "x-4", "index.csv-2", "capture"];
        assert_eq!(names(&paths), expected.map(OsString::from));
    }
}
