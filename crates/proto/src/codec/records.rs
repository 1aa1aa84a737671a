//! `sealed`: one direction as authenticated records with an authenticated end.
//!
//! # Security properties
//!
//! An attacker without the key learns the length and time of records, but nothing about their content. The [`Opener`]
//! detects any modification, deletion, insertion, replay, reordering or truncation, and never returns affected data as
//! plaintext. The handshake provides the keys.
//!
//! # Definition
//!
//! A direction is a sequence of records, numbered from 0:
//!
//! ```text
//! length (2 bytes, big-endian) | ciphertext | tag (16 bytes)          length = bytes that follow it, 16 to 16400
//! ```
//!
//! Ciphertext and tag are the [`AeadCipher`]'s over the plaintext, with the two bytes of `length` as additional data.
//! The nonce is that of Noise (revision 34, section 12) for the number `n` of the record: 4 zero bytes, then `n` in 8
//! bytes, little-endian for ChaCha20-Poly1305 and big-endian for AES-256-GCM.
//!
//! After every 2^20 records the key is replaced by its `REKEY` as in Noise (section 4.2): the first 32 bytes of the
//! encryption of 32 zero bytes with nonce 2^64 - 1 and no additional data. Record numbers continue. A key therefore
//! seals at most 2^34 bytes, far below the limits of both ciphers.
//!
//! A record without plaintext ends the direction, and nothing follows it. A stream that ends without it was truncated.
//!
//! # Buffers
//!
//! Both ends work in place, do not allocate per record, and leave reading and writing to the caller. A sender reads
//! plaintext into a buffer at an offset of two bytes, seals it, and writes the whole record; a buffer may contain
//! several consecutive records, sent with one write. A receiver collects bytes as they arrive and opens complete
//! records; a buffer of [`MAX_RECORD`] bytes always makes progress, so memory is bounded whatever the peer sends.
//!
//! ```
//! use plait_proto::codec::records::{AeadCipher, Error, LENGTH, OVERHEAD, Opened, Opener, Sealer};
//!
//! let key = [7; 32];
//! let mut sealer = Sealer::new(AeadCipher::ChaCha20Poly1305, &key);
//! let mut opener = Opener::new(AeadCipher::ChaCha20Poly1305, &key);
//!
//! let text = b"attack at dawn";
//! let mut wire = vec![0; text.len() + OVERHEAD];
//! wire[LENGTH..LENGTH + text.len()].copy_from_slice(text);
//! sealer.seal(&mut wire);
//! wire.extend(sealer.end());
//!
//! assert_eq!(opener.open(&mut wire[..5])?, Opened::Incomplete { needed: 27 });
//! let Opened::Data { plaintext, consumed } = opener.open(&mut wire)? else { panic!("it holds text") };
//! assert_eq!(&wire[plaintext], text);
//! assert_eq!(opener.open(&mut wire[consumed..])?, Opened::End { consumed: OVERHEAD });
//! opener.finish()?;
//! # Ok::<(), Error>(())
//! ```

mod key;

use std::ops::Range;

use zeroize::Zeroizing;

use crate::derive::{named, opaque_debug};
use key::Keys;

/// A key of one direction, wiped when dropped.
pub type Key = Zeroizing<[u8; KEY_LEN]>;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of the length field in front of a record.
pub const LENGTH: usize = 2;
/// Bytes of the tag at the end of a record.
pub const TAG: usize = 16;
/// Bytes of a record besides its plaintext.
pub const OVERHEAD: usize = LENGTH + TAG;
/// Maximum length of a record's plaintext in bytes. Data waits until its whole record has arrived: some milliseconds on
/// a slow link.
pub const MAX_PLAINTEXT: usize = 16_384;
/// Maximum length of a record in bytes.
pub const MAX_RECORD: usize = MAX_PLAINTEXT + OVERHEAD;

/// The AEAD that seals records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AeadCipher {
    /// ChaCha20-Poly1305 (RFC 8439): fast on every processor.
    ChaCha20Poly1305,
    /// AES-256 in Galois/counter mode (NIST SP 800-38D): the faster one where
    /// [AES is fast](crate::codec::stream::StreamCipher::aes_is_fast).
    Aes256Gcm,
}

named! {
    AeadCipher, "a cipher" {
        ChaCha20Poly1305 = "chacha20-poly1305",
        Aes256Gcm = "aes-256-gcm",
    }
}

/// Seals the records of one direction.
pub struct Sealer {
    keys: Keys,
    ended: bool,
}

