//! X25519 (RFC 7748) with keys that are used once, for key updates; the handshake's own are Noise's.

use curve25519_dalek::MontgomeryPoint;
use zeroize::Zeroizing;

use crate::secret::{RandomError, Secret};

/// Bytes of a public key.
pub(super) const KEY_LEN: usize = 32;

/// A private key.
pub(super) struct PrivateKey(Secret);

impl PrivateKey {
    pub(super) fn generate() -> Result<PrivateKey, RandomError> {
        Ok(PrivateKey(Secret::random()?))
    }

    #[cfg(test)]
    pub(super) fn from_bytes(bytes: &[u8; KEY_LEN]) -> PrivateKey {
        PrivateKey(Secret::copy_of(bytes))
    }

    pub(super) fn public(&self) -> [u8; KEY_LEN] {
        MontgomeryPoint::mul_base_clamped(*self.0.as_bytes()).to_bytes()
    }

    /// What both ends know; `None` if the peer's public key is of low order, which would let anybody know it.
    pub(super) fn agree(&self, peer: &[u8; KEY_LEN]) -> Option<Secret> {
        let shared = Zeroizing::new(MontgomeryPoint(*peer).mul_clamped(*self.0.as_bytes()));
        let contributory = shared.as_bytes().iter().fold(0, |all, byte| all | byte) != 0;
        contributory.then(|| Secret::copy_of(shared.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(digits: &str) -> [u8; 32] {
        hex::decode(digits).expect("hexadecimal").try_into().expect("32 bytes")
    }

    /// Section 6.1.
    #[test]
    fn agrees_with_rfc_7748() {
        let [alice, bob] = [
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        ]
        .map(|private| PrivateKey::from_bytes(&bytes(private)));
        assert_eq!(alice.public(), bytes("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
        let shared = bytes("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
        assert_eq!(alice.agree(&bob.public()).expect("contributory").as_bytes(), &shared);
        assert_eq!(bob.agree(&alice.public()).expect("contributory").as_bytes(), &shared);
    }

    /// 0, 1, p - 1, p and p + 1, which are points of low order on the curve or its twist.
    #[test]
    fn rejects_public_keys_of_low_order() {
        let private = PrivateKey::generate().expect("random");
        let near_p = |last| {
            let mut key = [0xff; 32];
            (key[0], key[31]) = (last, 0x7f);
            key
        };
        let one = {
            let mut key = [0; 32];
            key[0] = 1;
            key
        };
        for key in [[0; 32], one, near_p(0xec), near_p(0xed), near_p(0xee)] {
            assert!(private.agree(&key).is_none());
        }
    }
}
