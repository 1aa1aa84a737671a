//! The messages of the handshake, and of side connections: from bytes and to bytes.

use std::ops::RangeInclusive;

use zeroize::Zeroizing;

use super::framing::{
    Bytes, HELLO_LEN, MAX_LEN, Message, MessageError, MessageReader, NOISE_IDENTITY_LEN, NOISE_LEN,
    NOISE_STATIC_LEN, VERSION, start_message,
};
use super::kem;
use super::paths::{MAX_WITNESSES, PathId, PathIds, Paths};
use super::service::RequestedService;
use super::session_id::SessionId;
use crate::secret::Secret;

const HELLO: u8 = 1;
const REPLY: u8 = 2;
const WITNESS: u8 = 3;
const SHARE: u8 = 4;
const CONFIRM: u8 = 5;
const IDENTITY: u8 = 6;
const SIDE: u8 = 7;

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

/// What the initiator asks of the handshake, in HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags {
    /// Both ends authenticate with static keys (`XXpsk2`), not neither (`NNpsk2`).
    pub(super) identified: bool,
    /// A key exchange with ML-KEM-768 as well as with X25519.
    pub(super) hybrid: bool,
}

impl Flags {
    const IDENTIFIED: u8 = 1;
    const HYBRID: u8 = 2;

    fn bits(self) -> u8 {
        (if self.identified { Self::IDENTIFIED } else { 0 }) | (if self.hybrid { Self::HYBRID } else { 0 })
    }

    fn from_bits(bits: u8) -> Result<Flags, MessageError> {
        if bits & !(Self::IDENTIFIED | Self::HYBRID) != 0 {
            return Err(MessageError::Flags(bits));
        }
        Ok(Flags { identified: bits & Self::IDENTIFIED != 0, hybrid: bits & Self::HYBRID != 0 })
    }
}

/// HELLO's fields before its Noise message; part of the Noise handshake's prologue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Preface {
    /// Whether both ends authenticate.
    pub(super) identified: bool,
    pub(super) session: SessionId,
    pub(super) paths: Paths,
    pub(super) service: RequestedService,
    /// The key for the second key exchange of a hybrid handshake.
    pub(super) encapsulation_key: Option<kem::PublicKey>,
}

impl Preface {
    fn flags(&self) -> Flags {
        Flags { identified: self.identified, hybrid: self.encapsulation_key.is_some() }
    }

    /// HELLO up to its Noise message, with type and length.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (configured, witnesses) = (self.paths.configured(), self.paths.witnesses());
        let mut bytes = Vec::with_capacity(MAX_LEN);
        bytes.extend(start_message(HELLO, hello_len(self.flags(), witnesses.count())));
        bytes.extend_from_slice(&[VERSION, self.flags().bits()]);
        bytes.extend_from_slice(self.session.as_bytes());
        bytes.extend_from_slice(&[configured, witnesses.count()]);
        bytes.extend(witnesses.iter().map(PathId::number));
        bytes.extend_from_slice(&self.service.port.to_be_bytes());
        bytes.extend_from_slice(&self.service.name);
        bytes.extend(self.encapsulation_key.iter().flat_map(|key| &key[..]));
        bytes
    }
}

/// The length of HELLO's body with so many witnesses.
fn hello_len(flags: Flags, witnesses: u8) -> usize {
    HELLO_LEN + usize::from(witnesses) + if flags.hybrid { kem::KEY_LEN } else { 0 }
}

/// The initiator's first message on the main path.
#[derive(Clone, Debug)]
pub struct Hello {
    pub(super) preface: Preface,
    pub(super) noise: [u8; NOISE_LEN],
}

impl Hello {
    /// The session that it opens.
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.preface.session
    }

    /// The initiator's paths.
    #[must_use]
    pub fn paths(&self) -> Paths {
        self.preface.paths
    }

    /// The port of the service that the initiator asks for.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.preface.service.port
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        let mut bytes = self.preface.bytes();
        bytes.extend_from_slice(&self.noise);
        Zeroizing::new(bytes)
    }
}

impl Message for Hello {
    const EXPECTED: &'static str = "HELLO";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        let longest = hello_len(Flags { identified: true, hybrid: true }, MAX_WITNESSES);
        (kind == HELLO).then_some(HELLO_LEN..=longest)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Hello, MessageError> {
        let mut fields = Fields(body);
        fields.version()?;
        let [bits] = fields.take();
        let flags = Flags::from_bits(bits)?;
        let session = fields.session();
        let [configured, count] = fields.take();
        let expected = hello_len(flags, count);
        if body.len() != expected {
            return Err(MessageError::HelloLength { witnesses: count, expected, got: body.len() });
        }
        let paths = Paths::new(configured, PathIds::ascending(fields.slice(count))?)?;
        let service = RequestedService { port: u16::from_be_bytes(fields.take()), name: fields.take() };
        let encapsulation_key = flags.hybrid.then(|| fields.boxed());
        let preface = Preface { identified: flags.identified, session, paths, service, encapsulation_key };
        Ok(Hello { preface, noise: fields.take() })
    }
}

/// The responder's message on the main path.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The responder's part of the second key exchange of a hybrid handshake.
    pub(super) ciphertext: Option<kem::Ciphertext>,
    /// [`NOISE_LEN`] bytes, or [`NOISE_STATIC_LEN`] where the ends authenticate.
    pub(super) noise: Vec<u8>,
}

