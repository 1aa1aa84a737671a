//! Somebody who stands in the middle of the main path, and does on the others what he can.

use std::collections::BTreeMap;

use plait_proto::sealed::Cipher;

use super::{ALL_PATHS, judge, keys, path};
use crate::sealed::both_ends::{agreed, anybody, own, paths, whole};
use crate::sealed::handshake::{
    Closing, Demand, Established, HandshakeError, Initiator, Opening, Responder, Terms,
};
use crate::sealed::keys::Secret;
use crate::sealed::messages::{Bytes, Confirm, Hello, Identity, Reply, Share, Witness};
use crate::sealed::noise::Noise;
use crate::sealed::paths::PathId;

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

/// What the two ends know of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// Nothing, and they do not ask.
    Nothing,
    /// They ask, and the initiator knows the responder's key.
    Responder,
    /// They ask, and the responder knows the initiator's key.
    Initiator,
}

/// An attacker who is active on the main path runs one handshake with each end, with the same preface, and does on each of
/// the other paths what he can: where he is active, he exchanges shares of his own with each end; where he listens, he
/// knows the ends' shares; where he is absent, he guesses. To ends that ask who he is he shows a key of his own.
fn stand_in_the_middle(cipher: Cipher, others: &[On], known: Known) -> Attack {
    let agreed = agreed(cipher);
    let [initiator_key, responder_key] = own();
    let attacker_key = Secret::copy_of(&[0x33; 32]);
    let shows = |key| (known != Known::Nothing).then_some(key);
    let terms = |key| Terms { own: shows(key), ..ALL_PATHS };
    let on = |path: PathId| others[usize::from(path.number()) - 1];
    let guess = || Secret::copy_of(&[0; 32]);
    let copied = |share: &Secret| Secret::copy_of(share.as_bytes());

    let paths = paths(others.len() as u8 + 1);
    let (initiator, Opening { hello, witnesses }) =
        Initiator::begin(&agreed, paths, Demand::AllPaths, shows(&initiator_key)).expect("begun");
    let hello: Hello = whole(&hello).expect("HELLO");
    let witnesses: BTreeMap<PathId, Witness> =
        witnesses.iter().map(|(path, bytes)| (*path, whole(bytes).expect("WITNESS"))).collect();

    let towards_responder = witnesses.iter().map(|(path, witness)| match on(*path) {
        On::Active => (*path, Secret::random().expect("random")),
        On::Listening => (*path, copied(&witness.share)),
        On::Absent => (*path, guess()),
    });
    let preface = hello.preface;
    let begun = Initiator::begin_with(
        &agreed,
        preface,
        towards_responder.collect(),
        shows(&attacker_key),
        Noise::initiator,
    );
    let (own_initiator, own_opening) = begun.expect("begun");
    let own_hello = whole(&own_opening.hello).expect("HELLO");
    let responder = Responder::hear(&agreed, &own_hello, terms(&responder_key)).expect("heard");
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
    let own_with_responder = own_initiator.finish(&reply, seen.collect(), anybody).ok();

    let own_responder = Responder::hear(&agreed, &hello, terms(&attacker_key)).expect("heard");
    let known_witnesses = witnesses.iter().map(|(path, witness)| {
        let share = if on(*path) == On::Absent { guess() } else { copied(&witness.share) };
        Witness { session: witness.session, path: *path, share }
    });
    let towards_initiator = preface.paths.witnesses().iter().map(|path| match on(path) {
        On::Active => (path, Secret::random().expect("random")),
        On::Listening => (path, share(&path).share),
        On::Absent => (path, guess()),
    });
    let (own_unconfirmed, own_answer) =
        own_responder.answer_with(known_witnesses.collect(), towards_initiator.collect()).expect("answered");
    let own_shares: BTreeMap<PathId, Bytes> = own_answer.shares.into_iter().collect();
    let arriving = preface.paths.witnesses().iter().map(|path| match on(path) {
        On::Active => (path, whole(&own_shares[&path]).expect("SHARE")),
        _ => (path, share(&path)),
    });
    let own_reply = whole(&own_answer.reply).expect("REPLY");
    let knows_responder = judge(known == Known::Responder, &responder_key);
    let concluded = initiator.finish(&own_reply, arriving.collect(), knows_responder);

    let closes = |closing: Closing| -> (Option<Identity>, Vec<(PathId, Confirm)>) {
        let confirms = closing.confirms.iter();
        let confirms = confirms.map(|(path, bytes)| (*path, whole(bytes).expect("CONFIRM")));
        (closing.identity.as_ref().map(|bytes| whole(bytes).expect("IDENTITY")), confirms.collect())
    };
    let knows_initiator = judge(known == Known::Initiator, &initiator_key);
    let (initiator, responder, own_with_initiator, own_with_responder) = match (concluded, own_with_responder)
    {
        (Ok((established, from_initiator)), Some((own, from_attacker))) => {
            let (identity, confirms) = closes(from_initiator);
            let with_initiator = own_unconfirmed.verify(identity.as_ref(), confirms, anybody).ok();
            let (identity, confirms) = closes(from_attacker);
            let at_responder = unconfirmed.verify(identity.as_ref(), confirms, knows_initiator);
            (Ok(established), Some(at_responder), with_initiator, Some(own))
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
            let attack = stand_in_the_middle(cipher, others, Known::Nothing);
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
            let attack = stand_in_the_middle(cipher, others, Known::Nothing);
            let expected =
                matches!(attack.initiator, Err(HandshakeError::Confirmation(on)) if on == path(at));
            assert!(expected, "{others:?}");
            // He has keys with the responder, as any initiator has; the responder awaits a CONFIRM that he cannot place.
            assert!(attack.responder.is_none(), "{others:?}");
        }
    }
}

