//! The key schedule: from the shares of all paths to the pre-shared key of the Noise handshake and the confirmations
//! after it.
//!
//! ```text
//! shares       = for each path, ascending: number (1 byte) || initiator's share || responder's share
//! kem          = in a hybrid handshake: ML-KEM's shared key || SHA-256(encapsulation key || ciphertext)
//! secret       = HKDF-Extract(salt = session id, IKM = shares || kem)
//! psk          = HKDF-Expand(secret, "plait sealed 3 psk", 32)
//! ck           = HKDF-Expand(secret, "plait sealed 3 confirmation", 32)
//! confirmation = HMAC-SHA256(ck, end || number of the path || hash of the Noise handshake so far)
//! ```
//!
//! HKDF is RFC 5869's with SHA-256; `end` is 0 for the initiator's confirmation, 1 for the responder's. With neither
//! witnesses nor ML-KEM, psk is a function of the session id alone, which is public.

use std::collections::BTreeMap;

use ring::{hkdf, hmac};
use zeroize::Zeroizing;

use super::kem::SharedSecret;
use super::messages::Confirmation;
use super::paths::PathId;
use super::session_id::SessionId;
use crate::secret::Secret;

const PSK: &[u8] = b"plait sealed 3 psk";
const CONFIRMATION: &[u8] = b"plait sealed 3 confirmation";

/// One of the two ends of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Initiator = 0,
    Responder = 1,
}

/// The shares that the two ends sent each other on one path.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) initiator: Secret,
    pub(super) responder: Secret,
}

impl Shares {
    /// The bytes that a path's shares add to key material.
    pub(super) const LEN: usize = 1 + 2 * Secret::LEN;
}

/// Appends the shares of paths to key material, which has the capacity.
pub(super) fn add_shares<'a>(
    material: &mut Vec<u8>,
    shares: impl IntoIterator<Item = (&'a PathId, &'a Shares)>,
) {
    for (path, shares) in shares {
        material.push(path.number());
        material.extend_from_slice(shares.initiator.as_bytes());
        material.extend_from_slice(shares.responder.as_bytes());
    }
}

/// The keys that follow from the shares of all paths: unknown to an attacker who misses one of them.
#[derive(Debug)]
pub(super) struct KeySchedule {
    pub(super) psk: Secret,
    confirmation_key: Secret,
}

impl KeySchedule {
    /// `kem` is the result of the second key exchange of a hybrid handshake.
    pub(super) fn derive(
        session: &SessionId,
        shares: &BTreeMap<PathId, Shares>,
        kem: Option<&SharedSecret>,
    ) -> KeySchedule {
        let length = shares.len() * Shares::LEN + SharedSecret::LEN;
        let mut material = Zeroizing::new(Vec::with_capacity(length));
        add_shares(&mut material, shares);
        material.extend(kem.iter().flat_map(|secret| secret.as_bytes()));
        KeySchedule::extract(session.as_bytes(), &material)
    }

    /// Of a [late witness](super::late_witness), whose confirmations follow from its own shares.
    pub(super) fn of_late_witness(salt: &Secret, path: PathId, shares: &Shares) -> KeySchedule {
        let mut material = Zeroizing::new(Vec::with_capacity(Shares::LEN));
        add_shares(&mut material, [(&path, shares)]);
        KeySchedule::extract(salt.as_bytes(), &material)
    }

    fn extract(salt: &[u8; 32], material: &[u8]) -> KeySchedule {
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(material);
        KeySchedule { psk: expand(&secret, PSK), confirmation_key: expand(&secret, CONFIRMATION) }
    }

    /// The confirmation that `end` sends on `path` for the handshake with this hash.
    pub(super) fn confirmation(&self, end: End, path: PathId, handshake: &[u8; 32]) -> Confirmation {
        let tag = hmac::sign(&self.hmac_key(), &hmac_input(end, path, handshake));
        Confirmation::new(tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes"))
    }

    /// Whether `tag` is the confirmation of `end` on `path` for the handshake with this hash. Takes constant time.
    pub(super) fn confirms(&self, end: End, path: PathId, handshake: &[u8; 32], tag: &Confirmation) -> bool {
        hmac::verify(&self.hmac_key(), &hmac_input(end, path, handshake), tag.as_bytes()).is_ok()
    }

    fn hmac_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.confirmation_key.as_bytes())
    }
}

