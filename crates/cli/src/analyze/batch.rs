//! `plait analyze --each`: many captures, each analyzed separately.

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
use plait_config::AtomicFile;
use plait_trace::export::Exporter;
use plait_trace::{analyze, document};
use serde_json::json;

use super::{progress_bar, warn, warn_if_damaged};
use crate::stdout::{Stdout, json_line};

/// The list of all connections.
const INDEX: &str = "index.csv";

/// Analyzes each capture into its own directory, on all cores. Results are printed and listed in the order in which the
/// captures were given.
pub(super) fn run(
    captures: &[PathBuf],
    directory: &Path,
    interval: Duration,
    json: bool,
) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create the directory {}", directory.display()))?;
    let directories: Vec<PathBuf> =
        directory_names(captures).into_iter().map(|name| directory.join(name)).collect();
    let progress = progress_bar(captures);
    let mut results = Results {
        out: Stdout::new(),
        json,
        index: csv::Writer::from_writer(AtomicFile::create(directory.join(INDEX))?),
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
                    // The receiver is gone if results cannot be written.
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

/// A directory name for each capture: its file name, with a number if others have the same.
fn directory_names(captures: &[PathBuf]) -> Vec<OsString> {
    let own = |path: &PathBuf| path.file_name().map_or_else(|| "capture".into(), OsString::from);
    // Numbered names must not collide with file names.
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

/// What a capture contains.
#[derive(Default)]
struct Summary {
    connections: u64,
    multipath: u64,
    bytes: u64,
    totals: document::Totals,
}

impl Exporter for &mut Summary {
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
) -> anyhow::Result<Summary> {
    let mut found = Summary::default();
    analyze(slice::from_ref(capture), Some(directory), interval, &mut found, &|bytes| {
        progress.inc(bytes);
        Ok(())
    })?;
    Ok(found)
}

/// Prints the results and lists them in the index.
struct Results {
    out: Stdout,
    json: bool,
    index: csv::Writer<AtomicFile>,
    indexed: bool,
    failed: usize,
}

impl Results {
    fn take(
        &mut self,
        capture: &Path,
        directory: &Path,
        result: anyhow::Result<Summary>,
    ) -> anyhow::Result<()> {
        let name = capture.display().to_string();
        match result {
            Ok(found) => {
                warn_if_damaged(&found.totals);
                self.list(&name, directory)?;
                self.print(&name, directory, &found)?;
            }
            Err(error) => {
                self.failed += 1;
                warn(format_args!("{name}: {error:#}"));
                if self.json {
                    let line = json!({ "capture": name, "error": format!("{error:#}") });
                    writeln!(self.out, "{}", json_line(&line)?)?;
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

    fn print(&mut self, name: &str, directory: &Path, found: &Summary) -> anyhow::Result<()> {
        if !self.json {
            let Summary { connections, multipath, bytes, totals } = found;
            let packets = totals.packets;
            writeln!(
                self.out,
                "{name}: {packets} packets, {connections} connections ({multipath} MPTCP), {bytes} bytes"
            )?;
            return Ok(());
        }
        let directory_name = directory.display().to_string();
        let begin = json_line(&json!({ "capture": name, "directory": directory_name }))?;
        write!(self.out, r#"{},"analysis":"#, begin.strip_suffix('}').unwrap_or(&begin))?;
        // The document on one line: its strings contain no line breaks.
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
    fn directory_names_are_unique() {
        let paths = ["a/x", "b/x", "x-2", "c/x", "index.csv", ".."].map(PathBuf::from);
        let expected = ["x", "x-3", "x-2", "x-4", "index.csv-2", "capture"];
        assert_eq!(directory_names(&paths), expected.map(OsString::from));
    }
}
