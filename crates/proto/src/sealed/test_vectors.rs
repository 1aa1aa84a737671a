//! Whole handshakes against test vectors that an independent Python implementation computed from the specification:
//! `tests/data/protocol/sealed.json`.

use std::collections::BTreeMap;

use plait_wire::mptcp::Key;
use serde::Deserialize;

use super::handshake::{Closing, Initiator, InitiatorSecrets, Opening, Params, Responder, WitnessMessages};
use super::kem;
use super::loopback::{accept_any, parse};
use super::messages::Preface;
use super::noise::with_ephemeral;
use super::paths::{PathId, PathIds, Paths};
use super::service::Service;
use super::session_id::SessionId;
use crate::codec::records::{AeadCipher, Opened, Opener};
use crate::identity::PublicKey;
use crate::secret::Secret;

pub(super) const FILE: &str = include_str!("../../../../tests/data/protocol/sealed.json");

/// Bytes are hexadecimal digits everywhere.
#[derive(Deserialize)]
pub(super) struct Vectors {
    pub(super) handshakes: Vec<Handshake>,
    pub(super) updates: Vec<Updates>,
    pub(super) side_connections: Vec<SideConnection>,
}

/// The messages of a side connection, and a copy of the initiator's second record.
#[derive(Deserialize)]
pub(super) struct SideConnection {
    pub(super) mode: String,
    pub(super) session: String,
    pub(super) handshake_hash: String,
    pub(super) initiator_to_responder: String,
    pub(super) responder_to_initiator: String,
    pub(super) salt: String,
    pub(super) path: u8,
    pub(super) initiator_share: String,
    pub(super) responder_share: String,
    pub(super) side: String,
    pub(super) share: String,
    pub(super) confirm: String,
    pub(super) copy: String,
}

/// The key updates of a session.
#[derive(Deserialize)]
pub(super) struct Updates {
    pub(super) mode: String,
    pub(super) hybrid: bool,
    pub(super) handshake_hash: String,
    pub(super) initiator_to_responder: String,
    pub(super) responder_to_initiator: String,
    pub(super) pad: u16,
    pub(super) steps: Vec<UpdateStep>,
}

#[derive(Deserialize)]
pub(super) struct UpdateStep {
    pub(super) initiator_private: String,
    pub(super) responder_private: String,
    pub(super) kem: [String; 3],
    pub(super) initiator_to_responder: String,
    pub(super) responder_to_initiator: String,
    pub(super) request: String,
    pub(super) response: String,
    pub(super) new_key: String,
    /// A record with data of each direction, the initiator's first.
    pub(super) data: [String; 2],
}

#[derive(Deserialize)]
pub(super) struct Handshake {
    offered: String,
    chosen: String,
    initiator_key: String,
    responder_key: String,
    session: String,
    configured: u8,
    name: String,
    port: u16,
    /// Of a hybrid handshake only: the two halves of the seed of the initiator's key pair, and the responder's random bytes.
    kem: Option<[String; 3]>,
    /// Of ends that authenticate only.
    initiator_static: Option<String>,
    responder_static: Option<String>,
    initiator_public: Option<String>,
    responder_public: Option<String>,
    initiator_ephemeral: String,
    responder_ephemeral: String,
    initiator_shares: BTreeMap<u8, String>,
    responder_shares: BTreeMap<u8, String>,
    pub(super) hello: String,
    pub(super) reply: String,
    pub(super) witnesses: BTreeMap<u8, String>,
    pub(super) share_messages: BTreeMap<u8, String>,
    pub(super) identity: Option<String>,
    pub(super) confirms: BTreeMap<u8, String>,
    handshake_hash: String,
    initiator_to_responder: String,
    responder_to_initiator: String,
    records: Records,
}

/// One with plaintext and the end, of each direction.
#[derive(Deserialize)]
struct Records {
    initiator: Vec<String>,
    responder: Vec<String>,
}

pub(super) fn bytes(digits: &str) -> Vec<u8> {
    hex::decode(digits).expect("hexadecimal digits")
}

pub(super) fn fixed<const N: usize>(digits: &str) -> [u8; N] {
    bytes(digits).try_into().expect("a field of this length")
}

pub(super) fn cipher_of(mode: u8) -> AeadCipher {
    match mode {
        0x10 => AeadCipher::ChaCha20Poly1305,
        0x20 => AeadCipher::Aes256Gcm,
        other => panic!("expected a mode of `sealed`, got {other:#04x}"),
    }
}

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path number")
}

fn shares(shares: &BTreeMap<u8, String>) -> BTreeMap<PathId, Secret> {
    shares.iter().map(|(number, share)| (path(*number), Secret::copy_of(&fixed(share)))).collect()
}

fn written(messages: &WitnessMessages) -> BTreeMap<u8, String> {
    messages.iter().map(|(path, message)| (path.number(), hex::encode(&**message))).collect()
}

