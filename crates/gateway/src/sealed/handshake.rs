//! The two ends of a `sealed` handshake. Each step consumes the one before it; keys come out of the last.
//!
//! The initiator: [`Initiator::begin`] and [`Initiator::finish`]. The responder: [`Responder::hear`],
//! [`Responder::answer`] and [`Unconfirmed::verify`]. An error anywhere means that both ends reset every connection of the
//! session.

use std::collections::BTreeMap;

use plait_linux::mptcp::Key;
use plait_proto::sealed::Cipher;
use zeroize::Zeroizing;

use super::keys::{End, RandomError, Secret, SessionKeys, Shares};
use super::messages::{
    Bytes, Confirm, Hello, Identity, NOISE_LEN, Preface, Reply, SessionId, Share, Version, Witness,
};
use super::noise::{Answered, Noise, Split, Suite};
use super::paths::{Level, PathId, PathIds, Paths};
use crate::identity::PublicKey;
use crate::trust::{Recognised, Stranger};

/// What the TCP handshake of the main connection settled. Both ends must have seen the same.
pub(crate) struct Agreed {
    /// The modes that the initiator offered, as the handshake option's bits.
    pub(crate) offered: u8,
    /// The one that the responder chose.
    pub(crate) chosen: u8,
    /// What the chosen mode encrypts with.
    pub(crate) cipher: Cipher,
    /// The initiator's MPTCP key.
    pub(crate) initiator: Key,
    /// The responder's MPTCP key.
    pub(crate) responder: Key,
}

impl Agreed {
    /// What the noise handshake takes in from the start, so that it fails unless both ends saw the same.
    fn prologue(&self, preface: &Preface) -> Zeroizing<Vec<u8>> {
        let (initiator, responder) = (self.initiator.as_bytes(), self.responder.as_bytes());
        let modes = [self.offered, self.chosen];
        Zeroizing::new([&b"plait sealed 1"[..], &modes, initiator, responder, &preface.bytes()].concat())
    }
}

/// How many of the configured paths must witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// As many as there are: the level is shown.
    AnyLevel,
    /// All of them.
    AllPaths,
}

impl Demand {
    fn accepts(self, level: Level) -> Result<(), HandshakeError> {
        if self == Demand::AllPaths && !level.is_full() {
            return Err(HandshakeError::Level(level));
        }
        Ok(())
    }
}

/// What a responder is, and what it demands.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) demand: Demand,
    /// Its static key, if it has one to show.
    pub(crate) own: Option<&'a Secret>,
    /// Whether initiators have to say who they are.
    pub(crate) identified: bool,
}

