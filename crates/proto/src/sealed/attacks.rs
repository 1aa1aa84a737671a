//! Attacks by messages alone: bit flips, replays, reordering, duplicates, mixed sessions, downgrades, and a man in the middle
//! of any of the paths.

mod middle;

use std::collections::BTreeMap;

use plait_wire::mptcp::Key;

use super::framing::Bytes;
use super::handshake::{
    AwaitingConfirms, HandshakeError, Initiator, InitiatorConfig, InitiatorSecrets, Params, RequiredPaths,
    Responder, ResponderConfig, Session,
};
use super::loopback::{
    ANONYMOUS, Failure, IDENTIFIED, KINDS, Outcome, SERVICES, Step, accept_any, asks, config, params, parse,
    paths, recorded, run, run_kind, static_keys,
};
use super::messages::{Confirm, Flags, Hello, Preface, Share, Witness};
use super::noise::Noise;
use super::paths::{Level, PathId, PathIds, Paths};
use super::service::{Service, Services};
use super::session_id::SessionId;
use crate::codec::records::AeadCipher;
use crate::identity::{KeyPair, PublicKey};
use crate::secret::Secret;

/// A responder without a static key that requires a witness on all paths.
fn all_paths() -> ResponderConfig<'static> {
    ResponderConfig { paths: RequiredPaths::All, ..config(None) }
}

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path number")
}

fn honest(kind: Flags, cipher: AeadCipher, paths: Paths) -> Outcome {
    run_kind(kind, [&params(cipher), &params(cipher)], paths, |_, _| {})
}

fn keys<P>(session: &Session<P>) -> [&[u8; 32]; 2] {
    [session.send_key.as_bytes(), session.recv_key.as_bytes()]
}

fn public(private: &Secret) -> PublicKey {
    KeyPair::from_private(Secret::copy_of(private.as_bytes())).public()
}

/// Accepts only the public key of `expected`, or any key if it is not `known`.
fn verify_peer(known: bool, expected: &Secret) -> impl Fn(&PublicKey) -> Result<(), String> {
    let expected = public(expected);
    move |got| if !known || *got == expected { Ok(()) } else { Err(format!("unexpected {got}")) }
}

#[test]
fn honest_ends_agree_for_every_cipher_and_number_of_witnesses() {
    for (kind, cipher) in KINDS.into_iter().flat_map(|kind| AeadCipher::ALL.map(|cipher| (kind, cipher))) {
        for count in [1, 2, 3, 4, 16] {
            let Outcome { initiator, responder } = honest(kind, cipher, paths(count));
            let (initiator, responder) = (initiator.expect("completed"), responder.expect("completed"));
            let [sending, receiving] = keys(&initiator);
            assert_eq!(keys(&responder), [receiving, sending]);
            assert_ne!(sending, receiving);
            for end in [initiator, responder] {
                assert_eq!(end.cipher, cipher);
                assert_eq!(end.witnesses.level(), Level { reached: count, configured: count });
            }
        }
    }
}

#[test]
fn missing_witnesses_lower_the_level_or_are_rejected() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let two_of_three = Paths::new(3, [path(2)].into_iter().collect()).expect("fewer witnesses than paths");
    let outcome = run([&params, &params], two_of_three, |_, _| {});
    assert_eq!(outcome.responder.expect("completed").witnesses.level().to_string(), "2/3");
    let refused = |error: Option<HandshakeError>| {
        matches!(error, Some(HandshakeError::Level(Level { reached: 2, configured: 3 })))
    };
    assert!(refused(Initiator::start(&params, two_of_three, asks(RequiredPaths::All, None)).err()));
    let (_, opening) =
        Initiator::start(&params, two_of_three, asks(RequiredPaths::Any, None)).expect("started");
    let hello = parse(&opening.hello).expect("HELLO");
    assert!(refused(Responder::accept(&params, &hello, all_paths()).err()));
    assert!(Initiator::start(&params, paths(3), asks(RequiredPaths::All, None)).is_ok());
}

