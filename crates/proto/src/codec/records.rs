//! `sealed`: one direction as authenticated records with an authenticated end.
//!
//! # Security properties
//!
//! An attacker without the key learns the length and time of records, but nothing about their content or type. The [`Opener`]
//! detects any modification, deletion, insertion, replay, reordering or truncation, and never returns affected data as
//! plaintext. The handshake provides the keys.
//!
//! # Definition
//!
//! A direction is a sequence of records, numbered from 0:
//!
//! ```text
//! length (2 bytes, big-endian) | ciphertext | tag (16 bytes)          length = bytes that follow it, 17 to 16401
//! ```
//!
//! Ciphertext and tag are the [`AeadCipher`]'s over the plaintext, with the two bytes of `length` as additional data.
//! The nonce is that of Noise (revision 34, section 12) for the number `n` of the record: 4 zero bytes, then `n` in 8
//! bytes, little-endian for ChaCha20-Poly1305 and big-endian for AES-256-GCM.
//!
//! The plaintext is that of TLS 1.3 (RFC 8446, section 5.2): content, type (1 byte, not zero), and zeros as
//! [`Padding`]; content and padding have at most [`MAX_CONTENT`] bytes together.
//!
//! | type | record | content |
//! |---|---|---|
//! | 1 | data | at least one byte |
//! | 2 | ends the direction: nothing follows it, and a stream that ends without it was truncated | none |
//! | 6 | ends the direction and the connection, with the reason: see [`CloseReason`] | the reason, 1 byte |
//! | 3, 4, 5 | a step of a [key update](crate::sealed::KeyUpdate): see [`Control`] | its message |
//! | 7, 8 | to an [exit](crate::exit) and from it, the first record of its direction: see [`ExitRecord`] | its message |
//!
//! A key update replaces the key; record numbers continue, so that no nonce is ever used twice. After every 2^20 records
//! since then, or since the start, the key is replaced by its `REKEY` as in Noise (section 4.2): the first 32 bytes of the
//! encryption of 32 zero bytes with nonce 2^64 - 1 and no additional data. A key therefore seals at most some 2^34 bytes,
//! far below the limits of both ciphers.
//!
//! # Buffers
//!
//! Both ends work in place, do not allocate per record, and leave reading and writing to the caller. A sender reads
//! data into a buffer at an offset of two bytes, seals it, and writes the whole record; a buffer may contain several
//! consecutive records, sent with one write. A receiver collects bytes as they arrive and opens complete
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
//! assert_eq!(sealer.seal(&mut wire, text.len()), wire.len());
//! wire.extend(sealer.end());
//!
//! assert_eq!(opener.open(&mut wire[..5])?, Opened::Incomplete { needed: 28 });
//! let Opened::Data { content, consumed } = opener.open(&mut wire)? else { panic!("it holds text") };
//! assert_eq!(&wire[content], text);
//! assert_eq!(opener.open(&mut wire[consumed..])?, Opened::End { consumed: OVERHEAD });
//! opener.finish()?;
//! # Ok::<(), Error>(())
//! ```

mod copies;
mod key;

use std::num::NonZeroU16;
use std::ops::Range;

use serde::Deserialize;
use zeroize::{Zeroize, Zeroizing};

use crate::close_reason::CloseReason;
use crate::derive::{named, opaque_debug};
use copies::Ahead;
pub use copies::{COPY_HEADER, Copies, CopyOutcome, CopyPosition, InvalidCopy, MAX_AHEAD, copy_len};
use key::Keys;

/// A key of one direction, wiped when dropped.
pub type Key = Zeroizing<[u8; KEY_LEN]>;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of the length field in front of a record.
pub const LENGTH: usize = 2;
/// Bytes of the tag at the end of a record.
pub const TAG: usize = 16;
/// Bytes of a record besides its content and padding: length, type and tag.
pub const OVERHEAD: usize = LENGTH + TYPE + TAG;
/// Maximum length of a record's content and padding in bytes. Data waits until its whole record has arrived: some
/// milliseconds on a slow link.
pub const MAX_CONTENT: usize = 16_384;
/// Maximum length of a record in bytes.
pub const MAX_RECORD: usize = MAX_CONTENT + OVERHEAD;

/// Bytes of the type behind the content.
const TYPE: usize = 1;
/// The values of the length field.
const LENGTHS: std::ops::RangeInclusive<usize> = TYPE + TAG..=MAX_CONTENT + TYPE + TAG;

/// The types of records that are not a [`Control`].
const TYPE_DATA: u8 = 1;
const TYPE_END: u8 = 2;
const TYPE_FAILURE: u8 = 6;

