//! Establishes a negotiated connection: what the two ends exchange before application bytes are carried.
//!
//! | mode | initiator | responder |
//! |---|---|---|
//! | `xor64` | nothing: it is derived from the MPTCP keys | nothing |
//! | `stream` | sends 32 random bytes | receives them |
//! | `sealed` | a handshake: [`super::initiate`](fn@super::initiate) | [`super::PendingHandshakes`] |
//!
//! These bytes cross the initial subflow, which is on the trusted path, while there is no other.

use std::io;
use std::sync::Arc;

use plait_linux::mptcp::Key;
use plait_proto::close_reason::CloseReason;
use plait_proto::codec::records::{Opener, Sealer};
use plait_proto::codec::stream::{Direction, RANDOM_LEN, StreamCipher, StreamSecret};
use plait_proto::option::{Mode, Variant};
use plait_proto::sealed::{Exporter, Params, Session};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpStream;
use zeroize::Zeroizing;

use super::message_io::{HANDSHAKE_TIMEOUT, SealedError};
use crate::protection::{Agreement, Negotiated, ProtectionStatus};
use crate::relay::{
    ExitRecordError, RecordOptions, Records, Seeds, SideRecords, Transform, Transforms, Updates,
};
use crate::running_session::RunningSession;
use crate::side_connections::SideConnections;
use crate::socket::write_all;
use crate::trust::AuthenticatedPeer;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The end that opened it.
    Initiator,
    /// The end that accepted it.
    Responder,
}

/// What must have arrived on the trusted path before there may be further subflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstFlight {
    /// The first application bytes of both directions: they protect what follows.
    BothDirections,
    /// What the ends exchanged to establish the connection.
    Exchange,
}

/// A connection that can carry application bytes.
pub(crate) struct Established {
    pub(crate) protection: ProtectionStatus,
    /// Mode `sealed`: keys for other protocols.
    pub(crate) exporter: Option<Exporter>,
    pub(crate) transforms: Transforms,
    pub(crate) first_flight: FirstFlight,
}

impl Established {
    /// Unprotected.
    pub(crate) fn plain() -> Established {
        Established {
            protection: ProtectionStatus::of_mode(Mode::Off),
            exporter: None,
            transforms: Transforms::plain(),
            first_flight: FirstFlight::BothDirections,
        }
    }

    /// After a completed handshake of mode `sealed`.
    pub(crate) fn sealed(session: Session<Option<AuthenticatedPeer>>, options: RecordOptions) -> Established {
        let Session { cipher, send_key, recv_key, exporter, updates, witnesses, peer } = session;
        let updates = Arc::new(Updates::new(updates, options.rekey_after));
        let side = options.redundancy.map(SideConnections::new);
        let side = side.map(|(connections, received)| SideRecords { connections, received });
        let connections = side.as_ref().map(|side| Arc::clone(&side.connections));
        let running = Arc::new(RunningSession::new(witnesses, Arc::clone(&updates), connections));
        let transforms = Transforms::Records(Box::new(Records {
            sealer: Sealer::new(cipher, send_key.as_bytes()).with_padding(options.padding),
            opener: Opener::new(cipher, recv_key.as_bytes()),
            updates,
            side,
            expects_outcome: false,
        }));
        let protection =
            ProtectionStatus { mode: Mode::Sealed, session: Some(running), peer: peer.flatten() };
        Established { protection, exporter: Some(exporter), transforms, first_flight: FirstFlight::Exchange }
    }
}

/// The parameters of a `sealed` handshake; `None` for any other mode.
pub(crate) fn sealed_params(agreement: &Agreement, side: Side) -> Option<Params> {
    let Agreement::Protected(negotiated) = agreement else { return None };
    let cipher = Variant::from_bit(negotiated.chosen)?.aead_cipher()?;
    let [initiator, responder] = mptcp_keys(negotiated, side).map(|key| Key::new(*key.as_bytes()));
    let Negotiated { offered, chosen, .. } = *negotiated;
    Some(Params { offered, chosen, cipher, initiator, responder })
}

/// The MPTCP keys of the initiator and the responder.
fn mptcp_keys(negotiated: &Negotiated, side: Side) -> [&Key; 2] {
    match side {
        Side::Initiator => [&negotiated.local, &negotiated.remote],
        Side::Responder => [&negotiated.remote, &negotiated.local],
    }
}