/// The handshake failed: nothing may be sent on any of its connections.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("all configured paths are required to witness, and {0} do")]
    Level(Level),
    #[error("HELLO does not open: somebody changed it, or what the TCP handshake of the connection settled")]
    Hello,
    #[error("REPLY does not open: somebody changed it, HELLO, or a share on another path")]
    Reply,
    #[error(
        "the initiator asks who this is, and nothing here says: `plait identity` makes a key for `plait serve`"
    )]
    NoIdentity,
    #[error(
        "the initiator does not say who it is, and only known clients may connect (`clients` of [identity])"
    )]
    Anonymous,
    #[error("IDENTITY is missing, or does not open: somebody changed it")]
    Identity,
    #[error(transparent)]
    Stranger(#[from] Stranger),
    #[error("the confirmation on path {0} is wrong: somebody on another path stands between the two ends")]
    Confirmation(PathId),
    #[error("expected a {message} of path {expected} on its connection, got one of path {got}")]
    WrongPath { message: &'static str, expected: PathId, got: PathId },
    #[error("expected WITNESS of session {expected:?}, got one of session {got:?}")]
    WrongSession { expected: SessionId, got: SessionId },
    #[error("{message} of path {path}, which HELLO does not list")]
    Unlisted { message: &'static str, path: PathId },
    #[error("expected one {message} of path {path}, got another")]
    Repeated { message: &'static str, path: PathId },
    #[error("expected {message} of path {path}, got none")]
    Missing { message: &'static str, path: PathId },
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("the Noise library: {0}")]
    Library(snow::Error),
}

impl HandshakeError {
    /// Whether it failed for who the ends are.
    pub(crate) fn is_about_identity(&self) -> bool {
        matches!(self, HandshakeError::NoIdentity | HandshakeError::Anonymous | HandshakeError::Stranger(_))
    }
}

/// Messages for the connections of the witnesses.
pub(crate) type ForWitnesses = Vec<(PathId, Bytes)>;

/// What the two ends agreed on. Whoever has this has verified everything.
pub(crate) struct Established {
    /// What records are sealed with.
    pub(crate) cipher: Cipher,
    /// The key of the records that this end sends.
    pub(crate) sending: Secret,
    /// The key of the records that this end receives.
    pub(crate) receiving: Secret,
    /// How many of the configured paths somebody would have had to be active on.
    pub(crate) level: Level,
    /// By what the other end is known; `None` if it could be anybody.
    pub(crate) peer: Option<Recognised>,
}

impl Established {
    fn new(end: End, cipher: Cipher, level: Level, split: Split, peer: Option<Recognised>) -> Established {
        let Split { forth, back, .. } = split;
        let (sending, receiving) = match end {
            End::Initiator => (forth, back),
            End::Responder => (back, forth),
        };
        Established { cipher, sending, receiving, level, peer }
    }
}

/// The end that opened the connection, waiting for the answer.
pub(crate) struct Initiator {
    cipher: Cipher,
    preface: Preface,
    shares: BTreeMap<PathId, Secret>,
    noise: Noise,
}

/// What an initiator sends last, before the first record.
pub(crate) struct Closing {
    /// For the main connection, where the ends say who they are.
    pub(crate) identity: Option<Bytes>,
    /// A CONFIRM for every other path's connection.
    pub(crate) confirms: ForWitnesses,
}

/// What an initiator sends first, all at once.
pub(crate) struct Opening {
    /// For the main connection.
    pub(crate) hello: Bytes,
    /// A WITNESS for every other path's connection.
    pub(crate) witnesses: ForWitnesses,
}

impl Initiator {
    /// Begins a session over the paths whose connections are open. With a static key of its `own` the initiator asks the
    /// responder for one, too.
    pub(crate) fn begin(
        agreed: &Agreed,
        paths: Paths,
        demand: Demand,
        own: Option<&Secret>,
    ) -> Result<(Initiator, Opening), HandshakeError> {
        demand.accepts(paths.level())?;
        let version = if own.is_some() { Version::Identified } else { Version::Anonymous };
        let preface = Preface { version, session: SessionId::random()?, paths };
        let shares = random_shares(paths.witnesses())?;
        Self::begin_with(agreed, preface, shares, own, Noise::initiator)
    }

    pub(super) fn begin_with(
        agreed: &Agreed,
        preface: Preface,
        shares: BTreeMap<PathId, Secret>,
        own: Option<&Secret>,
        first: impl FnOnce(Suite<'_>, &[u8]) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error>,
    ) -> Result<(Initiator, Opening), HandshakeError> {
        let suite = Suite { cipher: agreed.cipher, own };
        let (noise, message) = first(suite, &agreed.prologue(&preface)).map_err(HandshakeError::Library)?;
        let session = preface.session;
        let witness = |(path, share): (&PathId, &Secret)| {
            let share = Secret::copy_of(share.as_bytes());
            (*path, Witness { session, path: *path, share }.to_bytes())
        };
        let witnesses = shares.iter().map(witness).collect();
        let hello = Hello { preface, noise: message }.to_bytes();
        Ok((Initiator { cipher: agreed.cipher, preface, shares, noise }, Opening { hello, witnesses }))
    }

    /// Verifies REPLY and every SHARE, given with the path on whose connection it came, and lets the responder's static
    /// key be judged if it was asked for. What comes out with the keys must be sent before the first record.
    pub(crate) fn finish(
        self,
        reply: &Reply,
        answers: Vec<(PathId, Share)>,
        judge: impl FnOnce(&PublicKey) -> Result<Option<Recognised>, Stranger>,
    ) -> Result<(Established, Closing), HandshakeError> {
        let answers = answers.into_iter().map(|(path, answer)| (path, answer.path, answer));
        let answers = one_of_each("SHARE", self.preface.paths.witnesses(), answers)?;
        let mut confirmations = Vec::new();
        let mut shares = BTreeMap::new();
        // Both are of the listed paths, in their order.
        for ((path, initiator), (_, answer)) in self.shares.into_iter().zip(answers) {
            confirmations.push((path, answer.confirmation));
            shares.insert(path, Shares { initiator, responder: answer.share });
        }

        let keys = SessionKeys::derive(&self.preface.session, &shares);
        let answered = self.noise.finish(&keys.psk, &reply.noise).map_err(|_| HandshakeError::Reply)?;
        for (path, confirmation) in confirmations {
            if !keys.confirms(End::Responder, path, answered.hash(), &confirmation) {
                return Err(HandshakeError::Confirmation(path));
            }
        }

        let (split, peer, identity) = match answered {
            Answered::Anonymous(split) => (split, None, None),
            Answered::Identified(unfinished) => {
                let peer = judge(&unfinished.responder())?;
                let (split, noise) = unfinished.introduce().map_err(HandshakeError::Library)?;
                (split, peer, Some(Identity { noise }.to_bytes()))
            }
        };
        let confirm = |path| {
            let confirmation = keys.confirmation(End::Initiator, path, &split.hash);
            (path, Confirm { path, confirmation }.to_bytes())
        };
        let confirms = self.preface.paths.witnesses().iter().map(confirm).collect();
        let level = self.preface.paths.level();
        let established = Established::new(End::Initiator, self.cipher, level, split, peer);
        Ok((established, Closing { identity, confirms }))
    }
}

/// The end that accepted the connection, waiting for its witnesses.
pub(crate) struct Responder {
    cipher: Cipher,
    preface: Preface,
    noise: Noise,
}

/// What a responder sends, all at once.
pub(crate) struct Answer {
    /// For the main connection.
    pub(crate) reply: Bytes,
    /// A SHARE for every other path's connection.
    pub(crate) shares: ForWitnesses,
}

impl Responder {
    /// Reads HELLO. Costs no key agreement, so that a session is cheap until its witnesses are there.
    pub(crate) fn hear(
        agreed: &Agreed,
        hello: &Hello,
        terms: Terms<'_>,
    ) -> Result<Responder, HandshakeError> {
        terms.demand.accepts(hello.preface.paths.level())?;
        let own = match hello.preface.version {
            Version::Anonymous if terms.identified => return Err(HandshakeError::Anonymous),
            Version::Anonymous => None,
            Version::Identified => Some(terms.own.ok_or(HandshakeError::NoIdentity)?),
        };
        Self::hear_with(agreed, hello, own, Noise::responder)
    }

    pub(super) fn hear_with(
        agreed: &Agreed,
        hello: &Hello,
        own: Option<&Secret>,
        second: impl FnOnce(Suite<'_>, &[u8], &[u8; NOISE_LEN]) -> Result<Noise, snow::Error>,
    ) -> Result<Responder, HandshakeError> {
        let preface = hello.preface;
        let suite = Suite { cipher: agreed.cipher, own };
        let noise =
            second(suite, &agreed.prologue(&preface), &hello.noise).map_err(|_| HandshakeError::Hello)?;
        Ok(Responder { cipher: agreed.cipher, preface, noise })
    }

    /// The session that the witnesses must name.
    pub(crate) fn session(&self) -> SessionId {
        self.preface.session
    }

    /// The paths on which a WITNESS must come.
    pub(crate) fn witnesses(&self) -> PathIds {
        self.preface.paths.witnesses()
    }

    /// Answers, once there is a WITNESS of every path that HELLO lists.
    pub(crate) fn answer(self, witnesses: Vec<Witness>) -> Result<(Unconfirmed, Answer), HandshakeError> {
        let own_shares = random_shares(self.witnesses())?;
        self.answer_with(witnesses, own_shares)
    }

    pub(super) fn answer_with(
        self,
        witnesses: Vec<Witness>,
        own_shares: BTreeMap<PathId, Secret>,
    ) -> Result<(Unconfirmed, Answer), HandshakeError> {
        let Responder { cipher, preface, noise } = self;
        if let Some(stray) = witnesses.iter().find(|witness| witness.session != preface.session) {
            return Err(HandshakeError::WrongSession { expected: preface.session, got: stray.session });
        }
        let paths = preface.paths;
        let witnesses = witnesses.into_iter().map(|witness| (witness.path, witness.path, witness));
        let witnesses = one_of_each("WITNESS", paths.witnesses(), witnesses)?;
        // Both are of the listed paths, in their order.
        let shares = own_shares
            .into_iter()
            .zip(witnesses)
            .map(|((path, responder), (_, witness))| (path, Shares { initiator: witness.share, responder }));
        let shares = shares.collect();

        let keys = SessionKeys::derive(&preface.session, &shares);
        let (answered, noise) = noise.answer(&keys.psk).map_err(HandshakeError::Library)?;
        let share = |(path, shares): (PathId, Shares)| {
            let confirmation = keys.confirmation(End::Responder, path, answered.hash());
            (path, Share { path, share: shares.responder, confirmation }.to_bytes())
        };
        let shares = shares.into_iter().map(share).collect();
        let answer = Answer { reply: Reply { noise }.to_bytes(), shares };
        Ok((Unconfirmed { cipher, paths, keys, answered }, answer))
    }
}

/// A responder that has answered. It has keys, and nobody gets them before the initiator has confirmed.
pub(crate) struct Unconfirmed {
    cipher: Cipher,
    paths: Paths,
    keys: SessionKeys,
    answered: Answered,
}

impl Unconfirmed {
    /// The handshake hash after message 2.
    #[cfg(test)]
    pub(super) fn hash(&self) -> &[u8; 32] {
        self.answered.hash()
    }

    /// Whether the initiator is to say who it is.
    pub(crate) fn awaits_identity(&self) -> bool {
        matches!(self.answered, Answered::Identified(_))
    }

    /// Verifies IDENTITY, if it is [awaited](Self::awaits_identity), and every CONFIRM, given with the path on whose
    /// connection it came; and lets the initiator's static key be judged.
    pub(crate) fn verify(
        self,
        identity: Option<&Identity>,
        confirms: Vec<(PathId, Confirm)>,
        judge: impl FnOnce(&PublicKey) -> Result<Option<Recognised>, Stranger>,
    ) -> Result<Established, HandshakeError> {
        let (split, initiator) = match (self.answered, identity) {
            (Answered::Anonymous(split), None) => (split, None),
            (Answered::Identified(unfinished), Some(identity)) => {
                let met = unfinished.meet(&identity.noise).map_err(|_| HandshakeError::Identity)?;
                (met.0, Some(met.1))
            }
            _ => return Err(HandshakeError::Identity),
        };
        let confirms = confirms.into_iter().map(|(path, confirm)| (path, confirm.path, confirm));
        let confirms = one_of_each("CONFIRM", self.paths.witnesses(), confirms)?;
        for (path, confirm) in confirms {
            if !self.keys.confirms(End::Initiator, path, &split.hash, &confirm.confirmation) {
                return Err(HandshakeError::Confirmation(path));
            }
        }
        let peer = initiator.map_or(Ok(None), |key| judge(&key))?;
        Ok(Established::new(End::Responder, self.cipher, self.paths.level(), split, peer))
    }
}

fn random_shares(paths: PathIds) -> Result<BTreeMap<PathId, Secret>, RandomError> {
    paths.iter().map(|path| Ok((path, Secret::random()?))).collect()
}

/// Exactly one message of every listed path. A message comes with the path of its connection and the one that it names.
fn one_of_each<M>(
    message: &'static str,
    listed: PathIds,
    messages: impl Iterator<Item = (PathId, PathId, M)>,
) -> Result<BTreeMap<PathId, M>, HandshakeError> {
    let mut of_path = BTreeMap::new();
    for (expected, got, content) in messages {
        if got != expected {
            return Err(HandshakeError::WrongPath { message, expected, got });
        }
        if !listed.contains(got) {
            return Err(HandshakeError::Unlisted { message, path: got });
        }
        if of_path.insert(got, content).is_some() {
            return Err(HandshakeError::Repeated { message, path: got });
        }
    }
    match listed.iter().find(|path| !of_path.contains_key(path)) {
        Some(path) => Err(HandshakeError::Missing { message, path }),
        None => Ok(of_path),
    }
}
