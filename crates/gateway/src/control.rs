//! What a running gateway tells of itself: one JSON document to whoever connects to its socket in the run directory.
//!
//! The socket is `gateway-PID.sock`; only its owner can open the directory.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, process};

use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use crate::connections::{ConnectionReport, Counts};
use plait_proto::option::Mode;

/// A gateway that does not answer within this time is silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A gateway and what goes through it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Process id.
    pub pid: u32,
    /// `serve`, `proxy` or `run`.
    pub command: String,
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// The mode it prefers or requires.
    pub mode: Mode,
    /// Whether unprotected connections are refused.
    pub require: bool,
    /// Since it began.
    pub counts: Counts,
    /// Of mode `sealed`, where it accepts connections.
    pub handshakes: Handshakes,
    /// Now.
    pub connections: Vec<ConnectionReport>,
}

/// Handshakes of mode `sealed` at the end that accepts them: each is a session of a main connection and its witnesses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshakes {
    /// Sessions of which some connection is missing, now.
    pub waiting: u64,
    /// Sessions of which every connection came.
    pub complete: u64,
    /// Sessions of which one did not come in time, or the main one went.
    pub dropped: u64,
    /// Connections not taken, because they repeat one, belong to no session or to one that is over, or too many wait.
    pub refused: u64,
}

/// The socket on which a gateway answers, removed when dropped.
pub(crate) struct Control {
    path: PathBuf,
    listener: UnixListener,
}

impl Control {
    /// Opens this process's socket.
    pub(crate) fn open() -> io::Result<Control> {
        let path = plait_linux::run_directory()?.join(format!("gateway-{}.sock", process::id()));
        // One of a dead process that had the same number.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        Ok(Control { path, listener })
    }

    /// Answers until dropped.
    pub(crate) async fn answer(&self, report: impl Fn() -> Report) {
        loop {
            let Ok((mut asker, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Ok(document) = serde_json::to_vec(&report()) else { continue };
            // An asker that does not listen must not hold up the next one.
            let _ = tokio::time::timeout(ANSWER_TIMEOUT, asker.write_all(&document)).await;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn sockets(directory: &std::path::Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_prefix("gateway-").and_then(|name| name.strip_suffix(".sock"));
        if let Some(pid) = pid.and_then(|pid| pid.parse().ok()) {
            found.push((pid, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Process ids of the running gateways of this user, and of some that have ended.
pub(crate) fn processes() -> io::Result<Vec<u32>> {
    Ok(sockets(&plait_linux::run_directory()?)?.into_iter().map(|(pid, _)| pid).collect())
}

/// What the running gateways of this user say.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// What they answered.
    pub reports: Vec<Report>,
    /// Process ids of those that were asked and did not answer, for instance because they are stopped.
    pub silent: Vec<u32>,
}

impl Answers {
    /// Asks every one.
    pub fn ask() -> io::Result<Answers> {
        let mut running = Answers::default();
        for (pid, path) in sockets(&plait_linux::run_directory()?)? {
            match ask(&path) {
                Ok(report) => running.reports.push(report),
                Err(error) if has_ended(&error) => {}
                Err(_) => running.silent.push(pid),
            }
        }
        Ok(running)
    }
}

/// Whether what was asked is a gateway's that is gone: nobody listens, or it went while it answered.
fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::ConnectionReset)
        || error.kind() == ErrorKind::UnexpectedEof
}

fn ask(path: &std::path::Path) -> io::Result<Report> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut document = Vec::new();
    stream.read_to_end(&mut document)?;
    serde_json::from_slice(&document).map_err(io::Error::from)
}
