//! What the two ends of a negotiated connection still have to tell each other before application bytes are carried.
//!
//! | mode | initiator | responder |
//! |---|---|---|
//! | `xor64` | nothing: MPTCP's keys are all there is | nothing |
//! | `stream` | 32 random bytes, sent at once | waits for them |
//! | `sealed` | a handshake of its own: [`crate::handshake`] | the same |
//!
//! What is told here crosses the first subflow, which is on the trusted path, while there is no other.

use std::io;

use plait_linux::mptcp::Key;
use plait_proto::codec::records::{Opener, Sealer};
use plait_proto::codec::stream::{Direction, RANDOM_LEN, StreamCipher, StreamSecret};
use plait_proto::option::{Mode, Variant};
use plait_proto::sealed::{Level, Params};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpStream;
use zeroize::Zeroizing;

use crate::handshake::{PATIENCE, SealError, Session};
use crate::negotiation::{Agreement, Negotiated};
use crate::relay::write_all;
use crate::transform::{Incoming, Outgoing, Seeds, Transform, Transforms};
use crate::trust::Recognised;

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It opened the connection.
    Initiator,
    /// It accepted it.
    Responder,
}

/// What must have arrived by the trusted path before there may be others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstFlight {
    /// The first bytes of both applications: what follows is protected by them.
    OfBothEnds,
    /// What was told here.
    Told,
}

/// How well a connection is protected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    pub(crate) mode: Mode,
    /// Of mode `sealed`: how many of the configured paths somebody would have had to be active on.
    pub(crate) level: Option<Level>,
    /// Of mode `sealed`: by what the other end is known, if it is.
    pub(crate) identity: Option<Recognised>,
}

impl Reached {
    fn mode(mode: Mode) -> Reached {
        Reached { mode, level: None, identity: None }
    }
}

/// A connection that can carry application bytes.
pub(crate) struct Established {
    pub(crate) reached: Reached,
    pub(crate) transforms: Transforms,
    pub(crate) first_flight: FirstFlight,
}

impl Established {
    /// One that nobody protects.
    pub(crate) fn plain() -> Established {
        Established {
            reached: Reached::mode(Mode::Off),
            transforms: Transforms::plain(),
            first_flight: FirstFlight::OfBothEnds,
        }
    }

    /// One whose handshake of mode `sealed` has come to its end.
    pub(crate) fn sealed(done: &Session) -> Established {
        let transforms = Transforms {
            outgoing: Outgoing::Records(Box::new(Sealer::new(done.cipher, done.send_key.as_bytes()))),
            incoming: Incoming::Records(Box::new(Opener::new(done.cipher, done.recv_key.as_bytes()))),
        };
        let reached = Reached { mode: Mode::Sealed, level: Some(done.level), identity: done.peer.flatten() };
        Established { reached, transforms, first_flight: FirstFlight::Told }
    }
}

/// What a handshake of mode `sealed` begins with; `None` of any other mode.
pub(crate) fn sealed_params(agreement: &Agreement, end: End) -> Option<Params> {
    let Agreement::Protected(negotiated) = agreement else { return None };
    let cipher = Variant::from_bit(negotiated.chosen)?.aead_cipher()?;
    let [initiator, responder] = keys(negotiated, end).map(|key| Key::new(*key.as_bytes()));
    let Negotiated { offered, chosen, .. } = *negotiated;
    Some(Params { offered, chosen, cipher, initiator, responder })
}

/// MPTCP's keys: the initiator's, and the responder's.
fn keys(negotiated: &Negotiated, end: End) -> [&Key; 2] {
    match end {
        End::Initiator => [&negotiated.local, &negotiated.remote],
        End::Responder => [&negotiated.remote, &negotiated.local],
    }
}

