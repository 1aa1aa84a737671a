//! The Noise handshakes of `sealed`, with empty payloads: `Noise_NNpsk2_25519_ChaChaPoly_SHA256` (or `AESGCM`) between
//! anonymous ends, `XXpsk2` between ends that authenticate.
//!
//! ```text
//! NNpsk2:   -> e    <- e, ee, psk
//! XXpsk2:   -> e    <- e, ee, s, es, psk    -> s, se
//! ```
//!
//! Noise revision 34. The first message is an ephemeral X25519 key (32 bytes) and the tag of an empty payload (16 bytes)
//! under a key derived from public values; it proves that both ends have the same prologue. The tag of the second proves
//! that the responder knows the pre-shared key and, in XXpsk2, its own static key; that of the third proves the same of
//! the initiator.

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};

use super::framing::{NOISE_IDENTITY_LEN, NOISE_LEN, NOISE_STATIC_LEN};
use crate::codec::records::AeadCipher;
use crate::identity::PublicKey;
use crate::secret::Secret;

/// Where both patterns mix the pre-shared key in: at the end of the second message.
const PSK_LOCATION: usize = 2;

/// The algorithms and keys of a Noise handshake.
#[derive(Clone, Copy)]
pub(super) struct Suite<'a> {
    pub(super) cipher: AeadCipher,
    /// This end's static key, where the ends authenticate.
    pub(super) static_key: Option<&'a Secret>,
}

impl Suite<'_> {
    fn name(self) -> &'static str {
        match (self.cipher, self.static_key.is_some()) {
            (AeadCipher::ChaCha20Poly1305, false) => "Noise_NNpsk2_25519_ChaChaPoly_SHA256",
            (AeadCipher::Aes256Gcm, false) => "Noise_NNpsk2_25519_AESGCM_SHA256",
            (AeadCipher::ChaCha20Poly1305, true) => "Noise_XXpsk2_25519_ChaChaPoly_SHA256",
            (AeadCipher::Aes256Gcm, true) => "Noise_XXpsk2_25519_AESGCM_SHA256",
        }
    }
}

/// One end's handshake between its first two messages.
pub(super) struct Noise {
    state: HandshakeState,
}

/// A handshake after its second message.
pub(super) enum AfterReply {
    /// NNpsk2: complete.
    Anonymous(Split),
    /// XXpsk2: the initiator's static key is still to be sent.
    Identified(Box<AwaitingIdentity>),
}

/// An XXpsk2 handshake before its third message.
pub(super) struct AwaitingIdentity {
    state: HandshakeState,
    hash: [u8; 32],
}

/// The result of a handshake, equal at both ends.
pub(super) struct Split {
    /// The handshake hash after the last message.
    pub(super) hash: [u8; 32],
    /// The key of what the initiator sends.
    pub(super) to_responder: Secret,
    /// The key of what the responder sends.
    pub(super) to_initiator: Secret,
}

impl Noise {
    /// Starts a handshake at the initiator: writes message 1.
    pub(super) fn initiator(
        suite: Suite<'_>,
        prologue: &[u8],
    ) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error> {
        Noise::write_first(builder(suite, prologue)?)
    }

    fn write_first(builder: Builder<'_>) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error> {
        let mut state = builder.build_initiator()?;
        let mut message = [0; NOISE_LEN];
        write(&mut state, &mut message)?;
        Ok((Noise { state }, message))
    }

    /// Starts a handshake at the responder: reads message 1. Costs no key agreement.
    pub(super) fn responder(
        suite: Suite<'_>,
        prologue: &[u8],
        message: &[u8; NOISE_LEN],
    ) -> Result<Noise, snow::Error> {
        Noise::read_first(builder(suite, prologue)?, message)
    }

    fn read_first(builder: Builder<'_>, message: &[u8; NOISE_LEN]) -> Result<Noise, snow::Error> {
        let mut state = builder.build_responder()?;
        read(&mut state, message)?;
        Ok(Noise { state })
    }

    /// Writes message 2 at the responder.
    pub(super) fn write_reply(mut self, psk: &Secret) -> Result<(AfterReply, Vec<u8>), snow::Error> {
        self.state.set_psk(PSK_LOCATION, psk.as_bytes())?;
        let mut message = vec![0; NOISE_STATIC_LEN];
        let length = self.state.write_message(&[], &mut message)?;
        message.truncate(length);
        Ok((after_reply(self.state), message))
    }

    /// Reads message 2 at the initiator.
    pub(super) fn read_reply(mut self, psk: &Secret, message: &[u8]) -> Result<AfterReply, snow::Error> {
        self.state.set_psk(PSK_LOCATION, psk.as_bytes())?;
        read(&mut self.state, message)?;
        Ok(after_reply(self.state))
    }
}

