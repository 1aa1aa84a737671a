//! The peers that this user's gateways reached in mode `sealed`, which are never carried in a weaker mode again.
//!
//! Without this memory, an attacker on the path turns a preferred mode into a plain connection by stripping the TCP option;
//! HTTP Strict Transport Security (RFC 6797) has the same purpose for TLS.
//!
//! The file has one line for each peer, `HOST:PORT FIRST LAST ADDRESS`: the dates (UTC) of its first and its last `sealed`
//! connection, and the address of the first. A process replaces the file atomically, while it holds a lock on the
//! directory; the others notice by the file's metadata.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use chrono::{DateTime, NaiveDate, Utc};
use plait_config::with_path;
use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use super::peer_name::PeerName;
use super::state_directory::{
    ensure_directories, lock_directory, private_directory, replace_private, state_directory,
};
use crate::monitor::Monitor;

/// Peers remembered; the file is then some 800 kB long.
const MAX_PEERS: usize = 16_384;

/// Peers remembered of one network, an IPv4 /24 or an IPv6 /48: an attacker may have any number of names and ports, but
/// needs addresses in 32 networks to fill the memory.
const MAX_PEERS_PER_NETWORK: usize = 512;

/// A peer can be evicted if its last `sealed` connection was this many days ago. An attacker who makes programs connect to
/// many peers of his can thus keep new peers from being remembered, which is logged, but evicts none that is in use.
const EVICTABLE_AFTER_DAYS: i64 = 365;

/// The memory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SealedPeersError {
    /// The environment names no directory.
    #[error("expected STATE_DIRECTORY, XDG_STATE_HOME or HOME in the environment, got none of them")]
    NoDirectory,
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The monitor of this gateway, which may use the file, could not.
    #[error(transparent)]
    Monitor(io::Error),
    /// The file cannot be written; the error names it.
    #[error(transparent)]
    Write(io::Error),
    /// A line has another format.
    #[error(
        "{}, line {line}: expected HOST:PORT, two dates and an address, as in `server.example:8443 2026-01-31 2026-02-28 \
         192.0.2.7`: correct or remove that line", file.display()
    )]
    Line {
        /// The file.
        file: PathBuf,
        /// The number of the line, from 1.
        line: usize,
    },
    /// There is no place for another peer.
    #[error(
        "{} holds {MAX_PEERS} peers, or {MAX_PEERS_PER_NETWORK} of the network of {address}: see `plait peers`, and remove \
         some by `plait peers forget`", file.display()
    )]
    Full {
        /// The file.
        file: PathBuf,
        /// The new peer's address.
        address: IpAddr,
    },
}

/// When a peer was reached in mode `sealed`, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedPeer {
    /// The date (UTC) of the first connection.
    pub first: NaiveDate,
    /// The date (UTC) of the last connection.
    pub last: NaiveDate,
    /// The address of the first connection.
    pub address: IpAddr,
}

/// The peers of a user that were reached in mode `sealed`, on disk.
#[derive(Debug)]
pub struct SealedPeers {
    file: Option<PathBuf>,
    /// The process that may open the file, if this one may not.
    monitor: Option<Arc<Monitor>>,
    cache: Mutex<CachedFile>,
    /// Held while this process waits for the lock of the directory and writes.
    writing: Mutex<()>,
    /// Whether the last attempt to write failed, or the directory is inaccessible, which is logged once.
    failing: AtomicBool,
}

/// The file's contents when it was last read. The default is that of a file that does not exist.
#[derive(Debug, Default)]
struct CachedFile {
    version: Option<FileVersion>,
    /// Kept open, so that a file that replaces this one has another inode number.
    _file: Option<File>,
    peers: Peers,
}

/// Differs between two contents of the file.
#[derive(Debug, PartialEq, Eq)]
struct FileVersion {
    inode: (u64, u64),
    length: u64,
    changed: (i64, i64),
}

/// Peers by name, as [`PeerName`] displays it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Peers(BTreeMap<String, SealedPeer>);

