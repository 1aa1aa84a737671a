//! `stream`: encryption without framing, with keys derived from secrets that crossed only the trusted path.
//!
//! # Security properties
//!
//! An eavesdropper on all paths but the trusted one learns how much was sent and when, but nothing about the content.
//! An eavesdropper on the trusted path at the opening of the connection can read everything. **There is no integrity
//! protection**: an active attacker who modifies bytes flips the same bits of the plaintext undetected. Use
//! [`records`](crate::codec::records) to prevent that.
//!
//! # Definition
//!
//! `Ki` and `Kr` are the MPTCP keys (RFC 8684) of the initiator and the responder of the connection, 8 bytes each as on
//! the wire; `R` are [`RANDOM_LEN`] random bytes that the initiator sent in the first flight. With HKDF (RFC 5869) over
//! SHA-256, and all numbers big-endian:
//!
//! ```text
//! PRK                   = HKDF-Extract(salt = "plait stream 1", IKM = Ki || Kr || R)
//! key(direction, epoch) = HKDF-Expand(PRK, info = direction (1 byte) || epoch (8 bytes), 32 bytes)
//! ```
//!
//! Epoch `e` of a direction covers its bytes from `e * 2^36` to `(e + 1) * 2^36`, `R` not counted. Each epoch has its
//! own keystream, with which the bytes are XORed:
//!
//! - [`StreamCipher::Aes256Ctr`]: AES-256 in counter mode (NIST SP 800-38A, section 6.5); the counter block is 16 bytes,
//!   starts at 0 and counts up as one big-endian number.
//! - [`StreamCipher::ChaCha20`]: RFC 8439, section 2.4, with nonce 0 and the block counter from 0. It has 32 bits, enough
//!   for 2^38 bytes: it cannot wrap within an epoch.
//!
//! No two directions or epochs share a key, so a fixed nonce is safe. Two connections share a key only if both MPTCP
//! keys and `R` are equal.
//!
//! # Splitting the stream
//!
//! [`Keystream`] works in place on pieces of any length, including empty ones, however the stream is split. No input
//! causes a panic.
//!
//! ```
//! use plait_proto::codec::stream::{StreamCipher, Direction, StreamSecret};
//!
//! let secret = || StreamSecret::new(&[1; 8], &[2; 8], &[3; 32]);
//! let mut sending = secret().keystream(StreamCipher::Aes256Ctr, Direction::ToResponder);
//! let mut receiving = secret().keystream(StreamCipher::Aes256Ctr, Direction::ToResponder);
//!
//! let mut buf = *b"attack at dawn";
//! let (first, rest) = buf.split_at_mut(6);
//! sending.apply(first);
//! sending.apply(rest);
//! assert_ne!(&buf, b"attack at dawn");
//! receiving.apply(&mut buf);
//! assert_eq!(&buf, b"attack at dawn");
//! ```

use std::mem;
use std::sync::Arc;

use aes::Aes256Enc;
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher as _};
use ctr::Ctr64BE;
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use zeroize::Zeroizing;

use crate::codec::wiped::Wiped;
use crate::derive::{named, opaque_debug};

/// Bytes of the initiator's random `R`.
pub const RANDOM_LEN: usize = 32;

/// Bytes of one direction under one key.
const EPOCH: u64 = 1 << 36;

/// The cipher that generates the keystream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamCipher {
    /// AES-256 in counter mode: the faster one where [`aes_is_fast`](Self::aes_is_fast).
    Aes256Ctr,
    /// ChaCha20: fast on every processor.
    ChaCha20,
}

impl StreamCipher {
    /// Whether this processor has instructions for AES and for the multiplication of GCM. Without them AES is far
    /// slower than ChaCha20.
    #[must_use]
    pub fn aes_is_fast() -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        return std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        false
    }
}

