//! Runs tcpdump on one interface.
//!
//! `unsafe` is needed for the child between fork and exec, which asks the kernel to stop it when its parent dies.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use plait_lab::capture::{counted, dropped};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// A running tcpdump.
pub(super) struct Tcpdump {
    interface: String,
    file: String,
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

/// The packet counts of a tcpdump.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Recorded {
    pub(super) interface: String,
    /// The file name in the directory.
    pub(super) file: String,
    /// Packets in the file; `None` if tcpdump did not report it.
    pub(super) captured: Option<u64>,
    /// Packets that passed the filter.
    pub(super) received_by_filter: Option<u64>,
    /// Packets dropped by the kernel or the interface because tcpdump was too slow.
    pub(super) dropped: Option<u64>,
}

/// The name of the capture file of an interface.
pub(super) fn file_name(interface: &str) -> String {
    format!("{interface}.pcap")
}

impl Tcpdump {
    /// Starts tcpdump, and returns once it captures packets.
    pub(super) async fn start(
        interface: &str,
        directory: &Path,
        snaplen: Option<u32>,
        filter: &str,
    ) -> anyhow::Result<Tcpdump> {
        let file = file_name(interface);
        let mut command = Command::new("tcpdump");
        command.args(["-n", "--time-stamp-precision=nano", "-B", BUFFER_KIB, "-i", interface]);
        if rustix::process::geteuid().is_root() {
            // tcpdump would drop privileges to a user that cannot write to the directory.
            command.args(["-Z", "root"]);
        }
        if let Some(snaplen) = snaplen {
            command.args(["-s", &snaplen.to_string()]);
        }
        command.arg("-w").arg(directory.join(&file)).arg("--").arg(filter);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C must reach only plait, so that tcpdump captures until the command has exited.
        command.process_group(0);
        // SAFETY: the closure only calls prctl(2), which is async-signal-safe.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::INT))?));
        }
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                anyhow!("expected tcpdump to be installed, got no such program: `apt-get install tcpdump`")
            }
            _ => anyhow!("cannot run tcpdump: {error}"),
        })?;
        let stderr = child.stderr.take().context("tcpdump has no stderr")?;
        let output = Arc::new(Mutex::new(Vec::new()));
        let reader = tokio::spawn(read(stderr, Arc::clone(&output)));
        let mut tcpdump = Tcpdump { interface: interface.to_owned(), file, child, output, reader };
        let listening = async {
            loop {
                if tcpdump.stderr_text().contains("listening on") {
                    return Ok(());
                }
                if let Some(error) = tcpdump.failure().await {
                    return Err(error);
                }
                sleep(POLL_INTERVAL).await;
            }
        };
        match timeout(TIMEOUT, listening).await {
            Ok(started) => started.map(|()| tcpdump),
            Err(_) => bail!("tcpdump did not start capturing on {interface} within {} s", TIMEOUT.as_secs()),
        }
    }

    /// The error, if it has exited.
    pub(super) async fn failure(&mut self) -> Option<anyhow::Error> {
        let status = self.child.try_wait().ok().flatten()?;
        self.finish_reading().await;
        Some(self.explain(status))
    }

    /// Stops it and returns its packet counts.
    pub(super) async fn stop(mut self) -> Recorded {
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            let _ = kill_process(pid, Signal::INT);
        }
        if timeout(TIMEOUT, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
        self.finish_reading().await;
        let stderr_text = self.stderr_text();
        Recorded {
            captured: counted(&stderr_text, "captured"),
            received_by_filter: counted(&stderr_text, "received by filter"),
            dropped: dropped(&stderr_text),
            interface: self.interface,
            file: self.file,
        }
    }

    /// Waits for the end of its stderr.
    async fn finish_reading(&mut self) {
        if !self.reader.is_finished() {
            let _ = timeout(TIMEOUT, &mut self.reader).await;
        }
    }

    fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn explain(&self, status: ExitStatus) -> anyhow::Error {
        let stderr_text = self.stderr_text();
        let last = stderr_text.lines().rfind(|line| line.starts_with("tcpdump: "));
        let last = last.map_or("no message on stderr", |line| line.trim_start_matches("tcpdump: "));
        let interface = &self.interface;
        if stderr_text.contains("permission") || stderr_text.contains("Operation not permitted") {
            return anyhow!(
                "tcpdump may not capture on {interface} ({last}): run plait capture as root, or permit it for all users \
                 with `setcap cap_net_raw,cap_net_admin=eip $(command -v tcpdump)`"
            );
        }
        if stderr_text.contains("No space left") {
            return anyhow!(
                "no space left for the packets of {interface}: free disk space, or capture fewer bytes with --snaplen"
            );
        }
        anyhow!("tcpdump on {interface} exited unexpectedly ({status}): {last}")
    }
}

/// Reads its stderr, up to a maximum size.
async fn read(mut stderr: ChildStderr, output: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.len() < MAX_OUTPUT {
            output.extend(&buffer[..length]);
        }
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_OUTPUT: usize = 1 << 20;
/// The size of the kernel's capture buffer: a quarter of a second at 1 Gbit/s.
const BUFFER_KIB: &str = "32768";