/// The memory has no place for another peer.
#[derive(Debug, PartialEq, Eq)]
struct MemoryFull;

impl SealedPeers {
    /// The memory of this user: `sealed_peers` in the directory of the default identity.
    #[must_use]
    pub fn of_user() -> SealedPeers {
        SealedPeers::in_file(state_directory().map(|directory| directory.join("sealed_peers")))
    }

    fn in_file(file: Option<PathBuf>) -> SealedPeers {
        let (monitor, cache, writing, failing) = Default::default();
        SealedPeers { file, monitor, cache, writing, failing }
    }

    /// The memory of this user, used through a monitor.
    pub(crate) fn of_monitor(monitor: Arc<Monitor>) -> SealedPeers {
        SealedPeers { monitor: Some(monitor), ..SealedPeers::of_user() }
    }

    /// The file; `None` if the environment names no directory.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The directories of the file: that of its name, which is created if there is none, and that of a link's target. None if
    /// they are inaccessible.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let Some(file) = &self.file else { return Vec::new() };
        ensure_directories(file)
    }

    /// All peers by name.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self) -> Result<BTreeMap<String, SealedPeer>, SealedPeersError> {
        Ok(self.current()?.peers.0.clone())
    }

    /// Removes a peer, named as [`list`](Self::list) or the application does. Returns whether it was remembered.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn forget(&self, peer: &str) -> Result<bool, SealedPeersError> {
        let peer = peer.parse().map_or(peer.to_owned(), |peer: PeerName| peer.to_string());
        if !self.current()?.peers.0.contains_key(&peer) {
            return Ok(false);
        }
        self.update(|peers| Ok(peers.0.remove(&peer).is_some()))
    }

    /// When and where a peer was reached `sealed`, if it was.
    pub(crate) fn find(&self, peer: &PeerName) -> Result<Option<SealedPeer>, SealedPeersError> {
        match &self.monitor {
            Some(monitor) => monitor.find_sealed(&peer.to_string()).map_err(SealedPeersError::Monitor),
            None => Ok(self.current()?.peers.0.get(&peer.to_string()).cloned()),
        }
    }

    /// Remembers that a peer was reached `sealed` now, at this address. It is on disk when this returns, unless a warning says
    /// why not.
    pub(crate) async fn remember(self: &Arc<Self>, peer: &PeerName, address: IpAddr) {
        let today = DateTime::<Utc>::from(SystemTime::now()).date_naive();
        let is_remembered = |found: SealedPeer| found.last >= today;
        if self.find(peer).is_ok_and(|found| found.is_some_and(is_remembered)) {
            return;
        }
        let (this, peer) = (Arc::clone(self), peer.clone());
        // It waits for the disk, and for other processes.
        let written = tokio::task::spawn_blocking(move || this.record(&peer, address, today)).await;
        if let Err(error) = written {
            warn!("a peer that was reached sealed may not be remembered: {error}");
        }
    }

    fn record(&self, peer: &PeerName, address: IpAddr, today: NaiveDate) {
        let name = peer.to_string();
        let recorded = match &self.monitor {
            Some(monitor) => monitor.record_sealed(&name, address, today).map_err(SealedPeersError::Monitor),
            None => self.record_in_file(peer, address, today),
        };
        match recorded {
            Ok(()) => {
                self.failing.store(false, Ordering::Relaxed);
                info!(
                    "{name} was reached sealed: it will not be carried in a weaker mode (see `plait peers`)"
                );
            }
            Err(error) if !self.failing.swap(true, Ordering::Relaxed) => {
                warn!(
                    "cannot remember that {name} was reached sealed, so a later downgrade is carried: {error}"
                );
            }
            Err(error) => debug!("cannot remember that {name} was reached sealed: {error}"),
        }
    }

    /// Writes that a peer was reached `sealed`, unless that is known of this day.
    pub(crate) fn record_in_file(
        &self,
        peer: &PeerName,
        address: IpAddr,
        today: NaiveDate,
    ) -> Result<(), SealedPeersError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Of many first connections at once, one writes.
        self.find(peer).and_then(|found| match found {
            Some(found) if found.last >= today => Ok(()),
            _ => self.update(|peers| {
                let full = |MemoryFull| SealedPeersError::Full {
                    file: self.file.clone().unwrap_or_default(),
                    address,
                };
                peers.insert(&peer.to_string(), address, today).map_err(full)
            }),
        })
    }

    /// What the file contains now.
    fn current(&self) -> Result<MutexGuard<'_, CachedFile>, SealedPeersError> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &self.file else { return Ok(cache) };
        let version = match fs::metadata(file) {
            Ok(metadata) => Some(FileVersion::of(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // The directory of another user, whose environment this process inherited: that memory is not its own.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    warn!("peers that were reached sealed before are not known: {}: {error}", file.display());
                }
                None
            }
            Err(reason) => return Err(SealedPeersError::Read { file: file.clone(), reason }),
        };
        if cache.version != version {
            *cache = CachedFile::read(file)?;
        }
        Ok(cache)
    }

    /// Changes the file, as the only process that does.
    fn update<T>(
        &self,
        change: impl FnOnce(&mut Peers) -> Result<T, SealedPeersError>,
    ) -> Result<T, SealedPeersError> {
        let file = self.file.as_ref().ok_or(SealedPeersError::NoDirectory)?;
        let write = |error: io::Error| SealedPeersError::Write(with_path(error, file));
        private_directory(file).map_err(write)?;
        let _lock = lock_directory(file).map_err(write)?;
        let mut peers = CachedFile::read(file)?.peers;
        let changed = change(&mut peers)?;
        replace_private(file, &peers.to_text()).map_err(SealedPeersError::Write)?;
        Ok(changed)
    }
}

