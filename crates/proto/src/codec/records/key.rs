//! The keys and nonces of a direction's records.

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::{AeadCipher, KEY_LEN, TAG};
use crate::codec::wiped::Wiped;

/// Records under one key, unless a key update replaces it before.
const REKEY: u64 = 1 << 20;

/// The number from which Noise derives the nonce for `REKEY`; no record has this number.
const REKEY_NUMBER: u64 = u64::MAX;

/// Bytes of a nonce of either cipher.
type NonceBytes = [u8; 12];

/// The successive keys of one direction, and the number of records that have used them.
pub(super) struct Keys {
    key: AeadKey,
    used: u64,
    since_replaced: u64,
    replaced: u32,
}

impl Keys {
    pub(super) fn new(cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Self {
        Self { key: AeadKey::new(cipher, key), used: 0, since_replaced: 0, replaced: 0 }
    }

    /// The number of records so far, which is also the number of the next one.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// The number of records since the key was [replaced](Self::replace), or since the start.
    pub(super) fn since_replaced(&self) -> u64 {
        self.since_replaced
    }

    /// Replaces the key for the records that follow. Their numbers, and so their nonces, go on.
    pub(super) fn replace(&mut self, key: &[u8; KEY_LEN]) {
        self.key = AeadKey::new(self.key.cipher, key);
        self.since_replaced = 0;
        self.replaced = self.replaced.wrapping_add(1);
    }

    /// How often the key was [replaced](Self::replace).
    pub(super) fn replaced(&self) -> u32 {
        self.replaced
    }

    /// The key and the nonce of a record that is not before the next one; `None` unless its key is the current one.
    pub(super) fn for_record(&self, number: u64) -> Option<(&AeadKey, NonceBytes)> {
        let ahead = number.checked_sub(self.used)?;
        // `REKEY` happens with the first record under the new key.
        let current = self.since_replaced.saturating_sub(1) / REKEY;
        let wanted = self.since_replaced.checked_add(ahead)? / REKEY;
        (wanted == current).then(|| (&self.key, self.key.cipher.nonce(number)))
    }

    /// The key and the nonce of the next record.
    pub(super) fn for_next_record(&mut self) -> (&AeadKey, NonceBytes) {
        if self.since_replaced != 0 && self.since_replaced.is_multiple_of(REKEY) {
            self.key = self.key.rekeyed();
        }
        let nonce = self.key.cipher.nonce(self.used);
        self.used += 1;
        self.since_replaced += 1;
        (&self.key, nonce)
    }

    /// Keys after `used` records, given the key of the last of them.
    #[cfg(test)]
    pub(super) fn in_the_middle(cipher: AeadCipher, key: &[u8; KEY_LEN], used: u64) -> Self {
        Self { key: AeadKey::new(cipher, key), used, since_replaced: used, replaced: 0 }
    }
}

impl AeadCipher {
    /// Noise, section 12.
    fn nonce(self, number: u64) -> NonceBytes {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&match self {
            Self::ChaCha20Poly1305 => number.to_le_bytes(),
            Self::Aes256Gcm => number.to_be_bytes(),
        });
        nonce
    }
}

/// A cipher with its key, expanded.
pub(super) struct AeadKey {
    cipher: AeadCipher,
    key: Wiped<LessSafeKey>,
}

impl AeadKey {
    pub(super) fn new(cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Self {
        let algorithm = match cipher {
            AeadCipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            AeadCipher::Aes256Gcm => &AES_256_GCM,
        };
        let key = UnboundKey::new(algorithm, key).expect("keys of both ciphers have 32 bytes");
        Self { cipher, key: Wiped::new(LessSafeKey::new(key)) }
    }

    /// Encrypts `text` in place and returns the tag.
    pub(super) fn seal(&self, nonce: NonceBytes, additional: &[u8], text: &mut [u8]) -> [u8; TAG] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(additional), text);
        let tag = tag.expect("a record is far shorter than what the ciphers take");
        tag.as_ref().try_into().expect("tags of both ciphers have 16 bytes")
    }

    /// Decrypts ciphertext and tag in place and returns the length of the plaintext, which is then at the start; `None`
    /// if the tag is invalid.
    pub(super) fn open(&self, nonce: NonceBytes, additional: &[u8], sealed: &mut [u8]) -> Option<usize> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_in_place(nonce, Aad::from(additional), sealed);
        opened.ok().map(|plaintext| plaintext.len())
    }

    /// Noise, section 4.2.
    fn rekeyed(&self) -> Self {
        let mut key = Zeroizing::new([0; KEY_LEN]);
        self.seal(self.cipher.nonce(REKEY_NUMBER), &[], &mut *key);
        Self::new(self.cipher, &key)
    }
}
