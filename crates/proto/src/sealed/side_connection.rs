//! Side connections: those of a running session on other paths, which carry [copies](crate::codec::records) of its records.
//!
//! A side connection begins with the three messages of a [late witness](super::late_witness), the first with a type of its own:
//! SIDE, SHARE and CONFIRM. They prove to each end that the other is that of the session, now: a replayed SIDE gets no copies. They
//! prove nothing about paths and enter no keys, so a side connection does not count as a witness.
//!
//! ```text
//! salt         = HKDF-Expand(root 0, "plait sealed 3 side connection", 32)
//! secret       = HKDF-Extract(salt, IKM = number of the path || initiator's share || responder's share)
//! ck           = HKDF-Expand(secret, "plait sealed 3 confirmation", 32)
//! confirmation = HMAC-SHA256(ck, end || number of the path || hash of the Noise handshake)
//! ```
//!
//! A responder that wants no copies closes the connection in order instead of sending SHARE.

use super::framing::Bytes;
use super::handshake::HandshakeError;
use super::keys::{End, KeySchedule, Shares};
use super::messages::{Confirm, Share, Side, Witness};
use super::paths::{PathId, Paths};
use super::session_id::SessionId;
use crate::secret::Secret;

/// What authenticates the side connections of a session.
pub struct SideSecrets {
    pub(super) session: SessionId,
    pub(super) salt: Secret,
    pub(super) hash: [u8; 32],
    pub(super) paths: Paths,
}

/// The initiator's side connection, waiting for SHARE.
pub struct AwaitingSideShare {
    path: PathId,
    share: Secret,
}

/// The responder's side connection, waiting for CONFIRM.
pub struct AwaitingSideConfirm {
    path: PathId,
    keys: KeySchedule,
}

impl SideSecrets {
    /// Begins at the initiator, with SIDE. A session may have one side connection for each configured path, the main one
    /// included, with numbers from 1.
    ///
    /// # Errors
    /// The number is too high, or there are no random bytes.
    pub fn begin(&self, path: PathId) -> Result<(AwaitingSideShare, Bytes), HandshakeError> {
        self.begin_with(path, Secret::random()?)
    }

    /// As [`begin`](Self::begin), with this share.
    fn begin_with(&self, path: PathId, share: Secret) -> Result<(AwaitingSideShare, Bytes), HandshakeError> {
        self.check(path)?;
        let awaiting = AwaitingSideShare { path, share };
        let share = Secret::copy_of(awaiting.share.as_bytes());
        Ok((awaiting, Side(Witness { session: self.session, path, share }).to_bytes()))
    }

    /// Answers SIDE at the responder, with SHARE.
    ///
    /// # Errors
    /// As [`begin`](Self::begin), or it is of another session.
    pub fn answer(&self, side: Side) -> Result<(AwaitingSideConfirm, Bytes), HandshakeError> {
        self.answer_with(side, Secret::random()?)
    }

    /// As [`answer`](Self::answer), with this share.
    fn answer_with(&self, side: Side, own: Secret) -> Result<(AwaitingSideConfirm, Bytes), HandshakeError> {
        let Side(Witness { session, path, share }) = side;
        if session != self.session {
            return Err(HandshakeError::WrongSession { expected: self.session, got: session });
        }
        self.check(path)?;
        let shares = Shares { initiator: share, responder: own };
        let keys = self.keys(path, &shares);
        let confirmation = keys.confirmation(End::Responder, path, &self.hash);
        let share = Share { path, share: shares.responder, confirmation };
        Ok((AwaitingSideConfirm { path, keys }, share.to_bytes()))
    }

    /// Verifies SHARE at the initiator; returns CONFIRM, behind which copies may be sent.
    ///
    /// # Errors
    /// It is of another path, or its confirmation is wrong.
    pub fn verify_share(&self, awaiting: AwaitingSideShare, share: Share) -> Result<Bytes, HandshakeError> {
        let AwaitingSideShare { path, share: initiator } = awaiting;
        if share.path != path {
            return Err(HandshakeError::WrongPath { message: "SHARE", expected: path, got: share.path });
        }
        let keys = self.keys(path, &Shares { initiator, responder: share.share });
        if !keys.confirms(End::Responder, path, &self.hash, &share.confirmation) {
            return Err(HandshakeError::Confirmation(path));
        }
        let confirmation = keys.confirmation(End::Initiator, path, &self.hash);
        Ok(Confirm { path, confirmation }.to_bytes())
    }

    /// Verifies CONFIRM at the responder, which may then send copies.
    ///
    /// # Errors
    /// It is of another path, or wrong.
    pub fn verify_confirm(
        &self,
        awaiting: &AwaitingSideConfirm,
        confirm: &Confirm,
    ) -> Result<(), HandshakeError> {
        let AwaitingSideConfirm { path, keys } = awaiting;
        if confirm.path != *path {
            return Err(HandshakeError::WrongPath { message: "CONFIRM", expected: *path, got: confirm.path });
        }
        if keys.confirms(End::Initiator, *path, &self.hash, &confirm.confirmation) {
            Ok(())
        } else {
            Err(HandshakeError::Confirmation(*path))
        }
    }

    fn keys(&self, path: PathId, shares: &Shares) -> KeySchedule {
        KeySchedule::of_late_witness(&self.salt, path, shares)
    }

    fn check(&self, path: PathId) -> Result<(), HandshakeError> {
        if path.number() <= self.paths.configured() {
            Ok(())
        } else {
            Err(HandshakeError::Unlisted("SIDE", path))
        }
    }
}

crate::derive::opaque_debug!(SideSecrets, AwaitingSideShare, AwaitingSideConfirm);

#[cfg(test)]
mod tests;
