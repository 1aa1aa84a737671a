//! The privileged half of a gateway: a small process that does for the other what takes root.
//!
//! A gateway that is started by root carries traffic as another user ([`crate::sandbox`]). The files that it keeps about peers,
//! its cgroups, the use of quotas and its status socket remain root's, so that nobody else can change them. The monitor holds them: it
//! knows which they are before the gateway reads its first byte from the network, takes no path or process id from it, and answers
//! requests, one JSON document a line. It ends with the gateway, and then adds what its paths carried last to the use of quotas; what
//! else a killed gateway leaves behind, the next start removes.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use chrono::NaiveDate;
use plait_linux::cgroup::CreatorCgroups;
use plait_linux::diag::Sockets;
use plait_linux::sandbox::{CapabilitySet, Files, Rules, Sandbox, ThreadGate};
use plait_linux::signal::StopSignal;
use plait_proto::identity::PublicKey;
use rustix::process::getppid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::kill_switch::ReleasedKillSwitch;
use crate::paths::{PathUses, QuotaFile, QuotaUpdate, QuotaUses};
use crate::status;
use crate::trust::{
    InvitedClients, InvitedKey, KnownPeers, KnownPeersError, PeerName, SealedPeer, SealedPeers,
};

/// How long a reply may take: another process may hold the lock of the peers' files, and the disk may be slow.
const REPLY_TIMEOUT: Duration = Duration::from_secs(15);

/// What the gateway asks for.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Request {
    /// The peer, if it was reached `sealed`.
    FindSealed(String),
    /// Remember that the peer was reached `sealed` today.
    RecordSealed { peer: String, address: IpAddr, today: NaiveDate },
    /// The peer's key of its first use, and the number of its line.
    FindKey(String),
    /// Store the peer's key.
    AppendKey { peer: String, key: String },
    /// What the key is to this exit, if it was invited.
    FindInvited(PublicKey),
    /// Admit the client by the invitation.
    AdmitClient { invitation: PublicKey, client: PublicKey },
    /// Close the subflow between two addresses, on whose path the peer is silent.
    CloseSubflow { local: SocketAddr, remote: SocketAddr },
    /// Add what was used of quotas of paths.
    AddQuotaUse { updates: Vec<QuotaUpdate>, sync: bool },
    /// Read the configuration file.
    ReadConfig,
    /// Remove the gateway's cgroups and its sockets, and unless another process redirects the host now, the lock and, if so ordered,
    /// the kill switch.
    CleanUp { keep_host: bool },
}

/// What a reply contains if the request failed.
#[derive(Serialize, Deserialize)]
enum Failure {
    Other(String),
    Line(usize),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Other(error.to_string())
    }
}

type Reply<T> = Result<T, Failure>;

/// The gateway's end.
#[derive(Debug)]
pub struct Monitor {
    /// For requests that are answered at once.
    questions: Channel,
    /// For those that wait for the disk, so that no question waits for it.
    changes: Channel,
    process: Mutex<Child>,
    keep_host: AtomicBool,
    /// What the kernel counts of paths, which the monitor has opened as well, until a gateway takes it.
    path_uses: Mutex<Option<PathUses>>,
}

/// One request is answered after the other.
#[derive(Debug)]
struct Channel(Mutex<BufReader<UnixStream>>);

impl Channel {
    /// A channel, and its other end.
    fn open() -> io::Result<(Channel, Stdio)> {
        let (own, other) = UnixStream::pair()?;
        own.set_read_timeout(Some(REPLY_TIMEOUT))?;
        own.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok((Channel(Mutex::new(BufReader::new(own))), OwnedFd::from(other).into()))
    }

