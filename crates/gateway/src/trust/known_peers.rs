//! The file of peers' keys that were trusted on first use.
//!
//! It has one line for each peer, `HOST:PORT plait-key:...`; the first line of a peer takes precedence.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plait_proto::identity::PublicKey;

use super::peer_name::PeerName;
use super::state_directory::{ensure_directories, private_directory};
use crate::monitor::Monitor;

/// The file could not be used.
#[derive(Debug)]
pub(crate) enum KnownPeersError {
    Io(io::Error),
    /// The line with this number is not a peer and a key.
    Line(usize),
}

/// The keys of first use, in a file.
#[derive(Clone, Debug)]
pub(crate) struct KnownPeers {
    file: PathBuf,
    /// The process that may open the file, if this one may not.
    monitor: Option<Arc<Monitor>>,
}

impl KnownPeers {
    pub(crate) fn in_file(file: PathBuf) -> KnownPeers {
        KnownPeers { file, monitor: None }
    }

    /// Uses the file through a monitor.
    pub(super) fn set_monitor(&mut self, monitor: Arc<Monitor>) {
        self.monitor = Some(monitor);
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// The directories of the file; that of its name is created if there is none.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        ensure_directories(&self.file)
    }

    /// A peer's first line, and its key.
    pub(crate) fn find(&self, peer: &PeerName) -> Result<Option<(usize, PublicKey)>, KnownPeersError> {
        self.monitor.as_ref().map_or_else(|| find(&self.file, peer), |monitor| monitor.find_key(peer))
    }

    /// Appends a peer's line.
    pub(crate) fn append(&self, peer: &PeerName, key: &PublicKey) -> io::Result<()> {
        self.monitor
            .as_ref()
            .map_or_else(|| append(&self.file, peer, key), |monitor| monitor.append_key(peer, key))
    }
}

fn find(file: &Path, peer: &PeerName) -> Result<Option<(usize, PublicKey)>, KnownPeersError> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(KnownPeersError::Io(error)),
    };
    let peer = peer.to_string();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let malformed = || KnownPeersError::Line(index + 1);
        let (name, key) = line.trim().split_once(' ').ok_or_else(malformed)?;
        let key: PublicKey = key.trim().parse().map_err(|_| malformed())?;
        if name == peer {
            return Ok(Some((index + 1, key)));
        }
    }
    Ok(None)
}

/// Appends to the file, which only its owner can read; in one write, so that lines written by other processes are not torn.
fn append(file: &Path, peer: &PeerName, key: &PublicKey) -> io::Result<()> {
    private_directory(file)?;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    file.write_all(format!("{peer} {key}\n").as_bytes())?;
    file.sync_data()
}
