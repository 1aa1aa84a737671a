//! A man in the middle of the main path who does on the others what he can.

use std::collections::BTreeMap;

use super::{keys, path, verify_peer};
use crate::codec::records::AeadCipher;
use crate::sealed::framing::Bytes;
use crate::sealed::handshake::{
    Closing, HandshakeError, Initiator, InitiatorConfig, InitiatorSecrets, Opening, RequiredPaths, Responder,
    ResponderConfig, Session,
};
use crate::sealed::kem;
use crate::sealed::loopback::{accept_any, asks, config, params, parse, paths, static_keys};
use crate::sealed::messages::{Confirm, Hello, Identity, Preface, Reply, Share, Witness};
use crate::sealed::noise::Noise;
use crate::sealed::paths::PathId;
use crate::secret::Secret;

/// What the attacker does on a witness path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Absent,
    Listening,
    Active,
}

/// The result of a man-in-the-middle attack.
struct Attack {
    /// At the attacked initiator.
    initiator: Result<Session<()>, HandshakeError>,
    /// At the attacked responder; `None` if the initiator did not proceed to confirm.
    responder: Option<Result<Session<()>, HandshakeError>>,
    /// The attacker's own two sessions, if he has them: with the initiator, with the responder.
    own_sessions: [Option<Session<()>>; 2],
}

/// Which end knows the other's static key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// Neither: both are anonymous.
    Neither,
    /// Both authenticate, and the initiator knows the responder's key.
    Responder,
    /// Both authenticate, and the responder knows the initiator's key.
    Initiator,
}