#[test]
fn too_few_paths_are_rejected_however_many_are_configured() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let two_of_three = Paths::new(3, [path(2)].into_iter().collect()).expect("fewer witnesses than paths");
    for (taking_part, required, is_enough) in [
        (paths(1), RequiredPaths::All, false),
        (paths(1), RequiredPaths::AtLeast(2), false),
        (paths(2), RequiredPaths::AtLeast(2), true),
        (two_of_three, RequiredPaths::AtLeast(2), true),
        (two_of_three, RequiredPaths::AtLeast(3), false),
    ] {
        let (_, opening) =
            Initiator::start(&params, taking_part, asks(RequiredPaths::Any, None)).expect("started");
        let hello = parse(&opening.hello).expect("HELLO");
        let config = ResponderConfig { paths: required, ..all_paths() };
        for failure in [
            Initiator::start(&params, taking_part, asks(required, None)).err(),
            Responder::accept(&params, &hello, config).err(),
        ] {
            let is_level =
                matches!(failure, Some(HandshakeError::Level(_) | HandshakeError::TooFewPaths { .. }));
            assert_eq!(
                (failure.is_none(), is_level),
                (is_enough, !is_enough),
                "{taking_part:?}, {required:?}"
            );
        }
    }
}

#[test]
fn state_machines_are_send() {
    fn is_send<T: Send>() {}
    is_send::<(Initiator, Responder, AwaitingConfirms, Session<()>)>();
}

/// The bits of a message; of a long one every 29th.
fn flipped(length: usize) -> impl Iterator<Item = usize> {
    (0..length * 8).step_by(if length > 500 { 29 } else { 1 })
}

#[test]
fn every_flipped_bit_is_detected() {
    for (kind, cipher) in KINDS.into_iter().zip([AeadCipher::ALL; 2].concat()) {
        let params = params(cipher);
        for (step, message) in recorded(kind, cipher, paths(2)) {
            for bit in flipped(message.len()) {
                let outcome = run_kind(kind, [&params, &params], paths(2), |at, bytes| {
                    if at == step {
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                });
                let detected_by = match step {
                    // The responder detects changes of what the initiator sent, except of a share: that shows in message 2.
                    Step::Hello | Step::Identity | Step::Confirm(_) => outcome.responder,
                    Step::Witness(_) if matches!(outcome.responder, Err(Failure::Reset)) => outcome.initiator,
                    Step::Witness(_) => outcome.responder,
                    Step::Reply | Step::Share(_) => outcome.initiator,
                };
                let failure = detected_by.err().expect("a modified message makes the handshake fail");
                assert!(!matches!(failure, Failure::Reset), "{step:?}, bit {bit}: detected where it arrives");
            }
        }
    }
}

#[test]
fn messages_of_another_session_are_rejected() {
    let cipher = AeadCipher::ChaCha20Poly1305;
    let of = |kind| recorded(kind, cipher, paths(3)).into_iter().map(move |message| (kind, message));
    for (kind, (step, other)) in KINDS.into_iter().flat_map(of) {
        let outcome = run_kind(kind, [&params(cipher), &params(cipher)], paths(3), |at, bytes| {
            if at == step {
                *bytes = other.clone();
            }
        });
        let Outcome { initiator, responder } = outcome;
        match step {
            // A replayed HELLO is a session of its own, to which these witnesses do not belong.
            Step::Hello | Step::Witness(_) => {
                let failure = responder.err().expect("not completed");
                assert!(matches!(failure, Failure::Handshake(HandshakeError::WrongSession { .. })));
            }
            Step::Reply | Step::Share(_) => {
                let failure = initiator.err().expect("not completed");
                assert!(matches!(failure, Failure::Handshake(HandshakeError::Reply)), "{failure:?}");
            }
            Step::Identity => {
                let failure = responder.err().expect("not completed");
                assert!(matches!(failure, Failure::Handshake(HandshakeError::Identity)), "{failure:?}");
            }
            Step::Confirm(path) => {
                let failure = responder.err().expect("not completed");
                let expected =
                    matches!(failure, Failure::Handshake(HandshakeError::Confirmation(on)) if on == path);
                assert!(expected, "{failure:?}");
            }
        }
    }
}

#[test]
fn replaying_all_messages_of_an_initiator_fails() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let recorded = recorded(ANONYMOUS, AeadCipher::ChaCha20Poly1305, paths(2));
    let sent = |step: Step| &recorded.iter().find(|(at, _)| *at == step).expect("recorded").1;
    let hello: Hello = parse(sent(Step::Hello)).expect("HELLO");
    let responder = Responder::accept(&params, &hello, config(None)).expect("accepted");
    let witness: Witness = parse(sent(Step::Witness(path(1)))).expect("WITNESS");
    let (awaiting, _) = responder.reply(vec![witness]).expect("accepted");
    let confirm: Confirm = parse(sent(Step::Confirm(path(1)))).expect("CONFIRM");
    let failure = awaiting.verify(None, vec![(path(1), confirm)], accept_any).err();
    let failure = failure.expect("the responder's share is fresh");
    assert!(matches!(failure, HandshakeError::Confirmation(_)));
}

