//! A real tcpdump on one interface.
//!
//! `unsafe` is here for what a child does between fork and exec: asking the kernel to end it with its parent.

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
    said: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

/// What a tcpdump recorded.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Recorded {
    pub(super) interface: String,
    /// In the directory.
    pub(super) file: String,
    /// Packets in the file; `None` if tcpdump did not say.
    pub(super) packets: Option<u64>,
    /// Packets that passed the filter.
    pub(super) seen: Option<u64>,
    /// Packets that the kernel or the interface dropped as tcpdump was too slow.
    pub(super) dropped: Option<u64>,
}

/// The file with the packets of an interface.
pub(super) fn file_of(interface: &str) -> String {
    format!("{interface}.pcap")
}

impl Tcpdump {
    /// Starts to record; packets are recorded from when this returns.
    pub(super) async fn start(
        interface: &str,
        directory: &Path,
        snap: Option<u32>,
        filter: &str,
    ) -> anyhow::Result<Tcpdump> {
        let file = file_of(interface);
        let mut command = Command::new("tcpdump");
        command.args(["-n", "--time-stamp-precision=nano", "-B", BUFFER_KIB, "-i", interface]);
        if rustix::process::geteuid().is_root() {
            // It would become a user that may not write into the directory.
            command.args(["-Z", "root"]);
        }
        if let Some(snap) = snap {
            command.args(["-s", &snap.to_string()]);
        }
        command.arg("-w").arg(directory.join(&file)).arg("--").arg(filter);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C is for plait, which lets it go on until the command has ended.
        command.process_group(0);
        // SAFETY: prctl(2) alone is called, which is safe between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::INT))?));
        }
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                anyhow!("packets are recorded by tcpdump, which is not installed: `apt-get install tcpdump`")
            }
            _ => anyhow!("cannot run tcpdump: {error}"),
        })?;
        let stderr = child.stderr.take().context("tcpdump has no stderr")?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let reader = tokio::spawn(read(stderr, Arc::clone(&said)));
        let mut tcpdump = Tcpdump { interface: interface.to_owned(), file, child, said, reader };
        let listening = async {
            loop {
                if tcpdump.said().contains("listening on") {
                    return Ok(());
                }
                if let Some(error) = tcpdump.failure().await {
                    return Err(error);
                }
                sleep(LOOK).await;
            }
        };
        match timeout(PATIENCE, listening).await {
            Ok(started) => started.map(|()| tcpdump),
            Err(_) => bail!("tcpdump did not start to listen on {interface} within {} s", PATIENCE.as_secs()),
        }
    }

    /// Why it ended, if it has.
    pub(super) async fn failure(&mut self) -> Option<anyhow::Error> {
        let status = self.child.try_wait().ok().flatten()?;
        self.listen_to_the_end().await;
        Some(self.explain(status))
    }

    /// Ends it, and says what it recorded.
    pub(super) async fn stop(mut self) -> Recorded {
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            let _ = kill_process(pid, Signal::INT);
        }
        if timeout(PATIENCE, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
        self.listen_to_the_end().await;
        let said = self.said();
        Recorded {
            packets: counted(&said, "captured"),
            seen: counted(&said, "received by filter"),
            dropped: dropped(&said),
            interface: self.interface,
            file: self.file,
        }
    }

    /// Waits for its last words.
    async fn listen_to_the_end(&mut self) {
        if !self.reader.is_finished() {
            let _ = timeout(PATIENCE, &mut self.reader).await;
        }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn explain(&self, status: ExitStatus) -> anyhow::Error {
        let said = self.said();
        let last = said.lines().rfind(|line| line.starts_with("tcpdump: "));
        let last = last.map_or("it said nothing", |line| line.trim_start_matches("tcpdump: "));
        let interface = &self.interface;
        if said.contains("permission") || said.contains("Operation not permitted") {
            return anyhow!(
                "tcpdump may not record on {interface} ({last}): run plait capture as root, or let users record \
                 with `setcap cap_net_raw,cap_net_admin=eip $(command -v tcpdump)`"
            );
        }
        if said.contains("No space left") {
            return anyhow!(
                "no space left for the packets of {interface}: free some, or record less with --snap"
            );
        }
        anyhow!("tcpdump on {interface} ended ({status}): {last}")
    }
}

/// Takes in all that it says, as long as that is not absurdly much.
async fn read(mut stderr: ChildStderr, said: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < LONGEST {
            said.extend(&buffer[..length]);
        }
    }
}

const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST: usize = 1 << 20;
/// The ring between kernel and tcpdump: a quarter of a second of a gigabit link.
const BUFFER_KIB: &str = "32768";
