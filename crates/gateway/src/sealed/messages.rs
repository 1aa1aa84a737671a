//! The messages of `sealed` before its records: from bytes and to bytes.
//!
//! A message is its type (1 byte), the length of what follows (2 bytes, big-endian) and that. Parsing is strict: what is
//! accepted has exactly one form, so that a message that was parsed is written as the same bytes. It never panics, holds
//! at most [`MAX_LEN`] bytes, and takes no byte of a stream beyond the message.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use super::keys::{RandomError, Secret, Tag};
use super::paths::{MAX_WITNESSES, PathId, PathIds, Paths, PathsError};

/// The version of WITNESS.
const VERSION: u8 = 1;

/// An empty payload's noise message: an X25519 key and a tag. In a handshake with a pre-shared key both messages have a
/// tag, for `e` is mixed into the key as well (Noise revision 34, section 9.2).
pub(super) const NOISE_LEN: usize = 48;

/// The noise message of a responder that says who it is: its static key and that key's tag besides.
pub(super) const IDENTIFIED_LEN: usize = NOISE_LEN + 48;

/// The noise message by which an initiator says who it is: a static key, that key's tag, and one of nothing.
pub(super) const IDENTITY_LEN: usize = 64;

const HEADER_LEN: usize = 3;
const PREFACE_LEN: usize = 1 + SessionId::LEN + 1 + 1;
const HELLO_LEN: usize = PREFACE_LEN + NOISE_LEN;

/// The longest message, header included.
pub(super) const MAX_LEN: usize = HEADER_LEN + HELLO_LEN + MAX_WITNESSES as usize;

const HELLO: u8 = 1;
const REPLY: u8 = 2;
const WITNESS: u8 = 3;
const SHARE: u8 = 4;
const CONFIRM: u8 = 5;
const IDENTITY: u8 = 6;

/// A message as it goes out. Some hold shares, so all are wiped when dropped.
pub(crate) type Bytes = Zeroizing<Vec<u8>>;

/// Bytes are not the message that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("expected {expected}, got a message of type {got:#04x}")]
    Type { expected: &'static str, got: u8 },
    #[error("expected {expected} of {least} to {most} bytes, got one of {got}")]
    Length { expected: &'static str, least: usize, most: usize, got: usize },
    #[error("expected {expected}, but the stream ended after {got} of {needed} bytes")]
    Ended { expected: &'static str, needed: usize, got: usize },
    #[error("expected a version of `sealed` that is known here, got {0}: is the peer's plait newer?")]
    Version(u8),
    #[error("expected a REPLY of {NOISE_LEN} or {IDENTIFIED_LEN} bytes, got one of {0}")]
    ReplyLength(usize),
    #[error("expected a HELLO with {witnesses} witnesses to have {expected} bytes, got {got}")]
    HelloLength { witnesses: u8, expected: usize, got: usize },
    #[error(transparent)]
    Paths(#[from] PathsError),
}

/// What may come next on a stream: a message, or one of several.
pub(crate) trait Message: Sized {
    /// What is expected, for errors.
    const EXPECTED: &'static str;

    /// The lengths of the body of this type; `None` for a type that is not expected. Never 0, and within [`MAX_LEN`].
    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>>;

    /// The message with this type and body, whose length is among `body_lengths(kind)`.
    fn parse(kind: u8, body: &[u8]) -> Result<Self, MessageError>;
}

/// A message that is arriving on a stream, in pieces of any size.
///
/// Read into [`wanted`](Self::wanted), tell [`filled`](Self::filled) how much it was, until a message comes out.
pub(crate) struct Incoming<M> {
    buffer: Zeroizing<[u8; MAX_LEN]>,
    filled: usize,
    needed: usize,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Incoming<M> {
    pub(crate) fn new() -> Incoming<M> {
        Incoming { buffer: Zeroizing::new([0; MAX_LEN]), filled: 0, needed: HEADER_LEN, message: PhantomData }
    }

    /// Where the stream's next bytes belong: as many as are certainly still needed, at least one until the message is
    /// whole.
    pub(crate) fn wanted(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..self.needed]
    }

    /// The first `count` bytes of what was wanted are there. Gives the message when it is whole.
    pub(crate) fn filled(&mut self, count: usize) -> Result<Option<M>, MessageError> {
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

    /// What is wrong with a stream that ends now.
    pub(crate) fn ended(&self) -> MessageError {
        MessageError::Ended { expected: M::EXPECTED, needed: self.needed, got: self.filled }
    }
}

fn body_length<M: Message>(kind: u8, got: usize) -> Result<usize, MessageError> {
    let expected = M::EXPECTED;
    let lengths = M::body_lengths(kind).ok_or(MessageError::Type { expected, got: kind })?;
    if !lengths.contains(&got) {
        return Err(MessageError::Length { expected, least: *lengths.start(), most: *lengths.end(), got });
    }
    Ok(got)
}

/// Names a session on all its paths: random, sent in clear.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId([u8; Self::LEN]);

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

/// The first 8 hexadecimal digits, which tell sessions of a log apart.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What HELLO asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// That the ends do not say who they are.
    Anonymous = 1,
    /// That both do.
    Identified = 2,
}

/// What HELLO says before its noise message; part of the noise handshake's prologue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preface {
    pub(crate) version: Version,
    pub(crate) session: SessionId,
    pub(crate) paths: Paths,
}

impl Preface {
    /// HELLO up to its noise message, with type and length.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (configured, witnesses) = (self.paths.configured(), self.paths.witnesses());
        let length = HELLO_LEN + usize::from(witnesses.count());
        let mut bytes = Vec::with_capacity(MAX_LEN);
        bytes.push(HELLO);
        bytes.extend_from_slice(&(length as u16).to_be_bytes());
        bytes.push(self.version as u8);
        bytes.extend_from_slice(self.session.as_bytes());
        bytes.extend_from_slice(&[configured, witnesses.count()]);
        bytes.extend(witnesses.iter().map(PathId::number));
        bytes
    }
}

/// The initiator's first message on the main path.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) preface: Preface,
    pub(crate) noise: [u8; NOISE_LEN],
}

