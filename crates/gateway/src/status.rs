//! How `plait status` asks running gateways for their [`Report`]s.
//!
//! A gateway writes its report, one JSON document, to every client of the socket `gateway-PID.sock` in the run directory,
//! which only its owner can open.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, process, thread};

use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use crate::report::Report;

/// A gateway that does not answer within this time is unresponsive.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How the names of sockets begin.
const STATUS: &str = "gateway-";
const HANDOVER: &str = "handover-";

/// The socket on which a gateway answers, removed when dropped.
pub(crate) struct StatusSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl StatusSocket {
    /// Creates this process's socket.
    pub(crate) fn create() -> io::Result<StatusSocket> {
        let path = socket_path(process::id())?;
        // That of a dead process with the same id.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        Ok(StatusSocket { path, listener })
    }

    /// Answers clients until dropped.
    pub(crate) async fn serve(&self, report: impl Fn() -> Report) {
        loop {
            let Ok((mut client, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Ok(document) = serde_json::to_vec(&report()) else { continue };
            // A client that does not read must not block the next one.
            let _ = tokio::time::timeout(ANSWER_TIMEOUT, client.write_all(&document)).await;
        }
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The socket of a gateway's process.
pub(crate) fn socket_path(pid: u32) -> io::Result<PathBuf> {
    Ok(plait_linux::run_directory()?.join(format!("{STATUS}{pid}.sock")))
}

/// The socket on which a process hands over to the next one.
///
/// # Errors
/// The run directory is inaccessible.
pub fn handover_socket_path(pid: u32) -> io::Result<PathBuf> {
    Ok(plait_linux::run_directory()?.join(format!("{HANDOVER}{pid}.sock")))
}

/// The processes that may hand over to the next one, with their sockets; some may have ended.
///
/// # Errors
/// The run directory cannot be read.
pub fn handover_sockets() -> io::Result<Vec<(u32, PathBuf)>> {
    sockets(&plait_linux::run_directory()?, HANDOVER)
}

fn sockets(directory: &Path, prefix: &str) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(".sock"));
        if let Some(pid) = pid.and_then(|pid| pid.parse().ok()) {
            found.push((pid, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Process ids of this user's gateways; some may have ended.
pub(crate) fn gateway_pids() -> io::Result<Vec<u32>> {
    Ok(sockets(&plait_linux::run_directory()?, STATUS)?.into_iter().map(|(pid, _)| pid).collect())
}

/// This user's running gateways.
#[derive(Clone, Debug, Default)]
pub struct GatewayStatus {
    /// The reports of those that answered.
    pub reports: Vec<Report>,
    /// Process ids of those that did not answer, for instance because they are stopped.
    pub unresponsive: Vec<u32>,
}

impl GatewayStatus {
    /// Asks every running gateway, all at once, so that several that do not answer take no longer than one.
    ///
    /// # Errors
    /// The run directory cannot be read.
    pub fn query() -> io::Result<GatewayStatus> {
        let sockets = sockets(&plait_linux::run_directory()?, STATUS)?;
        let answers = thread::scope(|scope| {
            let asked: Vec<_> = sockets.iter().map(|(pid, path)| (*pid, scope.spawn(|| ask(path)))).collect();
            asked
                .into_iter()
                .map(|(pid, answer)| (pid, answer.join().unwrap_or_else(|_| Err(ErrorKind::Other.into()))))
                .collect::<Vec<_>>()
        });
        let mut status = GatewayStatus::default();
        for (pid, answer) in answers {
            match answer {
                Ok(report) => status.reports.push(report),
                Err(error) if has_ended(&error) => {}
                Err(_) => status.unresponsive.push(pid),
            }
        }
        Ok(status)
    }
}

/// Whether the gateway has ended: its socket is closed, or it exited while answering.
fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::ConnectionReset)
        || error.kind() == ErrorKind::UnexpectedEof
}

fn ask(path: &Path) -> io::Result<Report> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut document = Vec::new();
    stream.read_to_end(&mut document)?;
    serde_json::from_slice(&document).map_err(io::Error::from)
}
