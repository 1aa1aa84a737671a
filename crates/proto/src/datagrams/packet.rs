//! Packets: a message on a path, sealed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::MAX_PATHS;
use super::replay::ReplayWindow;
use crate::codec::wiped::Wiped;
use crate::derive::opaque_debug;
use crate::sealed::Exporter;

const LABEL: &str = "plait datagrams 1";
const KEY_LEN: usize = 32;
const TAG: usize = 16;
const HEADER: usize = 1 + SessionId::LEN + 8;

/// Bytes of a packet besides its message.
pub const OVERHEAD: usize = HEADER + TAG;

/// Packets with an invalid tag after which a key must not be used any longer (RFC 9001, section 6.6).
const MAX_INVALID: u64 = 1 << 36;

/// Identifies a session. The exit chooses it at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; SessionId::LEN]);

/// A path of a session, as the initiator numbers them: 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(u8);

/// The keys of both directions.
pub struct Keys {
    to_responder: Zeroizing<[u8; KEY_LEN]>,
    to_initiator: Zeroizing<[u8; KEY_LEN]>,
}

/// Seals the packets of one direction.
pub struct Sealer {
    session: SessionId,
    key: Wiped<LessSafeKey>,
    numbers: [AtomicU64; MAX_PATHS],
}

/// Opens the packets of one direction.
pub struct Opener {
    session: SessionId,
    key: Wiped<LessSafeKey>,
    windows: [Mutex<ReplayWindow>; MAX_PATHS],
    invalid: AtomicU64,
}

opaque_debug!(Keys, Sealer, Opener);

/// A packet was not opened. Nothing of it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It is too short, or names no path.
    #[error("expected a packet of at least {OVERHEAD} bytes on a path below {MAX_PATHS}")]
    Malformed,
    /// It belongs to another session.
    #[error("expected a packet of this session")]
    OtherSession,
    /// It was received before, or is too old to tell.
    #[error("expected a new packet, got one received before")]
    Replayed,
    /// It was modified, or sealed with another key.
    #[error("expected a packet sealed with the session's key")]
    Invalid,
}

impl SessionId {
    /// Bytes of it.
    pub const LEN: usize = 8;

    /// The session that a packet claims to belong to.
    #[must_use]
    pub fn of_packet(packet: &[u8]) -> Option<SessionId> {
        packet.get(1..=SessionId::LEN)?.try_into().ok().map(SessionId)
    }
}

