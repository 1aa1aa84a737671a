//! The noise handshake of `sealed`: `Noise_NNpsk2_25519_ChaChaPoly_SHA256`, or `AESGCM`, with empty payloads.
//!
//! ```text
//! NNpsk2:   -> e    <- e, ee, psk
//! ```
//!
//! Noise revision 34. Both messages are an ephemeral X25519 key (32 bytes) and the tag of nothing (16 bytes). The key of the
//! first tag is a function of public values; it shows that both ends began with the same prologue. The second tag shows
//! that the responder knew the pre-shared key.

use plait_codec::sealed::Cipher;
use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};

use super::keys::Secret;
use super::messages::NOISE_LEN;

/// Where NNpsk2 mixes the pre-shared key in: at the end of the second message.
const PSK_LOCATION: usize = 2;

/// One end's handshake between its two messages.
pub(super) struct Noise {
    state: HandshakeState,
}

/// What a handshake comes to at both ends alike.
pub(super) struct Split {
    /// The handshake hash after message 2.
    pub(super) hash: [u8; 32],
    /// The key of what the initiator sends.
    pub(super) forth: Secret,
    /// The key of what the responder sends.
    pub(super) back: Secret,
}

impl Noise {
    /// Begins a handshake: the initiator's half, and message 1.
    pub(super) fn initiator(
        cipher: Cipher,
        prologue: &[u8],
    ) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error> {
        Noise::first(builder(cipher, prologue)?)
    }

    fn first(builder: Builder<'_>) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error> {
        let mut noise = Noise { state: builder.build_initiator()? };
        let message = noise.write()?;
        Ok((noise, message))
    }

    /// Reads message 1: the responder's half. Costs no key agreement.
    pub(super) fn responder(
        cipher: Cipher,
        prologue: &[u8],
        message: &[u8; NOISE_LEN],
    ) -> Result<Noise, snow::Error> {
        Noise::second(builder(cipher, prologue)?, message)
    }

    fn second(builder: Builder<'_>, message: &[u8; NOISE_LEN]) -> Result<Noise, snow::Error> {
        let mut noise = Noise { state: builder.build_responder()? };
        noise.read(message)?;
        Ok(noise)
    }

    /// The responder's message 2.
    pub(super) fn answer(mut self, psk: &Secret) -> Result<(Split, [u8; NOISE_LEN]), snow::Error> {
        self.state.set_psk(PSK_LOCATION, psk.as_bytes())?;
        let message = self.write()?;
        Ok((self.split(), message))
    }

    /// Reads message 2 at the initiator.
    pub(super) fn finish(mut self, psk: &Secret, message: &[u8; NOISE_LEN]) -> Result<Split, snow::Error> {
        self.state.set_psk(PSK_LOCATION, psk.as_bytes())?;
        self.read(message)?;
        Ok(self.split())
    }

    fn write(&mut self) -> Result<[u8; NOISE_LEN], snow::Error> {
        let mut message = [0; NOISE_LEN];
        let length = self.state.write_message(&[], &mut message)?;
        debug_assert_eq!(length, NOISE_LEN);
        Ok(message)
    }

    fn read(&mut self, message: &[u8; NOISE_LEN]) -> Result<(), snow::Error> {
        // The payload is empty; the library wants room for the tag as well.
        self.state.read_message(message, &mut [0; NOISE_LEN])?;
        Ok(())
    }

    fn split(mut self) -> Split {
        let hash = self.state.get_handshake_hash().try_into().expect("SHA-256 has 32 bytes");
        let (mut forth, mut back) = self.state.dangerously_get_raw_split();
        Split { hash, forth: Secret::taken_from(&mut forth), back: Secret::taken_from(&mut back) }
    }
}

fn builder(cipher: Cipher, prologue: &[u8]) -> Result<Builder<'_>, snow::Error> {
    Builder::new(suite(cipher).parse::<NoiseParams>()?).prologue(prologue)
}

fn suite(cipher: Cipher) -> &'static str {
    match cipher {
        Cipher::ChaCha20Poly1305 => "Noise_NNpsk2_25519_ChaChaPoly_SHA256",
        Cipher::Aes256Gcm => "Noise_NNpsk2_25519_AESGCM_SHA256",
    }
}

/// Handshakes whose ephemeral keys are given, for test vectors.
#[cfg(test)]
pub(super) mod with_ephemeral {
    use super::*;

    pub(in crate::sealed) fn initiator(
        cipher: Cipher,
        prologue: &[u8],
        ephemeral: &[u8; 32],
    ) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error> {
        Noise::first(builder(cipher, prologue)?.fixed_ephemeral_key_for_testing_only(ephemeral))
    }

    pub(in crate::sealed) fn responder(
        cipher: Cipher,
        prologue: &[u8],
        message: &[u8; NOISE_LEN],
        ephemeral: &[u8; 32],
    ) -> Result<Noise, snow::Error> {
        let builder = builder(cipher, prologue)?.fixed_ephemeral_key_for_testing_only(ephemeral);
        Noise::second(builder, message)
    }
}

#[cfg(test)]
mod tests {
    use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
    use serde::Deserialize;

    use super::*;

    /// Cacophony's test vectors of the two suites. Bytes are hexadecimal digits.
    const CACOPHONY: &str = include_str!("../../../../tests/data/protocol/noise.json");

