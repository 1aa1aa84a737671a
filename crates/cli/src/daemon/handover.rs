//! A restart that refuses no connection: a daemon hands its listening sockets and its negotiation over to the next one, and ends with its
//! last connection.
//!
//! The daemon listens on `handover-PID.sock` in the run directory, where its owner alone can connect. Messages are lines of JSON:
//!
//! | from | message |
//! |---|---|
//! | running daemon | [`Offer`]: which daemon this is |
//! | next daemon | [`Request`]: it takes over |
//! | running daemon | [`PassedDescriptors`], with the descriptors that it names |
//! | next daemon | [`Ready`]: it accepts connections |
//! | running daemon | [`Done`]: it no longer does |
//!
//! If the next one ends before it is ready, the running daemon goes on as before.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use plait_gateway::{SharedNegotiation, handover_socket_path, handover_sockets};
use plait_linux::{descriptors, netns};
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, Interest};
use tokio::time::timeout;

use super::passed_sockets::PassedSockets;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the next daemon may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Offer {
    process: u32,
    config: PathBuf,
    namespace: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Request {}

/// What is passed, in the order of the descriptors.
#[derive(Serialize, Deserialize)]
struct PassedDescriptors {
    /// How often the service manager expects a sign of life, in microseconds.
    watchdog_usec: Option<u64>,
    descriptors: Vec<Descriptor>,
}

/// What a descriptor is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Descriptor {
    /// Peers connect to this address.
    Peers(SocketAddr),
    /// Peers send datagrams to this address.
    Datagrams(SocketAddr),
    /// Programs connect to this address.
    Clients(SocketAddr),
    /// A map or a link of the negotiation.
    Negotiation(String),
    /// The lock of the host whose connections are redirected.
    HostLock,
    /// The socket that is notified.
    ServiceManager,
}

/// What the next daemon tells when it is ready.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) process: u32,
    /// Whether it redirects the connections of the host.
    pub(super) host: bool,
    /// How long connections may take to end, in seconds.
    pub(super) drain: u64,
}

#[derive(Serialize, Deserialize)]
struct Done {}

/// Where the next daemon connects to.
pub(super) struct HandoverSocket {
    path: PathBuf,
    listener: tokio::net::UnixListener,
    offer: Vec<u8>,
    owner: u32,
}

impl HandoverSocket {
    /// Listens, while this process may still create the socket.
    pub(super) fn listen(config: &Path) -> anyhow::Result<HandoverSocket> {
        let path = handover_socket_path(std::process::id())?;
        // That of a dead process with the same id.
        let _ = std::fs::remove_file(&path);
        let listener = tokio::net::UnixListener::bind(&path);
        let listener = listener.with_context(|| format!("cannot listen on {}", path.display()))?;
        let offer =
            Offer { process: std::process::id(), config: config.to_owned(), namespace: netns::cookie().ok() };
        Ok(HandoverSocket { path, listener, offer: line(&offer)?, owner: geteuid().as_raw() })
    }

    /// Waits for a daemon that takes over.
    pub(super) async fn next(&self) -> NextDaemon {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // The directory keeps others out as well.
            if !stream.peer_cred().is_ok_and(|peer| peer.uid() == self.owner) {
                continue;
            }
            let mut next = NextDaemon(tokio::io::BufReader::new(stream));
            let asked = async {
                next.0.get_mut().write_all(&self.offer).await?;
                next.receive::<Request>().await
            };
            if let Ok(Ok(Request {})) = timeout(ANSWER_TIMEOUT, asked).await {
                return next;
            }
        }
    }
}

impl Drop for HandoverSocket {
    fn drop(&mut self) {
        // With a monitor, that removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The daemon that takes over, seen from the running one.
pub(super) struct NextDaemon(tokio::io::BufReader<tokio::net::UnixStream>);

impl NextDaemon {
    /// Passes descriptors, and waits until it is ready.
    pub(super) async fn pass(
        &mut self,
        passed: &[(Descriptor, OwnedFd)],
        watchdog: Option<Duration>,
    ) -> anyhow::Result<Ready> {
        let (names, files): (Vec<Descriptor>, Vec<BorrowedFd<'_>>) =
            passed.iter().map(|(name, file)| (name.clone(), file.as_fd())).unzip();
        let watchdog_usec = watchdog.and_then(|watchdog| u64::try_from(watchdog.as_micros()).ok());
        let message = line(&PassedDescriptors { watchdog_usec, descriptors: names })?;
        let stream = self.0.get_ref();
        let sent = stream.async_io(Interest::WRITABLE, || descriptors::send(stream, &message, &files));
        sent.await.context("cannot pass the sockets")?;
        let ready = timeout(START_TIMEOUT, self.receive()).await;
        let ready = ready.map_err(|_| io::Error::from(io::ErrorKind::TimedOut));
        ready.and_then(|ready| ready).context("it has not started")
    }

    /// This daemon accepts nothing any longer.
    pub(super) async fn done(&mut self) {
        if let Ok(message) = line(&Done {}) {
            // It accepts connections, whether it learns this or not.
            let _ = self.0.get_mut().write_all(&message).await;
        }
    }

    async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut text = String::new();
        if self.0.read_line(&mut text).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&text)?)
    }
}

