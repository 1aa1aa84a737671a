//! Keys of a connection, and the tokens and initial sequence numbers derived from them.

use std::borrow::Cow;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::{DataSeq, Version};

/// One side's 64-bit key (RFC 8684 3.1), in network order. Anyone who knows both keys of a connection can join it and
/// derive plait's own keys, so `Debug` does not show it and it is erased on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 8]);

impl Key {
    /// A key of these bytes.
    pub fn new(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The secret itself, as in MP_CAPABLE.
    pub fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }

    /// The token that identifies the connection in MP_JOIN: the most significant 32 bits of the key's hash, SHA-256 in
    /// version 1 (RFC 8684 3.2), SHA-1 in version 0 (RFC 6824 3.2).
    pub fn token(&self, version: Version) -> Token {
        let (token, _) = self.derive(version);
        token
    }

    /// The initial data sequence number of the key's owner: the least significant 64 bits of the key's hash (RFC 8684
    /// 3.3, RFC 6824 3.3). The first byte of data has the number after it.
    pub fn idsn(&self, version: Version) -> DataSeq {
        let (_, idsn) = self.derive(version);
        idsn
    }

    fn derive(&self, version: Version) -> (Token, DataSeq) {
        let mut first = [0; 4];
        let mut last = [0; 8];
        match version {
            Version::V0 => {
                let hash = Sha1::digest(self.0);
                first.copy_from_slice(&hash[..4]);
                last.copy_from_slice(&hash[12..]);
            }
            Version::V1 => {
                let hash = Sha256::digest(self.0);
                first.copy_from_slice(&hash[..4]);
                last.copy_from_slice(&hash[24..]);
            }
        }
        (Token(u32::from_be_bytes(first)), DataSeq(u64::from_be_bytes(last)))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Identifies a connection to the side whose key it is derived from (RFC 8684 2.3). Not secret: every MP_JOIN carries
/// it in cleartext. Displayed and serialised as 8 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u32);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let expected =
            || D::Error::custom(format!("expected a token of 8 hexadecimal digits, found '{text}'"));
        let digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.map(Token).ok_or_else(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_show_the_key() {
        assert_eq!(format!("{:?}", Key::new(*b"\x01secret\xff")), "Key(..)");
    }

    // Digests of b"\0\x01\x02\x03\x04\x05\x06\x07" by coreutils' sha1sum and sha256sum.
    #[test]
    fn token_and_idsn_are_the_ends_of_the_hash() {
        let key = Key::new([0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(key.token(Version::V0), Token(0x67423ebf));
        assert_eq!(key.idsn(Version::V0), DataSeq(0xd6c0dc731a3ddd6b));
        assert_eq!(key.token(Version::V1), Token(0x8a851ff8));
        assert_eq!(key.idsn(Version::V1), DataSeq(0xe3db22c6785a0d45));
    }
}
