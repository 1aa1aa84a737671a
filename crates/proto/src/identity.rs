//! Long-term X25519 key pairs (RFC 7748) by which the ends of mode `sealed` authenticate, and their text form.
//!
//! The public key is written `plait-key:` and 43 characters of base64url (RFC 4648, section 5, without padding), the
//! private key `plait-private-key:` and 43 characters.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::Zeroizing;

use crate::secret::{RandomError, Secret};

/// Characters of 32 bytes in base64 without padding.
const BASE64_LEN: usize = 43;

/// The public half of a [`KeyPair`]: `plait-key:` and 43 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

/// A text is not a public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected {prefix} and {BASE64_LEN} characters of base64url, as `plait identity` shows it, got '{0}'", prefix = PublicKey::PREFIX
)]
pub struct ParsePublicKeyError(String);

impl PublicKey {
    /// What its text begins with.
    pub const PREFIX: &str = "plait-key:";

    /// The key with these bytes.
    #[must_use]
    pub fn new(key: [u8; 32]) -> PublicKey {
        PublicKey(key)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", PublicKey::PREFIX, BASE64_URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = ParsePublicKeyError;

    fn from_str(text: &str) -> Result<PublicKey, ParsePublicKeyError> {
        let key = text.strip_prefix(PublicKey::PREFIX).and_then(decode);
        key.map(|key| PublicKey(*key)).ok_or_else(|| {
            // A private key pasted by mistake must not end up in a log.
            let shown = if text.starts_with(KeyPair::PRIVATE_PREFIX) { "a private key" } else { text };
            ParsePublicKeyError(shown.to_owned())
        })
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> String {
        key.to_string()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = ParsePublicKeyError;

    fn try_from(text: String) -> Result<PublicKey, ParsePublicKeyError> {
        text.parse()
    }
}

/// A long-term key pair. The private half is wiped when it is dropped, and hidden from `Debug`.
#[derive(Debug)]
pub struct KeyPair {
    private: Secret,
    public: PublicKey,
}

impl KeyPair {
    /// What the text of a private key begins with.
    pub const PRIVATE_PREFIX: &str = "plait-private-key:";

    /// A new random key pair.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub fn generate() -> Result<KeyPair, RandomError> {
        Ok(KeyPair::from_private(Secret::random()?))
    }

    /// The key pair of a private key.
    #[must_use]
    pub fn from_private(private: Secret) -> KeyPair {
        let curve = DefaultResolver.resolve_dh(&DHChoice::Curve25519);
        let mut curve = curve.expect("the library is built with X25519");
        curve.set(private.as_bytes());
        let public = PublicKey(curve.pubkey().try_into().expect("X25519 keys have 32 bytes"));
        KeyPair { private, public }
    }

    /// Parses the private key's text form, as [`private_text`](Self::private_text) writes it.
    #[must_use]
    pub fn parse_private(text: &str) -> Option<KeyPair> {
        let private = text.strip_prefix(KeyPair::PRIVATE_PREFIX).and_then(decode)?;
        Some(KeyPair::from_private(Secret::copy_of(&private)))
    }

    /// The private key's text form, one line without its end.
    #[must_use]
    pub fn private_text(&self) -> Zeroizing<String> {
        // Allocated once: growing would leave copies behind.
        let mut text = Zeroizing::new(String::with_capacity(KeyPair::PRIVATE_PREFIX.len() + BASE64_LEN + 1));
        text.push_str(KeyPair::PRIVATE_PREFIX);
        BASE64_URL_SAFE_NO_PAD.encode_string(self.private.as_bytes(), &mut text);
        text
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The private half.
    #[must_use]
    pub fn private(&self) -> &Secret {
        &self.private
    }
}

fn decode(digits: &str) -> Option<Zeroizing<[u8; 32]>> {
    // The decoder wants room for a multiple of 3.
    let mut bytes = Zeroizing::new([0; 33]);
    let length = BASE64_URL_SAFE_NO_PAD.decode_slice(digits, &mut *bytes).ok()?;
    let mut key = Zeroizing::new([0; 32]);
    key.copy_from_slice(bytes.get(..length).filter(|bytes| bytes.len() == 32)?);
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_key_is_that_of_rfc_7748() {
        // Section 6.1, Bob's.
        let public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
        let private = hex::decode("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let private: [u8; 32] = private.expect("digits").try_into().expect("32 bytes");
        let pair = KeyPair::from_private(Secret::copy_of(&private));
        assert_eq!(hex::encode(pair.public().0), public);
    }

    #[test]
    fn private_keys_round_trip_as_text() {
        let pair = KeyPair::generate().expect("random");
        let text = pair.private_text();
        assert_eq!(text.len(), KeyPair::PRIVATE_PREFIX.len() + BASE64_LEN);
        let parsed = KeyPair::parse_private(&text).expect("a private key");
        assert_eq!(parsed.private().as_bytes(), pair.private().as_bytes());
        let cut = &text[..text.len() - 1];
        for wrong in ["", "plait-private-key:", cut, &text.replace("private-", ""), &format!("{}x", *text)] {
            assert!(KeyPair::parse_private(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_public_key_has_exactly_one_text_form() {
        let key = PublicKey([0xfb; 32]);
        let text = key.to_string();
        assert_eq!(text.len(), PublicKey::PREFIX.len() + BASE64_LEN);
        assert!(text.contains(['-', '_']) && !text.contains(['+', '/', '=']));
        assert_eq!(text.parse(), Ok(key));
        let digits = &text[PublicKey::PREFIX.len()..];
        for wrong in [digits, &text[..text.len() - 1], &format!("{text}A"), &format!("{text} "), "plait-key:"]
        {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
        // Only 4 of the last character's 6 bits are used; the other 2 must be zero.
        let mut other = text.clone();
        other.pop();
        assert!(format!("{other}9").parse::<PublicKey>().is_err());
    }

    #[test]
    fn debug_and_errors_hide_the_private_key() {
        let pair = KeyPair::from_private(Secret::copy_of(&[0xab; 32]));
        let digits = BASE64_URL_SAFE_NO_PAD.encode([0xab; 32]);
        let error = format!("{}{digits}", KeyPair::PRIVATE_PREFIX).parse::<PublicKey>().expect_err("private");
        let shown = format!("{pair:?} {error}");
        assert!(shown.contains(&pair.public().to_string()), "{shown}");
        assert!(!shown.contains(&digits) && !shown.contains("171") && !shown.contains("abab"), "{shown}");
    }
}