/// The limit of what can be had without keys that were there before: docs/reference/threat-model.md says so.
#[test]
fn who_is_active_on_every_path_stays_unseen() {
    for others in [&[][..], &[On::Active], &[On::Active, On::Active]] {
        let attack = stand_in_the_middle(Cipher::ChaCha20Poly1305, others, Known::Nothing);
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

/// Every way of being on one, two or three paths, the main one actively.
fn everywhere_else() -> Vec<Vec<On>> {
    let all = [On::Absent, On::Listening, On::Active];
    let two = all.iter().flat_map(|one| all.map(|other| vec![*one, other]));
    std::iter::once(vec![]).chain(all.map(|one| vec![one])).chain(two).collect()
}

#[test]
fn who_does_not_have_the_key_that_the_initiator_knows_is_found_wherever_he_is() {
    for (others, cipher) in
        everywhere_else().iter().flat_map(|others| Cipher::ALL.map(|cipher| (others, cipher)))
    {
        let attack = stand_in_the_middle(cipher, others, Known::Responder);
        match attack.initiator {
            Err(HandshakeError::Stranger(_)) => assert!(others.iter().all(|on| *on == On::Active)),
            // He is found before his key is looked at.
            Err(HandshakeError::Reply) => assert!(others.contains(&On::Absent)),
            Err(HandshakeError::Confirmation(_)) => assert!(others.contains(&On::Listening)),
            _ => panic!("{others:?}: not found"),
        }
        assert!(
            attack.responder.is_none() && attack.own[0].is_none(),
            "{others:?}: the initiator said nothing"
        );
    }
}

#[test]
fn who_does_not_have_the_key_that_the_responder_knows_gets_nothing_there() {
    for others in [&[][..], &[On::Active], &[On::Active, On::Active]] {
        let attack = stand_in_the_middle(Cipher::Aes256Gcm, others, Known::Initiator);
        // The initiator asked, and took any key: it is deceived, and the responder is not.
        assert!(attack.initiator.is_ok_and(|established| established.peer.is_none()));
        assert!(matches!(attack.responder, Some(Err(HandshakeError::Stranger(_)))), "{others:?}");
    }
}