impl CachedFile {
    fn read(path: &Path) -> Result<CachedFile, SealedPeersError> {
        let read = |reason| SealedPeersError::Read { file: path.to_owned(), reason };
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(CachedFile::default()),
            Err(error) => return Err(read(error)),
        };
        let version = Some(FileVersion::of(&file.metadata().map_err(read)?));
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(read)?;
        let peers =
            Peers::parse(&text).map_err(|line| SealedPeersError::Line { file: path.to_owned(), line })?;
        Ok(CachedFile { version, _file: Some(file), peers })
    }
}

impl FileVersion {
    fn of(metadata: &Metadata) -> FileVersion {
        FileVersion {
            inode: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl Peers {
    /// Parses the file; an error is the number of the line.
    fn parse(text: &str) -> Result<Peers, usize> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(index, line)| parse_line(line).ok_or(index + 1)).collect::<Result<_, _>>().map(Peers)
    }

    fn to_text(&self) -> String {
        let line = |(name, SealedPeer { first, last, address }): (&String, &SealedPeer)| {
            format!("{name} {first} {last} {address}\n")
        };
        self.0.iter().map(line).collect()
    }

    /// Adds a peer, or the date of its last connection. A full memory evicts the peer whose last connection is the oldest, if
    /// it can be evicted.
    fn insert(&mut self, name: &str, address: IpAddr, today: NaiveDate) -> Result<(), MemoryFull> {
        if let Some(known) = self.0.get_mut(name) {
            known.last = known.last.max(today);
            return Ok(());
        }
        let is_near = |peer: &SealedPeer| network_of(peer.address) == network_of(address);
        let is_crowded = self.0.values().filter(|peer| is_near(peer)).count() >= MAX_PEERS_PER_NETWORK;
        if is_crowded || self.0.len() >= MAX_PEERS {
            let candidates = self.0.iter().filter(|(_, peer)| !is_crowded || is_near(peer));
            let (oldest, peer) = candidates.min_by_key(|(_, peer)| peer.last).ok_or(MemoryFull)?;
            if (today - peer.last).num_days() < EVICTABLE_AFTER_DAYS {
                return Err(MemoryFull);
            }
            let oldest = oldest.clone();
            self.0.remove(&oldest);
        }
        self.0.insert(name.to_owned(), SealedPeer { first: today, last: today, address });
        Ok(())
    }
}

fn parse_line(line: &str) -> Option<(String, SealedPeer)> {
    let mut words = line.split_ascii_whitespace();
    let (name, first, last, address) = (words.next()?, words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !name.contains(':') || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let peer =
        SealedPeer { first: first.parse().ok()?, last: last.parse().ok()?, address: address.parse().ok()? };
    Some((name.to_owned(), peer))
}

/// The network that an address is counted with, because the holder of one of its addresses may have all: a /24 of IPv4, or a
/// /48 of IPv6.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & u32::MAX << 8).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 80).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    fn name(text: &str) -> PeerName {
        text.parse().expect("a peer's name")
    }

