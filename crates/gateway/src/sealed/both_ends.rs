//! Both ends of a handshake in one place, and a wire between them that may do anything to a message.

use plait_linux::mptcp::Key;
use plait_proto::sealed::Cipher;
use zeroize::Zeroizing;

use super::handshake::{
    Agreed, Answer, Closing, Demand, Established, ForWitnesses, HandshakeError, Initiator, Opening,
    Responder, Terms, Unconfirmed,
};
use super::keys::Secret;
use super::messages::{Bytes, Hello, Incoming, Message, MessageError, Version};
use super::paths::{PathId, PathIds, Paths};
use crate::identity::PublicKey;
use crate::trust::{Recognised, Stranger};

/// A message of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Hello,
    Witness(PathId),
    Reply,
    Share(PathId),
    Identity,
    Confirm(PathId),
}

/// Why an end has no keys.
#[allow(dead_code, reason = "a failed test shows what is inside")]
#[derive(Debug)]
pub(super) enum Failure {
    Message(MessageError),
    Handshake(HandshakeError),
    /// The other end failed before.
    Reset,
}

impl From<MessageError> for Failure {
    fn from(error: MessageError) -> Failure {
        Failure::Message(error)
    }
}

impl From<HandshakeError> for Failure {
    fn from(error: HandshakeError) -> Failure {
        Failure::Handshake(error)
    }
}

/// What became of a handshake at each end.
pub(super) struct Outcome {
    pub(super) initiator: Result<Established, Failure>,
    pub(super) responder: Result<Established, Failure>,
}

impl Outcome {
    pub(super) fn both(&self) -> bool {
        self.initiator.is_ok() && self.responder.is_ok()
    }
}

/// What the TCP handshake settles in tests.
pub(super) fn agreed(cipher: Cipher) -> Agreed {
    let chosen = match cipher {
        Cipher::ChaCha20Poly1305 => 0x10,
        Cipher::Aes256Gcm => 0x20,
    };
    let (initiator, responder) = (Key::new(*b"Ki:12345"), Key::new(*b"Kr:67890"));
    Agreed { offered: 0x30, chosen, cipher, initiator, responder }
}

/// As many paths, the main one and witnesses on all others.
pub(super) fn paths(count: u8) -> Paths {
    let witnesses: Result<PathIds, _> = (1..count).map(PathId::new).collect();
    Paths::new(count, witnesses.expect("paths' numbers")).expect("fewer witnesses than paths")
}

/// The static keys of the two ends in tests.
pub(super) fn own() -> [Secret; 2] {
    [Secret::copy_of(&[0x11; 32]), Secret::copy_of(&[0x22; 32])]
}

/// An end to which every other is as good.
pub(super) fn anybody(_: &PublicKey) -> Result<Option<Recognised>, Stranger> {
    Ok(None)
}

/// What a responder of this version demands.
pub(super) fn terms(own: Option<&Secret>) -> Terms<'_> {
    Terms { demand: Demand::AnyLevel, own, identified: false }
}

/// Runs a handshake of ends that do not say who they are; every message goes through `wire`.
#[cfg(test)]
pub(super) fn run(ends: [&Agreed; 2], paths: Paths, wire: impl FnMut(Step, &mut Bytes)) -> Outcome {
    run_version(Version::Anonymous, ends, paths, wire)
}

/// Runs a handshake; every message goes through `wire`.
pub(super) fn run_version(
    version: Version,
    ends: [&Agreed; 2],
    paths: Paths,
    mut wire: impl FnMut(Step, &mut Bytes),
) -> Outcome {
    let own = own();
    let shown = |end: usize| (version == Version::Identified).then_some(&own[end]);
    let fails = |failure: Failure, at_responder: bool| {
        let (failed, other) = (Err(failure), Err(Failure::Reset));
        if at_responder {
            Outcome { initiator: other, responder: failed }
        } else {
            Outcome { initiator: failed, responder: other }
        }
    };
    let (initiator, opening) = match Initiator::begin(ends[0], paths, Demand::AnyLevel, shown(0)) {
        Ok(begun) => begun,
        Err(error) => return fails(error.into(), false),
    };
    let (unconfirmed, answer) = match respond(ends[1], terms(shown(1)), opening, &mut wire) {
        Ok(answered) => answered,
        Err(failure) => return fails(failure, true),
    };
    let (established, closing) = match conclude(initiator, answer, &mut wire) {
        Ok(concluded) => concluded,
        Err(failure) => return fails(failure, false),
    };
    Outcome { initiator: Ok(established), responder: confirm(unconfirmed, closing, &mut wire) }
}

fn confirm(
    unconfirmed: Unconfirmed,
    closing: Closing,
    wire: &mut impl FnMut(Step, &mut Bytes),
) -> Result<Established, Failure> {
    let identity = closing.identity.map(|mut bytes| {
        wire(Step::Identity, &mut bytes);
        whole(&bytes)
    });
    let identity = identity.transpose()?;
    let confirms = through(closing.confirms, Step::Confirm, wire)?;
    Ok(unconfirmed.verify(identity.as_ref(), confirms, anybody)?)
}

fn respond(
    agreed: &Agreed,
    terms: Terms<'_>,
    mut opening: Opening,
    wire: &mut impl FnMut(Step, &mut Bytes),
) -> Result<(Unconfirmed, Answer), Failure> {
    wire(Step::Hello, &mut opening.hello);
    let hello: Hello = whole(&opening.hello)?;
    let responder = Responder::hear(agreed, &hello, terms)?;
    let witnesses = through(opening.witnesses, Step::Witness, wire)?;
    Ok(responder.answer(witnesses.into_iter().map(|(_, witness)| witness).collect())?)
}

fn conclude(
    initiator: Initiator,
    mut answer: Answer,
    wire: &mut impl FnMut(Step, &mut Bytes),
) -> Result<(Established, Closing), Failure> {
    wire(Step::Reply, &mut answer.reply);
    let reply = whole(&answer.reply)?;
    Ok(initiator.finish(&reply, through(answer.shares, Step::Share, wire)?, anybody)?)
}

/// Messages for witnesses, as they arrive.
fn through<M: Message>(
    messages: ForWitnesses,
    step: impl Fn(PathId) -> Step,
    wire: &mut impl FnMut(Step, &mut Bytes),
) -> Result<Vec<(PathId, M)>, MessageError> {
    let arrives = |(path, mut bytes): (PathId, Bytes)| {
        wire(step(path), &mut bytes);
        Ok((path, whole(&bytes)?))
    };
    messages.into_iter().map(arrives).collect()
}

/// The message that the bytes begin with.
pub(super) fn whole<M: Message>(mut bytes: &[u8]) -> Result<M, MessageError> {
    let mut incoming = Incoming::new();
    loop {
        let wanted = incoming.wanted();
        let count = wanted.len().min(bytes.len());
        if count == 0 {
            return Err(incoming.ended());
        }
        let (here, rest) = bytes.split_at(count);
        wanted[..count].copy_from_slice(here);
        bytes = rest;
        if let Some(message) = incoming.filled(count)? {
            return Ok(message);
        }
    }
}

/// The messages of an honest handshake.
pub(super) fn recorded(version: Version, cipher: Cipher, paths: Paths) -> Vec<(Step, Bytes)> {
    let agreed = agreed(cipher);
    let mut messages = Vec::new();
    run_version(version, [&agreed, &agreed], paths, |step, bytes| {
        messages.push((step, Zeroizing::new(bytes.to_vec())));
    });
    messages
}