/// A record of a key update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Asks for a key exchange, with the initiator's part of it.
    UpdateRequest = 3,
    /// The responder's part; the last record under its sending key.
    UpdateResponse = 4,
    /// No content: the last record under the initiator's sending key.
    NewKey = 5,
}

impl Control {
    fn from_type(kind: u8) -> Option<Control> {
        [Control::UpdateRequest, Control::UpdateResponse, Control::NewKey]
            .into_iter()
            .find(|control| *control as u8 == kind)
    }
}

/// The first record of a direction between an initiator and an [exit](crate::exit). No other connection has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitRecord {
    /// From the initiator: where to connect to. Padded as if it had [`Self::DESTINATION_LEN`] bytes, so that its length tells
    /// nothing about the name.
    Destination = 7,
    /// From the exit: what came of it.
    Outcome = 8,
}

impl ExitRecord {
    /// The length of the longest destination, bytes.
    pub const DESTINATION_LEN: usize = 256;

    /// Minimum length of content and padding.
    fn min_len(self) -> usize {
        match self {
            ExitRecord::Destination => Self::DESTINATION_LEN,
            ExitRecord::Outcome => 0,
        }
    }
}

/// What [`Opener::open_exit`] found at the start of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenedExit {
    /// No complete record.
    Incomplete {
        /// Minimum number of further bytes needed.
        needed: usize,
    },
    /// The record, now decrypted.
    Content(Range<usize>),
}

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

/// The padding of records: content and zeros have together a multiple of so many bytes, and at least one such unit. So an
/// eavesdropper sees lengths only in these units, and cannot tell the records that have no data from short ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Padding(NonZeroU16);

/// A number is no unit of padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of bytes from 1, which is no padding, to {MAX_CONTENT}, got {0}")]
pub struct PaddingError(i64);

impl TryFrom<i64> for Padding {
    type Error = PaddingError;

    fn try_from(unit: i64) -> Result<Padding, PaddingError> {
        u16::try_from(unit).ok().and_then(Padding::new).ok_or(PaddingError(unit))
    }
}

impl Padding {
    /// None: records are as long as their content.
    pub const NONE: Padding = Padding(NonZeroU16::MIN);

    /// To a multiple of `unit` bytes, from 1, which is none, to [`MAX_CONTENT`]; `None` if it is out of range. It need not be
    /// a power of two.
    #[must_use]
    pub fn new(unit: u16) -> Option<Padding> {
        NonZeroU16::new(unit).filter(|_| usize::from(unit) <= MAX_CONTENT).map(Padding)
    }

    fn unit(self) -> usize {
        self.0.get().into()
    }

    /// Bytes of this content and its padding.
    fn padded(self, content: usize) -> usize {
        if self == Padding::NONE { content } else { content.max(1).next_multiple_of(self.unit()) }
    }
}

/// Seals the records of one direction.
pub struct Sealer {
    keys: Keys,
    padding: Padding,
    ended: bool,
}

impl Sealer {
    /// A sealer at the start of a direction, without padding.
    #[must_use]
    pub fn new(cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Self {
        Self { keys: Keys::new(cipher, key), padding: Padding::NONE, ended: false }
    }

    /// The same with padding.
    #[must_use]
    pub fn with_padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }

    /// How many bytes of data fit in a record that has `room` bytes; 0 if none do.
    #[must_use]
    pub fn capacity(&self, room: usize) -> usize {
        let padded = room.min(MAX_RECORD).saturating_sub(OVERHEAD);
        padded - padded % self.padding.unit()
    }

    /// Seals the next record in place, and returns its length. `buffer` has [`LENGTH`] bytes of any content, then `data` bytes
    /// to seal; what follows them is overwritten with the rest of the record.
    ///
    /// # Panics
    ///
    /// If `data` is 0 or more than the [`capacity`](Self::capacity) of the buffer, or after [`end`](Self::end).
    pub fn seal(&mut self, buffer: &mut [u8], data: usize) -> usize {
        let capacity = self.capacity(buffer.len());
        assert!(
            (1..=capacity).contains(&data),
            "this record holds 1 to {capacity} bytes of data, got {data}"
        );
        self.seal_any(buffer, data, self.padding.padded(data), TYPE_DATA)
    }

    /// The record that ends the direction.
    ///
    /// # Panics
    ///
    /// If the direction has already ended.
    pub fn end(&mut self) -> Vec<u8> {
        let record = self.seal_content(&[], TYPE_END);
        self.ended = true;
        record
    }

    /// The record that ends the direction and the connection, and tells why.
    ///
    /// # Panics
    ///
    /// If the direction has already ended.
    pub fn failure(&mut self, reason: CloseReason) -> Vec<u8> {
        let record = self.seal_content(&[reason.code()], TYPE_FAILURE);
        self.ended = true;
        record
    }

