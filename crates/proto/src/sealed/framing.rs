//! Framing of handshake messages on a stream.
//!
//! A message is its type (1 byte), the length of its body (2 bytes, big-endian) and the body. Parsing is strict: what is
//! accepted has exactly one form, so that a parsed message is written as the same bytes. It never panics, buffers at
//! most [`MAX_LEN`] bytes, and takes no byte of a stream beyond the message.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use zeroize::Zeroizing;

use super::kem;
use super::paths::{MAX_WITNESSES, PathsError};
use super::service::RequestedService;

/// The version of HELLO and WITNESS.
pub(super) const VERSION: u8 = 3;

/// An empty payload's Noise message: an X25519 key and a tag. In a handshake with a pre-shared key both messages have a
/// tag, for `e` is mixed into the key as well (Noise revision 34, section 9.2).
pub(super) const NOISE_LEN: usize = 48;

/// The Noise message of a responder that authenticates: its static key and that key's tag as well.
pub(super) const NOISE_STATIC_LEN: usize = NOISE_LEN + 48;

/// The Noise message by which an initiator authenticates: a static key, that key's tag, and the tag of an empty payload.
pub(super) const NOISE_IDENTITY_LEN: usize = 64;

const HEADER_LEN: usize = 3;
const SESSION_ID_LEN: usize = 32;
/// HELLO's body without witnesses and encapsulation key: version, flags, session, two counts, service, Noise message.
pub(super) const HELLO_LEN: usize = 1 + 1 + SESSION_ID_LEN + 1 + 1 + RequestedService::LEN + NOISE_LEN;

/// The longest message, header included: HELLO with all witnesses and an encapsulation key.
pub(super) const MAX_LEN: usize = HEADER_LEN + HELLO_LEN + MAX_WITNESSES as usize + kem::KEY_LEN;

/// A message as it is sent. Some hold shares, so all are wiped when dropped.
pub type Bytes = Zeroizing<Vec<u8>>;

/// Received bytes are not the expected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// A message of another type.
    #[error("expected {expected}, got a message of type {got:#04x}")]
    Type {
        /// The messages that may come.
        expected: &'static str,
        /// The type that came.
        got: u8,
    },
    /// A length that this message cannot have.
    #[error("expected {expected} of {min} to {max} bytes, got one of {got}")]
    Length {
        /// The messages that may come.
        expected: &'static str,
        /// The shortest.
        min: usize,
        /// The longest.
        max: usize,
        /// The length that came.
        got: usize,
    },
    /// The stream ended in the middle of a message, or before one.
    #[error("expected {expected}, but the stream ended after {got} of {needed} bytes")]
    Ended {
        /// The messages that may come.
        expected: &'static str,
        /// Bytes needed to go on.
        needed: usize,
        /// Bytes received.
        got: usize,
    },
    /// Another version of the protocol.
    #[error(
        "expected version {VERSION} of `sealed`, got {got}: the peer runs {age} plait",
        age = if *got < VERSION { "an older" } else { "a newer" }
    )]
    Version {
        /// The version that came.
        got: u8,
    },
    /// HELLO asks for what this version does not know.
    #[error("expected flags of HELLO from 0 to 3, got {0:#04x}")]
    Flags(u8),
    /// A REPLY of a length that none has.
    #[error(
        "expected a REPLY of {NOISE_LEN} or {NOISE_STATIC_LEN} bytes, or {} more with a ciphertext, got one of {got}",
        kem::CIPHERTEXT_LEN
    )]
    ReplyLength {
        /// The length that came.
        got: usize,
    },
    /// A HELLO whose length contradicts its number of witnesses.
    #[error("expected a HELLO with {witnesses} witnesses to have {expected} bytes, got {got}")]
    HelloLength {
        /// The number of witnesses it claims.
        witnesses: u8,
        /// The length it would have.
        expected: usize,
        /// The length that came.
        got: usize,
    },
    /// Path numbers or counts that no session has.
    #[error(transparent)]
    Paths(#[from] PathsError),
}

/// What may come next on a stream: a message, or one of several.
pub trait Message: Sized {
    /// The expected messages, for errors.
    const EXPECTED: &'static str;

    /// The body lengths of this message type; `None` if the type is not expected. Never 0, and within [`MAX_LEN`].
    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>>;

    /// Parses a body whose length is among `body_lengths(kind)`.
    ///
    /// # Errors
    /// The body breaks a rule of the message.
    fn parse(kind: u8, body: &[u8]) -> Result<Self, MessageError>;
}

/// Reads one message from a stream that arrives in pieces of any size.
///
/// Read into [`buffer`](Self::buffer), call [`advance`](Self::advance) with the number of bytes read, and repeat until it
/// returns the message.
pub struct MessageReader<M> {
    buffer: Zeroizing<[u8; MAX_LEN]>,
    filled: usize,
    needed: usize,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> MessageReader<M> {
    /// A reader at the start of a message.
    #[must_use]
    pub fn new() -> MessageReader<M> {
        let buffer = Zeroizing::new([0; MAX_LEN]);
        MessageReader { buffer, filled: 0, needed: HEADER_LEN, message: PhantomData }
    }

    /// Where the stream's next bytes go: never more than belong to this message, at least one until it is complete.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..self.needed]
    }

    /// The first `count` bytes of the [`buffer`](Self::buffer) were filled. Returns the message when it is complete.
    ///
    /// # Errors
    /// The bytes are not an expected message.
    pub fn advance(&mut self, count: usize) -> Result<Option<M>, MessageError> {
        self.filled = self.filled.saturating_add(count).min(self.needed);
        if self.filled < self.needed {
            return Ok(None);
        }
        let kind = self.buffer[0];
        if self.needed == HEADER_LEN {
            let length = u16::from_be_bytes([self.buffer[1], self.buffer[2]]);
            self.needed += body_length::<M>(kind, length.into())?;
            return Ok(None);
        }
        M::parse(kind, &self.buffer[HEADER_LEN..self.needed]).map(Some)
    }

    /// The error of a stream that ends now.
    #[must_use]
    pub fn end_of_stream(&self) -> MessageError {
        MessageError::Ended { expected: M::EXPECTED, needed: self.needed, got: self.filled }
    }
}

impl<M: Message> Default for MessageReader<M> {
    fn default() -> Self {
        Self::new()
    }
}

fn body_length<M: Message>(kind: u8, got: usize) -> Result<usize, MessageError> {
    let expected = M::EXPECTED;
    let lengths = M::body_lengths(kind).ok_or(MessageError::Type { expected, got: kind })?;
    if !lengths.contains(&got) {
        return Err(MessageError::Length { expected, min: *lengths.start(), max: *lengths.end(), got });
    }
    Ok(got)
}

/// A message's type and the length of its body, followed by room for the body.
pub(super) fn start_message(kind: u8, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + length);
    bytes.push(kind);
    bytes.extend_from_slice(&(length as u16).to_be_bytes());
    bytes
}