    fn day(text: &str) -> NaiveDate {
        text.parse().expect("a date")
    }

    /// A memory in a directory of its own, which does not exist yet.
    fn memory() -> (Arc<SealedPeers>, TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("state/sealed_peers");
        (Arc::new(SealedPeers::in_file(Some(file))), directory)
    }

    fn is_known(memory: &SealedPeers, peer: &str) -> bool {
        memory.find(&name(peer)).expect("readable").is_some()
    }

    #[tokio::test]
    async fn peers_are_remembered_on_disk_until_forgotten_by_any_process() {
        let (memory, directory) = memory();
        assert!(
            !is_known(&memory, "server.example:443")
                && !memory.forget("server.example:443").expect("no file")
        );
        memory.remember(&name("Server.Example:443"), ADDRESS).await;
        memory.remember(&name("192.0.2.7:80"), ADDRESS).await;
        assert!(is_known(&memory, "server.example:443") && is_known(&memory, "192.0.2.7:80"));
        assert!(!is_known(&memory, "server.example:80") && !is_known(&memory, "192.0.2.7:443"));
        let file = directory.path().join("state/sealed_peers");
        let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&directory.path().join("state"))), (0o600, 0o700));
        let names = fs::read_dir(directory.path().join("state")).expect("a directory").count();
        assert_eq!(names, 1, "nothing else is left");

        let other = SealedPeers::in_file(Some(file.clone()));
        let found = other.list().expect("readable");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["192.0.2.7:80", "server.example:443"]);
        assert!(found.values().all(|peer| peer.first == peer.last && peer.address == ADDRESS));
        assert!(other.forget("SERVER.example.:443").expect("writable"));
        assert!(!is_known(&memory, "server.example:443") && is_known(&memory, "192.0.2.7:80"));
        assert!(!other.forget("server.example:443").expect("readable"));
        fs::remove_file(&file).expect("it was created here");
        assert!(!is_known(&memory, "192.0.2.7:80"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_writers_lose_no_peer() {
        let (_, directory) = memory();
        let memories: Vec<_> = (0..4)
            .map(|_| Arc::new(SealedPeers::in_file(Some(directory.path().join("sealed_peers")))))
            .collect();
        let mut tasks = tokio::task::JoinSet::new();
        for port in 1..=40 {
            let memory = Arc::clone(&memories[port % memories.len()]);
            tasks.spawn(async move { memory.remember(&name(&format!("a.example:{port}")), ADDRESS).await });
        }
        tasks.join_all().await;
        assert_eq!(memories[0].list().expect("readable").len(), 40);
    }

    #[tokio::test]
    async fn only_the_last_date_changes() {
        let (memory, directory) = memory();
        let file = directory.path().join("state/sealed_peers");
        private_directory(&file).expect("writable");
        fs::write(&file, "a.example:443 2020-01-31 2020-02-28 192.0.2.9\n").expect("writable");
        memory.remember(&name("a.example:443"), ADDRESS).await;
        let found = memory.find(&name("a.example:443")).expect("readable").expect("remembered");
        assert_eq!(
            (found.first, found.address),
            (day("2020-01-31"), "192.0.2.9".parse().expect("an address"))
        );
        assert!(found.last > day("2020-02-28"));
        let before = fs::metadata(&file).expect("it exists").ino();
        memory.remember(&name("a.example:443"), ADDRESS).await;
        assert_eq!(fs::metadata(&file).expect("it exists").ino(), before, "written once a day");
    }

    #[tokio::test]
    async fn malformed_file_is_an_error_and_is_kept() {
        let (memory, directory) = memory();
        let file = directory.path().join("state/sealed_peers");
        private_directory(&file).expect("writable");
        let good = "a.example:443 2026-01-31 2026-02-28 192.0.2.9\n";
        for line in
            ["b.example:443", "b.example 2026-01-31 2026-02-28 ::1", "b:1 2026-01-31 today ::1", "\u{1b}:1 x"]
        {
            let text = format!("{good}\n{line}\n");
            fs::write(&file, &text).expect("writable");
            let error = memory.find(&name("a.example:443")).expect_err("malformed");
            assert!(matches!(error, SealedPeersError::Line { line: 3, .. }), "{error}");
            memory.remember(&name("c.example:443"), ADDRESS).await;
            assert_eq!(fs::read_to_string(&file).expect("readable"), text);
        }
    }

    #[tokio::test]
    async fn without_a_directory_nothing_is_remembered() {
        let memory = Arc::new(SealedPeers::in_file(None));
        memory.remember(&name("a.example:443"), ADDRESS).await;
        assert!(!is_known(&memory, "a.example:443"));
    }

    #[test]
    fn text_round_trips() {
        let text =
            "[2001:db8::1]:80 2026-01-31 2026-02-28 2001:db8::1\nx\\ny:1 2026-01-31 2026-01-31 192.0.2.9\n";
        let peers = Peers::parse(text).expect("two lines");
        assert_eq!((peers.0.len(), peers.to_text().as_str()), (2, text));
    }

    #[test]
    fn flood_of_new_peers_evicts_none_in_use() {
        let (today, next_year) = (day("2026-03-01"), day("2027-03-01"));
        let mut peers = Peers::default();
        peers.insert("server.example:443", ADDRESS, today).expect("a place");
        // One network with any number of names.
        let evil = |number: usize| -> IpAddr { [198, 51, u8::try_from(number).expect("few"), 1].into() };
        for number in 0..2 * MAX_PEERS_PER_NETWORK {
            let inserted = peers.insert(&format!("{number}.evil.example:443"), evil(0), today);
            assert_eq!(inserted.is_ok(), number < MAX_PEERS_PER_NETWORK);
        }
        peers.insert("other.example:443", [203, 0, 113, 1].into(), today).expect("a place");
        // As many networks as fill it.
        for number in 0..MAX_PEERS {
            let network = evil(1 + number / MAX_PEERS_PER_NETWORK);
            let _ = peers.insert(&format!("{number}.x.example:443"), network, today);
        }
        assert_eq!(peers.0.len(), MAX_PEERS);
        assert_eq!(peers.insert("new.example:443", [203, 0, 113, 2].into(), today), Err(MemoryFull));
        for known in ["server.example:443", "other.example:443"] {
            peers.insert(known, ADDRESS, next_year).expect("it is known");
        }
        // What was not used for a year makes room.
        peers.insert("new.example:443", [203, 0, 113, 2].into(), next_year).expect("a place");
        assert_eq!(peers.0.len(), MAX_PEERS);
        for known in ["server.example:443", "other.example:443", "new.example:443"] {
            assert!(peers.0.contains_key(known), "{known}");
        }
    }

    #[test]
    fn addresses_of_one_network_are_counted_together() {
        let same = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| network_of(text.parse().expect("an address")));
            one == other
        };
        assert!(same("192.0.2.1", "192.0.2.254") && !same("192.0.2.1", "192.0.3.1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.254"));
        assert!(same("2001:db8:1::1", "2001:db8:1:ffff::2") && !same("2001:db8:1::1", "2001:db8:2::1"));
    }
}