/// An attacker who is active on the main path runs one handshake with each end, with the same preface but his own encapsulation key, and does on each of
/// the other paths what he can: where he is active, he exchanges shares of his own with each end; where he listens, he
/// knows the ends' shares; where he is absent, he guesses. To ends that ask who he is he shows a key of his own.
fn attack(cipher: AeadCipher, others: &[Presence], known: Known) -> Attack {
    let params = params(cipher);
    let [initiator_key, responder_key] = static_keys();
    let attacker_key = Secret::copy_of(&[0x33; 32]);
    let shows = |key| (known != Known::Neither).then_some(key);
    let required = RequiredPaths::AtLeast(others.len() as u8 + 1);
    let terms = |key| ResponderConfig { paths: required, ..config(shows(key)) };
    let on = |path: PathId| others[usize::from(path.number()) - 1];
    let guess = || Secret::copy_of(&[0; 32]);
    let copied = |share: &Secret| Secret::copy_of(share.as_bytes());

    let paths = paths(others.len() as u8 + 1);
    let hybrid = InitiatorConfig { hybrid: true, ..asks(required, shows(&initiator_key)) };
    let (initiator, Opening { hello, witnesses }) =
        Initiator::start(&params, paths, hybrid).expect("started");
    let hello: Hello = parse(&hello).expect("HELLO");
    let witnesses: BTreeMap<PathId, Witness> =
        witnesses.iter().map(|(path, bytes)| (*path, parse(bytes).expect("WITNESS"))).collect();

    let towards_responder = witnesses.iter().map(|(path, witness)| match on(*path) {
        Presence::Active => (*path, Secret::random().expect("random")),
        Presence::Listening => (*path, copied(&witness.share)),
        Presence::Absent => (*path, guess()),
    });
    let own_pair = kem::KeyPair::generate().expect("random");
    let preface = Preface { encapsulation_key: Some(own_pair.public.clone()), ..hello.preface.clone() };
    let secrets = InitiatorSecrets { shares: towards_responder.collect(), kem: Some(own_pair) };
    let begun =
        Initiator::start_with(&params, preface.clone(), secrets, shows(&attacker_key), Noise::initiator);
    let (own_initiator, own_opening) = begun.expect("started");
    let own_hello = parse(&own_opening.hello).expect("HELLO");
    let responder = Responder::accept(&params, &own_hello, terms(&responder_key)).expect("accepted");
    let own_witnesses: BTreeMap<PathId, Bytes> = own_opening.witnesses.into_iter().collect();
    let arriving = witnesses.iter().map(|(path, genuine)| match on(*path) {
        Presence::Active => parse(&own_witnesses[path]).expect("WITNESS"),
        _ => Witness { session: genuine.session, path: *path, share: copied(&genuine.share) },
    });
    let (awaiting, answer) = responder.reply(arriving.collect()).expect("replied");
    let shares: BTreeMap<PathId, Bytes> = answer.shares.into_iter().collect();
    let share = |path: &PathId| parse::<Share>(&shares[path]).expect("SHARE");

    let reply: Reply = parse(&answer.reply).expect("REPLY");
    let seen = preface.paths.witnesses().iter().map(|path| match on(path) {
        Presence::Absent => (path, Share { share: guess(), ..share(&path) }),
        _ => (path, share(&path)),
    });
    let own_with_responder = own_initiator.finish(&reply, seen.collect(), accept_any).ok();

    let own_responder = Responder::accept(&params, &hello, terms(&attacker_key)).expect("accepted");
    let known_witnesses = witnesses.iter().map(|(path, witness)| {
        let share = if on(*path) == Presence::Absent { guess() } else { copied(&witness.share) };
        Witness { session: witness.session, path: *path, share }
    });
    let towards_initiator = preface.paths.witnesses().iter().map(|path| match on(path) {
        Presence::Active => (path, Secret::random().expect("random")),
        Presence::Listening => (path, share(&path).share),
        Presence::Absent => (path, guess()),
    });
    let replied = own_responder.reply_with(known_witnesses.collect(), towards_initiator.collect(), &guess());
    let (own_awaiting, own_answer) = replied.expect("replied");
    let own_shares: BTreeMap<PathId, Bytes> = own_answer.shares.into_iter().collect();
    let arriving = preface.paths.witnesses().iter().map(|path| match on(path) {
        Presence::Active => (path, parse(&own_shares[&path]).expect("SHARE")),
        _ => (path, share(&path)),
    });
    let own_reply = parse(&own_answer.reply).expect("REPLY");
    let knows_responder = verify_peer(known == Known::Responder, &responder_key);
    let finished = initiator.finish(&own_reply, arriving.collect(), knows_responder);

    let closes = |closing: Closing| -> (Option<Identity>, Vec<(PathId, Confirm)>) {
        let confirms = closing.confirms.iter();
        let confirms = confirms.map(|(path, bytes)| (*path, parse(bytes).expect("CONFIRM")));
        (closing.identity.as_ref().map(|bytes| parse(bytes).expect("IDENTITY")), confirms.collect())
    };
    let knows_initiator = verify_peer(known == Known::Initiator, &initiator_key);
    let (initiator, responder, own_with_initiator, own_with_responder) = match (finished, own_with_responder)
    {
        (Ok((established, from_initiator)), Some((own, from_attacker))) => {
            let (identity, confirms) = closes(from_initiator);
            let with_initiator = own_awaiting.verify(identity.as_ref(), confirms, accept_any).ok();
            let (identity, confirms) = closes(from_attacker);
            let at_responder = awaiting.verify(identity.as_ref(), confirms, knows_initiator);
            (Ok(established), Some(at_responder), with_initiator, Some(own))
        }
        (finished, own) => {
            (finished.map(|(established, _)| established), None, None, own.map(|(own, _)| own))
        }
    };
    Attack { initiator, responder, own_sessions: [own_with_initiator, own_with_responder] }
}

#[test]
fn initiator_detects_an_attacker_absent_from_one_path() {
    use Presence::{Absent, Active, Listening};
    for others in
        [&[Absent][..], &[Absent, Active], &[Active, Absent], &[Listening, Absent], &[Absent, Absent]]
    {
        for cipher in AeadCipher::ALL {
            let attack = attack(cipher, others, Known::Neither);
            assert!(matches!(attack.initiator, Err(HandshakeError::Reply)), "{others:?}");
            assert!(
                attack.responder.is_none() && attack.own_sessions.iter().all(Option::is_none),
                "{others:?}"
            );
        }
    }
}

