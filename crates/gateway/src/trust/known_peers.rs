//! The file of peers' keys that were trusted on first use.
//!
//! It has one line for each peer, `HOST:PORT plait-key:...`; the first line of a peer takes precedence.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use plait_proto::identity::PublicKey;

use super::peer_name::PeerName;
use super::state_directory::private_directory;

/// The file could not be used.
#[derive(Debug)]
pub(super) enum KnownPeersError {
    Io(io::Error),
    /// The line with this number is not a peer and a key.
    Line(usize),
}

/// A peer's first line, and its key.
pub(super) fn find(file: &Path, peer: &PeerName) -> Result<Option<(usize, PublicKey)>, KnownPeersError> {
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

/// Appends a peer's line to the file, which only its owner can read; in one write, so that lines written by other processes
/// are not torn.
pub(super) fn append(file: &Path, peer: &PeerName, key: &PublicKey) -> io::Result<()> {
    private_directory(file)?;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    file.write_all(format!("{peer} {key}\n").as_bytes())?;
    file.sync_data()
}
