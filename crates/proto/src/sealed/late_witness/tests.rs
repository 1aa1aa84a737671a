use std::time::{Duration, Instant};

use super::*;
use crate::codec::records::{AeadCipher, Control};
use crate::sealed::handshake::Session;
use crate::sealed::key_update::{KeyUpdate, KeyUpdateError, UpdateLimits};
use crate::sealed::loopback::{
    Failure, HYBRID, IDENTIFIED, KINDS, Step, late_witness, params, parse, run, run_kind,
};
use crate::sealed::messages::Flags;

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path's number")
}

/// So many configured paths, with witnesses on the first of those beside the main one.
fn paths(configured: u8, listed: u8) -> Paths {
    Paths::new(configured, (1..=listed).map(path).collect()).expect("fewer witnesses than paths")
}

/// Both ends of a session.
fn sessions(kind: Flags, paths: Paths) -> [Session<()>; 2] {
    let params = params(AeadCipher::Aes256Gcm);
    let outcome = run_kind(kind, [&params, &params], paths, |_, _| {});
    [outcome.initiator.expect("completed"), outcome.responder.expect("completed")]
}

#[test]
fn late_witness_raises_the_level_at_both_ends() {
    for kind in KINDS {
        let [mut one, mut other] = sessions(kind, paths(3, 1));
        assert_eq!(one.witnesses.level().to_string(), "2/3");
        let [ours, theirs] =
            late_witness([&one.witnesses, &other.witnesses], path(2), |_, _| {}).expect("verified");
        for (end, shares) in [(&mut one, &ours), (&mut other, &theirs)] {
            assert_eq!(end.witnesses.add(shares).expect("counted").to_string(), "3/3");
            assert!(matches!(end.witnesses.add(shares), Err(HandshakeError::Repeated("WITNESS", _))));
        }
    }
}

#[test]
fn paths_that_have_a_witness_or_are_not_configured_are_refused() {
    let [one, other] = sessions(IDENTIFIED, paths(3, 1));
    assert!(matches!(one.witnesses.witness(path(1)), Err(HandshakeError::Repeated("WITNESS", _))));
    let [full, _] = sessions(IDENTIFIED, paths(2, 1));
    assert!(matches!(full.witnesses.witness(path(2)), Err(HandshakeError::Unlisted("WITNESS", _))));
    let (_, witness) = one.witnesses.witness(path(2)).expect("begun");
    let of_another = other_session().witnesses.share(parse(&witness).expect("WITNESS"));
    assert!(matches!(of_another, Err(HandshakeError::WrongSession { .. })));
    assert!(other.witnesses.share(parse(&witness).expect("WITNESS")).is_ok());
}

fn other_session() -> Session<()> {
    let [_, other] = sessions(IDENTIFIED, paths(3, 1));
    other
}

/// Who is in the middle of the main connection has a session with each end, and passes a late witness on unread.
#[test]
fn late_witness_detects_an_attacker_in_the_middle() {
    let [initiator, _] = sessions(HYBRID, paths(2, 0));
    let [_, responder] = sessions(HYBRID, paths(2, 0));
    // The same name: he passes on HELLO's.
    let renamed = SessionWitnesses { session: initiator.witnesses.session, ..responder.witnesses };
    let error = late_witness([&initiator.witnesses, &renamed], path(1), |_, _| {}).expect_err("detected");
    assert!(matches!(error, Failure::Handshake(HandshakeError::Confirmation(_))));
}

#[test]
fn every_change_of_a_message_is_an_error() {
    for (changed, length) in
        [(Step::Witness(path(2)), 69), (Step::Share(path(2)), 68), (Step::Confirm(path(2)), 36)]
    {
        let [one, other] = sessions(IDENTIFIED, paths(3, 0));
        // From the first byte after type, length and version, if it has one, whose errors are the parser's.
        let first = if matches!(changed, Step::Witness(_)) { 4 } else { 3 };
        for at in first..length {
            let outcome = late_witness([&one.witnesses, &other.witnesses], path(2), |step, bytes| {
                if step == changed {
                    assert_eq!(bytes.len(), length);
                    // A path number stays one.
                    bytes[at] ^= 1;
                }
            });
            assert!(outcome.is_err(), "{changed:?} {at}");
        }
    }
}

#[test]
fn shares_enter_the_next_keys() {
    for kind in KINDS {
        let now = Instant::now();
        let limits = UpdateLimits { interval: Duration::from_secs(3600), records: 1 << 20 };
        let [mut one, mut other] = sessions(kind, paths(2, 0));
        let [ours, theirs] =
            late_witness([&one.witnesses, &other.witnesses], path(1), |_, _| {}).expect("verified");
        one.witnesses.add(&ours).expect("counted");
        other.witnesses.add(&theirs).expect("counted");
        let [mut updates, mut answers] =
            [one.updates, other.updates].map(|secrets| KeyUpdate::new(secrets, limits, now));
        assert!(updates.next(now, 1).expect("not overdue").is_none());
        assert!(updates.mix(ours), "the initiator begins at once");
        let request = updates.next(now, 1).expect("not overdue").expect("a request");
        assert_eq!((request.control, request.content.last()), (Control::UpdateRequest, Some(&1)));

        // Without the shares the responder refuses.
        let error = answers.receive(now, Control::UpdateRequest, &request.content).map(|_| ());
        assert_eq!(error, Err(KeyUpdateError::NoLateWitness(path(1))));
        assert!(!answers.mix(theirs), "the responder waits for the request");
        answers.receive(now, Control::UpdateRequest, &request.content).expect("accepted");
        let response = answers.next(now, 1).expect("not overdue").expect("a response");
        let received = updates.receive(now, Control::UpdateResponse, &response.content);
        let received = received.expect("accepted").expect("a key");
        assert_eq!(received.as_bytes(), response.next_key.expect("a key").as_bytes());
        let new_key = updates.next(now, 1).expect("not overdue").expect("NEW_KEY");
        let received = answers.receive(now, Control::NewKey, &[]).expect("accepted").expect("a key");
        assert_eq!(received.as_bytes(), new_key.next_key.expect("a key").as_bytes());
        assert!(updates.next(now, 0).expect("not overdue").is_none(), "nothing is left to mix in");
    }
}

#[test]
fn requests_name_paths_in_ascending_order() {
    let now = Instant::now();
    let [_, other] = sessions(IDENTIFIED, paths(3, 0));
    let mut answers = KeyUpdate::new(other.updates, UpdateLimits::default(), now);
    for wrong in [&[0][..], &[16], &[2, 1], &[1, 1]] {
        let request = [&[9; 32], wrong].concat();
        let error = answers.receive(now, Control::UpdateRequest, &request).map(|_| ());
        assert!(matches!(error, Err(KeyUpdateError::Paths(_))), "{wrong:?}: {error:?}");
    }
    let long = [9; 32 + 16];
    let error = answers.receive(now, Control::UpdateRequest, &long).map(|_| ());
    assert!(matches!(error, Err(KeyUpdateError::Length { .. })));
}

#[test]
fn listed_witnesses_are_unchanged() {
    let params = params(AeadCipher::ChaCha20Poly1305);
    let mut steps = Vec::new();
    let outcome = run([&params, &params], paths(3, 1), |step, _| steps.push(step));
    assert!(
        outcome.both() && steps.contains(&Step::Confirm(path(1))) && !steps.contains(&Step::Confirm(path(2)))
    );
}