#[test]
fn initiator_detects_an_attacker_who_only_listens_on_one_path() {
    use Presence::{Active, Listening};
    for (others, at) in [
        (&[Listening][..], 1),
        (&[Listening, Listening], 1),
        (&[Active, Listening], 2),
        (&[Listening, Active], 1),
        (&[Active, Active, Listening], 3),
    ] {
        for cipher in AeadCipher::ALL {
            let attack = attack(cipher, others, Known::Neither);
            let expected =
                matches!(attack.initiator, Err(HandshakeError::Confirmation(on)) if on == path(at));
            assert!(expected, "{others:?}");
            // He has keys with the responder, as any initiator has, but cannot send the CONFIRM that it awaits.
            assert!(attack.responder.is_none(), "{others:?}");
        }
    }
}

/// The limit without keys known beforehand, as docs/reference/threat-model.md states.
#[test]
fn attackers_active_on_every_path_stay_undetected_without_identities() {
    for others in [&[][..], &[Presence::Active], &[Presence::Active, Presence::Active]] {
        let attack = attack(AeadCipher::ChaCha20Poly1305, others, Known::Neither);
        let [Some(own_with_initiator), Some(own_with_responder)] = attack.own_sessions else {
            panic!("{others:?}")
        };
        let initiator = attack.initiator.expect("deceived");
        let responder = attack.responder.expect("the initiator confirmed").expect("deceived");
        let swapped = |[sending, receiving]: [[u8; 32]; 2]| [receiving, sending];
        let owned = |established: &Session<()>| keys(established).map(|key| *key);
        assert_eq!(owned(&initiator), swapped(owned(&own_with_initiator)));
        assert_eq!(owned(&responder), swapped(owned(&own_with_responder)));
        assert_ne!(owned(&initiator), owned(&own_with_responder));
    }
}

/// Every combination of presences on up to two witness paths.
fn all_presences() -> Vec<Vec<Presence>> {
    let all = [Presence::Absent, Presence::Listening, Presence::Active];
    let two = all.iter().flat_map(|one| all.map(|other| vec![*one, other]));
    std::iter::once(vec![]).chain(all.map(|one| vec![one])).chain(two).collect()
}

#[test]
fn initiator_that_knows_the_responder_detects_every_attacker() {
    for (others, cipher) in
        all_presences().iter().flat_map(|others| AeadCipher::ALL.map(|cipher| (others, cipher)))
    {
        let attack = attack(cipher, others, Known::Responder);
        match attack.initiator {
            Err(HandshakeError::PeerRejected { .. }) => {
                assert!(others.iter().all(|on| *on == Presence::Active))
            }
            // Detected before his static key is verified.
            Err(HandshakeError::Reply) => assert!(others.contains(&Presence::Absent)),
            Err(HandshakeError::Confirmation(_)) => assert!(others.contains(&Presence::Listening)),
            _ => panic!("{others:?}: not detected"),
        }
        assert!(
            attack.responder.is_none() && attack.own_sessions[0].is_none(),
            "{others:?}: the initiator sent nothing more"
        );
    }
}

#[test]
fn responder_that_knows_the_initiator_rejects_every_attacker() {
    for others in [&[][..], &[Presence::Active], &[Presence::Active, Presence::Active]] {
        let attack = attack(AeadCipher::Aes256Gcm, others, Known::Initiator);
        // The initiator accepts any key and is deceived; the responder is not.
        assert!(attack.initiator.is_ok_and(|session| session.peer.is_some()));
        assert!(matches!(attack.responder, Some(Err(HandshakeError::PeerRejected { .. }))), "{others:?}");
    }
}