    /// A record of a key update.
    ///
    /// # Panics
    ///
    /// If the content is longer than a message of a key update can be, or after [`end`](Self::end).
    pub fn control(&mut self, control: Control, content: &[u8]) -> Vec<u8> {
        self.seal_content(content, control as u8)
    }

    /// The first record to an exit, or from it.
    ///
    /// # Panics
    ///
    /// If the content is longer than such a message can be, or after [`end`](Self::end).
    pub fn exit(&mut self, record: ExitRecord, content: &[u8]) -> Vec<u8> {
        let padded = self.padding.padded(content.len().max(record.min_len()));
        self.seal_padded(content, padded, record as u8)
    }

    /// Replaces the key for the records that follow.
    pub fn set_key(&mut self, key: &[u8; KEY_LEN]) {
        self.keys.replace(key);
    }

    /// Records since the key was [set](Self::set_key).
    #[must_use]
    pub fn records_of_key(&self) -> u64 {
        self.keys.since_replaced()
    }

    fn seal_content(&mut self, content: &[u8], kind: u8) -> Vec<u8> {
        self.seal_padded(content, self.padding.padded(content.len()), kind)
    }

    fn seal_padded(&mut self, content: &[u8], padded: usize, kind: u8) -> Vec<u8> {
        let mut record = vec![0; padded + OVERHEAD];
        record[LENGTH..LENGTH + content.len()].copy_from_slice(content);
        self.seal_any(&mut record, content.len(), padded, kind);
        record
    }

    /// `padded`: bytes of the content and its padding.
    fn seal_any(&mut self, buffer: &mut [u8], content: usize, padded: usize, kind: u8) -> usize {
        assert!(!self.ended, "nothing follows the end of a direction");
        let total = padded + OVERHEAD;
        let (length, sealed) = buffer[..total].split_at_mut(LENGTH);
        let written = u16::try_from(sealed.len()).expect("as long as a record may be");
        length.copy_from_slice(&written.to_be_bytes());
        let (text, tag) = sealed.split_at_mut(sealed.len() - TAG);
        text[content] = kind;
        text[content + TYPE..].fill(0);
        let (key, nonce) = self.keys.for_next_record();
        tag.copy_from_slice(&key.seal(nonce, length, text));
        total
    }
}

/// Opens the records of one direction. After an error it returns only that error.
pub struct Opener {
    keys: Keys,
    state: State,
    ahead: Ahead,
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
    /// A record with data, now decrypted.
    Data {
        /// The range of the data, 1 to [`MAX_CONTENT`] bytes.
        content: Range<usize>,
        /// Length of the record in bytes; the next record follows.
        consumed: usize,
    },
    /// A record of a key update, now decrypted. Whether it may come now, only the
    /// [state of the key update](crate::sealed::KeyUpdate) tells.
    Control {
        /// Which one.
        control: Control,
        /// The range of its message, 0 to [`MAX_CONTENT`] bytes.
        content: Range<usize>,
        /// Length of the record in bytes; the next record follows.
        consumed: usize,
    },
    /// A record with data that was delivered before, from its [copy](Opener::open_copy).
    Delivered {
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
        Self { keys: Keys::new(cipher, key), state: State::Open, ahead: Ahead::default() }
    }

    /// Opens, in place, the record at the start of `bytes` if it is complete. `bytes` begins where the previous record
    /// ended; pass an incomplete record again, from its start, with more bytes appended.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::Tag`], [`Error::Malformed`], [`Error::AfterEnd`] or [`Error::Failure`], and the same error on
    /// every later call.
    /// `bytes` then contains no decrypted data.
    pub fn open(&mut self, bytes: &mut [u8]) -> Result<Opened, Error> {
        let opened = self.open_next(bytes);
        match opened {
            Ok(Opened::End { .. }) => self.state = State::Ended,
            Err(error) => self.state = State::Failed(error),
            Ok(_) => {}
        }
        opened
    }

    /// Replaces the key for the records that follow.
    pub fn set_key(&mut self, key: &[u8; KEY_LEN]) {
        self.keys.replace(key);
        self.ahead.forget_waiting();
    }

    /// Records since the key was [set](Self::set_key).
    #[must_use]
    pub fn records_of_key(&self) -> u64 {
        self.keys.since_replaced()
    }