/// The daemon that is replaced, seen from the next one.
pub(super) struct RunningDaemon {
    stream: UnixStream,
    pub(super) process: u32,
}

/// What it passes.
#[derive(Default)]
pub(super) struct Inherited {
    pub(super) sockets: PassedSockets,
    pub(super) negotiation: Option<SharedNegotiation>,
    pub(super) host_lock: Option<OwnedFd>,
    pub(super) service_manager: Option<OwnedFd>,
    pub(super) watchdog: Option<Duration>,
}

impl RunningDaemon {
    /// The one of this network namespace with this file.
    pub(super) fn find(config: &Path) -> anyhow::Result<Option<RunningDaemon>> {
        let namespace = netns::cookie().ok();
        for (_, path) in handover_sockets().context("cannot look for the running daemon")? {
            // It may have ended.
            let Ok(stream) = UnixStream::connect(&path) else { continue };
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            let Ok(offer) = receive::<Offer>(&stream) else { continue };
            if offer.config == config && offer.namespace == namespace {
                return Ok(Some(RunningDaemon { stream, process: offer.process }));
            }
        }
        Ok(None)
    }

    /// The same, which there must be.
    pub(super) fn to_replace(config: &Path) -> anyhow::Result<RunningDaemon> {
        RunningDaemon::find(config)?.with_context(|| {
            let file = config.display();
            format!("expected a running daemon with the file {file}, got none: start one without --replace")
        })
    }

    /// Asks for what it passes.
    pub(super) fn take_over(&mut self) -> anyhow::Result<Inherited> {
        self.ask_for_descriptors()
            .with_context(|| format!("the running daemon, process {}, does not hand over", self.process))
    }

    fn ask_for_descriptors(&mut self) -> anyhow::Result<Inherited> {
        self.stream.write_all(&line(&Request {})?)?;
        let (mut text, mut files) = (Vec::new(), Vec::new());
        let mut part = vec![0; 65_536];
        while !text.ends_with(b"\n") {
            let (length, passed) = descriptors::receive(&self.stream, &mut part)?;
            if length == 0 {
                bail!("it has closed the connection");
            }
            text.extend_from_slice(&part[..length]);
            files.extend(passed);
        }
        let PassedDescriptors { watchdog_usec, descriptors } = serde_json::from_slice(&text)?;
        if descriptors.len() != files.len() {
            bail!("expected {} descriptors, got {}", descriptors.len(), files.len());
        }
        let watchdog = watchdog_usec.map(Duration::from_micros);
        let mut inherited = Inherited { watchdog, ..Inherited::default() };
        let mut negotiation = Vec::new();
        for (descriptor, file) in descriptors.into_iter().zip(files) {
            let sockets = &mut inherited.sockets;
            match descriptor {
                Descriptor::Peers(address) => {
                    sockets.peers.insert(address, TcpListener::from(file));
                }
                Descriptor::Clients(address) => {
                    sockets.clients.insert(address, TcpListener::from(file));
                }
                Descriptor::Datagrams(address) => {
                    sockets.datagrams.insert(address, UdpSocket::from(file));
                }
                Descriptor::Negotiation(name) => negotiation.push((name, file)),
                Descriptor::HostLock => inherited.host_lock = Some(file),
                Descriptor::ServiceManager => inherited.service_manager = Some(file),
            }
        }
        if !negotiation.is_empty() {
            inherited.negotiation =
                Some(SharedNegotiation { process: self.process, descriptors: negotiation });
        }
        Ok(inherited)
    }

    /// Tells that this daemon accepts connections. Returns when the other no longer does, as when it was killed.
    pub(super) fn replace(mut self, ready: Ready) -> anyhow::Result<()> {
        let replaced = line(&ready).and_then(|message| self.stream.write_all(&message));
        match replaced.and_then(|()| receive::<Done>(&self.stream)) {
            Ok(Done {}) => Ok(()),
            Err(error) if has_ended(&error) => {
                tracing::warn!("the daemon that this one replaces, process {}, has ended", self.process);
                Ok(())
            }
            Err(error) => Err(error).with_context(|| {
                format!("the daemon that this one replaces, process {}, does not answer", self.process)
            }),
        }
    }
}

/// Whether the other end of a connection has closed it.
fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// A message as it is sent.
fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<T> {
    let mut text = String::new();
    // One message at a time is under way.
    if BufReader::new(stream).read_line(&mut text)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Ready = Ready { process: 2, host: false, drain: 0 };

    #[test]
    fn killed_daemon_is_replaced_too() {
        let (stream, other) = UnixStream::pair().expect("sockets");
        drop(other);
        assert!(RunningDaemon { stream, process: 1 }.replace(READY).is_ok());
        let (stream, mut other) = UnixStream::pair().expect("sockets");
        other.write_all(b"{}x\n").expect("it is read");
        assert!(RunningDaemon { stream, process: 1 }.replace(READY).is_err());
    }
}
