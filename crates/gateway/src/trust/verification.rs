//! Verification of a peer's key: against a pinned one, or against the one of its first use.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use plait_proto::identity::PublicKey;
use tracing::warn;

use super::identity::IdentityError;
use super::invited_clients::InvitedClientsError;
use super::known_peers::{KnownPeers, KnownPeersError};
use super::peer_name::PeerName;

/// How a peer's key is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyMatch {
    /// It is the pinned key.
    Pinned,
    /// It is the key of the peer's first use, which may be now.
    FirstUse,
    /// It is the key of an invitation to an exit.
    Invitation,
}

/// A peer that has authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuthenticatedPeer {
    pub(crate) key: PublicKey,
    pub(crate) known: KeyMatch,
}

impl fmt::Display for KeyMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyMatch::Pinned => "pinned",
            KeyMatch::FirstUse => "first-use",
            KeyMatch::Invitation => "invitation",
        })
    }
}

/// A peer's key was rejected, or cannot be verified.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerAuthError {
    #[error(
        "{peer} failed authentication: expected the pinned {expected}, got {got}: an attacker is in the middle, or its \
         key was replaced; if you know that it was, change it in [peers]"
    )]
    Pinned { peer: PeerName, expected: PublicKey, got: PublicKey },
    #[error(
        "{peer} failed authentication: expected {expected} from {}, line {line}, got {got}: an attacker is in the middle, \
         or its key was replaced; if you know that it was, remove that line", file.display()
    )]
    Changed { peer: PeerName, file: PathBuf, line: usize, expected: PublicKey, got: PublicKey },
    #[error("expected a key of {0} in [peers], got none: add it, or use --peers first-use")]
    NotPinned(PeerName),
    #[error("expected a client whose key is in `clients` of [identity], got {0}")]
    Client(PublicKey),
    #[error(transparent)]
    Invited(#[from] InvitedClientsError),
    #[error("expected a client whose key is in `clients` of the service, in [[services]], got {0}")]
    ServiceClient(PublicKey),
    #[error("keys of peers cannot be stored: {}", IdentityError::NoDirectory)]
    NoDirectory,
    #[error("cannot read or write the keys of peers in {}: {reason}", file.display())]
    File { file: PathBuf, reason: io::Error },
    #[error("{}, line {line}: expected HOST:PORT and a key, as in `server.example:443 plait-key:...`", file.display())]
    Line { file: PathBuf, line: usize },
}

impl PeerAuthError {
    pub(super) fn known_peers(file: &Path, error: KnownPeersError) -> PeerAuthError {
        let file = file.to_owned();
        match error {
            KnownPeersError::Io(reason) => PeerAuthError::File { file, reason },
            KnownPeersError::Line(line) => PeerAuthError::Line { file, line },
        }
    }
}

/// A peer, and what its key is verified against.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedPeer {
    pub(super) peer: PeerName,
    pub(super) anchor: TrustAnchor,
}

#[derive(Clone, Debug)]
pub(super) enum TrustAnchor {
    Pin(PublicKey),
    /// The keys of first use, and the peer's line and key among them, if there is one.
    FirstUse(KnownPeers, Option<(usize, PublicKey)>),
}

impl ExpectedPeer {
    /// Whether the peer's key is not known yet: it will be stored, and must not be that of somebody in the middle.
    pub(crate) fn is_first_use(&self) -> bool {
        matches!(self.anchor, TrustAnchor::FirstUse(_, None))
    }

    /// Verifies the peer's key; stores it on first use.
    pub(crate) fn verify(&self, got: &PublicKey) -> Result<KeyMatch, PeerAuthError> {
        match &self.anchor {
            TrustAnchor::Pin(expected) if expected == got => Ok(KeyMatch::Pinned),
            TrustAnchor::Pin(expected) => {
                Err(PeerAuthError::Pinned { peer: self.peer.clone(), expected: *expected, got: *got })
            }
            TrustAnchor::FirstUse(known, Some(found)) => self.verify_known(known, *found, got),
            TrustAnchor::FirstUse(known, None) => self.verify_first_use(known, got),
        }
    }

    fn verify_known(
        &self,
        known: &KnownPeers,
        (line, expected): (usize, PublicKey),
        got: &PublicKey,
    ) -> Result<KeyMatch, PeerAuthError> {
        if expected == *got {
            return Ok(KeyMatch::FirstUse);
        }
        let file = known.file().to_owned();
        Err(PeerAuthError::Changed { peer: self.peer.clone(), file, line, expected, got: *got })
    }

    /// Stores the key, unless another connection did since the peer was looked up.
    fn verify_first_use(&self, known: &KnownPeers, got: &PublicKey) -> Result<KeyMatch, PeerAuthError> {
        let file = known.file();
        let find = || known.find(&self.peer).map_err(|error| PeerAuthError::known_peers(file, error));
        if find()?.is_none() {
            let stored = known.append(&self.peer, got);
            stored.map_err(|reason| PeerAuthError::File { file: file.to_owned(), reason })?;
            warn!("first connection to {}: stored its {got} in {}", self.peer, file.display());
        }
        // Read again after writing: of several processes that met the peer for the first time, one was first.
        match find()? {
            Some(found) => self.verify_known(known, found, got),
            None => {
                let reason = io::Error::other("the line just written is missing");
                Err(PeerAuthError::File { file: file.to_owned(), reason })
            }
        }
    }
}