    #[derive(Deserialize)]
    struct Vectors {
        vectors: Vec<Vector>,
    }

    /// Both ends have the same prologue and pre-shared key.
    #[derive(Deserialize)]
    struct Vector {
        protocol_name: String,
        init_prologue: String,
        init_psks: [String; 1],
        init_ephemeral: String,
        resp_ephemeral: String,
        handshake_hash: String,
        messages: Vec<Message>,
    }

    #[derive(Deserialize)]
    struct Message {
        payload: String,
        ciphertext: String,
    }

    fn bytes(digits: &str) -> Vec<u8> {
        hex::decode(digits).expect("hexadecimal digits")
    }

    /// Noise's ENCRYPT(key, counter, no additional data, payload).
    fn encrypt(cipher: Cipher, key: &Secret, counter: u64, payload: &[u8]) -> Vec<u8> {
        let (algorithm, counter) = match cipher {
            Cipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, counter.to_le_bytes()),
            Cipher::Aes256Gcm => (&AES_256_GCM, counter.to_be_bytes()),
        };
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&counter);
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_bytes()).expect("32 bytes"));
        let mut message = payload.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::empty(), &mut message).expect("a short message");
        message
    }

    #[test]
    fn the_suites_are_those_of_cacophony() {
        let Vectors { vectors } = serde_json::from_str(CACOPHONY).expect("the vectors");
        for cipher in Cipher::ALL {
            let vector = vectors.iter().find(|vector| vector.protocol_name == suite(cipher));
            let vector = vector.expect("a vector of each suite");
            let (prologue, psk) = (bytes(&vector.init_prologue), bytes(&vector.init_psks[0]));
            let ephemerals = [bytes(&vector.init_ephemeral), bytes(&vector.resp_ephemeral)];
            let end = |ephemeral| {
                let builder = builder(cipher, &prologue).expect("a suite that snow has");
                builder.fixed_ephemeral_key_for_testing_only(ephemeral)
            };
            let mut initiator = end(&ephemerals[0]).build_initiator().expect("an initiator");
            let mut responder = end(&ephemerals[1]).build_responder().expect("a responder");
            initiator.set_psk(PSK_LOCATION, &psk).expect("NNpsk2 takes it there");
            responder.set_psk(PSK_LOCATION, &psk).expect("NNpsk2 takes it there");

            let (handshake, transport) = vector.messages.split_at(2);
            let mut ends = [&mut initiator, &mut responder];
            for Message { payload, ciphertext } in handshake {
                let mut written = [0; 100];
                let length = ends[0].write_message(&bytes(payload), &mut written).expect("room");
                assert_eq!(hex::encode(&written[..length]), *ciphertext);
                let mut read = [0; 100];
                let length = ends[1].read_message(&bytes(ciphertext), &mut read).expect("an honest message");
                assert_eq!(hex::encode(&read[..length]), *payload);
                ends.reverse();
            }

            for split in [Noise { state: initiator }.split(), Noise { state: responder }.split()] {
                assert_eq!(hex::encode(split.hash), vector.handshake_hash);
                for (index, Message { payload, ciphertext }) in transport.iter().enumerate() {
                    let (sender, counter) = ([&split.forth, &split.back][index % 2], index as u64 / 2);
                    assert_eq!(hex::encode(encrypt(cipher, sender, counter, &bytes(payload))), *ciphertext);
                }
            }
        }
    }

    #[test]
    fn both_ends_come_to_the_same_and_never_twice() {
        for cipher in Cipher::ALL {
            let psk = Secret::copy_of(&[7; 32]);
            let splits = [(); 2].map(|()| {
                let (initiator, first) = Noise::initiator(cipher, b"prologue").expect("message 1");
                let responder = Noise::responder(cipher, b"prologue", &first).expect("an honest message");
                let (theirs, second) = responder.answer(&psk).expect("message 2");
                let ours = initiator.finish(&psk, &second).expect("an honest message");
                assert_eq!(ours.hash, theirs.hash);
                assert_eq!(ours.forth.as_bytes(), theirs.forth.as_bytes());
                assert_eq!(ours.back.as_bytes(), theirs.back.as_bytes());
                assert_ne!(ours.forth.as_bytes(), ours.back.as_bytes());
                ours
            });
            assert_ne!(splits[0].hash, splits[1].hash);
            assert_ne!(splits[0].forth.as_bytes(), splits[1].forth.as_bytes());
        }
    }

    #[test]
    fn another_prologue_psk_or_suite_does_not_open() {
        let cipher = Cipher::ChaCha20Poly1305;
        let (_, first) = Noise::initiator(cipher, b"one prologue").expect("message 1");
        assert!(Noise::responder(cipher, b"another", &first).is_err());
        assert!(Noise::responder(Cipher::Aes256Gcm, b"one prologue", &first).is_err());
        let (initiator, first) = Noise::initiator(cipher, b"prologue").expect("message 1");
        let responder = Noise::responder(cipher, b"prologue", &first).expect("an honest message");
        let (_, second) = responder.answer(&Secret::copy_of(&[1; 32])).expect("message 2");
        assert!(initiator.finish(&Secret::copy_of(&[2; 32]), &second).is_err());
    }
}
