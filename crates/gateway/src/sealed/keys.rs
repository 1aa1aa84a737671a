//! From the shares of the paths to the pre-shared key of the noise handshake and the confirmations after it.
//!
//! ```text
//! shares       = for each path, ascending: number (1 byte) || initiator's share || responder's share
//! secret       = HKDF-Extract(salt = session id, IKM = shares)
//! psk          = HKDF-Expand(secret, "plait sealed 1 psk", 32)
//! ck           = HKDF-Expand(secret, "plait sealed 1 confirmation", 32)
//! confirmation = HMAC-SHA256(ck, end || number of the path || hash of the noise handshake so far)
//! ```
//!
//! HKDF is RFC 5869's with SHA-256; `end` is 0 for the initiator's confirmation, 1 for the responder's. Without paths
//! there are no shares, and psk is a function of the session id alone, which everybody knows.

use std::collections::BTreeMap;
use std::fmt;

use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};
use zeroize::{Zeroize, Zeroizing};

use super::messages::SessionId;
use super::paths::PathId;

const PSK: &[u8] = b"plait sealed 1 psk";
const CONFIRMATION: &[u8] = b"plait sealed 1 confirmation";

/// 32 secret bytes: wiped when dropped, never shown. Boxed, so that moving them leaves no copies behind.
pub(crate) struct Secret(Box<Zeroizing<[u8; Self::LEN]>>);

/// The system's random number generator failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system's random number generator failed")]
pub(crate) struct RandomError;

impl Secret {
    pub(super) const LEN: usize = 32;

    pub(crate) fn random() -> Result<Secret, RandomError> {
        Secret::filled_by(|bytes| SystemRandom::new().fill(bytes)).map_err(|_| RandomError)
    }

    pub(crate) fn copy_of(bytes: &[u8; Self::LEN]) -> Secret {
        let mut secret = Secret(Box::default());
        secret.0.copy_from_slice(bytes);
        secret
    }

    /// Takes the place of the bytes, which are wiped.
    pub(super) fn taken_from(bytes: &mut [u8; Self::LEN]) -> Secret {
        let secret = Secret::copy_of(bytes);
        bytes.zeroize();
        secret
    }

    fn filled_by<E>(fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Secret, E> {
        let mut secret = Secret(Box::default());
        fill(&mut secret.0[..])?;
        Ok(secret)
    }

    /// The secret itself.
    pub(crate) fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A confirmation as it crosses a path. There is no comparing two: [`SessionKeys::confirms`] does, in constant time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag([u8; Self::LEN]);

impl Tag {
    pub(super) const LEN: usize = 32;

    pub(super) fn new(tag: [u8; Self::LEN]) -> Tag {
        Tag(tag)
    }

    pub(super) fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// One of the two ends of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Initiator = 0,
    Responder = 1,
}

/// What the two ends sent each other on one path.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) initiator: Secret,
    pub(super) responder: Secret,
}

/// What only those know who know the shares of all paths.
#[derive(Debug)]
pub(super) struct SessionKeys {
    pub(super) psk: Secret,
    confirming: Secret,
}

impl SessionKeys {
    pub(super) fn derive(session: &SessionId, shares: &BTreeMap<PathId, Shares>) -> SessionKeys {
        let mut material = Zeroizing::new(Vec::with_capacity(shares.len() * (1 + 2 * Secret::LEN)));
        for (path, shares) in shares {
            material.push(path.number());
            material.extend_from_slice(shares.initiator.as_bytes());
            material.extend_from_slice(shares.responder.as_bytes());
        }
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, session.as_bytes()).extract(&material);
        SessionKeys { psk: expand(&secret, PSK), confirming: expand(&secret, CONFIRMATION) }
    }

    /// What `end` says on `path` when it has seen the handshake with this hash.
    pub(super) fn confirmation(&self, end: End, path: PathId, handshake: &[u8; 32]) -> Tag {
        let tag = hmac::sign(&self.confirming_key(), &confirmed(end, path, handshake));
        Tag(tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes"))
    }

    /// Whether `end` said on `path` that it has seen the handshake with this hash. Takes the same time whatever was said.
    pub(super) fn confirms(&self, end: End, path: PathId, handshake: &[u8; 32], tag: &Tag) -> bool {
        hmac::verify(&self.confirming_key(), &confirmed(end, path, handshake), &tag.0).is_ok()
    }

    fn confirming_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.confirming.as_bytes())
    }
}