fn expand(secret: &hkdf::Prk, info: &[u8]) -> Secret {
    let expanded = Secret::fill_with(|bytes| secret.expand(&[info], hkdf::HKDF_SHA256)?.fill(bytes));
    expanded.expect("32 bytes are one block of HKDF")
}

fn hmac_input(end: End, path: PathId, handshake: &[u8; 32]) -> [u8; 34] {
    let mut message = [0; 34];
    message[..2].copy_from_slice(&[end as u8, path.number()]);
    message[2..].copy_from_slice(handshake);
    message
}

#[cfg(test)]
pub(super) mod tests {
    use ::hmac::{Hmac, Mac};
    use proptest::prelude::*;
    use sha2::Sha256;

    use super::*;

    pub(in crate::sealed) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }

    /// psk and ck computed with another library (RFC 5869, one block of output).
    fn reference(session: &[u8; 32], shares: &[(u8, [u8; 32], [u8; 32])]) -> ([u8; 32], [u8; 32]) {
        let material: Vec<u8> = shares
            .iter()
            .flat_map(|(path, initiator, responder)| [&[*path][..], initiator, responder].concat())
            .collect();
        let secret = mac(session, &[&material]);
        (mac(&secret, &[b"plait sealed 3 psk", &[1]]), mac(&secret, &[b"plait sealed 3 confirmation", &[1]]))
    }

    fn path(number: u8) -> PathId {
        PathId::new(number).expect("a path's number")
    }

    fn derive(session: &[u8; 32], shares: &[(u8, [u8; 32], [u8; 32])]) -> KeySchedule {
        let shares = shares.iter().map(|(number, initiator, responder)| {
            let shares =
                Shares { initiator: Secret::copy_of(initiator), responder: Secret::copy_of(responder) };
            (path(*number), shares)
        });
        KeySchedule::derive(&SessionId::new(*session), &shares.collect(), None)
    }

    proptest! {
        #[test]
        fn keys_and_confirmations_are_those_of_the_reference(
            session: [u8; 32],
            shares in proptest::collection::btree_map(1u8..=15, any::<([u8; 32], [u8; 32])>(), 0..=15),
            handshake: [u8; 32],
        ) {
            let shares: Vec<_> = shares.into_iter().map(|(path, (ours, theirs))| (path, ours, theirs)).collect();
            let (psk, ck) = reference(&session, &shares);
            let keys = derive(&session, &shares);
            prop_assert_eq!(keys.psk.as_bytes(), &psk);
            for (number, ..) in shares {
                for (end, byte) in [(End::Initiator, 0), (End::Responder, 1)] {
                    let expected = mac(&ck, &[&[byte, number], &handshake]);
                    let confirmation = keys.confirmation(end, path(number), &handshake);
                    prop_assert_eq!(confirmation.as_bytes(), &expected);
                    prop_assert!(keys.confirms(end, path(number), &handshake, &Confirmation::new(expected)));
                }
            }
        }
    }

    #[test]
    fn a_confirmation_is_bound_to_end_path_handshake_shares_and_session() {
        let keys = derive(&[1; 32], &[(1, [2; 32], [3; 32])]);
        let tag = keys.confirmation(End::Initiator, path(1), &[4; 32]);
        assert!(keys.confirms(End::Initiator, path(1), &[4; 32], &tag));
        assert!(!keys.confirms(End::Responder, path(1), &[4; 32], &tag));
        assert!(!keys.confirms(End::Initiator, path(2), &[4; 32], &tag));
        assert!(!keys.confirms(End::Initiator, path(1), &[5; 32], &tag));
        let swapped = derive(&[1; 32], &[(1, [3; 32], [2; 32])]);
        assert!(!swapped.confirms(End::Initiator, path(1), &[4; 32], &tag));
        let other_session = derive(&[2; 32], &[(1, [2; 32], [3; 32])]);
        assert!(!other_session.confirms(End::Initiator, path(1), &[4; 32], &tag));
    }

    #[test]
    fn debug_hides_keys_and_shares() {
        let keys = derive(&[1; 32], &[(1, [2; 32], [3; 32])]);
        let shares = Shares { initiator: Secret::copy_of(&[2; 32]), responder: Secret::copy_of(&[3; 32]) };
        assert_eq!(format!("{keys:?}"), "KeySchedule { psk: Secret(..), confirmation_key: Secret(..) }");
        assert_eq!(format!("{shares:?}"), "Shares { initiator: Secret(..), responder: Secret(..) }");
    }
}
