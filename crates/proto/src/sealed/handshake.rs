//! The state machines of both ends. Each step consumes the one before it; keys come out of the last.
//!
//! The initiator: [`Initiator::start`] and [`Initiator::finish`]. The responder: [`Responder::accept`],
//! [`Responder::reply`] and [`AwaitingConfirms::verify`]. After an error both ends reset every connection of the session.

use std::collections::BTreeMap;
use std::error::Error;

use plait_wire::mptcp::Key;
use zeroize::Zeroizing;

use super::exporter::Exporter;
use super::framing::{Bytes, NOISE_LEN};
use super::kem;
use super::key_update::UpdateSecrets;
use super::keys::{End, KeySchedule, Shares};
use super::late_witness::SessionWitnesses;
use super::messages::{Confirm, Hello, Identity, Preface, Reply, Share, Witness};
use super::noise::{AfterReply, Noise, Split, Suite};
use super::paths::{Level, PathId, PathIds, Paths};
use super::root::Root;
use super::service::{Service, Services};
use super::session_id::SessionId;
use crate::close_reason::CloseReason;
use crate::codec::records::{AeadCipher, Sealer};
use crate::identity::PublicKey;
use crate::secret::{RandomError, Secret};

/// What the TCP handshake of the main connection negotiated. Bound into the handshake: it fails unless both ends have
/// the same.
pub struct Params {
    /// The variants that the initiator offered, as bits of the TCP option.
    pub offered: u8,
    /// The bit of the variant that the responder chose.
    pub chosen: u8,
    /// The chosen variant's cipher.
    pub cipher: AeadCipher,
    /// The initiator's MPTCP key.
    pub initiator: Key,
    /// The responder's MPTCP key.
    pub responder: Key,
}

impl Params {
    /// The Noise handshake's prologue: the handshake fails unless both ends computed the same.
    fn prologue(&self, preface: &Preface) -> Zeroizing<Vec<u8>> {
        let (initiator, responder) = (self.initiator.as_bytes(), self.responder.as_bytes());
        let modes = [self.offered, self.chosen];
        Zeroizing::new([&b"plait sealed 3"[..], &modes, initiator, responder, &preface.bytes()].concat())
    }
}

/// How many of the configured paths must take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredPaths {
    /// Any number: the session's [`Level`] tells how many there were.
    Any,
    /// At least so many, the main one included, however many are configured.
    AtLeast(u8),
    /// All of them, which must be at least two: a single path has no witness.
    All,
}

impl RequiredPaths {
    fn check(self, level: Level) -> Result<(), HandshakeError> {
        match self {
            RequiredPaths::AtLeast(required) if level.reached < required => {
                Err(HandshakeError::TooFewPaths { required, level })
            }
            RequiredPaths::All if !level.is_full() => Err(HandshakeError::Level(level)),
            _ => Ok(()),
        }
    }
}

/// What an initiator asks for and requires.
#[derive(Clone, Copy)]
pub struct InitiatorConfig<'a> {
    /// Paths that must have a witness.
    pub paths: RequiredPaths,
    /// Its own static private key, with which both ends authenticate.
    pub static_key: Option<&'a Secret>,
    /// Whether to exchange keys with ML-KEM-768 as well as with X25519.
    pub hybrid: bool,
    /// The peer as the application named it.
    pub service: &'a Service,
}

/// How a responder authenticates, and what it requires of initiators.
#[derive(Clone, Copy)]
pub struct ResponderConfig<'a> {
    /// Paths that must have a witness.
    pub paths: RequiredPaths,
    /// Its own static private key, if it has one.
    pub static_key: Option<&'a Secret>,
    /// Whether initiators must authenticate.
    pub require_identity: bool,
    /// What it may be asked for.
    pub services: &'a Services,
}

