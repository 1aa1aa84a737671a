//! `sealed`: one direction as authenticated records with an authenticated end.
//!
//! # What it gives
//!
//! Whoever does not have the key learns the lengths of records and when they were sent, and nothing of what they
//! hold. Whatever was changed, left out, added, repeated, reordered or cut off on the way is found by the
//! [`Opener`], and nothing of it is given out as plaintext. Where keys come from is the handshake's business.
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
//! The nonce is Noise's (revision 34, section 12) for the number `n` of the record: 4 zero bytes, then `n` in 8
//! bytes, little-endian for ChaCha20-Poly1305 and big-endian for AES-256-GCM.
//!
//! After every 2^20 records the key is replaced by Noise's `REKEY` of it (section 4.2): the first 32 bytes of what
//! encrypting 32 zero bytes with nonce 2^64 - 1 and no additional data gives. The numbers go on. So a key seals at
//! most 2^34 bytes, far from the limits of both ciphers.
//!
//! A record with no plaintext is the end of the direction, and nothing follows it. A stream that stops without it
//! was cut off.
//!
//! # Buffers
//!
//! Both ends work in place, allocate nothing for a record, and leave reading and writing to the caller. A sender
//! reads plaintext to two bytes behind the front of a buffer, seals, and writes the whole record; several records
//! follow one another in one buffer and leave in one write. A receiver collects bytes as they come and opens
//! what is whole; a buffer of [`MAX_RECORD`] bytes always makes progress, so memory is bounded whatever is sent.
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

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use zeroize::Zeroizing;

use key::Keys;

/// A key of one direction, wiped when dropped.
pub type Key = Zeroizing<[u8; KEY_LEN]>;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of the length field in front of a record.
pub const LENGTH: usize = 2;
/// Bytes of the tag at the end of a record.
pub const TAG: usize = 16;
/// Bytes that a record has beyond its plaintext.
pub const OVERHEAD: usize = LENGTH + TAG;
/// Bytes of plaintext that a record holds at most. What is in a record waits until all of it has come, on a slow link
/// for some milliseconds.
pub const MAX_PLAINTEXT: usize = 16_384;
/// Bytes that a record has at most.
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

impl AeadCipher {
    /// All ciphers.
    pub const ALL: [Self; 2] = [Self::ChaCha20Poly1305, Self::Aes256Gcm];

    /// The name by which users choose it: `chacha20-poly1305` or `aes-256-gcm`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }
}

impl fmt::Display for AeadCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for AeadCipher {
    type Err = ParseAeadCipherError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|cipher| cipher.name() == name);
        named.ok_or_else(|| ParseAeadCipherError { got: name.to_owned() })
    }
}

/// A name that is not one of a [`AeadCipher`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown cipher {got:?}: expected chacha20-poly1305 or aes-256-gcm")]
pub struct ParseAeadCipherError {
    /// The name that was given.
    pub got: String,
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

    /// Seals the next record in place: [`LENGTH`] bytes of any content, the plaintext, [`TAG`] bytes of any
    /// content. Afterwards `record` is what goes on the wire.
    ///
    /// # Panics
    ///
    /// If `record` has no room for at least one byte of plaintext or more than for [`MAX_PLAINTEXT`], or after
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
    /// If the direction was ended before.
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

/// Opens the records of one direction. Once it has found an error it gives that error and nothing else.
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

/// What stood at the front of the bytes given to [`Opener::open`]. Places and counts are in those bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// No whole record.
    Incomplete {
        /// How many more bytes it takes at least.
        needed: usize,
    },
    /// A record, now decrypted.
    Data {
        /// Where its plaintext is, 1 to [`MAX_PLAINTEXT`] bytes.
        plaintext: Range<usize>,
        /// How many bytes it had; the next record follows.
        consumed: usize,
    },
    /// The record that ends the direction; or nothing, after it.
    End {
        /// How many bytes it had.
        consumed: usize,
    },
}

impl Opener {
    /// An opener at the start of a direction.
    #[must_use]
    pub fn new(cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Self {
        Self { keys: Keys::new(cipher, key), state: State::Open }
    }

    /// Opens, in place, the record at the front of `bytes` if all of it is there. `bytes` begins where the record
    /// before it ended; an incomplete record is given again, from its front, with more bytes behind.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::Tag`] or [`Error::AfterEnd`], and the same again whenever it is called
    /// afterwards. Nothing decrypted is left in `bytes` then.
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

    /// To be asked when the stream that carries the records has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the direction has not ended before, in the middle of a record or between two; what
    /// [`open`](Self::open) failed with, if it failed.
    pub fn finish(&self) -> Result<(), Error> {
        match self.state {
            State::Open => Err(Error::Truncated { records: self.keys.used() }),
            State::Ended => Ok(()),
            State::Failed(error) => Err(error),
        }
    }
}

/// Why bytes are not what the other end sealed. Records are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A length field below the length of a tag, or above that of the largest record.
    #[error("record {record}: expected a length from 16 to 16400, got {got}")]
    Length {
        /// The number of the record.
        record: u64,
        /// What its length field says.
        got: usize,
    },
    /// A tag that does not fit: another key, or bytes changed, moved, lost or repeated.
    #[error("record {record} failed authentication: it was modified on the way, or the keys differ")]
    Tag {
        /// The number of the record.
        record: u64,
    },
    /// Bytes behind the record that ends the direction.
    #[error("expected nothing after the last of {records} records, got more bytes")]
    AfterEnd {
        /// How many records there were, the one that ends included.
        records: u64,
    },
    /// The stream ended without the record that ends the direction.
    #[error("truncated after {records} records: the record that ends the stream is missing")]
    Truncated {
        /// How many whole records there were.
        records: u64,
    },
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