/// A negotiated connection could not be established.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EstablishError {
    #[error("expected {RANDOM_LEN} random bytes, but the peer closed the connection")]
    Closed,
    #[error("expected {RANDOM_LEN} random bytes, got fewer within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    #[error("the system's random number generator failed")]
    Random,
    #[error("network side: {0}")]
    Network(#[from] io::Error),
    #[error("its gateway ended the connection: {0}")]
    Ended(CloseReason),
    #[error("the peer chose a mode that this version does not know")]
    UnknownMode,
    #[error(transparent)]
    Sealed(#[from] SealedError),
    #[error("the exit's answer: {0}")]
    Exit(#[from] ExitRecordError),
}

impl EstablishError {
    /// Whether it failed because of an end's identity.
    pub(crate) fn is_about_identity(&self) -> bool {
        matches!(self, EstablishError::Sealed(error) if error.is_about_identity())
    }
}

/// Exchanges what the modes `xor64` and `stream` need.
pub(crate) async fn establish(
    negotiated: &Negotiated,
    side: Side,
    far: &TcpStream,
) -> Result<Established, EstablishError> {
    let cipher = match Variant::from_bit(negotiated.chosen) {
        Some(Variant::Xor64Hmac) => return Ok(xor64(negotiated, Seeds::Hmac)),
        Some(Variant::Xor64Key) => return Ok(xor64(negotiated, Seeds::Key)),
        Some(Variant::StreamAes256) => StreamCipher::Aes256Ctr,
        Some(Variant::StreamChaCha20) => StreamCipher::ChaCha20,
        _ => return Err(EstablishError::UnknownMode),
    };
    let exchanged = tokio::time::timeout(HANDSHAKE_TIMEOUT, exchange_random(side, far));
    let random = exchanged.await.map_err(|_| EstablishError::Timeout)??;
    Ok(Established {
        protection: ProtectionStatus::of_mode(Mode::Stream),
        exporter: None,
        transforms: keystreams(negotiated, side, cipher, &random),
        first_flight: FirstFlight::Exchange,
    })
}

fn xor64(negotiated: &Negotiated, seeds: Seeds) -> Established {
    Established {
        protection: ProtectionStatus::of_mode(Mode::Xor64),
        exporter: None,
        transforms: Transforms::xor64(seeds, &negotiated.local, &negotiated.remote),
        first_flight: FirstFlight::BothDirections,
    }
}

/// The random bytes at the start of a connection of mode `stream`.
async fn exchange_random(side: Side, far: &TcpStream) -> Result<Zeroizing<[u8; RANDOM_LEN]>, EstablishError> {
    let mut random = Zeroizing::new([0; RANDOM_LEN]);
    match side {
        Side::Initiator => {
            SystemRandom::new().fill(&mut *random).map_err(|_| EstablishError::Random)?;
            write_all(far, &*random).await?;
        }
        Side::Responder => read_exact(far, &mut *random).await?,
    }
    Ok(random)
}

/// Reads no more than asked for: what follows is the application's.
async fn read_exact(from: &TcpStream, mut bytes: &mut [u8]) -> Result<(), EstablishError> {
    while !bytes.is_empty() {
        from.readable().await?;
        match from.try_read(bytes) {
            Ok(0) => return Err(EstablishError::Closed),
            Ok(length) => bytes = &mut bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn keystreams(
    negotiated: &Negotiated,
    side: Side,
    cipher: StreamCipher,
    random: &[u8; RANDOM_LEN],
) -> Transforms {
    let [initiator, responder] = mptcp_keys(negotiated, side).map(Key::as_bytes);
    let (send, receive) = match side {
        Side::Initiator => (Direction::ToResponder, Direction::ToInitiator),
        Side::Responder => (Direction::ToInitiator, Direction::ToResponder),
    };
    let secret = StreamSecret::new(initiator, responder, random);
    let [outgoing, incoming] =
        [send, receive].map(|direction| Transform::Keystream(Box::new(secret.keystream(cipher, direction))));
    Transforms::in_place(outgoing, incoming)
}

#[cfg(test)]
mod tests {
    use super::super::tests::pair;
    use super::*;
    use crate::socket::close_on_drop;

    fn negotiated(chosen: Variant, side: Side) -> Negotiated {
        let (initiator, responder) = (Key::new([1; 8]), Key::new([2; 8]));
        let (local, remote) = match side {
            Side::Initiator => (initiator, responder),
            Side::Responder => (responder, initiator),
        };
        Negotiated { chosen: chosen.bit(), offered: chosen.bit(), local, remote }
    }

    #[tokio::test]
    async fn ends_decode_each_other_in_every_variant() {
        for (mode, chosen) in [
            (Mode::Xor64, Variant::Xor64Key),
            (Mode::Xor64, Variant::Xor64Hmac),
            (Mode::Stream, Variant::StreamChaCha20),
            (Mode::Stream, Variant::StreamAes256),
        ] {
            let (opened, accepted) = pair().await;
            let (initiator, responder) =
                [Side::Initiator, Side::Responder].map(|side| negotiated(chosen, side)).into();
            let (one, other) = tokio::join!(
                establish(&initiator, Side::Initiator, &opened),
                establish(&responder, Side::Responder, &accepted)
            );
            let (mut one, mut other) = (one.expect("it establishes"), other.expect("it establishes"));
            assert_eq!((one.protection.mode, other.protection.mode), (mode, mode));
            for _ in 0..2 {
                let mut bytes = *b"not every, not any";
                one.transforms.send(&mut bytes);
                assert_ne!(&bytes, b"not every, not any");
                other.transforms.receive(&mut bytes);
                assert_eq!(&bytes, b"not every, not any");
                other.transforms.send(&mut bytes);
                assert_ne!(&bytes, b"not every, not any");
                one.transforms.receive(&mut bytes);
                assert_eq!(&bytes, b"not every, not any");
            }
        }
    }

    #[tokio::test]
    async fn connections_with_the_same_keys_have_different_keystreams() {
        let mut seen = Vec::new();
        for _ in 0..2 {
            let (opened, _accepted) = pair().await;
            let negotiated = negotiated(Variant::StreamAes256, Side::Initiator);
            let established = establish(&negotiated, Side::Initiator, &opened).await;
            let mut established = established.expect("it establishes");
            let mut bytes = [[0; 32]; 2];
            established.transforms.send(&mut bytes[0]);
            established.transforms.receive(&mut bytes[1]);
            seen.extend(bytes);
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 4);
    }

    #[tokio::test]
    async fn peer_that_closes_early_is_an_error() {
        let (opened, accepted) = pair().await;
        write_all(&opened, &[0; RANDOM_LEN - 1]).await.expect("it can be written");
        close_on_drop(&opened).expect("it is a socket");
        drop(opened);
        let negotiated = negotiated(Variant::StreamAes256, Side::Responder);
        let done = establish(&negotiated, Side::Responder, &accepted).await;
        assert!(matches!(done, Err(EstablishError::Closed)));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_peer_times_out() {
        let (_opened, accepted) = pair().await;
        let negotiated = negotiated(Variant::StreamAes256, Side::Responder);
        let done = establish(&negotiated, Side::Responder, &accepted).await;
        assert!(matches!(done, Err(EstablishError::Timeout)));
    }

    #[tokio::test]
    async fn bytes_after_the_random_bytes_are_left_to_the_application() {
        let (opened, accepted) = pair().await;
        write_all(&opened, &[7; RANDOM_LEN + 5]).await.expect("it can be written");
        let negotiated = negotiated(Variant::StreamAes256, Side::Responder);
        establish(&negotiated, Side::Responder, &accepted).await.expect("it establishes");
        let mut rest = [0; 16];
        accepted.readable().await.expect("there is more");
        assert_eq!(accepted.try_read(&mut rest).expect("it can be read"), 5);
    }

    #[tokio::test]
    async fn unknown_variant_is_refused() {
        let (opened, _accepted) = pair().await;
        let known = negotiated(Variant::StreamAes256, Side::Initiator);
        let done = establish(&Negotiated { chosen: 0x80, ..known }, Side::Initiator, &opened).await;
        assert!(matches!(done, Err(EstablishError::UnknownMode)));
    }
}