impl Hello {
    pub(crate) fn to_bytes(&self) -> Bytes {
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
pub(crate) struct Reply {
    /// [`NOISE_LEN`] bytes, or [`IDENTIFIED_LEN`] where the ends say who they are.
    pub(crate) noise: Vec<u8>,
}

impl Reply {
    pub(crate) fn to_bytes(&self) -> Bytes {
        message(REPLY, &[&self.noise])
    }
}

impl Message for Reply {
    const EXPECTED: &'static str = "REPLY";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == REPLY).then_some(NOISE_LEN..=IDENTIFIED_LEN)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Reply, MessageError> {
        match body.len() {
            NOISE_LEN | IDENTIFIED_LEN => Ok(Reply { noise: body.to_vec() }),
            got => Err(MessageError::ReplyLength(got)),
        }
    }
}

/// The initiator's last message on the main path, by which it says who it is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) noise: [u8; IDENTITY_LEN],
}

impl Identity {
    pub(crate) fn to_bytes(&self) -> Bytes {
        message(IDENTITY, &[&self.noise])
    }
}

impl Message for Identity {
    const EXPECTED: &'static str = "IDENTITY";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        (kind == IDENTITY).then_some(IDENTITY_LEN..=IDENTITY_LEN)
    }

    fn parse(_: u8, body: &[u8]) -> Result<Identity, MessageError> {
        Ok(Identity { noise: Fields(body).take() })
    }
}

/// The initiator's first message on a path other than the main one.
#[derive(Debug)]
pub(crate) struct Witness {
    pub(crate) session: SessionId,
    pub(crate) path: PathId,
    pub(crate) share: Secret,
}

impl Witness {
    const LEN: usize = 1 + SessionId::LEN + 1 + Secret::LEN;

