//! Late witnesses: those of paths slower than the main one, which confirm a session after its handshake.
//!
//! HELLO lists only the witnesses that the handshake waits for. Another one exchanges the same messages later: WITNESS, SHARE
//! and CONFIRM. Its confirmations are bound to the session by a key that follows from the first root, so that an attacker in
//! the middle of the main connection, who has one session with each end, makes them wrong.
//!
//! ```text
//! salt         = HKDF-Expand(root 0, "plait sealed 3 late witness", 32)
//! secret       = HKDF-Extract(salt, IKM = number of the path || initiator's share || responder's share)
//! ck           = HKDF-Expand(secret, "plait sealed 3 confirmation", 32)
//! confirmation = HMAC-SHA256(ck, end || number of the path || hash of the Noise handshake)
//! ```
//!
//! The shares enter the keys of records by the next [key update](super::KeyUpdate).

use super::framing::Bytes;
use super::handshake::HandshakeError;
use super::keys::{End, KeySchedule, Shares};
use super::messages::{Confirm, Share, Witness};
use super::noise::Split;
use super::paths::{Level, PathId, Paths};
use super::root::Root;
use super::session_id::SessionId;
use super::side_connection::SideSecrets;
use crate::secret::Secret;

/// The witnesses of a session: which paths have had one, and what binds late ones to it.
pub struct SessionWitnesses {
    session: SessionId,
    salt: Secret,
    side: SideSecrets,
    hash: [u8; 32],
    paths: Paths,
}

/// The shares of a late witness, for [`KeyUpdate::mix`](super::KeyUpdate::mix).
pub struct LateShares {
    pub(super) path: PathId,
    pub(super) shares: Shares,
}

/// The initiator's late witness, waiting for SHARE.
pub struct AwaitingShare {
    path: PathId,
    share: Secret,
}

/// The responder's late witness, waiting for CONFIRM.
pub struct AwaitingConfirm {
    keys: KeySchedule,
    shares: LateShares,
}

impl SessionWitnesses {
    pub(super) fn new(session: SessionId, root: &Root, split: &Split, paths: Paths) -> SessionWitnesses {
        let side = SideSecrets { session, salt: root.side_salt(), hash: split.hash, paths };
        SessionWitnesses { session, salt: root.late_salt(), side, hash: split.hash, paths }
    }

    /// What side connections of the session are authenticated with.
    #[must_use]
    pub fn side(&self) -> &SideSecrets {
        &self.side
    }

    /// The level that the session has reached.
    #[must_use]
    pub fn level(&self) -> Level {
        self.paths.level()
    }

    /// Begins at the initiator, with WITNESS.
    ///
    /// # Errors
    /// The path has had a witness, every path has, or there are no random bytes.
    pub fn witness(&self, path: PathId) -> Result<(AwaitingShare, Bytes), HandshakeError> {
        self.check(path)?;
        let awaiting = AwaitingShare { path, share: Secret::random()? };
        let share = Secret::copy_of(awaiting.share.as_bytes());
        Ok((awaiting, Witness { session: self.session, path, share }.to_bytes()))
    }

    /// Answers a WITNESS at the responder, with SHARE.
    ///
    /// # Errors
    /// As [`witness`](Self::witness), or it is of another session.
    pub fn share(&self, witness: Witness) -> Result<(AwaitingConfirm, Bytes), HandshakeError> {
        let Witness { session, path, share } = witness;
        if session != self.session {
            return Err(HandshakeError::WrongSession { expected: self.session, got: session });
        }
        self.check(path)?;
        let shares = LateShares { path, shares: Shares { initiator: share, responder: Secret::random()? } };
        let keys = self.keys(&shares);
        let confirmation = keys.confirmation(End::Responder, path, &self.hash);
        let share = Secret::copy_of(shares.shares.responder.as_bytes());
        Ok((AwaitingConfirm { keys, shares }, Share { path, share, confirmation }.to_bytes()))
    }

    /// Verifies SHARE at the initiator; returns CONFIRM. Once the responder has closed the witness in order, it has verified
    /// that, and the path counts.
    ///
    /// # Errors
    /// It is of another path, or its confirmation is wrong.
    pub fn verify_share(
        &self,
        awaiting: AwaitingShare,
        share: Share,
    ) -> Result<(LateShares, Bytes), HandshakeError> {
        let AwaitingShare { path, share: initiator } = awaiting;
        if share.path != path {
            return Err(HandshakeError::WrongPath { message: "SHARE", expected: path, got: share.path });
        }
        let shares = LateShares { path, shares: Shares { initiator, responder: share.share } };
        let keys = self.keys(&shares);
        if !keys.confirms(End::Responder, path, &self.hash, &share.confirmation) {
            return Err(HandshakeError::Confirmation(path));
        }
        let confirmation = keys.confirmation(End::Initiator, path, &self.hash);
        Ok((shares, Confirm { path, confirmation }.to_bytes()))
    }

    /// Verifies CONFIRM at the responder.
    ///
    /// # Errors
    /// It is of another path, or wrong.
    pub fn verify_confirm(
        &self,
        awaiting: AwaitingConfirm,
        confirm: &Confirm,
    ) -> Result<LateShares, HandshakeError> {
        let AwaitingConfirm { keys, shares } = awaiting;
        let path = shares.path;
        if confirm.path != path {
            return Err(HandshakeError::WrongPath { message: "CONFIRM", expected: path, got: confirm.path });
        }
        if !keys.confirms(End::Initiator, path, &self.hash, &confirm.confirmation) {
            return Err(HandshakeError::Confirmation(path));
        }
        Ok(shares)
    }

    /// Counts a path whose witness both ends have verified.
    ///
    /// # Errors
    /// As [`witness`](Self::witness): another connection was first.
    pub fn add(&mut self, shares: &LateShares) -> Result<Level, HandshakeError> {
        self.paths = self.check(shares.path)?;
        Ok(self.level())
    }

    fn keys(&self, LateShares { path, shares }: &LateShares) -> KeySchedule {
        KeySchedule::of_late_witness(&self.salt, *path, shares)
    }

    /// The paths with this one, if it may have a witness.
    fn check(&self, path: PathId) -> Result<Paths, HandshakeError> {
        if self.paths.witnesses().contains(path) {
            return Err(HandshakeError::Repeated("WITNESS", path));
        }
        self.paths.with_witness(path).map_err(|_| HandshakeError::Unlisted("WITNESS", path))
    }
}

crate::derive::opaque_debug!(SessionWitnesses, LateShares, AwaitingShare, AwaitingConfirm);

#[cfg(test)]
mod tests;
