//! Runs both ends of a handshake against each other, through a hook that may do anything to a message.

use std::convert::Infallible;
use std::sync::LazyLock;

use plait_wire::mptcp::Key;
use zeroize::Zeroizing;

use super::framing::{Bytes, Message, MessageError, MessageReader};
use super::handshake::{
    Answer, AwaitingConfirms, Closing, HandshakeError, Initiator, InitiatorConfig, Opening, Params,
    RequiredPaths, Responder, ResponderConfig, Session, WitnessMessages,
};
use super::late_witness::{LateShares, SessionWitnesses};
use super::messages::{Flags, Hello};
use super::paths::{PathId, PathIds, Paths};
use super::service::{Service, Services};
use crate::codec::records::AeadCipher;
use crate::identity::PublicKey;
use crate::secret::Secret;

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

/// Why an end did not complete the handshake.
#[allow(dead_code, reason = "shown when a test fails")]
#[derive(Debug)]
pub(super) enum Failure {
    Message(MessageError),
    Handshake(HandshakeError),
    /// The other end failed first.
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

/// The result of a handshake at each end.
pub(super) struct Outcome {
    pub(super) initiator: Result<Session<()>, Failure>,
    pub(super) responder: Result<Session<()>, Failure>,
}

impl Outcome {
    pub(super) fn both(&self) -> bool {
        self.initiator.is_ok() && self.responder.is_ok()
    }
}

#[cfg(test)]
pub(super) const ANONYMOUS: Flags = Flags { identified: false, hybrid: false };
#[cfg(test)]
pub(super) const IDENTIFIED: Flags = Flags { identified: true, hybrid: false };
#[cfg(test)]
pub(super) const HYBRID: Flags = Flags { identified: false, hybrid: true };

/// All kinds of handshake.
#[cfg(test)]
pub(super) const KINDS: [Flags; 4] =
    [ANONYMOUS, IDENTIFIED, HYBRID, Flags { identified: true, hybrid: true }];

/// The service of tests.
pub(super) static SERVICE: LazyLock<Service> = LazyLock::new(|| Service::new("server.example", 443));
pub(super) static SERVICES: LazyLock<Services> = LazyLock::new(|| Services::on_port(443));

/// The parameters of tests.
pub(super) fn params(cipher: AeadCipher) -> Params {
    let chosen = match cipher {
        AeadCipher::ChaCha20Poly1305 => 0x10,
        AeadCipher::Aes256Gcm => 0x20,
    };
    let (initiator, responder) = (Key::new(*b"Ki:12345"), Key::new(*b"Kr:67890"));
    Params { offered: 0x30, chosen, cipher, initiator, responder }
}

/// So many configured paths, with witnesses on all but the main one.
pub(super) fn paths(count: u8) -> Paths {
    let witnesses: Result<PathIds, _> = (1..count).map(PathId::new).collect();
    Paths::new(count, witnesses.expect("path numbers")).expect("fewer witnesses than paths")
}

/// The static keys of the two ends in tests.
pub(super) fn static_keys() -> [Secret; 2] {
    [Secret::copy_of(&[0x11; 32]), Secret::copy_of(&[0x22; 32])]
}

/// Accepts every peer.
pub(super) fn accept_any(_: &PublicKey) -> Result<(), Infallible> {
    Ok(())
}

/// The configuration of a responder with this static key, or none.
pub(super) fn config(static_key: Option<&Secret>) -> ResponderConfig<'_> {
    ResponderConfig { paths: RequiredPaths::Any, static_key, require_identity: false, services: &SERVICES }
}

/// The configuration of an initiator with this static key, or none, without a second key exchange.
pub(super) fn asks(paths: RequiredPaths, static_key: Option<&Secret>) -> InitiatorConfig<'_> {
    InitiatorConfig { paths, static_key, hybrid: false, service: &SERVICE }
}

/// Runs a handshake of anonymous ends; every message goes through `wire`.
#[cfg(test)]
pub(super) fn run(ends: [&Params; 2], paths: Paths, wire: impl FnMut(Step, &mut Bytes)) -> Outcome {
    run_kind(ANONYMOUS, ends, paths, wire)
}

/// Runs a handshake; every message goes through `wire`.
pub(super) fn run_kind(
    kind: Flags,
    ends: [&Params; 2],
    paths: Paths,
    mut wire: impl FnMut(Step, &mut Bytes),
) -> Outcome {
    let keys = static_keys();
    let static_key = |end: usize| kind.identified.then_some(&keys[end]);
    let fails = |failure: Failure, at_responder: bool| {
        let (failed, other) = (Err(failure), Err(Failure::Reset));
        if at_responder {
            Outcome { initiator: other, responder: failed }
        } else {
            Outcome { initiator: failed, responder: other }
        }
    };
    let asked = InitiatorConfig { hybrid: kind.hybrid, ..asks(RequiredPaths::Any, static_key(0)) };
    let (initiator, opening) = match Initiator::start(ends[0], paths, asked) {
        Ok(started) => started,
        Err(error) => return fails(error.into(), false),
    };
    let (awaiting, answer) = match respond(ends[1], config(static_key(1)), opening, &mut wire) {
        Ok(replied) => replied,
        Err(failure) => return fails(failure, true),
    };
    let (session, closing) = match finish(initiator, answer, &mut wire) {
        Ok(finished) => finished,
        Err(failure) => return fails(failure, false),
    };
    Outcome { initiator: Ok(session), responder: confirm(awaiting, closing, &mut wire) }
}