fn expand(secret: &hkdf::Prk, info: &[u8]) -> Secret {
    let expanded = Secret::filled_by(|bytes| secret.expand(&[info], hkdf::HKDF_SHA256)?.fill(bytes));
    expanded.expect("32 bytes are far within what HKDF can give")
}

fn confirmed(end: End, path: PathId, handshake: &[u8; 32]) -> [u8; 34] {
    let mut message = [0; 34];
    message[..2].copy_from_slice(&[end as u8, path.number()]);
    message[2..].copy_from_slice(handshake);
    message
}

#[cfg(test)]
mod tests {
    use ::hmac::{Hmac, Mac};
    use proptest::prelude::*;
    use sha2::Sha256;

    use super::*;

    fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }

    /// The key schedule word for word (RFC 5869: one block of output), with another library: psk, ck.
    fn second_computation(session: &[u8; 32], shares: &[(u8, [u8; 32], [u8; 32])]) -> ([u8; 32], [u8; 32]) {
        let material: Vec<u8> = shares
            .iter()
            .flat_map(|(path, initiator, responder)| [&[*path][..], initiator, responder].concat())
            .collect();
        let secret = mac(session, &[&material]);
        (mac(&secret, &[b"plait sealed 1 psk", &[1]]), mac(&secret, &[b"plait sealed 1 confirmation", &[1]]))
    }

    fn path(number: u8) -> PathId {
        PathId::new(number).expect("a path's number")
    }

    fn derive(session: &[u8; 32], shares: &[(u8, [u8; 32], [u8; 32])]) -> SessionKeys {
        let shares = shares.iter().map(|(number, initiator, responder)| {
            let shares =
                Shares { initiator: Secret::copy_of(initiator), responder: Secret::copy_of(responder) };
            (path(*number), shares)
        });
        SessionKeys::derive(&SessionId::new(*session), &shares.collect())
    }

    proptest! {
        #[test]
        fn keys_and_confirmations_are_those_of_the_second_computation(
            session: [u8; 32],
            shares in proptest::collection::btree_map(1u8..=15, any::<([u8; 32], [u8; 32])>(), 0..=15),
            handshake: [u8; 32],
        ) {
            let shares: Vec<_> = shares.into_iter().map(|(path, (ours, theirs))| (path, ours, theirs)).collect();
            let (psk, ck) = second_computation(&session, &shares);
            let keys = derive(&session, &shares);
            prop_assert_eq!(keys.psk.as_bytes(), &psk);
            for (number, ..) in shares {
                for (end, byte) in [(End::Initiator, 0), (End::Responder, 1)] {
                    let expected = mac(&ck, &[&[byte, number], &handshake]);
                    let confirmation = keys.confirmation(end, path(number), &handshake);
                    prop_assert_eq!(confirmation.as_bytes(), &expected);
                    prop_assert!(keys.confirms(end, path(number), &handshake, &Tag::new(expected)));
                }
            }
        }
    }

    #[test]
    fn a_confirmation_holds_for_its_end_path_handshake_and_shares_alone() {
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
    fn secrets_are_random_and_not_shown() {
        let (one, other) = (Secret::random().expect("random"), Secret::random().expect("random"));
        assert_ne!(one.as_bytes(), other.as_bytes());
        let keys = derive(&[1; 32], &[(1, [2; 32], [3; 32])]);
        let shares = Shares { initiator: one, responder: other };
        assert_eq!(format!("{keys:?}"), "SessionKeys { psk: Secret(..), confirming: Secret(..) }");
        assert_eq!(format!("{shares:?}"), "Shares { initiator: Secret(..), responder: Secret(..) }");
    }

    #[test]
    fn what_a_secret_is_taken_from_is_wiped() {
        let mut bytes = [7; 32];
        assert_eq!(Secret::taken_from(&mut bytes).as_bytes(), &[7; 32]);
        assert_eq!(bytes, [0; 32]);
    }
}
