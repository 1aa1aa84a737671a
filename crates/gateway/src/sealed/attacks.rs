//! What an attacker can do to a handshake, by messages alone: flip, replay, reorder, duplicate, mix sessions, downgrade,
//! and stand in the middle of any of the paths.

use std::collections::BTreeMap;

use plait_codec::sealed::Cipher;
use plait_host::mptcp::Key;

use super::both_ends::{Failure, Outcome, Step, agreed, paths, recorded, run, whole};
use super::handshake::{
    Agreed, Demand, Established, HandshakeError, Initiator, Opening, Responder, Unconfirmed,
};
use super::keys::Secret;
use super::messages::{Bytes, Confirm, Hello, Preface, Reply, SessionId, Share, Witness};
use super::noise::Noise;
use super::paths::{Level, PathId, PathIds, Paths};

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path's number")
}

fn honest(cipher: Cipher, paths: Paths) -> Outcome {
    run([&agreed(cipher), &agreed(cipher)], paths, |_, _| {})
}

fn keys(established: &Established) -> [&[u8; 32]; 2] {
    [established.sending.as_bytes(), established.receiving.as_bytes()]
}

#[test]
fn honest_ends_agree_whatever_the_cipher_and_the_number_of_witnesses() {
    for cipher in Cipher::ALL {
        for count in [1, 2, 3, 4, 16] {
            let Outcome { initiator, responder } = honest(cipher, paths(count));
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
    assert!(refused(Initiator::begin(&agreed, two_of_three, Demand::AllPaths).err()));
    let (_, opening) = Initiator::begin(&agreed, two_of_three, Demand::AnyLevel).expect("begun");
    let hello = whole(&opening.hello).expect("HELLO");
    assert!(refused(Responder::hear(&agreed, &hello, Demand::AllPaths).err()));
    assert!(Initiator::begin(&agreed, paths(3), Demand::AllPaths).is_ok());
}

#[test]
fn what_an_end_holds_can_wait_in_a_task_of_any_thread() {
    fn is_sent<T: Send>() {}
    is_sent::<(Initiator, Responder, Unconfirmed, Established)>();
}

#[test]
fn every_flipped_bit_is_found() {
    for cipher in Cipher::ALL {
        let agreed = agreed(cipher);
        for (step, message) in recorded(cipher, paths(2)) {
            for bit in 0..message.len() * 8 {
                let outcome = run([&agreed, &agreed], paths(2), |at, bytes| {
                    if at == step {
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                });
                let found_by = match step {
                    // What the initiator sent shows at the responder; but for a share, whose change shows at message 2.
                    Step::Hello | Step::Confirm(_) => outcome.responder,
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
    for (step, other) in recorded(cipher, paths(3)) {
        let outcome = run([&agreed(cipher), &agreed(cipher)], paths(3), |at, bytes| {
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
    let recorded = recorded(Cipher::ChaCha20Poly1305, paths(2));
    let said = |step: Step| &recorded.iter().find(|(at, _)| *at == step).expect("recorded").1;
    let hello: Hello = whole(said(Step::Hello)).expect("HELLO");
    let responder = Responder::hear(&agreed, &hello, Demand::AnyLevel).expect("as good as new");
    let witness: Witness = whole(said(Step::Witness(path(1)))).expect("WITNESS");
    let (unconfirmed, _) = responder.answer(vec![witness]).expect("as good as new");
    let confirm: Confirm = whole(said(Step::Confirm(path(1)))).expect("CONFIRM");
    let failure = unconfirmed.verify(vec![(path(1), confirm)]).err().expect("the responder's share is fresh");
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
        let (_, opening) = Initiator::begin(&agreed, paths(3), Demand::AnyLevel).expect("begun");
        let hello = whole(&opening.hello).expect("HELLO");
        let responder = Responder::hear(&agreed, &hello, Demand::AnyLevel).expect("heard");
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

/// What the attacker does on a path other than the main one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    Absent,
    Listening,
    Active,
}

/// What a man in the middle of the main path comes to.
struct Attack {
    /// At the initiator that he deceives.
    initiator: Result<Established, HandshakeError>,
    /// At the responder that he deceives; `None` where the initiator did not go on to confirm.
    responder: Option<Result<Established, HandshakeError>>,
    /// His own two ends' keys, as far as he has any: towards the initiator, towards the responder.
    own: [Option<Established>; 2],
}

/// An attacker who is active on the main path runs one handshake with each end, with the same preface, and does on each of
/// the other paths what he can: where he is active, he exchanges shares of his own with each end; where he listens, he
/// knows the ends' shares; where he is absent, he guesses.
fn stand_in_the_middle(cipher: Cipher, others: &[On]) -> Attack {
    let agreed = agreed(cipher);
    let on = |path: PathId| others[usize::from(path.number()) - 1];
    let guess = || Secret::copy_of(&[0; 32]);
    let copied = |share: &Secret| Secret::copy_of(share.as_bytes());

    let paths = paths(others.len() as u8 + 1);
    let (initiator, Opening { hello, witnesses }) =
        Initiator::begin(&agreed, paths, Demand::AllPaths).expect("begun");
    let hello: Hello = whole(&hello).expect("HELLO");
    let witnesses: BTreeMap<PathId, Witness> =
        witnesses.iter().map(|(path, bytes)| (*path, whole(bytes).expect("WITNESS"))).collect();

    let towards_responder = witnesses.iter().map(|(path, witness)| match on(*path) {
        On::Active => (*path, Secret::random().expect("random")),
        On::Listening => (*path, copied(&witness.share)),
        On::Absent => (*path, guess()),
    });
    let preface = hello.preface;
    let (own_initiator, own_opening) =
        Initiator::begin_with(&agreed, preface, towards_responder.collect(), Noise::initiator)
            .expect("begun");
    let responder = Responder::hear(&agreed, &whole(&own_opening.hello).expect("HELLO"), Demand::AllPaths)
        .expect("heard");
    let own_witnesses: BTreeMap<PathId, Bytes> = own_opening.witnesses.into_iter().collect();
    let arriving = witnesses.iter().map(|(path, genuine)| match on(*path) {
        On::Active => whole(&own_witnesses[path]).expect("WITNESS"),
        _ => Witness { session: genuine.session, path: *path, share: copied(&genuine.share) },
    });
    let (unconfirmed, answer) = responder.answer(arriving.collect()).expect("answered");
    let shares: BTreeMap<PathId, Bytes> = answer.shares.into_iter().collect();
    let share = |path: &PathId| whole::<Share>(&shares[path]).expect("SHARE");

    let reply: Reply = whole(&answer.reply).expect("REPLY");
    let seen = preface.paths.witnesses().iter().map(|path| match on(path) {
        On::Absent => (path, Share { share: guess(), ..share(&path) }),
        _ => (path, share(&path)),
    });
    let own_with_responder = own_initiator.finish(&reply, seen.collect()).ok();

    let own_responder = Responder::hear(&agreed, &hello, Demand::AllPaths).expect("heard");
    let known = witnesses.iter().map(|(path, witness)| {
        let share = if on(*path) == On::Absent { guess() } else { copied(&witness.share) };
        Witness { session: witness.session, path: *path, share }
    });
    let towards_initiator = preface.paths.witnesses().iter().map(|path| match on(path) {
        On::Active => (path, Secret::random().expect("random")),
        On::Listening => (path, share(&path).share),
        On::Absent => (path, guess()),
    });
    let (own_unconfirmed, own_answer) =
        own_responder.answer_with(known.collect(), towards_initiator.collect()).expect("answered");
    let own_shares: BTreeMap<PathId, Bytes> = own_answer.shares.into_iter().collect();
    let arriving = preface.paths.witnesses().iter().map(|path| match on(path) {
        On::Active => (path, whole(&own_shares[&path]).expect("SHARE")),
        _ => (path, share(&path)),
    });
    let own_reply = whole(&own_answer.reply).expect("REPLY");
    let concluded = initiator.finish(&own_reply, arriving.collect());

    let confirms = |messages: Vec<(PathId, Bytes)>| -> Vec<(PathId, Confirm)> {
        messages.iter().map(|(path, bytes)| (*path, whole(bytes).expect("CONFIRM"))).collect()
    };
    let (initiator, responder, own_with_initiator, own_with_responder) = match (concluded, own_with_responder)
    {
        (Ok((established, from_initiator)), Some((own, own_confirms))) => {
            let with_initiator = own_unconfirmed.verify(confirms(from_initiator)).ok();
            (Ok(established), Some(unconfirmed.verify(confirms(own_confirms))), with_initiator, Some(own))
        }
        (concluded, own) => {
            (concluded.map(|(established, _)| established), None, None, own.map(|(own, _)| own))
        }
    };
    Attack { initiator, responder, own: [own_with_initiator, own_with_responder] }
}

#[test]
fn who_does_not_see_every_path_is_found_by_the_initiator() {
    use On::{Absent, Active, Listening};
    for others in
        [&[Absent][..], &[Absent, Active], &[Active, Absent], &[Listening, Absent], &[Absent, Absent]]
    {
        for cipher in Cipher::ALL {
            let attack = stand_in_the_middle(cipher, others);
            assert!(matches!(attack.initiator, Err(HandshakeError::Reply)), "{others:?}");
            assert!(attack.responder.is_none() && attack.own.iter().all(Option::is_none), "{others:?}");
        }
    }
}

#[test]
fn who_only_listens_on_one_path_is_found_there_by_the_initiator() {
    use On::{Active, Listening};
    for (others, at) in [
        (&[Listening][..], 1),
        (&[Listening, Listening], 1),
        (&[Active, Listening], 2),
        (&[Listening, Active], 1),
        (&[Active, Active, Listening], 3),
    ] {
        for cipher in Cipher::ALL {
            let attack = stand_in_the_middle(cipher, others);
            let expected =
                matches!(attack.initiator, Err(HandshakeError::Confirmation(on)) if on == path(at));
            assert!(expected, "{others:?}");
            // He has keys with the responder, as any initiator has; the responder awaits a CONFIRM that he cannot place.
            assert!(attack.responder.is_none(), "{others:?}");
        }
    }
}

/// The limit of what can be had without keys that were there before: docs/threat-model.md says so.
#[test]
fn who_is_active_on_every_path_stays_unseen() {
    for others in [&[][..], &[On::Active], &[On::Active, On::Active]] {
        let attack = stand_in_the_middle(Cipher::ChaCha20Poly1305, others);
        let [Some(own_with_initiator), Some(own_with_responder)] = attack.own else { panic!("{others:?}") };
        let initiator = attack.initiator.expect("deceived");
        let responder = attack.responder.expect("the initiator confirmed").expect("deceived");
        let swapped = |[sending, receiving]: [[u8; 32]; 2]| [receiving, sending];
        let owned = |established: &Established| keys(established).map(|key| *key);
        assert_eq!(owned(&initiator), swapped(owned(&own_with_initiator)));
        assert_eq!(owned(&responder), swapped(owned(&own_with_responder)));
        assert_ne!(owned(&initiator), owned(&own_with_responder));
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
    let (initiator, opening) = Initiator::begin(&agreed, paths(2), Demand::AllPaths).expect("begun");
    let genuine: Hello = whole(&opening.hello).expect("HELLO");

    // As it is, HELLO with other paths does not open.
    let alone = Paths::new(1, PathIds::default()).expect("fewer witnesses than paths");
    let preface = Preface { paths: alone, ..genuine.preface };
    let stripped = Hello { preface, ..genuine.clone() };
    let failure = Responder::hear(&agreed, &stripped, Demand::AllPaths).err().expect("refused");
    assert!(matches!(failure, HandshakeError::Hello));

    // A session of his own with the responder, which he may have, gives him nothing for the initiator.
    let (_, own_opening) =
        Initiator::begin_with(&agreed, preface, BTreeMap::new(), Noise::initiator).expect("begun");
    let own_hello = whole(&own_opening.hello).expect("HELLO");
    let responder = Responder::hear(&agreed, &own_hello, Demand::AllPaths).expect("a session of one path");
    let (unconfirmed, answer) = responder.answer(vec![]).expect("answered");
    assert_eq!(unconfirmed.verify(vec![]).expect("established").level.to_string(), "1/1");
    let reply = whole(&answer.reply).expect("REPLY");
    let failure = initiator.finish(&reply, vec![]).err().expect("no SHARE came");
    assert!(matches!(failure, HandshakeError::Missing { message: "SHARE", .. }));
}