    pub(crate) fn to_bytes(&self) -> Bytes {
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
pub(crate) struct Share {
    pub(crate) path: PathId,
    pub(crate) share: Secret,
    pub(crate) confirmation: Tag,
}

impl Share {
    const LEN: usize = 1 + Secret::LEN + Tag::LEN;

    pub(crate) fn to_bytes(&self) -> Bytes {
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
        Ok(Share { path: fields.path()?, share: fields.secret(), confirmation: Tag::new(fields.take()) })
    }
}

/// The initiator's last message on a path other than the main one.
#[derive(Debug)]
pub(crate) struct Confirm {
    pub(crate) path: PathId,
    pub(crate) confirmation: Tag,
}

impl Confirm {
    const LEN: usize = 1 + Tag::LEN;

    pub(crate) fn to_bytes(&self) -> Bytes {
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
        Ok(Confirm { path: fields.path()?, confirmation: Tag::new(fields.take()) })
    }
}

/// What an accepted connection begins with: it is a session's main connection, or one of its witnesses.
#[derive(Debug)]
pub(crate) enum First {
    Hello(Hello),
    Witness(Witness),
}

impl Message for First {
    const EXPECTED: &'static str = "HELLO or WITNESS";

    fn body_lengths(kind: u8) -> Option<RangeInclusive<usize>> {
        Hello::body_lengths(kind).or_else(|| Witness::body_lengths(kind))
    }

    fn parse(kind: u8, body: &[u8]) -> Result<First, MessageError> {
        match kind {
            HELLO => Hello::parse(kind, body).map(First::Hello),
            _ => Witness::parse(kind, body).map(First::Witness),
        }
    }
}

fn message(kind: u8, fields: &[&[u8]]) -> Bytes {
    let length: usize = fields.iter().map(|field| field.len()).sum();
    let mut bytes = Zeroizing::new(Vec::with_capacity(HEADER_LEN + length));
    bytes.push(kind);
    bytes.extend_from_slice(&(length as u16).to_be_bytes());
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The message that the bytes begin with, and how many they were, arriving `piece` bytes at a time.
    fn parse<M: Message>(bytes: &[u8], piece: usize) -> Result<(M, usize), MessageError> {
        let mut incoming = Incoming::new();
        let mut taken = 0;
        loop {
            let wanted = incoming.wanted();
            assert!(!wanted.is_empty(), "something is wanted until the message is whole");
            let count = wanted.len().min(piece).min(bytes.len() - taken);
            if count == 0 {
                return Err(incoming.ended());
            }
            wanted[..count].copy_from_slice(&bytes[taken..taken + count]);
            taken += count;
            if let Some(message) = incoming.filled(count)? {
                return Ok((message, taken));
            }
        }
    }

    fn hello(configured: u8, witnesses: &[u8]) -> Hello {
        let witnesses = PathIds::ascending(witnesses).expect("paths' numbers");
        let paths = Paths::new(configured, witnesses).expect("counts within bounds");
        let preface = Preface { version: Version::Anonymous, session: SessionId([7; 32]), paths };
        Hello { preface, noise: [9; NOISE_LEN] }
    }

    fn secret(byte: u8) -> Secret {
        Secret::copy_of(&[byte; 32])
    }

    fn all() -> [Bytes; 9] {
        let identified = Preface { version: Version::Identified, ..hello(2, &[1]).preface };
        let path = PathId::new(3).expect("a path's number");
        [
            hello(1, &[]).to_bytes(),
            hello(16, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]).to_bytes(),
            Reply { noise: vec![9; NOISE_LEN] }.to_bytes(),
            Witness { session: SessionId([7; 32]), path, share: secret(5) }.to_bytes(),
            Share { path, share: secret(5), confirmation: Tag::new([6; 32]) }.to_bytes(),
            Confirm { path, confirmation: Tag::new([6; 32]) }.to_bytes(),
            Hello { preface: identified, noise: [9; NOISE_LEN] }.to_bytes(),
            Reply { noise: vec![9; IDENTIFIED_LEN] }.to_bytes(),
            Identity { noise: [9; IDENTITY_LEN] }.to_bytes(),
        ]
    }

    /// Writes again what can be parsed as any of the messages.
    fn rewritten(bytes: &[u8], piece: usize) -> Option<(Bytes, usize)> {
        if let Ok((first, taken)) = parse::<First>(bytes, piece) {
            return Some(match first {
                First::Hello(hello) => (hello.to_bytes(), taken),
                First::Witness(witness) => (witness.to_bytes(), taken),
            });
        }
        let reply = parse::<Reply>(bytes, piece).map(|(reply, taken)| (reply.to_bytes(), taken));
        let share = parse::<Share>(bytes, piece).map(|(share, taken)| (share.to_bytes(), taken));
        let confirm = parse::<Confirm>(bytes, piece).map(|(confirm, taken)| (confirm.to_bytes(), taken));
        let identity = parse::<Identity>(bytes, piece).map(|(identity, taken)| (identity.to_bytes(), taken));
        reply.or(share).or(confirm).or(identity).ok()
    }

    #[test]
    fn messages_have_the_documented_form() {
        let hello = hello(4, &[1, 3, 15]).to_bytes();
        let expected = [&[1, 0, 86, 1][..], &[7; 32], &[4, 3, 1, 3, 15], &[9; 48]].concat();
        assert_eq!(*hello, expected);
        let [_, _, reply, witness, share, confirm, identified, longer, identity] = all();
        assert_eq!(*reply, [&[2, 0, 48][..], &[9; 48]].concat());
        assert_eq!(*witness, [&[3, 0, 66, 1][..], &[7; 32], &[3], &[5; 32]].concat());
        assert_eq!(*share, [&[4, 0, 65, 3][..], &[5; 32], &[6; 32]].concat());
        assert_eq!(*confirm, [&[5, 0, 33, 3][..], &[6; 32]].concat());
        assert_eq!(*identified, [&[1, 0, 84, 2][..], &[7; 32], &[2, 1, 1], &[9; 48]].concat());
        assert_eq!(*longer, [&[2, 0, 96][..], &[9; 96]].concat());
        assert_eq!(*identity, [&[6, 0, 64][..], &[9; 64]].concat());
    }

    #[test]
    fn the_longest_message_is_as_long_as_said() {
        assert_eq!(all().iter().map(|message| message.len()).max(), Some(MAX_LEN));
    }

    #[test]
    fn messages_round_trip_and_what_follows_them_is_left() {
        for bytes in all() {
            let stream = [&bytes[..], b"records"].concat();
            for piece in [1, 2, 3, 50, usize::MAX] {
                let (written, taken) = rewritten(&stream, piece).expect("a message");
                assert_eq!((written, taken), (bytes.clone(), bytes.len()));
            }
        }
    }

    #[test]
    fn a_stream_that_ends_early_says_so() {
        for bytes in all() {
            for length in 0..bytes.len() {
                assert!(rewritten(&bytes[..length], 7).is_none());
            }
        }
        let error = parse::<Reply>(&all()[2][..20], 7).expect_err("cut");
        assert_eq!(error, MessageError::Ended { expected: "REPLY", needed: 51, got: 20 });
    }

    #[test]
    fn every_rule_has_its_error() {
        let changed = |message: usize, at: usize, value: u8| {
            let mut bytes = all()[message].to_vec();
            bytes[at] = value;
            bytes
        };
        let first = |bytes: Vec<u8>| parse::<First>(&bytes, 99).expect_err("a broken rule");
        let expected = "HELLO or WITNESS";
        assert_eq!(first(changed(0, 0, 2)), MessageError::Type { expected, got: 2 });
        assert_eq!(first(changed(0, 0, 0)), MessageError::Type { expected, got: 0 });
        let length = |got| MessageError::Length { expected, least: 83, most: 98, got };
        assert_eq!(first(changed(0, 2, 82)), length(82));
        assert_eq!(first(changed(0, 2, 99)), length(99));
        assert_eq!(first(changed(0, 1, 255)), length(0xff53));
        assert_eq!(first(changed(0, 3, 3)), MessageError::Version(3));
        assert_eq!(first(changed(0, 3, 0)), MessageError::Version(0));
        assert_eq!(first(changed(3, 3, 2)), MessageError::Version(2));
        assert_eq!(first(changed(3, 3, 0)), MessageError::Version(0));
        let hello_length = |witnesses, expected, got| MessageError::HelloLength { witnesses, expected, got };
        assert_eq!(first(changed(1, 37, 16)), hello_length(16, 99, 98));
        assert_eq!(first(changed(1, 37, 14)), hello_length(14, 97, 98));
        assert_eq!(first(changed(0, 37, 255)), hello_length(255, 338, 83));
        let paths = |bytes: Vec<u8>| match first(bytes) {
            MessageError::Paths(error) => error,
            other => panic!("expected an error of paths, got {other}"),
        };
        assert_eq!(paths(changed(0, 36, 0)), PathsError::Configured(0));
        assert_eq!(paths(changed(1, 36, 15)), PathsError::Witnesses { configured: 15, got: 15 });
        assert_eq!(paths(changed(1, 38, 0)), PathsError::Number(0));
        assert_eq!(paths(changed(1, 39, 1)), PathsError::Order { before: 1, got: 1 });
        assert_eq!(paths(changed(3, 36, 0)), PathsError::Number(0));
        let reply = parse::<Reply>(&changed(7, 2, 95), 99).expect_err("a broken rule");
        assert_eq!(reply, MessageError::ReplyLength(95));
        let share = parse::<Share>(&changed(4, 3, 16), 99).expect_err("a broken rule");
        assert_eq!(share, PathsError::Number(16).into());
        let confirm = parse::<Confirm>(&changed(5, 2, 34), 99).expect_err("a broken rule");
        assert_eq!(confirm, MessageError::Length { expected: "CONFIRM", least: 33, most: 33, got: 34 });
    }

    #[test]
    fn shares_are_not_shown() {
        let witness = Witness {
            session: SessionId([7; 32]),
            path: PathId::new(3).expect("a path's number"),
            share: secret(0xab),
        };
        let shown = format!("{witness:?}");
        assert!(shown.contains("07070707") && !shown.contains("171") && !shown.contains("ab"), "{shown}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic_a_parser(bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1usize..9) {
            if let Some((written, taken)) = rewritten(&bytes, piece) {
                prop_assert_eq!(&written[..], &bytes[..taken]);
            }
        }

        #[test]
        fn what_is_nearly_a_message_is_written_as_it_came(
            message in 0usize..9,
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = all()[message].to_vec();
            for (at, value) in edits {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Some((written, taken)) = rewritten(&bytes, 5) {
                prop_assert_eq!(&written[..], &bytes[..taken]);
            }
        }
    }
}
