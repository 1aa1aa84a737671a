//! What an attacker can do to a handshake, by messages alone: flip, replay, reorder, duplicate, mix sessions, downgrade,
//! and stand in the middle of any of the paths.

mod middle;

use std::collections::BTreeMap;

use plait_linux::mptcp::Key;
use plait_proto::sealed::Cipher;

use super::both_ends::{
    Failure, Outcome, Step, agreed, anybody, own, paths, recorded, run, run_version, terms, whole,
};
use super::handshake::{
    Agreed, Demand, Established, HandshakeError, Initiator, Responder, Terms, Unconfirmed,
};
use super::keys::Secret;
use super::messages::{Bytes, Confirm, Hello, Preface, SessionId, Share, Version, Witness};
use super::noise::Noise;
use super::paths::{Level, PathId, PathIds, Paths};
use crate::identity::{KeyPair, PublicKey};
use crate::trust::{Recognised, Stranger};

const VERSIONS: [Version; 2] = [Version::Anonymous, Version::Identified];

/// A responder that says nothing of itself, and demands that all paths witness.
const ALL_PATHS: Terms<'static> = Terms { demand: Demand::AllPaths, own: None, identified: false };

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path's number")
}

fn honest(version: Version, cipher: Cipher, paths: Paths) -> Outcome {
    run_version(version, [&agreed(cipher), &agreed(cipher)], paths, |_, _| {})
}

fn keys(established: &Established) -> [&[u8; 32]; 2] {
    [established.sending.as_bytes(), established.receiving.as_bytes()]
}

fn public(private: &Secret) -> PublicKey {
    KeyPair::from_private(Secret::copy_of(private.as_bytes())).public()
}

/// Whether the key is this one, where that is known.
fn judge(known: bool, expected: &Secret) -> impl Fn(&PublicKey) -> Result<Option<Recognised>, Stranger> {
    let expected = public(expected);
    move |got| match known {
        true if *got == expected => Ok(Some(Recognised::Pinned)),
        true => Err(Stranger::Client(*got)),
        false => Ok(None),
    }
}

#[test]
fn honest_ends_agree_whatever_the_cipher_and_the_number_of_witnesses() {
    for (version, cipher) in
        VERSIONS.into_iter().flat_map(|version| Cipher::ALL.map(|cipher| (version, cipher)))
    {
        for count in [1, 2, 3, 4, 16] {
            let Outcome { initiator, responder } = honest(version, cipher, paths(count));
            let (initiator, responder) = (initiator.expect("established"), responder.expect("established"));
            let [sending, receiving] = keys(&initiator);
            assert_eq!(keys(&responder), [receiving, sending]);
            assert_ne!(sending, receiving);
            for end in [initiator, responder] {
                assert_eq!(end.cipher, cipher);
                assert_eq!(end.level, Level { reached: count, configured: count });
            }
        }
    }
}

#[test]
fn fewer_witnesses_than_paths_are_shown_or_refused() {
    let agreed = agreed(Cipher::ChaCha20Poly1305);
    let two_of_three = Paths::new(3, [path(2)].into_iter().collect()).expect("fewer witnesses than paths");
    let outcome = run([&agreed, &agreed], two_of_three, |_, _| {});
    assert_eq!(outcome.responder.expect("established").level.to_string(), "2/3");
    let refused = |error: Option<HandshakeError>| {
        matches!(error, Some(HandshakeError::Level(Level { reached: 2, configured: 3 })))
    };
    assert!(refused(Initiator::begin(&agreed, two_of_three, Demand::AllPaths, None).err()));
    let (_, opening) = Initiator::begin(&agreed, two_of_three, Demand::AnyLevel, None).expect("begun");
    let hello = whole(&opening.hello).expect("HELLO");
    assert!(refused(Responder::hear(&agreed, &hello, ALL_PATHS).err()));
    assert!(Initiator::begin(&agreed, paths(3), Demand::AllPaths, None).is_ok());
}

