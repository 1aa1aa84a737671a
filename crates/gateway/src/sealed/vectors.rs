//! Whole handshakes against those that another program computed from the definitions: `tests/data/protocol/sealed.json`.

use std::collections::BTreeMap;

use plait_linux::mptcp::Key;
use plait_proto::sealed::{Cipher, Opened, Opener};
use serde::Deserialize;

use super::both_ends::{anybody, whole};
use super::handshake::{Agreed, Closing, ForWitnesses, Initiator, Opening, Responder};
use super::keys::Secret;
use super::messages::{Preface, SessionId, Version};
use super::noise::with_ephemeral;
use super::paths::{PathId, PathIds, Paths};
use crate::identity::PublicKey;

pub(super) const FILE: &str = include_str!("../../../../tests/data/protocol/sealed.json");

/// Bytes are hexadecimal digits everywhere.
#[derive(Deserialize)]
pub(super) struct Vectors {
    pub(super) handshakes: Vec<Handshake>,
}

#[derive(Deserialize)]
pub(super) struct Handshake {
    offered: String,
    chosen: String,
    initiator_key: String,
    responder_key: String,
    version: u8,
    session: String,
    configured: u8,
    /// Of version 02.
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

fn fixed<const N: usize>(digits: &str) -> [u8; N] {
    bytes(digits).try_into().expect("a field of this length")
}

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path's number")
}

fn shares(shares: &BTreeMap<u8, String>) -> BTreeMap<PathId, Secret> {
    shares.iter().map(|(number, share)| (path(*number), Secret::copy_of(&fixed(share)))).collect()
}

fn written(messages: &ForWitnesses) -> BTreeMap<u8, String> {
    messages.iter().map(|(path, message)| (path.number(), hex::encode(&**message))).collect()
}

/// What comes out of the records of one direction, to its end.
fn opened(cipher: Cipher, key: &Secret, records: &[String]) -> Vec<u8> {
    let mut opener = Opener::new(cipher, key.as_bytes());
    let mut plain = Vec::new();
    for record in records {
        let mut record = bytes(record);
        if let Opened::Data { plaintext, .. } = opener.open(&mut record).expect("a genuine record") {
            plain.extend_from_slice(&record[plaintext]);
        }
    }
    opener.finish().expect("the last record ends the direction");
    plain
}

#[test]
fn handshakes_are_those_of_the_second_computation() {
    let Vectors { handshakes } = serde_json::from_str(FILE).expect("the vectors");
    for vector in handshakes {
        let [chosen] = fixed(&vector.chosen);
        let cipher = match chosen {
            0x10 => Cipher::ChaCha20Poly1305,
            0x20 => Cipher::Aes256Gcm,
            other => panic!("expected a mode of `sealed`, got {other:#04x}"),
        };
        let [offered] = fixed(&vector.offered);
        let (initiator, responder) =
            (Key::new(fixed(&vector.initiator_key)), Key::new(fixed(&vector.responder_key)));
        let agreed = Agreed { offered, chosen, cipher, initiator, responder };
        let witnesses: PathIds = vector.initiator_shares.keys().copied().map(path).collect();
        let paths = Paths::new(vector.configured, witnesses).expect("fewer witnesses than paths");
        let [initiator_own, responder_own] = [&vector.initiator_static, &vector.responder_static]
            .map(|own| own.as_deref().map(|own| Secret::copy_of(&fixed(own))));
        let version = match vector.version {
            1 => Version::Anonymous,
            2 => Version::Identified,
            other => panic!("expected a version of HELLO, got {other}"),
        };
        assert_eq!(initiator_own.is_some(), version == Version::Identified);
        let preface = Preface { version, session: SessionId::new(fixed(&vector.session)), paths };

        let (initiator, Opening { hello, witnesses }) = Initiator::begin_with(
            &agreed,
            preface,
            shares(&vector.initiator_shares),
            initiator_own.as_ref(),
            |suite, prologue| with_ephemeral::initiator(suite, prologue, &fixed(&vector.initiator_ephemeral)),
        )
        .expect("begun");
        assert_eq!(hex::encode(&*hello), vector.hello);
        assert_eq!(written(&witnesses), vector.witnesses);

        let hello = whole(&hello).expect("HELLO");
        let responder =
            Responder::hear_with(&agreed, &hello, responder_own.as_ref(), |suite, prologue, message| {
                with_ephemeral::responder(suite, prologue, message, &fixed(&vector.responder_ephemeral))
            });
        let heard = witnesses.iter().map(|(_, message)| whole(message).expect("WITNESS")).collect();
        let (unconfirmed, answer) =
            responder.expect("heard").answer_with(heard, shares(&vector.responder_shares)).expect("answered");
        assert_eq!(hex::encode(&*answer.reply), vector.reply);
        assert_eq!(written(&answer.shares), vector.share_messages);
        assert_eq!(hex::encode(unconfirmed.hash()), vector.handshake_hash);

        let heard = answer.shares.iter().map(|(path, message)| (*path, whole(message).expect("SHARE")));
        // The key that is shown to each end.
        let sees = |public: &Option<String>| {
            let expected = public.clone();
            move |key: &PublicKey| {
                assert_eq!(Some(hex::encode(key.as_bytes())), expected);
                anybody(key)
            }
        };
        let reply = whole(&answer.reply).expect("REPLY");
        let concluded = initiator.finish(&reply, heard.collect(), sees(&vector.responder_public));
        let (at_initiator, Closing { identity, confirms }) = concluded.expect("established");
        assert_eq!(identity.as_ref().map(|message| hex::encode(&**message)), vector.identity);
        assert_eq!(written(&confirms), vector.confirms);

        let heard = confirms.iter().map(|(path, message)| (*path, whole(message).expect("CONFIRM")));
        let identity = identity.map(|message| whole(&message).expect("IDENTITY"));
        let at_responder =
            unconfirmed.verify(identity.as_ref(), heard.collect(), sees(&vector.initiator_public));
        let at_responder = at_responder.expect("established");
        let keys = [vector.initiator_to_responder, vector.responder_to_initiator];
        let secrets = |secrets: [&Secret; 2]| secrets.map(|secret| hex::encode(secret.as_bytes()));
        assert_eq!(secrets([&at_initiator.sending, &at_initiator.receiving]), keys);
        assert_eq!(secrets([&at_responder.receiving, &at_responder.sending]), keys);

        for (key, records) in [
            (&at_responder.receiving, vector.records.initiator),
            (&at_initiator.receiving, vector.records.responder),
        ] {
            assert!(!opened(cipher, key, &records).is_empty());
        }
    }
}