impl Sealer {
    /// A sealer at the start of a direction.
    #[must_use]
    pub fn new(cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Self {
        Self { keys: Keys::new(cipher, key), ended: false }
    }

    /// Seals the next record in place: [`LENGTH`] bytes of any content, the plaintext, [`TAG`] bytes of any content.
    /// Afterwards, `record` has the bytes to send.
    ///
    /// # Panics
    ///
    /// If `record` has room for less than one byte of plaintext or for more than [`MAX_PLAINTEXT`], or after
    /// [`end`](Self::end).
    pub fn seal(&mut self, record: &mut [u8]) {
        assert!(
            (OVERHEAD + 1..=MAX_RECORD).contains(&record.len()),
            "a record holds 1 to {MAX_PLAINTEXT} bytes of plaintext and {OVERHEAD} more, got {} in all",
            record.len()
        );
        self.seal_any(record);
    }

    /// The record that ends the direction.
    ///
    /// # Panics
    ///
    /// If the direction has already ended.
    pub fn end(&mut self) -> [u8; OVERHEAD] {
        let mut record = [0; OVERHEAD];
        self.seal_any(&mut record);
        self.ended = true;
        record
    }

    fn seal_any(&mut self, record: &mut [u8]) {
        assert!(!self.ended, "nothing follows the end of a direction");
        let (length, sealed) = record.split_at_mut(LENGTH);
        let written = u16::try_from(sealed.len()).expect("as long as a record may be");
        length.copy_from_slice(&written.to_be_bytes());
        let (text, tag) = sealed.split_at_mut(sealed.len() - TAG);
        let (key, nonce) = self.keys.for_next_record();
        tag.copy_from_slice(&key.seal(nonce, length, text));
    }
}

/// Opens the records of one direction. After an error it returns only that error.
pub struct Opener {
    keys: Keys,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Open,
    Ended,
    Failed(Error),
}

/// What [`Opener::open`] found at the start of its bytes. Ranges and counts refer to those bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// No complete record.
    Incomplete {
        /// Minimum number of further bytes needed.
        needed: usize,
    },
    /// A record, now decrypted.
    Data {
        /// The range of its plaintext, 1 to [`MAX_PLAINTEXT`] bytes.
        plaintext: Range<usize>,
        /// Length of the record in bytes; the next record follows.
        consumed: usize,
    },
    /// The record that ends the direction, or no bytes after it.
    End {
        /// Length of the record in bytes.
        consumed: usize,
    },
}

impl Opener {
    /// An opener at the start of a direction.
    #[must_use]
    pub fn new(cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Self {
        Self { keys: Keys::new(cipher, key), state: State::Open }
    }

    /// Opens, in place, the record at the start of `bytes` if it is complete. `bytes` begins where the previous record
    /// ended; pass an incomplete record again, from its start, with more bytes appended.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::Tag`] or [`Error::AfterEnd`], and the same error on every later call. `bytes` then
    /// contains no decrypted data.
    pub fn open(&mut self, bytes: &mut [u8]) -> Result<Opened, Error> {
        let opened = self.open_next(bytes);
        match opened {
            Ok(Opened::End { .. }) => self.state = State::Ended,
            Err(error) => self.state = State::Failed(error),
            Ok(_) => {}
        }
        opened
    }

    fn open_next(&mut self, bytes: &mut [u8]) -> Result<Opened, Error> {
        match self.state {
            State::Open => {}
            State::Ended if bytes.is_empty() => return Ok(Opened::End { consumed: 0 }),
            State::Ended => return Err(Error::AfterEnd { records: self.keys.used() }),
            State::Failed(error) => return Err(error),
        }
        let Some((&mut length, rest)) = bytes.split_first_chunk_mut::<LENGTH>() else {
            return Ok(Opened::Incomplete { needed: LENGTH - bytes.len() });
        };
        let sealed = usize::from(u16::from_be_bytes(length));
        if !(TAG..=TAG + MAX_PLAINTEXT).contains(&sealed) {
            return Err(Error::Length { record: self.keys.used(), got: sealed });
        }
        let Some(sealed) = rest.get_mut(..sealed) else {
            return Ok(Opened::Incomplete { needed: sealed - rest.len() });
        };
        let record = self.keys.used();
        let (key, nonce) = self.keys.for_next_record();
        let Some(plaintext) = key.open(nonce, &length, sealed) else {
            sealed.fill(0);
            return Err(Error::Tag { record });
        };
        let consumed = LENGTH + sealed.len();
        Ok(match plaintext {
            0 => Opened::End { consumed },
            _ => Opened::Data { plaintext: LENGTH..LENGTH + plaintext, consumed },
        })
    }

    /// Call this when the stream that carries the records has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the direction has not ended, whether within a record or between two; the error of
    /// [`open`](Self::open), if it failed.
    pub fn finish(&self) -> Result<(), Error> {
        match self.state {
            State::Open => Err(Error::Truncated { records: self.keys.used() }),
            State::Ended => Ok(()),
            State::Failed(error) => Err(error),
        }
    }
}

/// Why bytes are not those that the peer sealed. Records are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A length field below the length of a tag, or above that of the largest record.
    #[error("record {record}: expected a length from 16 to 16400, got {got}")]
    Length {
        /// The number of the record.
        record: u64,
        /// The value of its length field.
        got: usize,
    },
    /// An invalid tag: a different key, or bytes modified, moved, lost or repeated.
    #[error("record {record} failed authentication: it was modified on the way, or the keys differ")]
    Tag {
        /// The number of the record.
        record: u64,
    },
    /// Bytes after the record that ends the direction.
    #[error("expected nothing after the last of {records} records, got more bytes")]
    AfterEnd {
        /// The number of records, including the last.
        records: u64,
    },
    /// The stream ended without the record that ends the direction.
    #[error("truncated after {records} records: the record that ends the stream is missing")]
    Truncated {
        /// The number of complete records.
        records: u64,
    },
}

opaque_debug!(Sealer, Opener);

#[cfg(test)]
mod tests;