fn confirm(
    awaiting: AwaitingConfirms,
    closing: Closing,
    wire: &mut impl FnMut(Step, &mut Bytes),
) -> Result<Session<()>, Failure> {
    let identity = closing.identity.map(|mut bytes| {
        wire(Step::Identity, &mut bytes);
        parse(&bytes)
    });
    let identity = identity.transpose()?;
    let confirms = deliver(closing.confirms, Step::Confirm, wire)?;
    Ok(awaiting.verify(identity.as_ref(), confirms, accept_any)?)
}

fn respond(
    params: &Params,
    config: ResponderConfig<'_>,
    mut opening: Opening,
    wire: &mut impl FnMut(Step, &mut Bytes),
) -> Result<(AwaitingConfirms, Answer), Failure> {
    wire(Step::Hello, &mut opening.hello);
    let hello: Hello = parse(&opening.hello)?;
    let responder = Responder::accept(params, &hello, config)?;
    let witnesses = deliver(opening.witnesses, Step::Witness, wire)?;
    Ok(responder.reply(witnesses.into_iter().map(|(_, witness)| witness).collect())?)
}

fn finish(
    initiator: Initiator,
    mut answer: Answer,
    wire: &mut impl FnMut(Step, &mut Bytes),
) -> Result<(Session<()>, Closing), Failure> {
    wire(Step::Reply, &mut answer.reply);
    let reply = parse(&answer.reply)?;
    Ok(initiator.finish(&reply, deliver(answer.shares, Step::Share, wire)?, accept_any)?)
}

/// Messages for witnesses, as they arrive.
fn deliver<M: Message>(
    messages: WitnessMessages,
    step: impl Fn(PathId) -> Step,
    wire: &mut impl FnMut(Step, &mut Bytes),
) -> Result<Vec<(PathId, M)>, MessageError> {
    let arrives = |(path, mut bytes): (PathId, Bytes)| {
        wire(step(path), &mut bytes);
        Ok((path, parse(&bytes)?))
    };
    messages.into_iter().map(arrives).collect()
}

/// Exchanges the messages of a late witness between the initiator and the responder; every message goes through `wire`.
pub(super) fn late_witness(
    [initiator, responder]: [&SessionWitnesses; 2],
    path: PathId,
    mut wire: impl FnMut(Step, &mut Bytes),
) -> Result<[LateShares; 2], Failure> {
    let (awaiting_share, mut witness) = initiator.witness(path)?;
    wire(Step::Witness(path), &mut witness);
    let (awaiting_confirm, mut share) = responder.share(parse(&witness)?)?;
    wire(Step::Share(path), &mut share);
    let (ours, mut confirm) = initiator.verify_share(awaiting_share, parse(&share)?)?;
    wire(Step::Confirm(path), &mut confirm);
    let theirs = responder.verify_confirm(awaiting_confirm, &parse(&confirm)?)?;
    Ok([ours, theirs])
}

/// Parses the message at the front of the bytes.
pub(super) fn parse<M: Message>(bytes: &[u8]) -> Result<M, MessageError> {
    Ok(parse_pieces(bytes, usize::MAX)?.0)
}

/// Parses the message at the front of the bytes, which arrive `piece` bytes at a time; and its length.
pub(super) fn parse_pieces<M: Message>(bytes: &[u8], piece: usize) -> Result<(M, usize), MessageError> {
    let mut reader = MessageReader::new();
    let mut taken = 0;
    loop {
        let buffer = reader.buffer();
        assert!(!buffer.is_empty(), "the reader wants bytes until the message is complete");
        let count = buffer.len().min(piece).min(bytes.len() - taken);
        if count == 0 {
            return Err(reader.end_of_stream());
        }
        buffer[..count].copy_from_slice(&bytes[taken..taken + count]);
        taken += count;
        if let Some(message) = reader.advance(count)? {
            return Ok((message, taken));
        }
    }
}

/// The messages of an undisturbed handshake.
pub(super) fn recorded(kind: Flags, cipher: AeadCipher, paths: Paths) -> Vec<(Step, Bytes)> {
    let params = params(cipher);
    let mut messages = Vec::new();
    run_kind(kind, [&params, &params], paths, |step, bytes| {
        messages.push((step, Zeroizing::new(bytes.to_vec())));
    });
    messages
}
