//! The control socket between the supervisor of a lab and the other commands, in the lab's directory: one line of JSON
//! in each direction.
//!
//! Only root can open the directory. Messages have a maximum size, and both sides a timeout.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::description::Description;

const SOCKET: &str = "control.sock";
/// The timeout of reads and writes on either side.
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_REQUEST: u64 = 64 << 10;
const MAX_RESPONSE: u64 = 64 << 20;
/// How long removing a lab may take.
const DOWN_LIMIT: Duration = Duration::from_secs(30);

/// A request to a supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Describe the lab; answered by a [`Description`].
    Describe,
    /// Apply an event to a link now.
    Inject {
        link: String,
        /// The keys of an event in TOML.
        event: String,
    },
    /// Remove the lab; the connection is closed once it is removed.
    Down,
}

/// The response of a supervisor.
pub(super) type Response<T> = Result<T, String>;

/// The socket of a supervisor.
pub(super) struct Control(UnixListener);

impl Control {
    /// Creates it in the directory of a lab, with which it is removed.
    pub(super) fn open(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(SOCKET);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot open {}", path.display()))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// The next request within a timeout, and the client to respond to; `None` without a valid request.
    pub(super) fn next(&self, within: Duration) -> Option<(Request, Client)> {
        let timeout = rustix::event::Timespec::try_from(within).ok()?;
        let mut ready = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        // A signal ends the wait as well, so that the caller can check for it.
        rustix::event::poll(&mut ready, Some(&timeout)).ok()?;
        let (stream, _) = self.0.accept().ok()?;
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(TIMEOUT)).ok()?;
        let mut line = String::new();
        BufReader::new((&stream).take(MAX_REQUEST)).read_line(&mut line).ok()?;
        let request = serde_json::from_str(&line).ok()?;
        Some((request, Client(stream)))
    }
}

/// The sender of a request.
pub(super) struct Client(UnixStream);

impl Client {
    /// Sends the response; a client that has gone is ignored.
    pub(super) fn answer<T: Serialize>(mut self, answer: &Response<T>) {
        if let Ok(mut line) = serde_json::to_vec(answer) {
            line.push(b'\n');
            let _ = self.0.write_all(&line);
        }
    }
}

/// A lab whose supervisor is running.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: String,
    pub(super) directory: PathBuf,
}

impl Running {
    /// All running labs, ordered by id.
    pub(super) fn all() -> anyhow::Result<Vec<Self>> {
        plait_lab::Lab::check_permitted()?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(plait_linux::run_directory()?)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_prefix("lab-")) else { continue };
            let running = Self { id: id.into(), directory: entry.path() };
            if UnixStream::connect(running.directory.join(SOCKET)).is_ok() {
                found.push(running);
            }
        }
        found.sort_by_key(|running| running.id.parse::<u64>().unwrap_or(u64::MAX));
        Ok(found)
    }

    /// The lab with this id; without one, the only lab.
    pub(super) fn find(id: Option<&str>) -> anyhow::Result<Self> {
        let mut all = Self::all()?;
        let known = all.iter().map(|running| running.id.as_str()).collect::<Vec<_>>().join(", ");
        match id {
            Some(id) => match all.iter().position(|running| running.id == id) {
                Some(position) => Ok(all.swap_remove(position)),
                None if all.is_empty() => {
                    bail!("expected the id of a lab that is up, got {id:?} and no lab")
                }
                None => bail!("expected the id of a lab that is up (--lab {known}), got {id:?}"),
            },
            None => {
                ensure!(all.len() < 2, "expected --lab, as several labs are up: --lab {known}");
                all.pop().context("no lab is up: `plait lab up FILE` starts one")
            }
        }
    }

    pub(super) fn describe(&self) -> anyhow::Result<Description> {
        self.ask(&Request::Describe)
    }

    pub(super) fn ask<T: DeserializeOwned>(&self, request: &Request) -> anyhow::Result<T> {
        let mut line = String::new();
        BufReader::new(self.send(request)?.take(MAX_RESPONSE))
            .read_line(&mut line)
            .with_context(|| format!("the supervisor of lab {} does not answer", self.id))?;
        ensure!(!line.is_empty(), "the supervisor of lab {} ended before it answered", self.id);
        serde_json::from_str::<Response<T>>(&line)?.map_err(anyhow::Error::msg)
    }

    /// Removes the lab and waits until it is removed.
    pub(super) fn down(&self) -> anyhow::Result<()> {
        let mut stream = self.send(&Request::Down)?;
        stream.set_read_timeout(Some(DOWN_LIMIT))?;
        let closed = stream.read_to_end(&mut Vec::new());
        closed.with_context(|| format!("the supervisor of lab {} did not end in time", self.id))?;
        let supervisor = self.id.parse().ok().and_then(Pid::from_raw);
        let end = Instant::now() + DOWN_LIMIT;
        while supervisor.is_some_and(|supervisor| !plait_linux::has_ended(supervisor)) {
            ensure!(Instant::now() < end, "the supervisor of lab {} did not end in time", self.id);
            std::thread::sleep(Duration::from_millis(1));
        }
        ensure!(
            !self.directory.exists(),
            "the supervisor of lab {} left {}",
            self.id,
            self.directory.display()
        );
        Ok(())
    }

    fn send(&self, request: &Request) -> anyhow::Result<UnixStream> {
        let connected = || -> io::Result<UnixStream> {
            let mut stream = UnixStream::connect(self.directory.join(SOCKET))?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            let mut line = serde_json::to_vec(request)?;
            line.push(b'\n');
            stream.write_all(&line)?;
            Ok(stream)
        };
        connected().with_context(|| format!("cannot reach the supervisor of lab {}", self.id))
    }
}
