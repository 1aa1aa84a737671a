//! Captures that are started and ended on the page, each by a `plait capture` of its own, and their reports.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use plait_linux::clock::unix_seconds;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long a capture may take to write what it has.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest capture: one that nobody ends must not fill the disk.
const MAX_DURATION: &str = "10m";

/// The captures of this page.
pub(super) struct Captures {
    directory: PathBuf,
    /// Removes the directory in the end, if it is temporary.
    _temporary: Option<TempDir>,
    state: Mutex<CaptureState>,
    /// The running capture; locked by each change, so that there is one at a time.
    running: tokio::sync::Mutex<Option<Running>>,
}

/// A running capture.
struct Running {
    number: u32,
    child: Child,
}

/// What the page shows of captures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct CaptureState {
    /// Seconds since 1970 at which the running capture began.
    recording_since: Option<f64>,
    /// The numbers of those that have a report, oldest first.
    reports: Vec<u32>,
    /// Why the last one failed.
    error: Option<String>,
}

impl Captures {
    /// In a directory, or a temporary one.
    pub(super) fn new(directory: Option<PathBuf>) -> anyhow::Result<Captures> {
        let (directory, temporary) = match directory {
            Some(directory) => {
                std::fs::create_dir_all(&directory)
                    .with_context(|| format!("cannot create {}", directory.display()))?;
                (directory, None)
            }
            None => {
                let created = tempfile::Builder::new().prefix("plait-web-").tempdir();
                let created =
                    created.context("cannot create a temporary directory: name one with --captures")?;
                (created.path().to_owned(), Some(created))
            }
        };
        Ok(Captures {
            directory,
            _temporary: temporary,
            state: Mutex::default(),
            running: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn state(&self) -> CaptureState {
        self.lock().clone()
    }

    /// Starts a capture on all interfaces.
    ///
    /// # Errors
    /// One is running, or its program cannot be started.
    pub(super) async fn start(&self) -> anyhow::Result<()> {
        let mut running = self.running.lock().await;
        ensure!(running.is_none(), "expected no running capture, got one: end it first");
        let number = self.next_number();
        let mut command = plait()?;
        command.args(["capture", "--duration", MAX_DURATION, "--output"]).arg(self.capture(number));
        let child = command.spawn().context("cannot start plait capture")?;
        *running = Some(Running { number, child });
        let mut state = self.lock();
        state.recording_since = Some(unix_seconds());
        state.error = None;
        Ok(())
    }

    /// Ends the running capture, if there is one, and writes its report.
    pub(super) async fn stop(&self) {
        let mut running = self.running.lock().await;
        let Some(Running { number, child }) = running.take() else { return };
        let reported = self.report(child, number).await;
        let mut state = self.lock();
        state.recording_since = None;
        match reported {
            Ok(()) => state.reports.push(number),
            Err(error) => state.error = Some(format!("{error:#}")),
        }
    }

    /// The file of a report; `None` if there is no such report.
    pub(super) fn report_file(&self, number: u32) -> Option<PathBuf> {
        let exists = self.lock().reports.contains(&number);
        exists.then(|| report_in(&self.capture(number)))
    }

    async fn report(&self, child: Child, number: u32) -> anyhow::Result<()> {
        let ended = end(child).await?;
        ensure!(ended.is_empty(), "plait capture: {ended}");
        let directory = self.capture(number);
        let mut command = plait()?;
        command.arg("report").arg(&directory).arg("--output").arg(report_in(&directory));
        let done = command.output().await.context("cannot start plait report")?;
        ensure!(done.status.success(), "plait report: {}", last_line(&done.stderr));
        Ok(())
    }

    /// The directory of a capture.
    fn capture(&self, number: u32) -> PathBuf {
        self.directory.join(format!("capture-{number}"))
    }

    /// The first number whose directory does not exist.
    fn next_number(&self) -> u32 {
        (1..).find(|number| !self.capture(*number).exists()).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, CaptureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This program.
fn plait() -> anyhow::Result<Command> {
    let program = env::current_exe().context("cannot find the program plait")?;
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    Ok(command)
}

/// Asks a capture to end. Returns its last message, if it failed.
async fn end(child: Child) -> anyhow::Result<String> {
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::INT);
    }
    let ended = timeout(END_TIMEOUT, child.wait_with_output()).await;
    let ended = ended.context("plait capture does not end")?.context("cannot wait for plait capture")?;
    Ok(if ended.status.success() { String::new() } else { last_line(&ended.stderr) })
}

fn last_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().rfind(|line| !line.is_empty()).unwrap_or("failed without a message");
    line.trim_start_matches("error: ").to_owned()
}

fn report_in(capture: &Path) -> PathBuf {
    capture.join("report.html")
}
