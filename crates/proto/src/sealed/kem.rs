//! ML-KEM-768 (FIPS 203), the second key exchange of a hybrid handshake: keys stay secret if either it or X25519 holds, also
//! from somebody who records traffic now and has a quantum computer later.
//!
//! The initiator's encapsulation key travels in HELLO, the responder's ciphertext in REPLY. What both know then is mixed into
//! the pre-shared key of the Noise handshake.

use ml_kem::kem::{Decapsulate, KeyExport};
use ml_kem::{B32, DecapsulationKey768, EncapsulationKey768, Seed, SharedKey};
use ring::digest;
use zeroize::Zeroizing;

use crate::secret::{RandomError, Secret};

/// Bytes of an encapsulation key.
pub(super) const KEY_LEN: usize = 1184;
/// Bytes of a ciphertext.
pub(super) const CIPHERTEXT_LEN: usize = 1088;

/// An encapsulation key as HELLO carries it, not yet checked.
pub(super) type PublicKey = Box<[u8; KEY_LEN]>;
/// A ciphertext as REPLY carries it.
pub(super) type Ciphertext = Box<[u8; CIPHERTEXT_LEN]>;

/// The initiator's key pair, for one handshake.
pub(super) struct KeyPair {
    private: DecapsulationKey768,
    pub(super) public: PublicKey,
}

impl KeyPair {
    pub(super) fn generate() -> Result<KeyPair, RandomError> {
        Ok(KeyPair::from_seed(&Secret::random()?, &Secret::random()?))
    }

    /// The key pair of the two halves of FIPS 203's seed.
    pub(super) fn from_seed(d: &Secret, z: &Secret) -> KeyPair {
        let mut seed = Zeroizing::new([0; 2 * Secret::LEN]);
        seed[..Secret::LEN].copy_from_slice(d.as_bytes());
        seed[Secret::LEN..].copy_from_slice(z.as_bytes());
        let private = DecapsulationKey768::from_seed(Seed::from(*seed));
        let public = Box::new(private.encapsulation_key().to_bytes().into());
        KeyPair { private, public }
    }

    /// What the ciphertext's sender knows as well. A ciphertext for another key yields another secret, not an error.
    pub(super) fn decapsulate(&self, ciphertext: &Ciphertext) -> SharedSecret {
        let shared = self.private.decapsulate(&(**ciphertext).into());
        SharedSecret::new(&Zeroizing::new(shared), &self.public, ciphertext)
    }
}

/// An encapsulation key that fails the check of FIPS 203, section 7.2.
#[derive(Debug)]
pub(super) struct InvalidKey;

/// The responder's part: a ciphertext for the initiator, and what it contains. `random` are 32 fresh random bytes.
pub(super) fn encapsulate(
    public: &PublicKey,
    random: &Secret,
) -> Result<(Ciphertext, SharedSecret), InvalidKey> {
    let key = EncapsulationKey768::new(&(**public).into()).map_err(|_| InvalidKey)?;
    let random = Zeroizing::new(B32::from(*random.as_bytes()));
    let (ciphertext, shared) = key.encapsulate_deterministic(&random);
    let ciphertext: Ciphertext = Box::new(ciphertext.into());
    let secret = SharedSecret::new(&Zeroizing::new(shared), public, &ciphertext);
    Ok((ciphertext, secret))
}

/// The result of the key exchange: the shared key, bound to the messages it came by.
pub(super) struct SharedSecret(Zeroizing<[u8; SharedSecret::LEN]>);

impl SharedSecret {
    pub(super) const LEN: usize = 64;

    fn new(shared: &SharedKey, public: &PublicKey, ciphertext: &Ciphertext) -> SharedSecret {
        let mut transcript = digest::Context::new(&digest::SHA256);
        transcript.update(&public[..]);
        transcript.update(&ciphertext[..]);
        let mut secret = SharedSecret(Zeroizing::new([0; Self::LEN]));
        let (key, hash) = secret.0.split_at_mut(Secret::LEN);
        key.copy_from_slice(shared);
        hash.copy_from_slice(transcript.finish().as_ref());
        secret
    }

    pub(super) fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::copy_of(&[byte; 32])
    }

    #[test]
    fn both_ends_get_the_same_secret_and_every_exchange_its_own() {
        let pair = KeyPair::generate().expect("random");
        let (ciphertext, ours) = encapsulate(&pair.public, &secret(1)).expect("a valid key");
        assert_eq!(pair.decapsulate(&ciphertext).as_bytes(), ours.as_bytes());
        let (_, other) = encapsulate(&pair.public, &secret(2)).expect("a valid key");
        assert_ne!(other.as_bytes(), ours.as_bytes());
    }

    #[test]
    fn a_changed_ciphertext_yields_another_secret() {
        let pair = KeyPair::from_seed(&secret(1), &secret(2));
        let (mut ciphertext, ours) = encapsulate(&pair.public, &secret(3)).expect("a valid key");
        ciphertext[500] ^= 1;
        assert_ne!(pair.decapsulate(&ciphertext).as_bytes()[..32], ours.as_bytes()[..32]);
    }

    /// Coefficients are 12 bits each, and must be below 3329 (FIPS 203, section 7.2).
    #[test]
    fn an_encapsulation_key_out_of_range_is_rejected() {
        let mut public = KeyPair::from_seed(&secret(1), &secret(2)).public;
        public[..3].fill(0xff);
        let rejected = encapsulate(&public, &secret(3));
        assert!(matches!(rejected, Err(InvalidKey)));
    }
}