#[test]
fn messages_of_two_paths_cannot_be_swapped() {
    let cipher = AeadCipher::Aes256Gcm;
    // The order of WITNESSes does not matter, since they name their path; the others belong to a connection.
    for at in [Step::Share, Step::Confirm] {
        let mut kept: Option<Bytes> = None;
        let outcome = run([&params(cipher), &params(cipher)], paths(3), |step, bytes| {
            if step == at(path(1)) {
                // In place of the other path's message, which has not been sent yet.
                kept = Some(bytes.clone());
                bytes[3] = 2;
            } else if step == at(path(2)) {
                *bytes = kept.take().expect("path 1 is first");
            }
        });
        let failure = outcome.initiator.err().or(outcome.responder.err()).expect("not completed");
        let expected = matches!(
            failure,
            Failure::Handshake(HandshakeError::WrongPath { expected, got, .. }) if expected == path(1) && got == path(2)
        );
        assert!(expected, "{failure:?}");
    }
}

#[test]
fn rejects_confirmations_of_another_path_or_end() {
    let cipher = AeadCipher::ChaCha20Poly1305;
    let mut of_responder = None;
    let reflected = run([&params(cipher), &params(cipher)], paths(2), |step, bytes| match step {
        Step::Share(_) => of_responder = Some(bytes[36..].to_vec()),
        Step::Confirm(_) => bytes[4..].copy_from_slice(of_responder.as_deref().expect("SHARE came before")),
        _ => {}
    });
    assert!(matches!(reflected.responder, Err(Failure::Handshake(HandshakeError::Confirmation(_)))));
    let mut of_path_1 = None;
    let moved = run([&params(cipher), &params(cipher)], paths(3), |step, bytes| match step {
        Step::Confirm(on) if on == path(1) => of_path_1 = Some(bytes[4..].to_vec()),
        Step::Confirm(_) => bytes[4..].copy_from_slice(of_path_1.as_deref().expect("path 1 is first")),
        _ => {}
    });
    let on_path_2 =
        matches!(moved.responder, Err(Failure::Handshake(HandshakeError::Confirmation(on))) if on == path(2));
    assert!(on_path_2);
}

#[test]
fn rejects_missing_repeated_and_unlisted_witnesses() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let answered = |change: fn(SessionId, &mut Vec<Witness>)| {
        let (_, opening) =
            Initiator::start(&params, paths(3), asks(RequiredPaths::Any, None)).expect("started");
        let hello = parse(&opening.hello).expect("HELLO");
        let responder = Responder::accept(&params, &hello, config(None)).expect("accepted");
        let (session, listed) = (responder.session(), responder.witnesses());
        let mut witnesses =
            opening.witnesses.iter().map(|(_, bytes)| parse(bytes).expect("WITNESS")).collect();
        assert_eq!(listed, [path(1), path(2)].into_iter().collect());
        change(session, &mut witnesses);
        responder.reply(witnesses).err().expect("rejected")
    };
    let error = answered(|_, witnesses| drop(witnesses.pop()));
    assert!(matches!(error, HandshakeError::Missing("WITNESS", on) if on == path(2)));
    let error = answered(|session, witnesses| {
        witnesses.push(Witness { session, path: path(1), share: Secret::copy_of(&[0; 32]) })
    });
    assert!(matches!(error, HandshakeError::Repeated(_, on) if on == path(1)));
    let error = answered(|session, witnesses| {
        witnesses.push(Witness { session, path: path(3), share: Secret::copy_of(&[0; 32]) })
    });
    assert!(matches!(error, HandshakeError::Unlisted(_, on) if on == path(3)));
    let error = answered(|_, witnesses| witnesses[0].session = SessionId::new([0; 32]));
    assert!(matches!(error, HandshakeError::WrongSession { .. }));
}

#[test]
fn ends_with_different_tcp_handshakes_fail() {
    let changes: [fn(&mut Params); 5] = [
        |params| params.offered = 0x10,
        |params| params.chosen = 0x10,
        |params| params.initiator = Key::new(*b"Ki:12346"),
        |params| params.responder = Key::new(*b"Kr:67891"),
        |params| params.cipher = AeadCipher::ChaCha20Poly1305,
    ];
    for change in changes {
        let (mut initiator, mut responder) = (params(AeadCipher::Aes256Gcm), params(AeadCipher::Aes256Gcm));
        change(&mut responder);
        let outcome = run([&initiator, &responder], paths(2), |_, _| {});
        assert!(matches!(outcome.responder, Err(Failure::Handshake(HandshakeError::Hello))));
        change(&mut initiator);
        assert!(run([&initiator, &responder], paths(2), |_, _| {}).both());
    }
}