    fn request<T: DeserializeOwned>(&self, request: &Request) -> Reply<T> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write_line(stream.get_mut(), request)?;
        read_reply(&mut stream)
    }

    fn reply<T: DeserializeOwned>(&self) -> Reply<T> {
        read_reply(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn close(&self) {
        // Fails if the other end is closed.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_ref().shutdown(Shutdown::Both);
    }
}

impl Monitor {
    /// Starts a monitor for this process, before it enters a cgroup of its own. `command` runs [`run_monitor`].
    ///
    /// # Errors
    /// It cannot be started; the error says why.
    pub fn start(mut command: Command) -> io::Result<Arc<Monitor>> {
        let ((questions, stdin), (changes, stdout)) = (Channel::open()?, Channel::open()?);
        // Without it, what a gateway that is killed carried last is not known.
        let path_uses = PathUses::new().inspect_err(|error| tracing::debug!("{error}")).ok();
        let stderr = path_uses.as_ref().map(|uses| uses.as_fd().try_clone_to_owned()).transpose()?;
        // Not of the terminal's foreground process group: Ctrl-C is for the gateway, which then still needs it.
        command.process_group(0).current_dir("/").stdin(stdin).stdout(stdout);
        command.stderr(stderr.map_or_else(Stdio::null, Stdio::from));
        let process = command.spawn()?;
        // The descriptors of the other ends, so that the end of the process is the end of the channels.
        drop(command);
        let monitor = Monitor {
            questions,
            changes,
            process: Mutex::new(process),
            keep_host: AtomicBool::new(false),
            path_uses: Mutex::new(path_uses),
        };
        monitor.questions.reply::<()>().map_err(into_error)?;
        Ok(Arc::new(monitor))
    }

    /// Whether another process redirects the host, so that [`clean_up`](Self::clean_up) leaves its lock and the kill switch to that.
    pub fn keep_host(&self, keep: bool) {
        self.keep_host.store(keep, Ordering::Relaxed);
    }

    /// Removes the cgroups and the sockets of this process, and ends the monitor.
    pub fn clean_up(&self) {
        let request = Request::CleanUp { keep_host: self.keep_host.load(Ordering::Relaxed) };
        if let Err(error) = self.changes.request::<()>(&request).map_err(into_error) {
            tracing::debug!("leftovers remain for the next start: {error}");
        }
        self.questions.close();
        self.changes.close();
        let _ = self.process.lock().unwrap_or_else(PoisonError::into_inner).wait();
    }

    /// The text of the configuration file, as it is now.
    ///
    /// # Errors
    /// It cannot be read, or the monitor was started without its path.
    pub fn read_config(&self) -> io::Result<String> {
        self.questions.request(&Request::ReadConfig).map_err(into_error)
    }

    pub(crate) fn find_sealed(&self, peer: &str) -> io::Result<Option<SealedPeer>> {
        self.questions.request(&Request::FindSealed(peer.to_owned())).map_err(into_error)
    }

    pub(crate) fn record_sealed(&self, peer: &str, address: IpAddr, today: NaiveDate) -> io::Result<()> {
        self.changes
            .request(&Request::RecordSealed { peer: peer.to_owned(), address, today })
            .map_err(into_error)
    }

    pub(crate) fn find_key(&self, peer: &PeerName) -> Result<Option<(usize, PublicKey)>, KnownPeersError> {
        let found = self.questions.request::<Option<(usize, String)>>(&Request::FindKey(peer.to_string()));
        let found = found.map_err(|failure| match failure {
            Failure::Line(line) => KnownPeersError::Line(line),
            Failure::Other(text) => KnownPeersError::Io(io::Error::other(text)),
        })?;
        let parse = |(line, key): (usize, String)| {
            let key = key.parse().map_err(|_| KnownPeersError::Line(line))?;
            Ok((line, key))
        };
        found.map(parse).transpose()
    }

    pub(crate) fn append_key(&self, peer: &PeerName, key: &PublicKey) -> io::Result<()> {
        let request = Request::AppendKey { peer: peer.to_string(), key: key.to_string() };
        self.changes.request(&request).map_err(into_error)
    }

    pub(crate) fn find_invited(&self, key: &PublicKey) -> io::Result<Option<InvitedKey>> {
        self.questions.request(&Request::FindInvited(*key)).map_err(into_error)
    }

    pub(crate) fn admit_client(&self, invitation: &PublicKey, client: &PublicKey) -> io::Result<bool> {
        let request = Request::AdmitClient { invitation: *invitation, client: *client };
        self.changes.request(&request).map_err(into_error)
    }

    /// What the kernel is to count of paths, if the monitor can read it; once.
    pub(crate) fn take_path_uses(&self) -> Option<PathUses> {
        self.path_uses.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Adds what was used of quotas, and returns what has been used then.
    pub(crate) fn add_quota_use(&self, updates: &[QuotaUpdate], sync: bool) -> io::Result<QuotaUses> {
        let request = Request::AddQuotaUse { updates: updates.to_vec(), sync };
        self.changes.request(&request).map_err(into_error)
    }

    /// Closes a subflow that is not bound to an interface.
    pub(crate) fn close_subflow(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        self.questions.request(&Request::CloseSubflow { local, remote }).map_err(into_error)
    }
}

/// Writes a document in one line.
fn write_line(stream: &mut UnixStream, document: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(document)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn read_reply<T: DeserializeOwned>(stream: &mut BufReader<UnixStream>) -> Reply<T> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(Failure::Other("the gateway's monitor has ended".into()));
    }
    serde_json::from_str::<Reply<T>>(&line).map_err(io::Error::from)?
}

fn into_error(failure: Failure) -> io::Error {
    match failure {
        Failure::Other(text) => io::Error::other(text),
        Failure::Line(line) => io::Error::other(format!("line {line} is malformed")),
    }
}

/// The monitor's end: what it holds.
struct MonitorProcess {
    gateway: u32,
    sealed: SealedPeers,
    keys: Option<KnownPeers>,
    invited: Option<InvitedClients>,
    quotas: Option<QuotaFile>,
    /// What the kernel counts of the gateway's paths.
    path_uses: Option<PathUses>,
    /// What was added to the use of quotas last.
    last_added: Mutex<Vec<QuotaUpdate>>,
    cgroups: Option<CreatorCgroups>,
    /// For a gateway that may not close subflows itself.
    sockets: Option<Mutex<Sockets>>,
    config: Option<PathBuf>,
    kill_switch: Option<ReleasedKillSwitch>,
    host_lock: Option<PathBuf>,
}

/// What a monitor does beside what all gateways need.
#[derive(Debug, Default)]
pub struct MonitorTasks {
    /// The file of the keys of first use.
    pub known_peers: Option<PathBuf>,
    /// The file of the clients that this exit has invited.
    pub invited_clients: Option<PathBuf>,
    /// The gateway may not close subflows itself.
    pub close_subflows: bool,
    /// The configuration file that the gateway reads again.
    pub config: Option<PathBuf>,
    /// Remove the kill switch in the end.
    pub release_kill_switch: bool,
    /// Remove this file in the run directory in the end.
    pub host_lock: Option<PathBuf>,
    /// The process whose cgroup the gateway enters.
    pub predecessor: Option<u32>,
}

/// Runs the monitor of the parent process, whose requests arrive on stdin and stdout, which are sockets, until that ends. stderr is the map
/// in which the kernel counts what its paths carry, if it could be created.
///
/// # Errors
/// The monitor cannot confine itself, or its parent broke the protocol.
pub fn run_monitor(tasks: MonitorTasks) -> io::Result<()> {
    let gateway =
        getppid().ok_or_else(|| io::Error::other("the gateway has ended"))?.as_raw_pid().unsigned_abs();
    // A service manager that ends all processes of a service must not end this one first.
    let _ignored = StopSignal::listen()?;
    let mut questions = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let changes = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let monitor = MonitorProcess {
        gateway,
        sealed: SealedPeers::of_user(),
        keys: tasks.known_peers.map(KnownPeers::in_file),
        invited: tasks.invited_clients.map(InvitedClients::in_file),
        quotas: QuotaFile::of_user(),
        path_uses: PathUses::open(io::stderr().as_fd().try_clone_to_owned()?).ok(),
        last_added: Mutex::default(),
        cgroups: match tasks.predecessor {
            Some(predecessor) => CreatorCgroups::entered(gateway, predecessor).ok(),
            None => CreatorCgroups::below_current(gateway).ok(),
        },
        sockets: if tasks.close_subflows { Sockets::open().ok().map(Mutex::new) } else { None },
        config: tasks.config,
        kill_switch: if tasks.release_kill_switch { ReleasedKillSwitch::prepare().ok() } else { None },
        host_lock: tasks.host_lock,
    };
    let gate = ThreadGate::default();
    let result = thread::scope(|scope| {
        let changing = scope.spawn(|| {
            gate.pass();
            monitor.serve(changes)
        });
        let confined = monitor.confine(&gate).map_err(other);
        // If it failed, the gateway closes the channels.
        gate.open();
        write_line(&mut questions, &confined)?;
        monitor.serve(questions)?;
        changing.join().unwrap_or_else(|_| Err(io::Error::other("a request was not answered")))
    });
    monitor.add_unwritten_quota_use();
    result
}

impl MonitorProcess {
    /// Keeps what the requests need: root's files without being their owner's group, and of the network the closing of subflows.
    fn confine(&self, gate: &ThreadGate) -> io::Result<()> {
        let mut files = Files { manage: self.sealed.directories(), ..Files::default() };
        files.manage.extend(self.keys.iter().flat_map(KnownPeers::directories));
        files.manage.extend(self.invited.iter().flat_map(InvitedClients::directories));
        files.manage.extend(self.quotas.iter().flat_map(QuotaFile::directories));
        let run_directory = plait_linux::run_directory().ok();
        files.remove_empty.extend(run_directory.as_deref().and_then(Path::parent).map(Path::to_owned));
        files.remove.extend(run_directory);
        // The directory, because editors replace files.
        files.read.extend(self.config.as_deref().and_then(Path::parent).map(Path::to_owned));
        if let Some(kill_switch) = &self.kill_switch {
            // Its files are below the run directory.
            files.remove_directories.push(kill_switch.directory()?);
        }
        if let Some(cgroups) = &self.cgroups {
            files.remove_cgroups_below(cgroups.parent()?);
        }
        let mut capabilities = CapabilitySet::DAC_OVERRIDE;
        if self.sockets.is_some() {
            capabilities |= CapabilitySet::NET_ADMIN;
        }
        let sandbox = Sandbox::new(Rules { capabilities, user: None, files, signals: None, attaches: false });
        let confined = sandbox.and_then(|sandbox| gate.confine(sandbox));
        confined.map(|_| ()).map_err(io::Error::other)
    }

    /// Answers requests until the gateway closes the channel.
    fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        let requests = BufReader::new(stream.try_clone()?);
        for request in requests.lines() {
            self.answer(&mut stream, serde_json::from_str(&request?)?)?;
        }
        Ok(())
    }

    fn answer(&self, stream: &mut UnixStream, request: Request) -> io::Result<()> {
        match request {
            Request::FindSealed(peer) => {
                write_line(stream, &named(&peer).and_then(|peer| self.sealed.find(&peer).map_err(other)))
            }
            Request::RecordSealed { peer, address, today } => {
                let recorded = named(&peer)
                    .and_then(|peer| self.sealed.record_in_file(&peer, address, today).map_err(other));
                write_line(stream, &recorded)
            }
            Request::FindKey(peer) => {
                let found = named(&peer).and_then(|peer| {
                    let found = self.keys()?.find(&peer).map_err(|error| match error {
                        KnownPeersError::Io(error) => error.into(),
                        KnownPeersError::Line(line) => Failure::Line(line),
                    })?;
                    Ok(found.map(|(line, key)| (line, key.to_string())))
                });
                write_line(stream, &found)
            }
            Request::AppendKey { peer, key } => {
                let appended = named(&peer).and_then(|peer| {
                    let key: PublicKey = key.parse().map_err(other)?;
                    Ok(self.keys()?.append(&peer, &key)?)
                });
                write_line(stream, &appended)
            }
            Request::FindInvited(key) => {
                write_line(stream, &self.invited().and_then(|invited| invited.find(&key).map_err(other)))
            }
            Request::AdmitClient { invitation, client } => {
                let admitted =
                    self.invited().and_then(|invited| invited.admit(&invitation, &client).map_err(other));
                write_line(stream, &admitted)
            }
            Request::CloseSubflow { local, remote } => write_line(stream, &self.close_subflow(local, remote)),
            Request::AddQuotaUse { updates, sync } => {
                let quotas = self.quotas.as_ref();
                let quotas = quotas.ok_or_else(|| Failure::Other("no state directory".into()));
                let added = quotas.and_then(|quotas| quotas.add(&updates, sync).map_err(other));
                if added.is_ok() {
                    *self.last_added.lock().unwrap_or_else(PoisonError::into_inner) = updates;
                }
                write_line(stream, &added)
            }
            Request::ReadConfig => {
                let text = self.config.as_ref().map(fs::read_to_string).transpose().map_err(other);
                let missing = || Failure::Other("this gateway has no configuration file".into());
                write_line(stream, &text.and_then(|text| text.ok_or_else(missing)))
            }
            Request::CleanUp { keep_host } => {
                if let Some(kill_switch) = self.kill_switch.as_ref().filter(|_| !keep_host) {
                    let _ = kill_switch.release();
                }
                if let Some(lock) = self.host_lock.as_ref().filter(|_| !keep_host) {
                    let _ = fs::remove_file(lock);
                }
                let _ = status::handover_socket_path(self.gateway).and_then(fs::remove_file);
                let cleaned = self.cgroups.as_ref().map_or(Ok(()), CreatorCgroups::remove).map_err(other);
                let _ = status::socket_path(self.gateway).and_then(fs::remove_file);
                write_line(stream, &cleaned)
            }
        }
    }

    /// Adds what the gateway's paths carried since it asked for that last: if it was killed, it could not ask.
    fn add_unwritten_quota_use(&self) {
        let (Some(quotas), Some(path_uses)) = (&self.quotas, &self.path_uses) else { return };
        let last_added = self.last_added.lock().unwrap_or_else(PoisonError::into_inner);
        let unwritten = |update: &QuotaUpdate| {
            let reached = update.reached?;
            let bytes = path_uses.bytes_carried(reached.rule).ok()?.checked_sub(reached.bytes)?;
            (bytes > 0).then(|| QuotaUpdate { bytes, ..update.clone() })
        };
        let updates: Vec<QuotaUpdate> = last_added.iter().filter_map(unwritten).collect();
        if !updates.is_empty() {
            // Nobody is left to be told.
            let _ = quotas.add(&updates, false);
        }
    }

    /// Only subflows are closed, no other connections.
    fn close_subflow(&self, local: SocketAddr, remote: SocketAddr) -> Reply<()> {
        let sockets = self.sockets.as_ref();
        let sockets = sockets.ok_or_else(|| Failure::Other("this monitor closes no subflows".into()))?;
        let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.abort_subflow(local, remote, 0).map(|_| ()).map_err(other)
    }

    fn invited(&self) -> Result<&InvitedClients, Failure> {
        self.invited.as_ref().ok_or_else(|| Failure::Other("this gateway has no invited clients".into()))
    }

    fn keys(&self) -> Result<&KnownPeers, Failure> {
        self.keys.as_ref().ok_or_else(|| Failure::Other("this gateway stores no keys of peers".into()))
    }
}