/// The plaintext of one direction's records, to its end.
fn opened(cipher: AeadCipher, key: &Secret, records: &[String]) -> Vec<u8> {
    let mut opener = Opener::new(cipher, key.as_bytes());
    let mut plain = Vec::new();
    for record in records {
        let mut record = bytes(record);
        if let Opened::Data { content, .. } = opener.open(&mut record).expect("a genuine record") {
            plain.extend_from_slice(&record[content]);
        }
    }
    opener.finish().expect("the last record ends the direction");
    plain
}

#[test]
fn handshakes_match_the_reference() {
    let Vectors { handshakes, .. } = serde_json::from_str(FILE).expect("the vectors");
    for vector in handshakes {
        let [chosen] = fixed(&vector.chosen);
        let cipher = cipher_of(chosen);
        let [offered] = fixed(&vector.offered);
        let (initiator, responder) =
            (Key::new(fixed(&vector.initiator_key)), Key::new(fixed(&vector.responder_key)));
        let params = Params { offered, chosen, cipher, initiator, responder };
        let witnesses: PathIds = vector.initiator_shares.keys().copied().map(path).collect();
        let paths = Paths::new(vector.configured, witnesses).expect("fewer witnesses than paths");
        let [initiator_static, responder_static] = [&vector.initiator_static, &vector.responder_static]
            .map(|key| key.as_deref().map(|key| Secret::copy_of(&fixed(key))));
        let [d, z, encapsulated] =
            vector.kem.as_ref().map_or([[0; 32]; 3], |kem| kem.each_ref().map(|part| fixed(part)));
        let kem =
            vector.kem.as_ref().map(|_| kem::KeyPair::from_seed(&Secret::copy_of(&d), &Secret::copy_of(&z)));
        let session = SessionId::new(fixed(&vector.session));
        let preface = Preface {
            identified: initiator_static.is_some(),
            session,
            paths,
            service: Service::new(&vector.name, vector.port).requested(&session),
            encapsulation_key: kem.as_ref().map(|pair| pair.public.clone()),
        };

        let (initiator, Opening { hello, witnesses }) = Initiator::start_with(
            &params,
            preface,
            InitiatorSecrets { shares: shares(&vector.initiator_shares), kem },
            initiator_static.as_ref(),
            |suite, prologue| with_ephemeral::initiator(suite, prologue, &fixed(&vector.initiator_ephemeral)),
        )
        .expect("started");
        assert_eq!(hex::encode(&*hello), vector.hello);
        assert_eq!(written(&witnesses), vector.witnesses);

        let hello = parse(&hello).expect("HELLO");
        let responder =
            Responder::accept_with(&params, &hello, responder_static.as_ref(), |suite, prologue, message| {
                with_ephemeral::responder(suite, prologue, message, &fixed(&vector.responder_ephemeral))
            });
        let received = witnesses.iter().map(|(_, message)| parse(message).expect("WITNESS")).collect();
        let (awaiting, answer) = responder
            .expect("accepted")
            .reply_with(received, shares(&vector.responder_shares), &Secret::copy_of(&encapsulated))
            .expect("replied");
        assert_eq!(hex::encode(&*answer.reply), vector.reply);
        assert_eq!(written(&answer.shares), vector.share_messages);
        assert_eq!(hex::encode(awaiting.hash()), vector.handshake_hash);

        let received = answer.shares.iter().map(|(path, message)| (*path, parse(message).expect("SHARE")));
        // Checks the static key that each end expects.
        let expects = |public: &Option<String>| {
            let expected = public.clone();
            move |key: &PublicKey| {
                assert_eq!(Some(hex::encode(key.as_bytes())), expected);
                accept_any(key)
            }
        };
        let reply = parse(&answer.reply).expect("REPLY");
        let finished = initiator.finish(&reply, received.collect(), expects(&vector.responder_public));
        let (at_initiator, Closing { identity, confirms }) = finished.expect("established");
        assert_eq!(identity.as_ref().map(|message| hex::encode(&**message)), vector.identity);
        assert_eq!(written(&confirms), vector.confirms);

        let received = confirms.iter().map(|(path, message)| (*path, parse(message).expect("CONFIRM")));
        let identity = identity.map(|message| parse(&message).expect("IDENTITY"));
        let at_responder =
            awaiting.verify(identity.as_ref(), received.collect(), expects(&vector.initiator_public));
        let at_responder = at_responder.expect("established");
        let keys = [vector.initiator_to_responder, vector.responder_to_initiator];
        let secrets = |secrets: [&Secret; 2]| secrets.map(|secret| hex::encode(secret.as_bytes()));
        assert_eq!(secrets([&at_initiator.send_key, &at_initiator.recv_key]), keys);
        assert_eq!(secrets([&at_responder.recv_key, &at_responder.send_key]), keys);

        for (key, records) in [
            (&at_responder.recv_key, vector.records.initiator),
            (&at_initiator.recv_key, vector.records.responder),
        ] {
            assert!(!opened(cipher, key, &records).is_empty());
        }
    }
}