impl AfterReply {
    /// The handshake hash after message 2.
    pub(super) fn hash(&self) -> &[u8; 32] {
        match self {
            AfterReply::Anonymous(split) => &split.hash,
            AfterReply::Identified(awaiting) => &awaiting.hash,
        }
    }
}

impl AwaitingIdentity {
    /// The responder's static key, at the initiator.
    pub(super) fn responder_key(&self) -> PublicKey {
        remote_static(&self.state)
    }

    /// Writes message 3 at the initiator.
    pub(super) fn write_identity(mut self) -> Result<(Split, [u8; NOISE_IDENTITY_LEN]), snow::Error> {
        let mut message = [0; NOISE_IDENTITY_LEN];
        write(&mut self.state, &mut message)?;
        Ok((split(self.state), message))
    }

    /// Reads message 3 at the responder. Returns the initiator's static key, too.
    pub(super) fn read_identity(
        mut self,
        message: &[u8; NOISE_IDENTITY_LEN],
    ) -> Result<(Split, PublicKey), snow::Error> {
        read(&mut self.state, message)?;
        let initiator = remote_static(&self.state);
        Ok((split(self.state), initiator))
    }
}

fn write(state: &mut HandshakeState, message: &mut [u8]) -> Result<(), snow::Error> {
    let length = state.write_message(&[], message)?;
    debug_assert_eq!(length, message.len());
    Ok(())
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Result<(), snow::Error> {
    // The payload is empty; the library wants room for the tag as well.
    match state.read_message(message, &mut [0; NOISE_STATIC_LEN])? {
        0 => Ok(()),
        _ => Err(snow::Error::Input),
    }
}

fn after_reply(state: HandshakeState) -> AfterReply {
    if state.is_handshake_finished() {
        AfterReply::Anonymous(split(state))
    } else {
        let hash = hash(&state);
        AfterReply::Identified(Box::new(AwaitingIdentity { state, hash }))
    }
}

fn hash(state: &HandshakeState) -> [u8; 32] {
    state.get_handshake_hash().try_into().expect("SHA-256 has 32 bytes")
}

fn remote_static(state: &HandshakeState) -> PublicKey {
    let key = state.get_remote_static().expect("the last message contained it");
    PublicKey::new(key.try_into().expect("X25519 keys have 32 bytes"))
}

fn split(mut state: HandshakeState) -> Split {
    let hash = hash(&state);
    let (mut first, mut second) = state.dangerously_get_raw_split();
    Split { hash, to_responder: Secret::take(&mut first), to_initiator: Secret::take(&mut second) }
}

fn builder<'a>(suite: Suite<'a>, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    let builder = Builder::new(suite.name().parse::<NoiseParams>()?).prologue(prologue)?;
    match suite.static_key {
        Some(key) => builder.local_private_key(key.as_bytes()),
        None => Ok(builder),
    }
}

/// Handshakes with given ephemeral keys, for test vectors.
#[cfg(test)]
pub(super) mod with_ephemeral {
    use super::*;

    pub(in crate::sealed) fn initiator(
        suite: Suite<'_>,
        prologue: &[u8],
        ephemeral: &[u8; 32],
    ) -> Result<(Noise, [u8; NOISE_LEN]), snow::Error> {
        Noise::write_first(builder(suite, prologue)?.fixed_ephemeral_key_for_testing_only(ephemeral))
    }

    pub(in crate::sealed) fn responder(
        suite: Suite<'_>,
        prologue: &[u8],
        message: &[u8; NOISE_LEN],
        ephemeral: &[u8; 32],
    ) -> Result<Noise, snow::Error> {
        let builder = builder(suite, prologue)?.fixed_ephemeral_key_for_testing_only(ephemeral);
        Noise::read_first(builder, message)
    }
}

#[cfg(test)]
mod tests {
    use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
    use serde::Deserialize;