impl Reply {
    pub(super) fn to_bytes(&self) -> Bytes {
        let ciphertext = self.ciphertext.as_deref().map_or(&[][..], |ciphertext| ciphertext);
        message(REPLY, &[ciphertext, &self.noise])
    }
}

impl Message for Reply {
    const EXPECTED: &'static str = "REPLY";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == REPLY).then_some(NOISE_LEN..=kem::CIPHERTEXT_LEN + NOISE_STATIC_LEN)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Reply, MessageError> {
        let (ciphertext, noise) = match body.split_first_chunk::<{ kem::CIPHERTEXT_LEN }>() {
            Some((ciphertext, noise)) => (Some(Box::new(*ciphertext)), noise),
            None => (None, body),
        };
        match noise.len() {
            NOISE_LEN | NOISE_STATIC_LEN => Ok(Reply { ciphertext, noise: noise.to_vec() }),
            _ => Err(MessageError::ReplyLength { got: body.len() }),
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

    /// The session that it belongs to.
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The path that it names.
    #[must_use]
    pub fn path(&self) -> PathId {
        self.path
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        self.to_bytes_of(WITNESS)
    }

    fn to_bytes_of(&self, kind: u8) -> Bytes {
        message(kind, &[&[VERSION], self.session.as_bytes(), &[self.path.number()], self.share.as_bytes()])
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

/// The initiator's first message on a [side connection](super::side_connection). It has the fields of a WITNESS.
#[derive(Debug)]
pub struct Side(pub(super) Witness);

impl Side {
    /// The session that it belongs to.
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.0.session
    }

    /// The path that it names.
    #[must_use]
    pub fn path(&self) -> PathId {
        self.0.path
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        self.0.to_bytes_of(SIDE)
    }
}

impl Message for Side {
    const EXPECTED: &'static str = "SIDE";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == SIDE).then_some(Witness::LEN..=Witness::LEN)
    }

    fn parse(kind: u8, body: &[u8]) -> Result<Side, MessageError> {
        Witness::parse(kind, body).map(Side)
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

/// The first message of an accepted connection, which is a session's main connection, one of its witnesses or one of its side
/// connections.
#[derive(Debug)]
pub enum FirstMessage {
    /// The main connection.
    Hello(Hello),
    /// A witness.
    Witness(Witness),
    /// A side connection.
    Side(Side),
}

impl Message for FirstMessage {
    const EXPECTED: &'static str = "HELLO, WITNESS or SIDE";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        Hello::body_lengths(kind).or_else(|| Witness::body_lengths(kind)).or_else(|| Side::body_lengths(kind))
    }

    fn parse(kind: u8, body: &[u8]) -> Result<FirstMessage, MessageError> {
        match kind {
            HELLO => Hello::parse(kind, body).map(FirstMessage::Hello),
            SIDE => Side::parse(kind, body).map(FirstMessage::Side),
            _ => Witness::parse(kind, body).map(FirstMessage::Witness),
        }
    }
}

/// The message at the start of a stream in either direction, as somebody sees it who captured the stream.
#[derive(Debug)]
pub enum OpeningMessage {
    /// From the initiator on the main path.
    Hello(Hello),
    /// From the responder on the main path.
    Reply(Reply),
    /// From the initiator on another path.
    Witness(Witness),
    /// From the initiator on a side connection.
    Side(Side),
    /// From the responder on another path.
    Share(Share),
}

impl OpeningMessage {
    /// The message that these bytes start with; `None` if they start with no complete and valid one.
    #[must_use]
    pub fn parse_start(bytes: &[u8]) -> Option<OpeningMessage> {
        let mut rest = bytes;
        let mut reader = MessageReader::<OpeningMessage>::new();
        loop {
            let buffer = reader.buffer();
            let (next, after) = rest.split_at_checked(buffer.len())?;
            buffer.copy_from_slice(next);
            rest = after;
            if let Some(message) = reader.advance(next.len()).ok()? {
                return Some(message);
            }
        }
    }
}

impl Message for OpeningMessage {
    const EXPECTED: &'static str = "HELLO, REPLY, WITNESS, SIDE or SHARE";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        FirstMessage::body_lengths(kind)
            .or_else(|| Reply::body_lengths(kind))
            .or_else(|| Share::body_lengths(kind))
    }

    fn parse(kind: u8, body: &[u8]) -> Result<OpeningMessage, MessageError> {
        match kind {
            HELLO => Hello::parse(kind, body).map(OpeningMessage::Hello),
            REPLY => Reply::parse(kind, body).map(OpeningMessage::Reply),
            WITNESS => Witness::parse(kind, body).map(OpeningMessage::Witness),
            SIDE => Side::parse(kind, body).map(OpeningMessage::Side),
            _ => Share::parse(kind, body).map(OpeningMessage::Share),
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

    fn boxed<const N: usize>(&mut self) -> Box<[u8; N]> {
        Box::new(self.take())
    }

    fn version(&mut self) -> Result<(), MessageError> {
        match self.take() {
            [VERSION] => Ok(()),
            [other] => Err(MessageError::Version { got: other }),
        }
    }

    fn session(&mut self) -> SessionId {
        SessionId::new(self.take())
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