fn named(peer: &str) -> Result<PeerName, Failure> {
    PeerName::from_line(peer).ok_or_else(|| Failure::Other("expected the name of a peer".into()))
}

fn other(error: impl ToString) -> Failure {
    Failure::Other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a gateway finds if its monitor answers a question for a key with this line.
    fn find_key(reply: &str) -> Result<Option<(usize, PublicKey)>, KnownPeersError> {
        let mut command = Command::new("sh");
        // Its stdin is a socket.
        let script = r#"exec >&0; echo '{"Ok":null}'; read question; echo "$1""#;
        command.args(["-c", script, "monitor", reply]);
        let monitor = Monitor::start(command).expect("sh starts");
        let found = monitor.find_key(&"server.example:443".parse().expect("a peer"));
        let _ = monitor.process.lock().unwrap_or_else(PoisonError::into_inner).wait();
        found
    }

    #[test]
    fn peers_whose_keys_cannot_be_read_are_not_unknown() {
        let key = PublicKey::new([7; 32]);
        assert!(
            matches!(find_key(&format!(r#"{{"Ok":[3,"{key}"]}}"#)), Ok(Some((3, found))) if found == key)
        );
        assert!(matches!(find_key(r#"{"Ok":null}"#), Ok(None)));
        for damaged in [r#"{"Ok":[3,"plait-key:damaged"]}"#, r#"{"Err":{"Line":3}}"#] {
            assert!(matches!(find_key(damaged), Err(KnownPeersError::Line(3))), "{damaged}");
        }
        for broken in ["", r#"{"Ok":[3]}"#, r#"{"Err":{"Other":"no"}}"#] {
            assert!(matches!(find_key(broken), Err(KnownPeersError::Io(_))), "{broken}");
        }
    }
}
