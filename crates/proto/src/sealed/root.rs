//! The secrets of a session from which keys follow: the first from the handshake, each further one from a key update.
//!
//! ```text
//! root 0     = HKDF-Extract(salt = hash of the Noise handshake,
//!                           IKM = initiator's first record key || responder's first record key)
//! root n + 1 = HKDF-Extract(salt = root n, IKM = X25519's shared secret || kem || shares || transcript)
//! kem        = in a hybrid session: ML-KEM's shared key || SHA-256(encapsulation key || ciphertext)
//! shares     = for each path that the UPDATE_REQUEST names: number || initiator's share || responder's share
//! transcript = SHA-256(content of the UPDATE_REQUEST || content of the UPDATE_RESPONSE)
//! key        = HKDF-Expand(root n + 1, "plait sealed 3 key" || direction (1 byte), 32)
//! ```
//!
//! HKDF is RFC 5869's with SHA-256; the first record keys are those of Noise's Split; `direction` is 0 for what the
//! initiator sends, 1 for what the responder sends. Keys for [other protocols](super::Exporter) follow from root 0.

use std::collections::BTreeMap;

use ring::{hkdf, hmac};
use zeroize::Zeroizing;

use super::kem;
use super::keys::{End, Shares, add_shares};
use super::noise::Split;
use super::paths::PathId;
use crate::secret::Secret;

const KEY: &[u8] = b"plait sealed 3 key";
const LATE_WITNESS: &[u8] = b"plait sealed 3 late witness";
const SIDE_CONNECTION: &[u8] = b"plait sealed 3 side connection";

/// A root, wiped when dropped.
pub(super) struct Root(Secret);

impl Root {
    /// Root 0.
    pub(super) fn of_handshake(split: &Split) -> Root {
        let mut keys = Zeroizing::new([0; 2 * Secret::LEN]);
        keys[..Secret::LEN].copy_from_slice(split.to_responder.as_bytes());
        keys[Secret::LEN..].copy_from_slice(split.to_initiator.as_bytes());
        Root::extract(&split.hash, &keys[..])
    }

    /// The next root. `kem` is the result of the second key exchange of a hybrid session, `late` the shares of the late
    /// witnesses that are mixed in.
    pub(super) fn next(
        &self,
        shared: &Secret,
        kem: Option<&kem::SharedSecret>,
        late: &BTreeMap<PathId, Shares>,
        transcript: &[u8; 32],
    ) -> Root {
        let length = 2 * Secret::LEN + kem::SharedSecret::LEN + late.len() * Shares::LEN;
        let mut material = Zeroizing::new(Vec::with_capacity(length));
        material.extend_from_slice(shared.as_bytes());
        material.extend(kem.iter().flat_map(|secret| secret.as_bytes()));
        add_shares(&mut material, late);
        material.extend_from_slice(transcript);
        Root::extract(self.0.as_bytes(), &material)
    }

    /// HKDF-Extract is HMAC with the salt as key.
    fn extract(salt: &[u8; 32], material: &[u8]) -> Root {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, salt), material);
        Root(Secret::copy_of(tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")))
    }

    /// The key of the records that this end sends.
    pub(super) fn key_of(&self, sender: End) -> Secret {
        let prk = self.prk();
        let info = [KEY, &[sender as u8]];
        let expanded = Secret::fill_with(|bytes| prk.expand(&info, hkdf::HKDF_SHA256)?.fill(bytes));
        expanded.expect("32 bytes are one block of HKDF")
    }

    /// Of root 0: what the confirmations of [late witnesses](super::late_witness) are salted with.
    pub(super) fn late_salt(&self) -> Secret {
        self.salt(LATE_WITNESS)
    }

    /// Of root 0: what the confirmations of [side connections](super::side_connection) are salted with.
    pub(super) fn side_salt(&self) -> Secret {
        self.salt(SIDE_CONNECTION)
    }

    fn salt(&self, info: &[u8]) -> Secret {
        let prk = self.prk();
        let expanded = Secret::fill_with(|bytes| prk.expand(&[info], hkdf::HKDF_SHA256)?.fill(bytes));
        expanded.expect("32 bytes are one block of HKDF")
    }

    /// The root as HKDF's pseudorandom key.
    pub(super) fn prk(&self) -> hkdf::Prk {
        hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, self.0.as_bytes())
    }
}