/// The ends of a negotiated connection could not tell each other what the mode needs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EstablishError {
    #[error("the peer ended the connection before it had told its part of the secret")]
    Ended,
    #[error("the peer did not tell its part of the secret within {} s", PATIENCE.as_secs())]
    Silent,
    #[error("this host gives no random bytes")]
    Random,
    #[error("the network's side: {0}")]
    Far(#[from] io::Error),
    #[error("the peer chose a mode that this version does not know")]
    Unknown,
    #[error(transparent)]
    Seal(#[from] SealError),
}

impl EstablishError {
    /// Whether it failed for who the ends are.
    pub(crate) fn is_about_identity(&self) -> bool {
        matches!(self, EstablishError::Seal(error) if error.is_about_identity())
    }
}

/// Tells and hears what the negotiated mode needs.
pub(crate) async fn establish(
    negotiated: &Negotiated,
    mode: Mode,
    end: End,
    far: &TcpStream,
) -> Result<Established, EstablishError> {
    let cipher = match Variant::from_bit(negotiated.chosen) {
        Some(Variant::Xor64Hmac) => return Ok(scrambled(negotiated, mode, Seeds::Hmac)),
        Some(Variant::Xor64Key) => return Ok(scrambled(negotiated, mode, Seeds::Key)),
        Some(Variant::StreamAes256) => StreamCipher::Aes256Ctr,
        Some(Variant::StreamChaCha20) => StreamCipher::ChaCha20,
        _ => return Err(EstablishError::Unknown),
    };
    let told = tokio::time::timeout(PATIENCE, tell_random(end, far));
    let random = told.await.map_err(|_| EstablishError::Silent)??;
    let transforms = streams(negotiated, end, cipher, &random);
    Ok(Established { reached: Reached::mode(mode), transforms, first_flight: FirstFlight::Told })
}

fn scrambled(negotiated: &Negotiated, mode: Mode, seeds: Seeds) -> Established {
    let transforms = Transforms::xor64(seeds, &negotiated.local, &negotiated.remote);
    Established { reached: Reached::mode(mode), transforms, first_flight: FirstFlight::OfBothEnds }
}

/// The random bytes that begin a connection of mode `stream`.
async fn tell_random(end: End, far: &TcpStream) -> Result<Zeroizing<[u8; RANDOM_LEN]>, EstablishError> {
    let mut random = Zeroizing::new([0; RANDOM_LEN]);
    match end {
        End::Initiator => {
            SystemRandom::new().fill(&mut *random).map_err(|_| EstablishError::Random)?;
            write_all(far, &*random).await?;
        }
        End::Responder => read_exact(far, &mut *random).await?,
    }
    Ok(random)
}

/// Reads no more than asked for: what follows is the application's.
async fn read_exact(from: &TcpStream, mut bytes: &mut [u8]) -> Result<(), EstablishError> {
    while !bytes.is_empty() {
        from.readable().await?;
        match from.try_read(bytes) {
            Ok(0) => return Err(EstablishError::Ended),
            Ok(length) => bytes = &mut bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn streams(negotiated: &Negotiated, end: End, cipher: StreamCipher, random: &[u8; RANDOM_LEN]) -> Transforms {
    let [initiator, responder] = keys(negotiated, end).map(Key::as_bytes);
    let (out, back) = match end {
        End::Initiator => (Direction::ToResponder, Direction::ToInitiator),
        End::Responder => (Direction::ToInitiator, Direction::ToResponder),
    };
    let secret = StreamSecret::new(initiator, responder, random);
    let [outgoing, incoming] =
        [out, back].map(|way| Transform::Keystream(Box::new(secret.keystream(cipher, way))));
    Transforms::in_place(outgoing, incoming)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn negotiated(chosen: u8, end: End) -> Negotiated {
        let (initiator, responder) = (Key::new([1; 8]), Key::new([2; 8]));
        let (local, remote) = match end {
            End::Initiator => (initiator, responder),
            End::Responder => (responder, initiator),
        };
        Negotiated { chosen, offered: chosen, local, remote }
    }

    /// Two ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback is there");
        let address = listener.local_addr().expect("it is bound");
        let (opened, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (opened.expect("somebody listens"), accepted.expect("somebody connects").0)
    }

    #[tokio::test]
    async fn both_ends_understand_each_other_in_every_form_of_a_mode() {
        for (mode, chosen) in [
            (Mode::Xor64, Variant::Xor64Key),
            (Mode::Xor64, Variant::Xor64Hmac),
            (Mode::Stream, Variant::StreamChaCha20),
            (Mode::Stream, Variant::StreamAes256),
        ] {
            let (opened, accepted) = pair().await;
            let (initiator, responder) =
                [End::Initiator, End::Responder].map(|end| negotiated(chosen.bit(), end)).into();
            let (one, other) = tokio::join!(
                establish(&initiator, mode, End::Initiator, &opened),
                establish(&responder, mode, End::Responder, &accepted)
            );
            let (mut one, mut other) = (one.expect("it establishes"), other.expect("it establishes"));
            for _ in 0..2 {
                let mut bytes = *b"not every, not any";
                one.transforms.outgo(&mut bytes);
                assert_ne!(&bytes, b"not every, not any");
                other.transforms.income(&mut bytes);
                assert_eq!(&bytes, b"not every, not any");
                other.transforms.outgo(&mut bytes);
                assert_ne!(&bytes, b"not every, not any");
                one.transforms.income(&mut bytes);
                assert_eq!(&bytes, b"not every, not any");
            }
        }
    }

    #[tokio::test]
    async fn no_two_connections_with_the_same_keys_share_a_keystream() {
        let mut seen = Vec::new();
        for _ in 0..2 {
            let (opened, _accepted) = pair().await;
            let negotiated = negotiated(Variant::StreamAes256.bit(), End::Initiator);
            let established = establish(&negotiated, Mode::Stream, End::Initiator, &opened).await;
            let mut established = established.expect("it establishes");
            let mut bytes = [[0; 32]; 2];
            established.transforms.outgo(&mut bytes[0]);
            established.transforms.income(&mut bytes[1]);
            seen.extend(bytes);
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 4);
    }

    #[tokio::test]
    async fn a_peer_that_ends_early_is_told() {
        let (opened, accepted) = pair().await;
        write_all(&opened, &[0; RANDOM_LEN - 1]).await.expect("it can be written");
        drop(opened);
        let negotiated = negotiated(Variant::StreamAes256.bit(), End::Responder);
        let done = establish(&negotiated, Mode::Stream, End::Responder, &accepted).await;
        assert!(matches!(done, Err(EstablishError::Ended)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_silent_is_given_up() {
        let (_opened, accepted) = pair().await;
        let negotiated = negotiated(Variant::StreamAes256.bit(), End::Responder);
        let done = establish(&negotiated, Mode::Stream, End::Responder, &accepted).await;
        assert!(matches!(done, Err(EstablishError::Silent)));
    }

    #[tokio::test]
    async fn what_follows_the_random_bytes_is_left_to_the_application() {
        let (opened, accepted) = pair().await;
        write_all(&opened, &[7; RANDOM_LEN + 5]).await.expect("it can be written");
        let negotiated = negotiated(Variant::StreamAes256.bit(), End::Responder);
        establish(&negotiated, Mode::Stream, End::Responder, &accepted).await.expect("it establishes");
        let mut rest = [0; 16];
        accepted.readable().await.expect("there is more");
        assert_eq!(accepted.try_read(&mut rest).expect("it can be read"), 5);
    }

    #[tokio::test]
    async fn a_mode_of_another_version_is_refused() {
        let (opened, _accepted) = pair().await;
        let done = establish(&negotiated(0x80, End::Initiator), Mode::Stream, End::Initiator, &opened).await;
        assert!(matches!(done, Err(EstablishError::Unknown)));
    }
}