impl PathId {
    /// The path with this number, if it is below [`MAX_PATHS`].
    #[must_use]
    pub fn new(number: u8) -> Option<PathId> {
        (usize::from(number) < MAX_PATHS).then_some(PathId(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// All paths that a session can have.
    pub fn all() -> impl Iterator<Item = PathId> {
        (0..MAX_PATHS as u8).map(PathId)
    }
}

/// The keys of a session's packets.
#[must_use]
pub fn keys(exporter: &Exporter, session: SessionId) -> Keys {
    let both = exporter.export(LABEL, &session.0, 2 * KEY_LEN);
    let both = both.expect("label and length are in range");
    let mut keys = Keys { to_responder: Zeroizing::default(), to_initiator: Zeroizing::default() };
    keys.to_responder.copy_from_slice(&both[..KEY_LEN]);
    keys.to_initiator.copy_from_slice(&both[KEY_LEN..]);
    keys
}

impl Keys {
    /// What the initiator seals and opens by.
    #[must_use]
    pub fn of_initiator(&self, session: SessionId) -> (Sealer, Opener) {
        (Sealer::new(session, &self.to_responder), Opener::new(session, &self.to_initiator))
    }

    /// What the responder seals and opens by.
    #[must_use]
    pub fn of_responder(&self, session: SessionId) -> (Sealer, Opener) {
        (Sealer::new(session, &self.to_initiator), Opener::new(session, &self.to_responder))
    }
}

fn expanded(key: &[u8; KEY_LEN]) -> Wiped<LessSafeKey> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("keys of the cipher have 32 bytes");
    Wiped::new(LessSafeKey::new(key))
}

fn nonce(path: PathId, number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[3] = path.0;
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl Sealer {
    fn new(session: SessionId, key: &[u8; KEY_LEN]) -> Sealer {
        Sealer { session, key: expanded(key), numbers: Default::default() }
    }

    /// Replaces the content of `packet` by a packet for the next number of a path.
    pub fn seal(&self, path: PathId, message: &[u8], packet: &mut Vec<u8>) {
        // A path would have to carry a billion packets per second for centuries to use all numbers.
        let number = self.numbers[usize::from(path.0)].fetch_add(1, Ordering::Relaxed);
        packet.clear();
        packet.push(path.0);
        packet.extend_from_slice(&self.session.0);
        packet.extend_from_slice(&number.to_be_bytes());
        packet.extend_from_slice(message);
        let (header, text) = packet.split_at_mut(HEADER);
        let tag = self.key.seal_in_place_separate_tag(nonce(path, number), Aad::from(&*header), text);
        let tag = tag.expect("a datagram is far shorter than what the cipher takes");
        packet.extend_from_slice(tag.as_ref());
    }
}

impl Opener {
    fn new(session: SessionId, key: &[u8; KEY_LEN]) -> Opener {
        Opener { session, key: expanded(key), windows: Default::default(), invalid: AtomicU64::new(0) }
    }

    /// Opens a packet in place. Returns its path and its message.
    ///
    /// # Errors
    /// It is none of this session, or was received before.
    pub fn open<'a>(&self, packet: &'a mut [u8]) -> Result<(PathId, &'a [u8]), PacketError> {
        let session = SessionId::of_packet(packet).ok_or(PacketError::Malformed)?;
        let (header, sealed) = packet.split_at_mut_checked(HEADER).ok_or(PacketError::Malformed)?;
        let path = PathId::new(header[0]).ok_or(PacketError::Malformed)?;
        if session != self.session {
            return Err(PacketError::OtherSession);
        }
        let number = header.last_chunk().map(|number| u64::from_be_bytes(*number));
        let number = number.ok_or(PacketError::Malformed)?;
        let window = || self.windows[usize::from(path.0)].lock().unwrap_or_else(PoisonError::into_inner);
        if !window().is_new(number) {
            return Err(PacketError::Replayed);
        }
        if self.invalid.load(Ordering::Relaxed) >= MAX_INVALID {
            return Err(PacketError::Invalid);
        }
        let Ok(message) = self.key.open_in_place(nonce(path, number), Aad::from(&*header), sealed) else {
            self.invalid.fetch_add(1, Ordering::Relaxed);
            return Err(PacketError::Invalid);
        };
        // Another thread may have opened the same one meanwhile.
        if window().admit(number) { Ok((path, message)) } else { Err(PacketError::Replayed) }
    }

    /// How many packets of a path have not arrived though later ones have.
    #[must_use]
    pub fn missing(&self, path: PathId) -> u64 {
        let window = self.windows[usize::from(path.0)].lock();
        window.unwrap_or_else(PoisonError::into_inner).missing()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring::aead;

    use super::*;

    fn session(byte: u8) -> SessionId {
        SessionId([byte; 8])
    }

    fn ends() -> ((Sealer, Opener), (Sealer, Opener)) {
        let keys =
            Keys { to_responder: Zeroizing::new([1; KEY_LEN]), to_initiator: Zeroizing::new([2; KEY_LEN]) };
        (keys.of_initiator(session(7)), keys.of_responder(session(7)))
    }

    fn path(number: u8) -> PathId {
        PathId::new(number).expect("below 16")
    }

    #[test]
    fn packets_have_the_documented_bytes() {
        let ((sealer, _), _) = ends();
        let mut packet = Vec::new();
        sealer.seal(path(3), b"first", &mut packet);
        sealer.seal(path(3), b"second", &mut packet);
        let header = [&[3][..], &[7; 8], &[0, 0, 0, 0, 0, 0, 0, 1]].concat();
        assert_eq!(packet[..HEADER], header);
        assert_eq!(packet.len(), OVERHEAD + b"second".len());
        // Another interface of the same cipher.
        let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, &[1; 32]).expect("a key");
        let nonce = aead::Nonce::assume_unique_for_key([0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1]);
        let mut expected = b"second".to_vec();
        aead::LessSafeKey::new(key)
            .seal_in_place_append_tag(nonce, Aad::from(&header), &mut expected)
            .expect("sealed");
        assert_eq!(packet[HEADER..], expected);
    }

    #[test]
    fn a_packet_is_opened_once_by_the_other_end() {
        let ((initiator, own), (_, responder)) = ends();
        let mut packet = Vec::new();
        initiator.seal(path(0), b"message", &mut packet);
        let opened = |opener: &Opener| {
            let mut copy = packet.clone();
            opener.open(&mut copy).map(|(path, message)| (path.number(), message.to_vec()))
        };
        assert_eq!(opened(&own), Err(PacketError::Invalid), "reflected");
        assert_eq!(opened(&responder), Ok((0, b"message".to_vec())));
        assert_eq!(opened(&responder), Err(PacketError::Replayed));
    }

    #[test]
    fn every_changed_byte_is_detected() {
        let ((initiator, _), (_, responder)) = ends();
        let mut packet = Vec::new();
        initiator.seal(path(0), b"message", &mut packet);
        for at in 0..packet.len() {
            let mut changed = packet.clone();
            changed[at] ^= 1;
            assert!(responder.open(&mut changed).is_err(), "byte {at}");
        }
        for length in 0..packet.len() {
            assert!(responder.open(&mut packet.clone()[..length]).is_err(), "{length} bytes");
        }
        assert!(responder.open(&mut packet).is_ok(), "what failed before does not count as received");
    }

    #[test]
    fn paths_are_numbered_apart() {
        let ((initiator, _), (_, responder)) = ends();
        let mut packet = Vec::new();
        for _ in 0..2 {
            for number in 0..16 {
                initiator.seal(path(number), &[], &mut packet);
                assert_eq!(responder.open(&mut packet), Ok((path(number), &[][..])));
            }
        }
        assert_eq!(PathId::new(16), None);
    }

    #[test]
    fn missing_packets_are_those_that_later_ones_have_overtaken() {
        let ((initiator, _), (_, responder)) = ends();
        let mut packets = vec![Vec::new(); 4];
        packets.iter_mut().for_each(|packet| initiator.seal(path(1), b"message", packet));
        for (number, missing) in [(3, 3), (1, 2), (1, 2), (0, 1)] {
            let _ = responder.open(&mut packets[number].clone());
            assert_eq!((responder.missing(path(1)), responder.missing(path(0))), (missing, 0));
        }
    }

    proptest! {
        #[test]
        fn other_bytes_are_rejected(mut bytes: Vec<u8>) {
            let (_, (_, responder)) = ends();
            prop_assert!(responder.open(&mut bytes).is_err());
            let mut framed = [&[0][..], &[7; 8], &bytes].concat();
            prop_assert!(responder.open(&mut framed).is_err());
        }
    }
}