#[test]
fn ends_that_know_each_other_authenticate() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let [one, other] = static_keys();
    let (initiator, opening) =
        Initiator::start(&params, paths(1), asks(RequiredPaths::Any, Some(&one))).expect("started");
    let hello = parse(&opening.hello).expect("HELLO");
    let config = ResponderConfig { require_identity: true, ..config(Some(&other)) };
    let (awaiting, answer) =
        Responder::accept(&params, &hello, config).expect("accepted").reply(vec![]).expect("replied");
    assert!(awaiting.expects_identity());
    let reply = parse(&answer.reply).expect("REPLY");
    let (at_initiator, closing) =
        initiator.finish(&reply, vec![], verify_peer(true, &other)).expect("completed");
    let identity = parse(&closing.identity.expect("it was asked for")).expect("IDENTITY");
    let at_responder = awaiting.verify(Some(&identity), vec![], verify_peer(true, &one)).expect("completed");
    for end in [&at_initiator, &at_responder] {
        assert_eq!(end.peer, Some(()));
    }
    let [sending, receiving] = keys(&at_initiator);
    assert_eq!(keys(&at_responder), [receiving, sending]);
}

#[test]
fn authentication_cannot_be_downgraded() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let [one, other] = static_keys();
    // HELLO's flag cannot be modified.
    for kind in KINDS {
        let outcome = run_kind(kind, [&params, &params], paths(1), |step, bytes| {
            if step == Step::Hello {
                bytes[4] ^= 1;
            }
        });
        // Anonymous ends have no static key to answer with.
        let expected = matches!(
            outcome.responder,
            Err(Failure::Handshake(HandshakeError::Hello | HandshakeError::NoIdentity))
        );
        assert!(expected, "{kind:?}");
    }
    // A responder with a static key, asked by a modified HELLO to use it or not to.
    for static_key in [None, Some(&one)] {
        let (_, opening) =
            Initiator::start(&params, paths(1), asks(RequiredPaths::Any, static_key)).expect("started");
        let genuine: Hello = parse(&opening.hello).expect("HELLO");
        let preface = Preface { identified: !genuine.preface.identified, ..genuine.preface };
        let changed = Hello { preface, ..genuine };
        let failure = Responder::accept(&params, &changed, config(Some(&other))).err();
        assert!(matches!(failure, Some(HandshakeError::Hello)));
    }
    // A responder that sent its identity expects the initiator's; one that knows its clients accepts no anonymous HELLO.
    let (initiator, opening) =
        Initiator::start(&params, paths(1), asks(RequiredPaths::Any, Some(&one))).expect("started");
    let hello = parse(&opening.hello).expect("HELLO");
    let failure = Responder::accept(&params, &hello, config(None)).err();
    assert!(matches!(failure, Some(HandshakeError::NoIdentity)));
    let responder = Responder::accept(&params, &hello, config(Some(&other))).expect("accepted");
    let (awaiting, answer) = responder.reply(vec![]).expect("replied");
    assert!(initiator.finish(&parse(&answer.reply).expect("REPLY"), vec![], accept_any).is_ok());
    let failure = awaiting.verify(None, vec![], accept_any).err();
    assert!(matches!(failure, Some(HandshakeError::Identity)));
    let (_, opening) = Initiator::start(&params, paths(1), asks(RequiredPaths::Any, None)).expect("started");
    let hello = parse(&opening.hello).expect("HELLO");
    let strict = ResponderConfig { require_identity: true, ..config(Some(&other)) };
    let failure = Responder::accept(&params, &hello, strict).err();
    assert!(matches!(failure, Some(HandshakeError::Anonymous)));
    assert!(failure.is_some_and(|error| error.is_about_identity()));
}

/// Those of an initiator without witnesses.
fn no_secrets() -> InitiatorSecrets {
    InitiatorSecrets { shares: BTreeMap::new(), kem: None }
}

