use super::*;
use crate::codec::records::{AeadCipher, COPY_HEADER, CopyOutcome, Opener};
use crate::sealed::handshake::Session;
use crate::sealed::loopback::{Failure, IDENTIFIED, KINDS, params, parse, run_kind};
use crate::sealed::messages::Flags;
use crate::sealed::noise::Split;
use crate::sealed::root::Root;
use crate::sealed::test_vectors::{FILE, Vectors, bytes, cipher_of, fixed};

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path's number")
}

/// Both ends of a session with so many configured paths, without witnesses.
fn sessions(kind: Flags, configured: u8) -> [Session<()>; 2] {
    let params = params(AeadCipher::Aes256Gcm);
    let paths = Paths::new(configured, [].into_iter().collect()).expect("paths");
    let outcome = run_kind(kind, [&params, &params], paths, |_, _| {});
    [outcome.initiator.expect("completed"), outcome.responder.expect("completed")]
}

/// Exchanges the messages, each of which goes through `wire` with its number.
fn exchange(
    [initiator, responder]: [&SideSecrets; 2],
    path: PathId,
    mut wire: impl FnMut(usize, &mut Bytes),
) -> Result<(), Failure> {
    let (awaiting_share, mut side) = initiator.begin(path)?;
    wire(0, &mut side);
    let (awaiting_confirm, mut share) = responder.answer(parse(&side)?)?;
    wire(1, &mut share);
    let mut confirm = initiator.verify_share(awaiting_share, parse(&share)?)?;
    wire(2, &mut confirm);
    responder.verify_confirm(&awaiting_confirm, &parse(&confirm)?)?;
    Ok(())
}

#[test]
fn ends_of_a_session_authenticate_each_other_any_number_of_times() {
    for kind in KINDS {
        let [one, other] = sessions(kind, 3);
        for number in [1, 2, 1] {
            exchange([one.witnesses.side(), other.witnesses.side()], path(number), |_, _| {})
                .expect("verified");
        }
        assert_eq!(one.witnesses.level().to_string(), "1/3", "a side connection is no witness");
    }
}

#[test]
fn messages_and_copies_match_the_reference() {
    let Vectors { side_connections, .. } = serde_json::from_str(FILE).expect("the vectors");
    assert_eq!(side_connections.len(), 2);
    for vector in side_connections {
        let secret = |digits: &str| Secret::copy_of(&fixed(digits));
        let split = Split {
            hash: fixed(&vector.handshake_hash),
            to_responder: secret(&vector.initiator_to_responder),
            to_initiator: secret(&vector.responder_to_initiator),
        };
        let paths = Paths::new(1, [].into_iter().collect()).expect("paths");
        let session = SessionId::new(fixed(&vector.session));
        let salt = Root::of_handshake(&split).side_salt();
        assert_eq!(hex::encode(salt.as_bytes()), vector.salt);
        let end = SideSecrets { session, salt, hash: split.hash, paths };

        let begun = end.begin_with(path(vector.path), secret(&vector.initiator_share));
        let (awaiting_share, side) = begun.expect("begun");
        assert_eq!(hex::encode(&*side), vector.side);
        let answered = end.answer_with(parse(&side).expect("SIDE"), secret(&vector.responder_share));
        let (awaiting_confirm, share) = answered.expect("answered");
        assert_eq!(hex::encode(&*share), vector.share);
        let confirm = end.verify_share(awaiting_share, parse(&share).expect("SHARE")).expect("verified");
        assert_eq!(hex::encode(&*confirm), vector.confirm);
        let confirm = parse(&confirm).expect("CONFIRM");
        end.verify_confirm(&awaiting_confirm, &confirm).expect("verified");

        let [mode] = fixed(&vector.mode);
        let mut opener = Opener::new(cipher_of(mode), split.to_responder.as_bytes());
        let mut copy = bytes(&vector.copy);
        assert_eq!(opener.open_copy(&mut copy), Ok(CopyOutcome::Waiting));
        let mut first = bytes(&vector.copy);
        first[COPY_HEADER - 1] = 0;
        assert!(opener.open_copy(&mut first).is_err(), "a copy with the number of another record");
    }
}

#[test]
fn paths_that_are_not_configured_are_refused() {
    let [one, _] = sessions(IDENTIFIED, 2);
    assert!(matches!(one.witnesses.side().begin(path(3)), Err(HandshakeError::Unlisted("SIDE", _))));
}

#[test]
fn ends_of_different_sessions_do_not_authenticate() {
    let [initiator, _] = sessions(IDENTIFIED, 2);
    let [_, responder] = sessions(IDENTIFIED, 2);
    let (_, side) = initiator.witnesses.side().begin(path(1)).expect("begun");
    let answered = responder.witnesses.side().answer(parse(&side).expect("SIDE"));
    assert!(matches!(answered, Err(HandshakeError::WrongSession { .. })));
    // Who is in the middle of the main connection passes the name of the session on.
    let theirs = responder.witnesses.side();
    let renamed = SideSecrets {
        session: initiator.witnesses.side().session,
        salt: Secret::copy_of(theirs.salt.as_bytes()),
        ..*theirs
    };
    let error = exchange([initiator.witnesses.side(), &renamed], path(1), |_, _| {}).expect_err("detected");
    assert!(matches!(error, Failure::Handshake(HandshakeError::Confirmation(_))));
}

#[test]
fn messages_of_an_earlier_side_connection_are_refused() {
    let [one, other] = sessions(IDENTIFIED, 2);
    let mut earlier: Vec<Bytes> = Vec::new();
    exchange([one.witnesses.side(), other.witnesses.side()], path(1), |_, bytes| {
        earlier.push(bytes.clone());
    })
    .expect("verified");
    assert_eq!(earlier.len(), 3);
    for (replayed, message) in earlier.iter().enumerate() {
        let outcome = exchange([one.witnesses.side(), other.witnesses.side()], path(1), |step, bytes| {
            if step == replayed {
                bytes.clone_from(message);
            }
        });
        assert!(outcome.is_err(), "message {replayed}");
    }
}

#[test]
fn every_change_of_a_message_is_an_error() {
    let [one, other] = sessions(IDENTIFIED, 4);
    for (changed, length) in [(0, 69), (1, 68), (2, 36)] {
        for at in 0..length {
            let outcome = exchange([one.witnesses.side(), other.witnesses.side()], path(2), |step, bytes| {
                if step == changed {
                    assert_eq!(bytes.len(), length);
                    bytes[at] ^= 1;
                }
            });
            assert!(outcome.is_err(), "message {changed}, byte {at}");
        }
    }
}

#[test]
fn confirmations_are_not_those_of_a_late_witness() {
    let [one, other] = sessions(IDENTIFIED, 2);
    let (awaiting, witness) = one.witnesses.witness(path(1)).expect("begun");
    let mut side = witness.clone();
    side[0] = 7;
    let (_, share) = other.witnesses.side().answer(parse(&side).expect("SIDE")).expect("answered");
    let verified = one.witnesses.verify_share(awaiting, parse(&share).expect("SHARE"));
    assert!(matches!(verified, Err(HandshakeError::Confirmation(_))));
}
