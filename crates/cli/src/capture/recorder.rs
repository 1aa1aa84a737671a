//! Records samples of subflows, counters and links as JSON Lines, in a thread.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use plait_linux::clock::unix_seconds;
use plait_linux::counters::counters;
use plait_linux::diag::Watch;
use plait_linux::interfaces::{Interface, interfaces};
use serde::Serialize;
use serde_json::json;

/// The files it writes.
pub(super) const FILES: [&str; 3] = ["samples.jsonl", "counters.jsonl", "links.jsonl"];

/// What was recorded.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Recorded {
    /// Lines of samples.jsonl.
    pub(super) samples: u64,
    /// Lines of counters.jsonl.
    pub(super) counters: u64,
    /// Lines of links.jsonl.
    pub(super) links: u64,
    /// Overflows of the kernel's queue of closed subflows.
    pub(super) missed_notifications: u64,
    /// Whether samples.jsonl has the final counters of every subflow, even of those shorter than the interval.
    pub(super) all_closes_recorded: bool,
}

/// The running thread.
pub(super) struct Recorder {
    stop: Sender<()>,
    failures: Receiver<anyhow::Error>,
    thread: JoinHandle<anyhow::Result<Recorded>>,
}

impl Recorder {
    /// Starts recording.
    pub(super) fn start(directory: &Path, interval: Duration) -> anyhow::Result<Recorder> {
        let mut files = Files::create(directory)?;
        files.record()?;
        let (stop, stopped) = channel();
        let (fail, failures) = channel();
        let work = move || {
            let done = run(files, interval, &stopped);
            done.inspect_err(|error| {
                // The receiver may be gone.
                let _ = fail.send(anyhow::anyhow!("{error:#}"));
            })
        };
        let thread =
            thread::Builder::new().name("recorder".into()).spawn(work).context("cannot start a thread")?;
        Ok(Recorder { stop, failures, thread })
    }

    /// The error that stopped the thread, if any.
    pub(super) fn failure(&mut self) -> Option<anyhow::Error> {
        self.failures.try_recv().ok()
    }

    /// Takes the last sample and stops.
    pub(super) async fn finish(self) -> anyhow::Result<Recorded> {
        let _ = self.stop.send(());
        let joined =
            tokio::task::spawn_blocking(|| self.thread.join()).await.context("the recorder thread failed")?;
        joined.unwrap_or_else(|_| Err(anyhow::anyhow!("the recorder thread failed")))
    }
}

fn run(mut files: Files, interval: Duration, stop: &Receiver<()>) -> anyhow::Result<Recorded> {
    let mut due = Instant::now() + interval;
    loop {
        let wait = due.saturating_duration_since(Instant::now());
        if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return files.finish();
        }
        files.record()?;
        // Skip missed intervals instead of catching up.
        due = (due + interval).max(Instant::now());
    }
}

struct Files {
    watch: Watch,
    samples: Lines,
    counters: Lines,
    links: Lines,
    known: Vec<Interface>,
}

impl Files {
    fn create(directory: &Path) -> anyhow::Result<Files> {
        let [samples, counters, links] = FILES.map(|name| Lines::create(directory.join(name)));
        Ok(Files {
            watch: Watch::open()?,
            samples: samples?,
            counters: counters?,
            links: links?,
            known: Vec::new(),
        })
    }

    fn record(&mut self) -> anyhow::Result<()> {
        let samples = self.watch.sample()?;
        self.write(&samples)
    }

    fn finish(mut self) -> anyhow::Result<Recorded> {
        let samples = self.watch.last_sample()?;
        self.write(&samples)?;
        Ok(Recorded {
            samples: self.samples.count,
            counters: self.counters.count,
            links: self.links.count,
            missed_notifications: self.watch.lost(),
            all_closes_recorded: self.watch.reports_every_close(),
        })
    }

    fn write(&mut self, samples: &[plait_linux::diag::Sample]) -> anyhow::Result<()> {
        for sample in samples {
            self.samples.write(sample)?;
        }
        let mut kernel = counters()?;
        kernel.retain(|name, value| {
            *value != 0 && ["Tcp", "TcpExt", "MPTcpExt"].iter().any(|group| name.starts_with(group))
        });
        self.counters.write(&json!({ "time": unix_seconds(), "kernel": kernel }))?;
        let present = interfaces().context("cannot list the interfaces")?;
        if present != self.known {
            let links: Vec<_> = present.iter().map(link).collect();
            self.links.write(&json!({ "time": unix_seconds(), "links": links }))?;
            self.known = present;
        }
        [&mut self.samples, &mut self.counters, &mut self.links].into_iter().try_for_each(Lines::flush)
    }
}

fn link(interface: &Interface) -> serde_json::Value {
    let addresses: Vec<String> =
        interface.addresses.iter().map(|address| format!("{}/{}", address.ip, address.prefix)).collect();
    json!({
        "name": interface.name, "index": interface.index, "up": interface.up, "running": interface.running,
        "mtu": interface.mtu, "addresses": addresses
    })
}

/// A JSON Lines file.
struct Lines {
    path: PathBuf,
    out: BufWriter<File>,
    count: u64,
}

impl Lines {
    fn create(path: PathBuf) -> anyhow::Result<Lines> {
        let file = File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Lines { path, out: BufWriter::with_capacity(1 << 20, file), count: 0 })
    }

    fn write(&mut self, document: &impl Serialize) -> anyhow::Result<()> {
        let line = serde_json::to_vec(document)?;
        self.count += 1;
        let written = self.out.write_all(&line).and_then(|()| self.out.write_all(b"\n"));
        written.with_context(|| self.failed())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.out.flush().with_context(|| self.failed())
    }

    fn failed(&self) -> String {
        format!("cannot write {}", self.path.display())
    }
}