named! {
    StreamCipher, "a cipher" {
        Aes256Ctr = "aes-256-ctr",
        ChaCha20 = "chacha20",
    }
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the initiator to the responder: 0 on the wire and in keys.
    ToResponder,
    /// From the responder to the initiator: 1.
    ToInitiator,
}

impl Direction {
    fn byte(self) -> u8 {
        match self {
            Self::ToResponder => 0,
            Self::ToInitiator => 1,
        }
    }
}

/// The secret of one connection (`PRK`), from which the keys of both directions are derived.
///
/// Wiped when the last keystream derived from it is dropped; its `Debug` output does not reveal it.
pub struct StreamSecret(Arc<Wiped<Prk>>);

impl StreamSecret {
    /// The secret of the connection with these MPTCP keys, as on the wire, and this random `R` of the initiator.
    #[must_use]
    pub fn new(initiator_key: &[u8; 8], responder_key: &[u8; 8], random: &[u8; RANDOM_LEN]) -> Self {
        let mut material = Zeroizing::new([0; 8 + 8 + RANDOM_LEN]);
        material[..8].copy_from_slice(initiator_key);
        material[8..16].copy_from_slice(responder_key);
        material[16..].copy_from_slice(random);
        Self(Arc::new(Wiped::new(Salt::new(HKDF_SHA256, b"plait stream 1").extract(&*material))))
    }

    /// The keystream of one direction, at its start.
    #[must_use]
    pub fn keystream(&self, cipher: StreamCipher, direction: Direction) -> Keystream {
        let secret = Self(Arc::clone(&self.0));
        let generator = Generator::new(cipher, &secret.key(direction, 0));
        Keystream { secret, cipher, direction, epoch: 0, generator, left: EPOCH }
    }

    fn key(&self, direction: Direction, epoch: u64) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0; 32]);
        self.0
            .expand(&[&[direction.byte()], &epoch.to_be_bytes()], HKDF_SHA256)
            .and_then(|output| output.fill(&mut *key))
            .expect("HKDF gives as many bytes as its hash has");
        key
    }
}

/// The keystream of one direction: encrypts and decrypts, since XOR is its own inverse.
pub struct Keystream {
    secret: StreamSecret,
    cipher: StreamCipher,
    direction: Direction,
    epoch: u64,
    generator: Generator,
    /// Bytes that remain in the epoch.
    left: u64,
}

impl Keystream {
    /// XORs the next `bytes.len()` bytes of the stream, in place, with the keystream.
    pub fn apply(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                self.begin(self.epoch + 1);
            }
            let length = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (now, later) = mem::take(&mut bytes).split_at_mut(length);
            self.generator.apply(now);
            self.left -= length as u64;
            bytes = later;
        }
    }

    fn begin(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.generator = Generator::new(self.cipher, &self.secret.key(self.direction, epoch));
        self.left = EPOCH;
    }
}

opaque_debug!(StreamSecret, Keystream);

/// The keystream of one epoch. Boxed because expanded keys are large, and so that a move leaves no copy of them behind.
enum Generator {
    /// Counts in half of the block, which is faster: an epoch has 2^32 blocks, so there is never a carry into the other
    /// half.
    Aes256Ctr(Box<Ctr64BE<Aes256Enc>>),
    ChaCha20(Box<ChaCha20>),
}

impl Generator {
    fn new(cipher: StreamCipher, key: &[u8; 32]) -> Self {
        match cipher {
            StreamCipher::Aes256Ctr => Self::Aes256Ctr(Box::new(Ctr64BE::new(key.into(), &[0; 16].into()))),
            StreamCipher::ChaCha20 => Self::ChaCha20(Box::new(ChaCha20::new(key.into(), &[0; 12].into()))),
        }
    }

    fn apply(&mut self, bytes: &mut [u8]) {
        match self {
            Self::Aes256Ctr(generator) => generator.apply_keystream(bytes),
            Self::ChaCha20(generator) => generator.apply_keystream(bytes),
        }
    }
}

#[cfg(test)]
mod tests;
