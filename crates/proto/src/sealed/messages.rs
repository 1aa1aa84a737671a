//! The six messages of the handshake: from bytes and to bytes.

use std::fmt;
use std::ops::RangeInclusive;

use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use super::framing::{
    Bytes, HELLO_LEN, MAX_LEN, Message, MessageError, NOISE_IDENTITY_LEN, NOISE_LEN, NOISE_STATIC_LEN,
    start_message,
};
use super::paths::{MAX_WITNESSES, PathId, PathIds, Paths};
use crate::secret::{RandomError, Secret};

/// The version of WITNESS.
const VERSION: u8 = 1;

const HELLO: u8 = 1;
const REPLY: u8 = 2;
const WITNESS: u8 = 3;
const SHARE: u8 = 4;
const CONFIRM: u8 = 5;
const IDENTITY: u8 = 6;

/// Identifies a session on all its paths: random, sent in clear.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId([u8; Self::LEN]);

impl SessionId {
    const LEN: usize = 32;

    pub(super) fn random() -> Result<SessionId, RandomError> {
        let mut id = [0; Self::LEN];
        SystemRandom::new().fill(&mut id).map_err(|_| RandomError)?;
        Ok(SessionId(id))
    }

    #[cfg(test)]
    pub(super) fn new(id: [u8; Self::LEN]) -> SessionId {
        SessionId(id)
    }

    pub(super) fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// The first 8 hexadecimal digits, enough to tell sessions apart in a log.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The HMAC by which an end confirms the handshake on a path. No `PartialEq`: the key schedule compares in constant time.
#[derive(Clone, Copy, Debug)]
pub struct Confirmation([u8; Self::LEN]);

impl Confirmation {
    pub(super) const LEN: usize = 32;

    pub(super) fn new(tag: [u8; Self::LEN]) -> Confirmation {
        Confirmation(tag)
    }

    pub(super) fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// The version of HELLO, which selects whether the ends authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Neither end authenticates (`NNpsk2`).
    Anonymous = 1,
    /// Both ends authenticate with static keys (`XXpsk2`).
    Identified = 2,
}

/// HELLO's fields before its Noise message; part of the Noise handshake's prologue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preface {
    pub(super) version: Version,
    pub(super) session: SessionId,
    pub(super) paths: Paths,
}

impl Preface {
    /// HELLO up to its Noise message, with type and length.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (configured, witnesses) = (self.paths.configured(), self.paths.witnesses());
        let mut bytes = Vec::with_capacity(MAX_LEN);
        bytes.extend(start_message(HELLO, HELLO_LEN + usize::from(witnesses.count())));
        bytes.push(self.version as u8);
        bytes.extend_from_slice(self.session.as_bytes());
        bytes.extend_from_slice(&[configured, witnesses.count()]);
        bytes.extend(witnesses.iter().map(PathId::number));
        bytes
    }
}

/// The initiator's first message on the main path.
#[derive(Clone, Debug)]
pub struct Hello {
    pub(super) preface: Preface,
    pub(super) noise: [u8; NOISE_LEN],
}

impl Hello {
    pub(super) fn to_bytes(&self) -> Bytes {
        let mut bytes = self.preface.bytes();
        bytes.extend_from_slice(&self.noise);
        Zeroizing::new(bytes)
    }
}

impl Message for Hello {
    const EXPECTED: &'static str = "HELLO";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == HELLO).then_some(HELLO_LEN..=HELLO_LEN + usize::from(MAX_WITNESSES))
    }

    fn parse(_: u8, body: &[u8]) -> Result<Hello, MessageError> {
        let mut fields = Fields(body);
        let version = match fields.take() {
            [1] => Version::Anonymous,
            [2] => Version::Identified,
            [other] => return Err(MessageError::Version(other)),
        };
        let session = fields.session();
        let [configured, count] = fields.take();
        let expected = HELLO_LEN + usize::from(count);
        if body.len() != expected {
            return Err(MessageError::HelloLength { witnesses: count, expected, got: body.len() });
        }
        let paths = Paths::new(configured, PathIds::ascending(fields.slice(count))?)?;
        Ok(Hello { preface: Preface { version, session, paths }, noise: fields.take() })
    }
}

/// The responder's message on the main path.
#[derive(Clone, Debug)]
pub struct Reply {
    /// [`NOISE_LEN`] bytes, or [`NOISE_STATIC_LEN`] where the ends authenticate.
    pub(super) noise: Vec<u8>,
}

impl Reply {
    pub(super) fn to_bytes(&self) -> Bytes {
        message(REPLY, &[&self.noise])
    }
}

impl Message for Reply {
    const EXPECTED: &'static str = "REPLY";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == REPLY).then_some(NOISE_LEN..=NOISE_STATIC_LEN)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Reply, MessageError> {
        match body.len() {
            NOISE_LEN | NOISE_STATIC_LEN => Ok(Reply { noise: body.to_vec() }),
            got => Err(MessageError::ReplyLength(got)),
        }
    }
}