#[test]
fn what_an_end_holds_can_wait_in_a_task_of_any_thread() {
    fn is_sent<T: Send>() {}
    is_sent::<(Initiator, Responder, Unconfirmed, Established)>();
}

#[test]
fn every_flipped_bit_is_found() {
    for (version, cipher) in VERSIONS.into_iter().zip(Cipher::ALL) {
        let agreed = agreed(cipher);
        for (step, message) in recorded(version, cipher, paths(2)) {
            for bit in 0..message.len() * 8 {
                let outcome = run_version(version, [&agreed, &agreed], paths(2), |at, bytes| {
                    if at == step {
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                });
                let found_by = match step {
                    // What the initiator sent shows at the responder; but for a share, whose change shows at message 2.
                    Step::Hello | Step::Identity | Step::Confirm(_) => outcome.responder,
                    Step::Witness(_) if matches!(outcome.responder, Err(Failure::Reset)) => outcome.initiator,
                    Step::Witness(_) => outcome.responder,
                    Step::Reply | Step::Share(_) => outcome.initiator,
                };
                let failure = found_by.err().expect("a changed message has no good end");
                assert!(!matches!(failure, Failure::Reset), "{step:?}, bit {bit}: found where it arrives");
            }
        }
    }
}

#[test]
fn a_message_of_another_session_is_found() {
    let cipher = Cipher::ChaCha20Poly1305;
    let of = |version| recorded(version, cipher, paths(3)).into_iter().map(move |message| (version, message));
    for (version, (step, other)) in VERSIONS.into_iter().flat_map(of) {
        let outcome = run_version(version, [&agreed(cipher), &agreed(cipher)], paths(3), |at, bytes| {
            if at == step {
                *bytes = other.clone();
            }
        });
        let Outcome { initiator, responder } = outcome;
        match step {
            // A whole HELLO of the past is a session of its own, to which these witnesses do not belong.
            Step::Hello | Step::Witness(_) => {
                let failure = responder.err().expect("not established");
                assert!(matches!(failure, Failure::Handshake(HandshakeError::WrongSession { .. })));
            }
            Step::Reply | Step::Share(_) => {
                let failure = initiator.err().expect("not established");
                assert!(matches!(failure, Failure::Handshake(HandshakeError::Reply)), "{failure:?}");
            }
            Step::Identity => {
                let failure = responder.err().expect("not established");
                assert!(matches!(failure, Failure::Handshake(HandshakeError::Identity)), "{failure:?}");
            }
            Step::Confirm(path) => {
                let failure = responder.err().expect("not established");
                let expected =
                    matches!(failure, Failure::Handshake(HandshakeError::Confirmation(on)) if on == path);
                assert!(expected, "{failure:?}");
            }
        }
    }
}

#[test]
fn everything_an_initiator_said_says_nothing_again() {
    let agreed = agreed(Cipher::ChaCha20Poly1305);
    let recorded = recorded(Version::Anonymous, Cipher::ChaCha20Poly1305, paths(2));
    let said = |step: Step| &recorded.iter().find(|(at, _)| *at == step).expect("recorded").1;
    let hello: Hello = whole(said(Step::Hello)).expect("HELLO");
    let responder = Responder::hear(&agreed, &hello, terms(None)).expect("as good as new");
    let witness: Witness = whole(said(Step::Witness(path(1)))).expect("WITNESS");
    let (unconfirmed, _) = responder.answer(vec![witness]).expect("as good as new");
    let confirm: Confirm = whole(said(Step::Confirm(path(1)))).expect("CONFIRM");
    let failure = unconfirmed.verify(None, vec![(path(1), confirm)], anybody).err();
    let failure = failure.expect("the responder's share is fresh");
    assert!(matches!(failure, HandshakeError::Confirmation(_)));
}

#[test]
fn messages_of_two_paths_cannot_change_places() {
    let cipher = Cipher::Aes256Gcm;
    // WITNESSes find their place by their path's number, so their order is no matter; the others come by a path.
    for at in [Step::Share, Step::Confirm] {
        let mut kept: Option<Bytes> = None;
        let outcome = run([&agreed(cipher), &agreed(cipher)], paths(3), |step, bytes| {
            if step == at(path(1)) {
                // Stands for the other path's message, which this test cannot see before it is sent.
                kept = Some(bytes.clone());
                bytes[3] = 2;
            } else if step == at(path(2)) {
                *bytes = kept.take().expect("path 1 is first");
            }
        });
        let failure = outcome.initiator.err().or(outcome.responder.err()).expect("not established");
        let expected = matches!(
            failure,
            Failure::Handshake(HandshakeError::WrongPath { expected, got, .. }) if expected == path(1) && got == path(2)
        );
        assert!(expected, "{failure:?}");
    }
}

#[test]
fn a_confirmation_of_another_path_or_end_is_no_confirmation() {
    let cipher = Cipher::ChaCha20Poly1305;
    let mut of_responder = None;
    let reflected = run([&agreed(cipher), &agreed(cipher)], paths(2), |step, bytes| match step {
        Step::Share(_) => of_responder = Some(bytes[36..].to_vec()),
        Step::Confirm(_) => bytes[4..].copy_from_slice(of_responder.as_deref().expect("SHARE came before")),
        _ => {}
    });
    assert!(matches!(reflected.responder, Err(Failure::Handshake(HandshakeError::Confirmation(_)))));
    let mut of_path_1 = None;
    let moved = run([&agreed(cipher), &agreed(cipher)], paths(3), |step, bytes| match step {
        Step::Confirm(on) if on == path(1) => of_path_1 = Some(bytes[4..].to_vec()),
        Step::Confirm(_) => bytes[4..].copy_from_slice(of_path_1.as_deref().expect("path 1 is first")),
        _ => {}
    });
    let on_path_2 =
        matches!(moved.responder, Err(Failure::Handshake(HandshakeError::Confirmation(on))) if on == path(2));
    assert!(on_path_2);
}

#[test]
fn missing_repeated_and_unlisted_witnesses_are_named() {
    let agreed = agreed(Cipher::ChaCha20Poly1305);
    let answered = |change: fn(SessionId, &mut Vec<Witness>)| {
        let (_, opening) = Initiator::begin(&agreed, paths(3), Demand::AnyLevel, None).expect("begun");
        let hello = whole(&opening.hello).expect("HELLO");
        let responder = Responder::hear(&agreed, &hello, terms(None)).expect("heard");
        let (session, listed) = (responder.session(), responder.witnesses());
        let mut witnesses =
            opening.witnesses.iter().map(|(_, bytes)| whole(bytes).expect("WITNESS")).collect();
        assert_eq!(listed, [path(1), path(2)].into_iter().collect());
        change(session, &mut witnesses);
        responder.answer(witnesses).err().expect("refused")
    };
    let error = answered(|_, witnesses| drop(witnesses.pop()));
    assert!(matches!(error, HandshakeError::Missing { message: "WITNESS", path: on } if on == path(2)));
    let error = answered(|session, witnesses| {
        witnesses.push(Witness { session, path: path(1), share: Secret::copy_of(&[0; 32]) })
    });
    assert!(matches!(error, HandshakeError::Repeated { path: on, .. } if on == path(1)));
    let error = answered(|session, witnesses| {
        witnesses.push(Witness { session, path: path(3), share: Secret::copy_of(&[0; 32]) })
    });
    assert!(matches!(error, HandshakeError::Unlisted { path: on, .. } if on == path(3)));
    let error = answered(|_, witnesses| witnesses[0].session = SessionId::new([0; 32]));
    assert!(matches!(error, HandshakeError::WrongSession { .. }));
}

#[test]
fn ends_that_saw_different_tcp_handshakes_do_not_agree() {
    let changes: [fn(&mut Agreed); 5] = [
        |agreed| agreed.offered = 0x10,
        |agreed| agreed.chosen = 0x10,
        |agreed| agreed.initiator = Key::new(*b"Ki:12346"),
        |agreed| agreed.responder = Key::new(*b"Kr:67891"),
        |agreed| agreed.cipher = Cipher::ChaCha20Poly1305,
    ];
    for change in changes {
        let (mut initiator, mut responder) = (agreed(Cipher::Aes256Gcm), agreed(Cipher::Aes256Gcm));
        change(&mut responder);
        let outcome = run([&initiator, &responder], paths(2), |_, _| {});
        assert!(matches!(outcome.responder, Err(Failure::Handshake(HandshakeError::Hello))));
        change(&mut initiator);
        assert!(run([&initiator, &responder], paths(2), |_, _| {}).both());
    }
}

#[test]
fn ends_that_know_each_other_say_so() {
    let agreed = agreed(Cipher::ChaCha20Poly1305);
    let [one, other] = own();
    let (initiator, opening) =
        Initiator::begin(&agreed, paths(1), Demand::AllPaths, Some(&one)).expect("begun");
    let hello = whole(&opening.hello).expect("HELLO");
    let terms = Terms { demand: Demand::AllPaths, own: Some(&other), identified: true };
    let (unconfirmed, answer) =
        Responder::hear(&agreed, &hello, terms).expect("heard").answer(vec![]).expect("answered");
    assert!(unconfirmed.awaits_identity());
    let reply = whole(&answer.reply).expect("REPLY");
    let (at_initiator, closing) = initiator.finish(&reply, vec![], judge(true, &other)).expect("established");
    let identity = whole(&closing.identity.expect("it was asked for")).expect("IDENTITY");
    let at_responder = unconfirmed.verify(Some(&identity), vec![], judge(true, &one)).expect("established");
    for end in [&at_initiator, &at_responder] {
        assert_eq!(end.peer, Some(Recognised::Pinned));
    }
    let [sending, receiving] = keys(&at_initiator);
    assert_eq!(keys(&at_responder), [receiving, sending]);
}

#[test]
fn no_end_is_brought_to_say_less_than_it_was_asked() {
    let agreed = agreed(Cipher::ChaCha20Poly1305);
    let [one, other] = own();
    // Of HELLO's version nothing can be changed.
    for version in VERSIONS {
        let outcome = run_version(version, [&agreed, &agreed], paths(1), |step, bytes| {
            if step == Step::Hello {
                bytes[3] ^= 3;
            }
        });
        // Anonymous ends have no key; asked for one, they say so.
        let expected = matches!(
            outcome.responder,
            Err(Failure::Handshake(HandshakeError::Hello | HandshakeError::NoIdentity))
        );
        assert!(expected, "{version:?}");
    }
    // A responder that has a key, asked by a changed HELLO to show it or not to.
    for (asks, version) in [(None, Version::Identified), (Some(&one), Version::Anonymous)] {
        let (_, opening) = Initiator::begin(&agreed, paths(1), Demand::AllPaths, asks).expect("begun");
        let genuine: Hello = whole(&opening.hello).expect("HELLO");
        let changed = Hello { preface: Preface { version, ..genuine.preface }, ..genuine };
        let failure = Responder::hear(&agreed, &changed, terms(Some(&other))).err();
        assert!(matches!(failure, Some(HandshakeError::Hello)), "{version:?}");
    }
    // One that says who it is does not go on without; one that knows its clients does not begin without.
    let (initiator, opening) =
        Initiator::begin(&agreed, paths(1), Demand::AllPaths, Some(&one)).expect("begun");
    let hello = whole(&opening.hello).expect("HELLO");
    let failure = Responder::hear(&agreed, &hello, terms(None)).err();
    assert!(matches!(failure, Some(HandshakeError::NoIdentity)));
    let responder = Responder::hear(&agreed, &hello, terms(Some(&other))).expect("heard");
    let (unconfirmed, answer) = responder.answer(vec![]).expect("answered");
    assert!(initiator.finish(&whole(&answer.reply).expect("REPLY"), vec![], anybody).is_ok());
    let failure = unconfirmed.verify(None, vec![], anybody).err();
    assert!(matches!(failure, Some(HandshakeError::Identity)));
    let (_, opening) = Initiator::begin(&agreed, paths(1), Demand::AllPaths, None).expect("begun");
    let hello = whole(&opening.hello).expect("HELLO");
    let knows_clients = Terms { identified: true, ..terms(Some(&other)) };
    let failure = Responder::hear(&agreed, &hello, knows_clients).err();
    assert!(matches!(failure, Some(HandshakeError::Anonymous)));
    assert!(failure.is_some_and(|error| error.is_about_identity()));
}

#[test]
fn static_keys_are_in_no_message_in_clear() {
    let shown = own().map(|key| *public(&key).as_bytes());
    for (step, message) in recorded(Version::Identified, Cipher::Aes256Gcm, paths(2)) {
        for key in shown {
            assert!(!message.windows(32).any(|window| window == key), "{step:?}");
        }
    }
}

#[test]
fn who_is_active_on_a_path_but_the_main_one_is_found_by_the_initiator() {
    let cipher = Cipher::ChaCha20Poly1305;
    let own_share = |step, bytes: &mut Bytes| match step {
        Step::Witness(on) if on == path(1) => {
            let genuine: Witness = whole(bytes).expect("WITNESS");
            *bytes = Witness { share: Secret::copy_of(&[0; 32]), ..genuine }.to_bytes();
        }
        Step::Share(on) if on == path(1) => {
            let genuine: Share = whole(bytes).expect("SHARE");
            *bytes = Share { share: Secret::copy_of(&[0; 32]), ..genuine }.to_bytes();
        }
        _ => {}
    };
    let outcome = run([&agreed(cipher), &agreed(cipher)], paths(3), own_share);
    assert!(matches!(outcome.initiator, Err(Failure::Handshake(HandshakeError::Reply))));
}

#[test]
fn who_hides_the_witnesses_from_the_responder_is_found_by_the_initiator() {
    let agreed = agreed(Cipher::ChaCha20Poly1305);
    let (initiator, opening) = Initiator::begin(&agreed, paths(2), Demand::AllPaths, None).expect("begun");
    let genuine: Hello = whole(&opening.hello).expect("HELLO");

    // As it is, HELLO with other paths does not open.
    let alone = Paths::new(1, PathIds::default()).expect("fewer witnesses than paths");
    let preface = Preface { paths: alone, ..genuine.preface };
    let stripped = Hello { preface, ..genuine.clone() };
    let failure = Responder::hear(&agreed, &stripped, ALL_PATHS).err().expect("refused");
    assert!(matches!(failure, HandshakeError::Hello));

    // A session of his own with the responder, which he may have, gives him nothing for the initiator.
    let (_, own_opening) =
        Initiator::begin_with(&agreed, preface, BTreeMap::new(), None, Noise::initiator).expect("begun");
    let own_hello = whole(&own_opening.hello).expect("HELLO");
    let responder = Responder::hear(&agreed, &own_hello, ALL_PATHS).expect("a session of one path");
    let (unconfirmed, answer) = responder.answer(vec![]).expect("answered");
    assert_eq!(unconfirmed.verify(None, vec![], anybody).expect("established").level.to_string(), "1/1");
    let reply = whole(&answer.reply).expect("REPLY");
    let failure = initiator.finish(&reply, vec![], anybody).err().expect("no SHARE came");
    assert!(matches!(failure, HandshakeError::Missing { message: "SHARE", .. }));
}
