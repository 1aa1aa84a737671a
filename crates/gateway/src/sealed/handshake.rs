//! The two ends of a `sealed` handshake. Each step consumes the one before it; keys come out of the last.
//!
//! The initiator: [`Initiator::begin`] and [`Initiator::finish`]. The responder: [`Responder::hear`],
//! [`Responder::answer`] and [`Unconfirmed::verify`]. An error anywhere means that both ends reset every connection of the
//! session.

use std::collections::BTreeMap;

use plait_codec::sealed::Cipher;
use plait_host::mptcp::Key;
use zeroize::Zeroizing;

use super::keys::{End, RandomError, Secret, SessionKeys, Shares};
use super::messages::{Bytes, Confirm, Hello, NOISE_LEN, Preface, Reply, SessionId, Share, Witness};
use super::noise::{Noise, Split};
use super::paths::{Level, PathId, PathIds, Paths};

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

/// The handshake failed: nothing may be sent on any of its connections.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("all configured paths are required to witness, and {0} do")]
    Level(Level),
    #[error("HELLO does not open: somebody changed it, or what the TCP handshake of the connection settled")]
    Hello,
    #[error("REPLY does not open: somebody changed it, HELLO, or a share on another path")]
    Reply,
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
}

impl Established {
    fn new(end: End, cipher: Cipher, level: Level, forth: Secret, back: Secret) -> Established {
        let (sending, receiving) = match end {
            End::Initiator => (forth, back),
            End::Responder => (back, forth),
        };
        Established { cipher, sending, receiving, level }
    }
}

/// The end that opened the connection, waiting for the answer.
pub(crate) struct Initiator {
    cipher: Cipher,
    preface: Preface,
    shares: BTreeMap<PathId, Secret>,
    noise: Noise,
}

/// What an initiator sends first, all at once.
pub(crate) struct Opening {
    /// For the main connection.
    pub(crate) hello: Bytes,
    /// A WITNESS for every other path's connection.
    pub(crate) witnesses: ForWitnesses,
}

impl Initiator {
    /// Begins a session over the paths whose connections are open.
    pub(crate) fn begin(
        agreed: &Agreed,
        paths: Paths,
        demand: Demand,
    ) -> Result<(Initiator, Opening), HandshakeError> {
        demand.accepts(paths.level())?;
        let preface = Preface { session: SessionId::random()?, paths };
        let shares = random_shares(paths.witnesses())?;
        Self::begin_with(agreed, preface, shares, Noise::initiator)
    }

    pub(super) fn begin_with(
        agreed: &Agreed,
        preface: Preface,
        shares: BTreeMap<PathId, Secret>,
        first: impl FnOnce(Cipher, &[u8]) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error>,
    ) -> Result<(Initiator, Opening), HandshakeError> {
        let (noise, message) =
            first(agreed.cipher, &agreed.prologue(&preface)).map_err(HandshakeError::Library)?;
        let session = preface.session;
        let witness = |(path, share): (&PathId, &Secret)| {
            let share = Secret::copy_of(share.as_bytes());
            (*path, Witness { session, path: *path, share }.to_bytes())
        };
        let witnesses = shares.iter().map(witness).collect();
        let hello = Hello { preface, noise: message }.to_bytes();
        Ok((Initiator { cipher: agreed.cipher, preface, shares, noise }, Opening { hello, witnesses }))
    }

    /// Verifies REPLY and every SHARE, given with the path on whose connection it came. What comes out with the keys are
    /// the CONFIRMs, which must be sent before the first record.
    pub(crate) fn finish(
        self,
        reply: &Reply,
        answers: Vec<(PathId, Share)>,
    ) -> Result<(Established, ForWitnesses), HandshakeError> {
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
        let split = self.noise.finish(&keys.psk, &reply.noise).map_err(|_| HandshakeError::Reply)?;
        let Split { hash, forth, back } = split;
        for (path, confirmation) in confirmations {
            if !keys.confirms(End::Responder, path, &hash, &confirmation) {
                return Err(HandshakeError::Confirmation(path));
            }
        }

        let confirm = |path| {
            let confirmation = keys.confirmation(End::Initiator, path, &hash);
            (path, Confirm { path, confirmation }.to_bytes())
        };
        let confirms = self.preface.paths.witnesses().iter().map(confirm).collect();
        let level = self.preface.paths.level();
        Ok((Established::new(End::Initiator, self.cipher, level, forth, back), confirms))
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
    pub(crate) fn hear(agreed: &Agreed, hello: &Hello, demand: Demand) -> Result<Responder, HandshakeError> {
        demand.accepts(hello.preface.paths.level())?;
        Self::hear_with(agreed, hello, Noise::responder)
    }

    pub(super) fn hear_with(
        agreed: &Agreed,
        hello: &Hello,
        second: impl FnOnce(Cipher, &[u8], &[u8; NOISE_LEN]) -> Result<Noise, snow::Error>,
    ) -> Result<Responder, HandshakeError> {
        let preface = hello.preface;
        let noise = second(agreed.cipher, &agreed.prologue(&preface), &hello.noise)
            .map_err(|_| HandshakeError::Hello)?;
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
        let (split, message) = noise.answer(&keys.psk).map_err(HandshakeError::Library)?;
        let Split { hash, forth, back } = split;
        let share = |(path, shares): (PathId, Shares)| {
            let confirmation = keys.confirmation(End::Responder, path, &hash);
            (path, Share { path, share: shares.responder, confirmation }.to_bytes())
        };
        let shares = shares.into_iter().map(share).collect();
        let answer = Answer { reply: Reply { noise: message }.to_bytes(), shares };
        let established = Established::new(End::Responder, cipher, paths.level(), forth, back);
        Ok((Unconfirmed { established, witnesses: paths.witnesses(), keys, hash }, answer))
    }
}

/// A responder that has answered. It has keys, and nobody gets them before the initiator has confirmed.
pub(crate) struct Unconfirmed {
    established: Established,
    witnesses: PathIds,
    keys: SessionKeys,
    hash: [u8; 32],
}

impl Unconfirmed {
    #[cfg(test)]
    pub(super) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Verifies every CONFIRM, given with the path on whose connection it came.
    pub(crate) fn verify(self, confirms: Vec<(PathId, Confirm)>) -> Result<Established, HandshakeError> {
        let confirms = confirms.into_iter().map(|(path, confirm)| (path, confirm.path, confirm));
        let confirms = one_of_each("CONFIRM", self.witnesses, confirms)?;
        for (path, confirm) in confirms {
            if !self.keys.confirms(End::Initiator, path, &self.hash, &confirm.confirmation) {
                return Err(HandshakeError::Confirmation(path));
            }
        }
        Ok(self.established)
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