/// The initiator's last message on the main path, by which it authenticates.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) noise: [u8; NOISE_IDENTITY_LEN],
}

impl Identity {
    pub(super) fn to_bytes(&self) -> Bytes {
        message(IDENTITY, &[&self.noise])
    }
}

impl Message for Identity {
    const EXPECTED: &'static str = "IDENTITY";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == IDENTITY).then_some(NOISE_IDENTITY_LEN..=NOISE_IDENTITY_LEN)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Identity, MessageError> {
        Ok(Identity { noise: Fields(body).take() })
    }
}

/// The initiator's first message on a path other than the main one.
#[derive(Debug)]
pub struct Witness {
    pub(super) session: SessionId,
    pub(super) path: PathId,
    pub(super) share: Secret,
}

impl Witness {
    const LEN: usize = 1 + SessionId::LEN + 1 + Secret::LEN;

    /// The path that it names.
    #[must_use]
    pub fn path(&self) -> PathId {
        self.path
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        message(WITNESS, &[&[VERSION], self.session.as_bytes(), &[self.path.number()], self.share.as_bytes()])
    }
}

impl Message for Witness {
    const EXPECTED: &'static str = "WITNESS";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == WITNESS).then_some(Self::LEN..=Self::LEN)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Witness, MessageError> {
        let mut fields = Fields(body);
        fields.version()?;
        Ok(Witness { session: fields.session(), path: fields.path()?, share: fields.secret() })
    }
}

/// The responder's message on a path other than the main one.
#[derive(Debug)]
pub struct Share {
    pub(super) path: PathId,
    pub(super) share: Secret,
    pub(super) confirmation: Confirmation,
}

impl Share {
    const LEN: usize = 1 + Secret::LEN + Confirmation::LEN;

    pub(super) fn to_bytes(&self) -> Bytes {
        message(SHARE, &[&[self.path.number()], self.share.as_bytes(), self.confirmation.as_bytes()])
    }
}

impl Message for Share {
    const EXPECTED: &'static str = "SHARE";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == SHARE).then_some(Self::LEN..=Self::LEN)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Share, MessageError> {
        let mut fields = Fields(body);
        let (path, share) = (fields.path()?, fields.secret());
        Ok(Share { path, share, confirmation: Confirmation::new(fields.take()) })
    }
}

/// The initiator's last message on a path other than the main one.
#[derive(Debug)]
pub struct Confirm {
    pub(super) path: PathId,
    pub(super) confirmation: Confirmation,
}

impl Confirm {
    const LEN: usize = 1 + Confirmation::LEN;

    pub(super) fn to_bytes(&self) -> Bytes {
        message(CONFIRM, &[&[self.path.number()], self.confirmation.as_bytes()])
    }
}

impl Message for Confirm {
    const EXPECTED: &'static str = "CONFIRM";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == CONFIRM).then_some(Self::LEN..=Self::LEN)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Confirm, MessageError> {
        let mut fields = Fields(body);
        Ok(Confirm { path: fields.path()?, confirmation: Confirmation::new(fields.take()) })
    }
}

/// The first message of an accepted connection, which is a session's main connection or one of its witnesses.
#[derive(Debug)]
pub enum FirstMessage {
    /// The main connection.
    Hello(Hello),
    /// A witness.
    Witness(Witness),
}

impl Message for FirstMessage {
    const EXPECTED: &'static str = "HELLO or WITNESS";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        Hello::body_lengths(kind).or_else(|| Witness::body_lengths(kind))
    }

    fn parse(kind: u8, body: &[u8]) -> Result<FirstMessage, MessageError> {
        match kind {
            HELLO => Hello::parse(kind, body).map(FirstMessage::Hello),
            _ => Witness::parse(kind, body).map(FirstMessage::Witness),
        }
    }
}

fn message(kind: u8, fields: &[&[u8]]) -> Bytes {
    let length = fields.iter().map(|field| field.len()).sum();
    let mut bytes = Zeroizing::new(start_message(kind, length));
    for field in fields {
        bytes.extend_from_slice(field);
    }
    bytes
}

/// Reads a body, whose length was checked, from front to back.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn slice(&mut self, length: u8) -> &'a [u8] {
        let (field, rest) = self.0.split_at(length.into());
        self.0 = rest;
        field
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the length of the body was checked");
        self.0 = rest;
        *field
    }

    fn version(&mut self) -> Result<(), MessageError> {
        match self.take() {
            [VERSION] => Ok(()),
            [other] => Err(MessageError::Version(other)),
        }
    }

    fn session(&mut self) -> SessionId {
        SessionId(self.take())
    }

    fn path(&mut self) -> Result<PathId, MessageError> {
        let [number] = self.take();
        Ok(PathId::new(number)?)
    }

    fn secret(&mut self) -> Secret {
        Secret::copy_of(&Zeroizing::new(self.take::<{ Secret::LEN }>()))
    }
}

#[cfg(test)]
mod tests;