#[test]
fn the_second_key_exchange_cannot_be_removed() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let hybrid = InitiatorConfig { hybrid: true, ..asks(RequiredPaths::Any, None) };
    let (initiator, opening) = Initiator::start(&params, paths(1), hybrid).expect("started");
    let genuine: Hello = parse(&opening.hello).expect("HELLO");
    let stripped = Preface { encapsulation_key: None, ..genuine.preface.clone() };
    let stripped = Hello { preface: stripped, noise: genuine.noise };
    let failure = Responder::accept(&params, &stripped, config(None)).err();
    assert!(matches!(failure, Some(HandshakeError::Hello)));
    // A session of the attacker's own with the responder, whose REPLY has no ciphertext.
    let preface = Preface { encapsulation_key: None, ..genuine.preface };
    let (_, own) =
        Initiator::start_with(&params, preface, no_secrets(), None, Noise::initiator).expect("started");
    let responder = Responder::accept(&params, &parse(&own.hello).expect("HELLO"), config(None));
    let (_, answer) = responder.expect("accepted").reply(vec![]).expect("replied");
    let failure = initiator.finish(&parse(&answer.reply).expect("REPLY"), vec![], accept_any).err();
    assert!(matches!(failure, Some(HandshakeError::Reply)));
}

#[test]
fn a_request_cannot_be_redirected_to_another_service() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let (_, opening) = Initiator::start(&params, paths(1), asks(RequiredPaths::Any, None)).expect("started");
    let genuine: Hello = parse(&opening.hello).expect("HELLO");
    let accept = |hello: &Hello, services: &Services| {
        Responder::accept(&params, hello, ResponderConfig { services, ..config(None) }).err()
    };
    assert!(accept(&genuine, &SERVICES).is_none());
    let (other_port, other_name) =
        (Services::on_port(8080), Services::new(vec![(Some("other.example".into()), 443)]));
    for other in [&other_port, &other_name] {
        let failure = accept(&genuine, other);
        assert!(matches!(failure, Some(HandshakeError::Service { port: 443 })), "{other:?}");
    }
    // Nor can HELLO be modified to ask for that.
    let service = Service::new("other.example", 8080).requested(&genuine.preface.session);
    let changed = Hello { preface: Preface { service, ..genuine.preface }, noise: genuine.noise };
    assert!(matches!(accept(&changed, &other_port), Some(HandshakeError::Hello)));
}

#[test]
fn static_keys_are_never_sent_in_clear() {
    let shown = static_keys().map(|key| *public(&key).as_bytes());
    for (step, message) in recorded(IDENTIFIED, AeadCipher::Aes256Gcm, paths(2)) {
        for key in shown {
            assert!(!message.windows(32).any(|window| window == key), "{step:?}");
        }
    }
}

#[test]
fn initiator_detects_an_attacker_active_on_a_witness_path() {
    let cipher = AeadCipher::ChaCha20Poly1305;
    let own_share = |step, bytes: &mut Bytes| match step {
        Step::Witness(on) if on == path(1) => {
            let genuine: Witness = parse(bytes).expect("WITNESS");
            *bytes = Witness { share: Secret::copy_of(&[0; 32]), ..genuine }.to_bytes();
        }
        Step::Share(on) if on == path(1) => {
            let genuine: Share = parse(bytes).expect("SHARE");
            *bytes = Share { share: Secret::copy_of(&[0; 32]), ..genuine }.to_bytes();
        }
        _ => {}
    };
    let outcome = run([&params(cipher), &params(cipher)], paths(3), own_share);
    assert!(matches!(outcome.initiator, Err(Failure::Handshake(HandshakeError::Reply))));
}

#[test]
fn initiator_detects_hidden_witnesses() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let (initiator, opening) =
        Initiator::start(&params, paths(2), asks(RequiredPaths::All, None)).expect("started");
    let genuine: Hello = parse(&opening.hello).expect("HELLO");

    // HELLO with other paths fails authentication.
    let alone = Paths::new(1, PathIds::default()).expect("fewer witnesses than paths");
    let preface = Preface { paths: alone, ..genuine.preface };
    let stripped = Hello { preface: preface.clone(), noise: genuine.noise };
    let failure = Responder::accept(&params, &stripped, config(None)).err().expect("rejected");
    assert!(matches!(failure, HandshakeError::Hello));

    // The attacker may have a session of his own with the responder, which does not help against the initiator.
    let (_, own_opening) =
        Initiator::start_with(&params, preface, no_secrets(), None, Noise::initiator).expect("started");
    let own_hello = parse(&own_opening.hello).expect("HELLO");
    let responder = Responder::accept(&params, &own_hello, config(None)).expect("a session of one path");
    let (awaiting, answer) = responder.reply(vec![]).expect("replied");
    assert_eq!(
        awaiting.verify(None, vec![], accept_any).expect("completed").witnesses.level().to_string(),
        "1/1"
    );
    let reply = parse(&answer.reply).expect("REPLY");
    let failure = initiator.finish(&reply, vec![], accept_any).err().expect("no SHARE came");
    assert!(matches!(failure, HandshakeError::Missing("SHARE", _)));
}