/// The handshake failed: nothing more may be sent on any of its connections.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// Not all configured paths have a witness, and all are required.
    #[error(
        "expected a witness on every configured path, got {0}{single}",
        single = if .0.is_single() { " (single path)" } else { "" }
    )]
    Level(Level),
    /// Fewer paths take part than are required.
    #[error("expected at least {required} paths in the handshake, got {level}")]
    TooFewPaths {
        /// The required number.
        required: u8,
        /// The paths that took part, of those configured.
        level: Level,
    },
    /// The initiator asks for another service than this one.
    #[error("the initiator asks for another service, on port {port}")]
    Service {
        /// The port that it asks for.
        port: u16,
    },
    /// The encapsulation key in HELLO is none.
    #[error("expected an ML-KEM-768 encapsulation key in HELLO, got a value out of range")]
    EncapsulationKey,
    /// HELLO failed authentication.
    #[error(
        "HELLO failed authentication: it was modified on the way, or the TCP options of the connection were"
    )]
    Hello,
    /// REPLY failed authentication.
    #[error("REPLY failed authentication: it, HELLO or a share on another path was modified on the way")]
    Reply,
    /// The initiator asks for a static key, and the responder has none.
    #[error("the initiator asks for an identity, and this end has none: create one with `plait identity`")]
    NoIdentity,
    /// The initiator does not authenticate, and must.
    #[error("the initiator is anonymous, and only known clients may connect (`clients` in [identity])")]
    Anonymous,
    /// IDENTITY is missing, unexpected or failed authentication.
    #[error("IDENTITY is missing or failed authentication: it was modified on the way")]
    Identity,
    /// The caller rejected the peer's static key.
    #[error("{reason}")]
    PeerRejected {
        /// Why.
        reason: Box<dyn Error + Send + Sync>,
        /// At the responder: the last record to the initiator, which tells it.
        notice: Bytes,
    },
    /// A confirmation is wrong.
    #[error("the confirmation on path {0} is wrong: an attacker on another path is in the middle")]
    Confirmation(PathId),
    /// A message of one path came by the connection of another.
    #[error("expected a {message} of path {expected} on its connection, got one of path {got}")]
    WrongPath {
        /// The kind of message.
        message: &'static str,
        /// The connection's path.
        expected: PathId,
        /// The path that the message names.
        got: PathId,
    },
    /// A WITNESS of another session.
    #[error("expected a WITNESS of session {expected:?}, got one of session {got:?}")]
    WrongSession {
        /// This session.
        expected: SessionId,
        /// The session that the message names.
        got: SessionId,
    },
    /// A message of a path that HELLO does not list.
    #[error("{0} of path {1}, which HELLO does not list")]
    Unlisted(&'static str, PathId),
    /// Two messages of one path.
    #[error("expected one {0} of path {1}, got another")]
    Repeated(&'static str, PathId),
    /// No message of a path that HELLO lists.
    #[error("expected a {0} of path {1}, got none")]
    Missing(&'static str, PathId),
    /// No random bytes.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The Noise library failed for a reason other than the messages.
    #[error("the Noise library: {0}")]
    Library(Box<dyn Error + Send + Sync>),
}

impl HandshakeError {
    /// Whether it failed because of an end's identity.
    #[must_use]
    pub fn is_about_identity(&self) -> bool {
        matches!(
            self,
            HandshakeError::NoIdentity | HandshakeError::Anonymous | HandshakeError::PeerRejected { .. }
        )
    }

    fn library(error: snow::Error) -> HandshakeError {
        HandshakeError::Library(Box::new(error))
    }
}

/// Messages for the connections of the witnesses.
pub type WitnessMessages = Vec<(PathId, Bytes)>;

/// A completed handshake: everything was verified. `P` is what the caller's verification knows of the peer.
pub struct Session<P> {
    /// The cipher of the records.
    pub cipher: AeadCipher,
    /// The key of the records that this end sends.
    pub send_key: Secret,
    /// The key of the records that this end receives.
    pub recv_key: Secret,
    /// Keys for other protocols.
    pub exporter: Exporter,
    /// What the keys after these will follow from.
    pub updates: UpdateSecrets,
    /// Its witnesses, and so its level; late ones can be added.
    pub witnesses: SessionWitnesses,
    /// The result of verifying the peer's static key; `None` if it is anonymous.
    pub peer: Option<P>,
}

impl<P> Session<P> {
    fn new(
        end: End,
        cipher: AeadCipher,
        hybrid: bool,
        (session, paths): (SessionId, Paths),
        split: Split,
        peer: Option<P>,
    ) -> Session<P> {
        let root = Root::of_handshake(&split);
        let exporter = Exporter::new(&root);
        let witnesses = SessionWitnesses::new(session, &root, &split, paths);
        let updates = UpdateSecrets { end, hybrid, root };
        let Split { to_responder, to_initiator, .. } = split;
        let (send_key, recv_key) = match end {
            End::Initiator => (to_responder, to_initiator),
            End::Responder => (to_initiator, to_responder),
        };
        Session { cipher, send_key, recv_key, exporter, updates, witnesses, peer }
    }
}

/// The end that opened the connection, waiting for REPLY and SHAREs.
pub struct Initiator {
    cipher: AeadCipher,
    preface: Preface,
    secrets: InitiatorSecrets,
    noise: Noise,
}

/// The initiator's secrets of one session, besides those of Noise.
pub(super) struct InitiatorSecrets {
    pub(super) shares: BTreeMap<PathId, Secret>,
    /// Of a hybrid handshake.
    pub(super) kem: Option<kem::KeyPair>,
}

/// The initiator's first messages, sent at once.
pub struct Opening {
    /// HELLO, for the main connection.
    pub hello: Bytes,
    /// A WITNESS for every other path's connection.
    pub witnesses: WitnessMessages,
}

/// The initiator's last messages, sent before its first record.
pub struct Closing {
    /// IDENTITY, for the main connection, if the ends authenticate.
    pub identity: Option<Bytes>,
    /// A CONFIRM for every other path's connection.
    pub confirms: WitnessMessages,
}

impl Initiator {
    /// Starts a session over the paths whose connections are open.
    ///
    /// # Errors
    /// Too few paths have a witness, or there are no random bytes.
    pub fn start(
        params: &Params,
        paths: Paths,
        config: InitiatorConfig<'_>,
    ) -> Result<(Initiator, Opening), HandshakeError> {
        config.paths.check(paths.level())?;
        let kem = config.hybrid.then(kem::KeyPair::generate).transpose()?;
        let session = SessionId::random()?;
        let preface = Preface {
            identified: config.static_key.is_some(),
            session,
            paths,
            service: config.service.requested(&session),
            encapsulation_key: kem.as_ref().map(|pair| pair.public.clone()),
        };
        let secrets = InitiatorSecrets { shares: random_shares(paths.witnesses())?, kem };
        Self::start_with(params, preface, secrets, config.static_key, Noise::initiator)
    }

    pub(super) fn start_with(
        params: &Params,
        preface: Preface,
        secrets: InitiatorSecrets,
        static_key: Option<&Secret>,
        first: impl FnOnce(Suite<'_>, &[u8]) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error>,
    ) -> Result<(Initiator, Opening), HandshakeError> {
        let suite = Suite { cipher: params.cipher, static_key };
        let (noise, message) = first(suite, &params.prologue(&preface)).map_err(HandshakeError::library)?;
        let session = preface.session;
        let witness = |(path, share): (&PathId, &Secret)| {
            let share = Secret::copy_of(share.as_bytes());
            (*path, Witness { session, path: *path, share }.to_bytes())
        };
        let witnesses = secrets.shares.iter().map(witness).collect();
        let hello = Hello { preface: preface.clone(), noise: message }.to_bytes();
        Ok((Initiator { cipher: params.cipher, preface, secrets, noise }, Opening { hello, witnesses }))
    }

    /// Verifies REPLY and every SHARE, given with the path of the connection it came by. If the ends authenticate,
    /// `verify_peer` accepts or rejects the responder's static key.
    ///
    /// # Errors
    /// A message is missing, was modified or belongs elsewhere, or the peer was rejected.
    pub fn finish<P, E: Into<Box<dyn Error + Send + Sync>>>(
        self,
        reply: &Reply,
        shares: Vec<(PathId, Share)>,
        verify_peer: impl FnOnce(&PublicKey) -> Result<P, E>,
    ) -> Result<(Session<P>, Closing), HandshakeError> {
        let answers = shares.into_iter().map(|(path, share)| (path, share.path, share));
        let answers = one_per_path("SHARE", self.preface.paths.witnesses(), answers)?;
        let mut confirmations = Vec::new();
        let mut shares = BTreeMap::new();
        // Both have exactly the listed paths, in ascending order.
        for ((path, initiator), (_, answer)) in self.secrets.shares.into_iter().zip(answers) {
            confirmations.push((path, answer.confirmation));
            shares.insert(path, Shares { initiator, responder: answer.share });
        }

        let kem = match (&self.secrets.kem, &reply.ciphertext) {
            (Some(pair), Some(ciphertext)) => Some(pair.decapsulate(ciphertext)),
            (None, None) => None,
            _ => return Err(HandshakeError::Reply),
        };
        let keys = KeySchedule::derive(&self.preface.session, &shares, kem.as_ref());
        let noise = self.noise.read_reply(&keys.psk, &reply.noise).map_err(|_| HandshakeError::Reply)?;
        for (path, confirmation) in confirmations {
            if !keys.confirms(End::Responder, path, noise.hash(), &confirmation) {
                return Err(HandshakeError::Confirmation(path));
            }
        }

        let (split, peer, identity) = match noise {
            AfterReply::Anonymous(split) => (split, None, None),
            AfterReply::Identified(awaiting) => {
                let rejected = |reason| HandshakeError::PeerRejected { reason, notice: Bytes::default() };
                let peer = verify(verify_peer, &awaiting.responder_key()).map_err(rejected)?;
                let (split, noise) = awaiting.write_identity().map_err(HandshakeError::library)?;
                (split, Some(peer), Some(Identity { noise }.to_bytes()))
            }
        };
        let confirm = |path| {
            let confirmation = keys.confirmation(End::Initiator, path, &split.hash);
            (path, Confirm { path, confirmation }.to_bytes())
        };
        let confirms = self.preface.paths.witnesses().iter().map(confirm).collect();
        let names = (self.preface.session, self.preface.paths);
        let session = Session::new(End::Initiator, self.cipher, kem.is_some(), names, split, peer);
        Ok((session, Closing { identity, confirms }))
    }
}

/// The end that accepted the connection, waiting for its WITNESSes.
pub struct Responder {
    cipher: AeadCipher,
    preface: Preface,
    noise: Noise,
    /// The index of the requested service.
    requested: usize,
}

/// The responder's messages, sent at once.
pub struct Answer {
    /// REPLY, for the main connection.
    pub reply: Bytes,
    /// A SHARE for every other path's connection.
    pub shares: WitnessMessages,
}

impl Responder {
    /// Reads HELLO. Computes no key agreement, so that a session is cheap until its witnesses have arrived.
    ///
    /// # Errors
    /// HELLO was modified, or does not fulfil the `config`.
    pub fn accept(
        params: &Params,
        hello: &Hello,
        config: ResponderConfig<'_>,
    ) -> Result<Responder, HandshakeError> {
        config.paths.check(hello.preface.paths.level())?;
        let Preface { session, service, identified, .. } = &hello.preface;
        let found = config.services.find(session, service);
        let requested = found.ok_or(HandshakeError::Service { port: service.port })?;
        let static_key = match identified {
            false if config.require_identity || config.services.requires_identity(requested) => {
                return Err(HandshakeError::Anonymous);
            }
            false => None,
            true => Some(config.static_key.ok_or(HandshakeError::NoIdentity)?),
        };
        let responder = Self::accept_with(params, hello, static_key, Noise::responder)?;
        Ok(Responder { requested, ..responder })
    }

    pub(super) fn accept_with(
        params: &Params,
        hello: &Hello,
        static_key: Option<&Secret>,
        second: impl FnOnce(Suite<'_>, &[u8], &[u8; NOISE_LEN]) -> Result<Noise, snow::Error>,
    ) -> Result<Responder, HandshakeError> {
        let preface = hello.preface.clone();
        let suite = Suite { cipher: params.cipher, static_key };
        let noise =
            second(suite, &params.prologue(&preface), &hello.noise).map_err(|_| HandshakeError::Hello)?;
        Ok(Responder { cipher: params.cipher, preface, noise, requested: 0 })
    }

    /// The index of the requested service among those of the configuration.
    #[must_use]
    pub fn requested_service(&self) -> usize {
        self.requested
    }

    /// The session that the witnesses must name.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.preface.session
    }

    /// The paths on which a WITNESS must come.
    #[must_use]
    pub fn witnesses(&self) -> PathIds {
        self.preface.paths.witnesses()
    }

    /// Replies, once there is a WITNESS of every path that HELLO lists.
    ///
    /// # Errors
    /// A WITNESS is missing or belongs elsewhere, or there are no random bytes.
    pub fn reply(self, witnesses: Vec<Witness>) -> Result<(AwaitingConfirms, Answer), HandshakeError> {
        let own_shares = random_shares(self.witnesses())?;
        let encapsulated = Secret::random()?;
        self.reply_with(witnesses, own_shares, &encapsulated)
    }

    pub(super) fn reply_with(
        self,
        witnesses: Vec<Witness>,
        own_shares: BTreeMap<PathId, Secret>,
        encapsulated: &Secret,
    ) -> Result<(AwaitingConfirms, Answer), HandshakeError> {
        let Responder { cipher, preface, noise, requested: _ } = self;
        if let Some(stray) = witnesses.iter().find(|witness| witness.session != preface.session) {
            return Err(HandshakeError::WrongSession { expected: preface.session, got: stray.session });
        }
        let (session, paths) = (preface.session, preface.paths);
        let witnesses = witnesses.into_iter().map(|witness| (witness.path, witness.path, witness));
        let witnesses = one_per_path("WITNESS", paths.witnesses(), witnesses)?;
        // Both have exactly the listed paths, in ascending order.
        let shares = own_shares
            .into_iter()
            .zip(witnesses)
            .map(|((path, responder), (_, witness))| (path, Shares { initiator: witness.share, responder }));
        let shares = shares.collect();

        let encapsulate = |key| {
            kem::encapsulate(key, encapsulated).map_err(|kem::InvalidKey| HandshakeError::EncapsulationKey)
        };
        let (ciphertext, kem) = preface.encapsulation_key.as_ref().map(encapsulate).transpose()?.unzip();
        let keys = KeySchedule::derive(&preface.session, &shares, kem.as_ref());
        let (after, noise) = noise.write_reply(&keys.psk).map_err(HandshakeError::library)?;
        let share = |(path, shares): (PathId, Shares)| {
            let confirmation = keys.confirmation(End::Responder, path, after.hash());
            (path, Share { path, share: shares.responder, confirmation }.to_bytes())
        };
        let shares = shares.into_iter().map(share).collect();
        let answer = Answer { reply: Reply { ciphertext, noise }.to_bytes(), shares };
        let hybrid = kem.is_some();
        Ok((AwaitingConfirms { cipher, hybrid, session, paths, keys, noise: after }, answer))
    }
}

/// A responder that has replied. Its keys stay inside until the initiator has confirmed.
pub struct AwaitingConfirms {
    cipher: AeadCipher,
    hybrid: bool,
    session: SessionId,
    paths: Paths,
    keys: KeySchedule,
    noise: AfterReply,
}

impl AwaitingConfirms {
    /// The handshake hash after message 2.
    #[cfg(test)]
    pub(super) fn hash(&self) -> &[u8; 32] {
        self.noise.hash()
    }

    /// Whether the initiator must send IDENTITY.
    #[must_use]
    pub fn expects_identity(&self) -> bool {
        matches!(self.noise, AfterReply::Identified(_))
    }

    /// Verifies IDENTITY, if it is [expected](Self::expects_identity), and every CONFIRM, given with the path of the
    /// connection it came by. If the ends authenticate, `verify_peer` accepts or rejects the initiator's static key.
    ///
    /// # Errors
    /// A message is missing, was modified or belongs elsewhere, or the peer was rejected.
    pub fn verify<P, E: Into<Box<dyn Error + Send + Sync>>>(
        self,
        identity: Option<&Identity>,
        confirms: Vec<(PathId, Confirm)>,
        verify_peer: impl FnOnce(&PublicKey) -> Result<P, E>,
    ) -> Result<Session<P>, HandshakeError> {
        let (split, initiator) = match (self.noise, identity) {
            (AfterReply::Anonymous(split), None) => (split, None),
            (AfterReply::Identified(awaiting), Some(identity)) => {
                let read = awaiting.read_identity(&identity.noise).map_err(|_| HandshakeError::Identity)?;
                (read.0, Some(read.1))
            }
            _ => return Err(HandshakeError::Identity),
        };
        let confirms = confirms.into_iter().map(|(path, confirm)| (path, confirm.path, confirm));
        let confirms = one_per_path("CONFIRM", self.paths.witnesses(), confirms)?;
        for (path, confirm) in confirms {
            if !self.keys.confirms(End::Initiator, path, &split.hash, &confirm.confirmation) {
                return Err(HandshakeError::Confirmation(path));
            }
        }
        let peer = initiator.map(|key| verify(verify_peer, &key)).transpose().map_err(|reason| {
            let mut sealer = Sealer::new(self.cipher, split.to_initiator.as_bytes());
            let notice = Zeroizing::new(sealer.failure(CloseReason::Identity));
            HandshakeError::PeerRejected { reason, notice }
        })?;
        let names = (self.session, self.paths);
        Ok(Session::new(End::Responder, self.cipher, self.hybrid, names, split, peer))
    }
}

fn verify<P, E: Into<Box<dyn Error + Send + Sync>>>(
    verify_peer: impl FnOnce(&PublicKey) -> Result<P, E>,
    key: &PublicKey,
) -> Result<P, Box<dyn Error + Send + Sync>> {
    verify_peer(key).map_err(Into::into)
}

fn random_shares(paths: PathIds) -> Result<BTreeMap<PathId, Secret>, RandomError> {
    paths.iter().map(|path| Ok((path, Secret::random()?))).collect()
}

/// Exactly one message of every listed path. A message comes with the path of its connection and the path that it names.
fn one_per_path<M>(
    message: &'static str,
    listed: PathIds,
    messages: impl Iterator<Item = (PathId, PathId, M)>,
) -> Result<BTreeMap<PathId, M>, HandshakeError> {
    let mut per_path = BTreeMap::new();
    for (expected, got, content) in messages {
        if got != expected {
            return Err(HandshakeError::WrongPath { message, expected, got });
        }
        if !listed.contains(got) {
            return Err(HandshakeError::Unlisted(message, got));
        }
        if per_path.insert(got, content).is_some() {
            return Err(HandshakeError::Repeated(message, got));
        }
    }
    match listed.iter().find(|path| !per_path.contains_key(path)) {
        Some(path) => Err(HandshakeError::Missing(message, path)),
        None => Ok(per_path),
    }
}