    use super::*;
    use crate::identity::KeyPair;

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
    fn encrypt(cipher: AeadCipher, key: &Secret, counter: u64, payload: &[u8]) -> Vec<u8> {
        let (algorithm, counter) = match cipher {
            AeadCipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, counter.to_le_bytes()),
            AeadCipher::Aes256Gcm => (&AES_256_GCM, counter.to_be_bytes()),
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
    fn handshakes_match_cacophony_vectors() {
        let Vectors { vectors } = serde_json::from_str(CACOPHONY).expect("the vectors");
        for cipher in AeadCipher::ALL {
            let suite = Suite { cipher, static_key: None };
            let vector = vectors.iter().find(|vector| vector.protocol_name == suite.name());
            let vector = vector.expect("a vector of each suite");
            let (prologue, psk) = (bytes(&vector.init_prologue), bytes(&vector.init_psks[0]));
            let ephemerals = [bytes(&vector.init_ephemeral), bytes(&vector.resp_ephemeral)];
            let end = |ephemeral| {
                let builder = builder(suite, &prologue).expect("a suite that snow has");
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

            for split in [split(initiator), split(responder)] {
                assert_eq!(hex::encode(split.hash), vector.handshake_hash);
                for (index, Message { payload, ciphertext }) in transport.iter().enumerate() {
                    let (sender, counter) =
                        ([&split.to_responder, &split.to_initiator][index % 2], index as u64 / 2);
                    assert_eq!(hex::encode(encrypt(cipher, sender, counter, &bytes(payload))), *ciphertext);
                }
            }
        }
    }

    /// Runs a handshake: the initiator's result, the responder's, and the static keys that each saw.
    fn agree(cipher: AeadCipher, static_keys: [Option<&Secret>; 2]) -> ([Split; 2], Option<[PublicKey; 2]>) {
        let psk = Secret::copy_of(&[7; 32]);
        let [initiator, responder] = static_keys.map(|static_key| Suite { cipher, static_key });
        let (initiator, first) = Noise::initiator(initiator, b"prologue").expect("message 1");
        let responder = Noise::responder(responder, b"prologue", &first).expect("an honest message");
        let (theirs, second) = responder.write_reply(&psk).expect("message 2");
        let ours = initiator.read_reply(&psk, &second).expect("an honest message");
        assert_eq!(ours.hash(), theirs.hash());
        match (ours, theirs) {
            (AfterReply::Anonymous(ours), AfterReply::Anonymous(theirs)) => ([ours, theirs], None),
            (AfterReply::Identified(ours), AfterReply::Identified(theirs)) => {
                let seen = ours.responder_key();
                let (ours, third) = ours.write_identity().expect("message 3");
                let (theirs, met) = theirs.read_identity(&third).expect("an honest message");
                ([ours, theirs], Some([seen, met]))
            }
            _ => panic!("both ends use the same pattern"),
        }
    }

    #[test]
    fn both_ends_get_equal_keys_and_every_handshake_its_own() {
        let keys = [1, 2].map(|byte| KeyPair::from_private(Secret::copy_of(&[byte; 32])));
        for cipher in AeadCipher::ALL {
            for own in [[None; 2], [0, 1].map(|end: usize| Some(keys[end].private()))] {
                let splits = [(); 2].map(|()| {
                    let ([ours, theirs], seen) = agree(cipher, own);
                    assert_eq!(seen.is_some(), own[0].is_some());
                    assert!(seen.is_none_or(|seen| seen == [keys[1].public(), keys[0].public()]));
                    assert_eq!(ours.hash, theirs.hash);
                    assert_eq!(ours.to_responder.as_bytes(), theirs.to_responder.as_bytes());
                    assert_eq!(ours.to_initiator.as_bytes(), theirs.to_initiator.as_bytes());
                    assert_ne!(ours.to_responder.as_bytes(), ours.to_initiator.as_bytes());
                    ours
                });
                assert_ne!(splits[0].hash, splits[1].hash);
                assert_ne!(splits[0].to_responder.as_bytes(), splits[1].to_responder.as_bytes());
            }
        }
    }

    #[test]
    fn different_prologues_psks_or_ciphers_fail() {
        let own = Secret::copy_of(&[3; 32]);
        for static_key in [None, Some(&own)] {
            let suite = Suite { cipher: AeadCipher::ChaCha20Poly1305, static_key };
            let (_, first) = Noise::initiator(suite, b"one prologue").expect("message 1");
            assert!(Noise::responder(suite, b"another", &first).is_err());
            let other = Suite { cipher: AeadCipher::Aes256Gcm, ..suite };
            assert!(Noise::responder(other, b"one prologue", &first).is_err());
            let (initiator, first) = Noise::initiator(suite, b"prologue").expect("message 1");
            let responder = Noise::responder(suite, b"prologue", &first).expect("an honest message");
            let (_, second) = responder.write_reply(&Secret::copy_of(&[1; 32])).expect("message 2");
            assert!(initiator.read_reply(&Secret::copy_of(&[2; 32]), &second).is_err());
        }
    }

    #[test]
    fn one_pattern_does_not_accept_the_other() {
        let own = Secret::copy_of(&[3; 32]);
        let [anonymous, identified] =
            [None, Some(&own)].map(|static_key| Suite { cipher: AeadCipher::Aes256Gcm, static_key });
        for (one, other) in [(anonymous, identified), (identified, anonymous)] {
            let (_, first) = Noise::initiator(one, b"prologue").expect("message 1");
            assert!(Noise::responder(other, b"prologue", &first).is_err());
        }
    }
}