    /// Opens, in place, the first record of a direction to or from an exit, which must be `expected`, if it is complete; see
    /// [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open): any other record is malformed here.
    pub fn open_exit(&mut self, bytes: &mut [u8], expected: ExitRecord) -> Result<OpenedExit, Error> {
        let opened = self.open_typed(bytes, |plaintext, _| match last_nonzero(plaintext) {
            Some((kind, length)) if kind == expected as u8 => Ok(LENGTH..LENGTH + length),
            _ => Err("expected the first record to or from an exit, got another"),
        });
        let opened = opened.inspect_err(|error| self.state = State::Failed(*error))?;
        Ok(match opened {
            Typed::Incomplete { needed } => OpenedExit::Incomplete { needed },
            Typed::Complete(content) => OpenedExit::Content(content),
        })
    }

    fn open_next(&mut self, bytes: &mut [u8]) -> Result<Opened, Error> {
        if matches!(self.state, State::Ended) && bytes.is_empty() {
            return Ok(Opened::End { consumed: 0 });
        }
        let number = self.keys.used();
        match self.open_typed(bytes, parse)? {
            Typed::Incomplete { needed } => Ok(Opened::Incomplete { needed }),
            Typed::Complete(opened) => self.ahead.arrived(number, opened),
        }
    }

    /// Opens the next record if it is complete, and parses its plaintext and length.
    fn open_typed<T>(
        &mut self,
        bytes: &mut [u8],
        parse: impl FnOnce(&[u8], usize) -> Result<T, &'static str>,
    ) -> Result<Typed<T>, Error> {
        match self.state {
            State::Open => {}
            State::Ended => return Err(Error::AfterEnd { records: self.keys.used() }),
            State::Failed(error) => return Err(error),
        }
        let Some((&mut length, rest)) = bytes.split_first_chunk_mut::<LENGTH>() else {
            return Ok(Typed::Incomplete { needed: LENGTH - bytes.len() });
        };
        let sealed = usize::from(u16::from_be_bytes(length));
        if !LENGTHS.contains(&sealed) {
            return Err(Error::Length { record: self.keys.used(), got: sealed });
        }
        let Some(sealed) = rest.get_mut(..sealed) else {
            return Ok(Typed::Incomplete { needed: sealed - rest.len() });
        };
        let record = self.keys.used();
        let (key, nonce) = self.keys.for_next_record();
        let Some(plaintext) = key.open(nonce, &length, sealed) else {
            sealed.zeroize();
            return Err(Error::Tag { record });
        };
        let consumed = LENGTH + sealed.len();
        if let Some((TYPE_FAILURE, 1)) = last_nonzero(&sealed[..plaintext]) {
            return Err(Error::Failure(CloseReason::from_code(sealed[0])));
        }
        let parsed = parse(&sealed[..plaintext], consumed);
        parsed.map(Typed::Complete).map_err(|reason| {
            sealed.zeroize();
            Error::Malformed { record, reason }
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

/// The next record.
enum Typed<T> {
    Incomplete { needed: usize },
    Complete(T),
}

/// What a record with this plaintext is.
fn parse(plaintext: &[u8], consumed: usize) -> Result<Opened, &'static str> {
    let Some((kind, length)) = last_nonzero(plaintext) else {
        return Err("expected a type, got padding alone");
    };
    let content = LENGTH..LENGTH + length;
    match kind {
        TYPE_DATA if length == 0 => Err("expected data, got none"),
        TYPE_DATA => Ok(Opened::Data { content, consumed }),
        TYPE_END if length == 0 => Ok(Opened::End { consumed }),
        TYPE_END => Err("expected no content in the record that ends the direction, got some"),
        TYPE_FAILURE => {
            Err("expected one byte in the record that tells why the connection ends, got another number")
        }
        _ => match Control::from_type(kind) {
            Some(control) => Ok(Opened::Control { control, content, consumed }),
            None => Err("expected a type from 1 to 6, got another"),
        },
    }
}

/// The last byte that is not zero, and its place.
fn last_nonzero(mut bytes: &[u8]) -> Option<(u8, usize)> {
    // Padding may be long: skip it in blocks.
    while let Some((rest, block)) = bytes.split_last_chunk::<16>()
        && u128::from_ne_bytes(*block) == 0
    {
        bytes = rest;
    }
    let at = bytes.iter().rposition(|byte| *byte != 0)?;
    Some((bytes[at], at))
}

/// Why bytes are not those that the peer sealed. Records are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A length field below the length of an empty record, or above that of the largest.
    #[error("record {record}: expected a length from 17 to 16401, got {got}")]
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
    /// The peer sealed a record that violates the protocol.
    #[error("record {record}: {reason}: the peer violates the protocol")]
    Malformed {
        /// The number of the record.
        record: u64,
        /// What was expected, and what was found.
        reason: &'static str,
    },
    /// The peer has ended the connection.
    #[error("the peer has ended the connection: {0}")]
    Failure(CloseReason),
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
