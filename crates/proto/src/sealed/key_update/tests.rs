//! Two ends of a session, with their records, over queues.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::loopback::{ANONYMOUS, HYBRID, params, paths, run_kind};
use super::super::messages::Flags;
use super::super::noise::Split;
use super::super::test_vectors::{FILE, Updates, Vectors, cipher_of, fixed};
use super::*;
use crate::codec::records::{AeadCipher, Error, LENGTH, MAX_RECORD, Opened, Opener, Padding, Sealer};

/// One end: what a gateway does with a session.
struct Gateway {
    sealer: Sealer,
    opener: Opener,
    updates: KeyUpdate,
    received: Vec<u8>,
    sent_end: bool,
}

#[derive(Debug, PartialEq)]
enum Failure {
    Record(Error),
    Update(KeyUpdateError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Record(error)
    }
}

impl From<KeyUpdateError> for Failure {
    fn from(error: KeyUpdateError) -> Failure {
        Failure::Update(error)
    }
}

/// Records that are on their way.
type Wire = VecDeque<Vec<u8>>;

impl Gateway {
    /// Sends data, and what is due.
    fn send(&mut self, data: &[u8], now: Instant, wire: &mut Wire) -> Result<(), Failure> {
        if !data.is_empty() {
            let mut record = vec![0; MAX_RECORD];
            record[LENGTH..LENGTH + data.len()].copy_from_slice(data);
            let length = self.sealer.seal(&mut record, data.len());
            wire.push_back(record[..length].to_vec());
        }
        let control = self.updates.next(now, self.sealer.records_of_key())?;
        self.send_control(control, wire);
        Ok(())
    }

    fn send_control(&mut self, control: Option<ControlRecord>, wire: &mut Wire) {
        if let Some(ControlRecord { control, content, next_key }) = control {
            wire.push_back(self.sealer.control(control, &content));
            if let Some(key) = next_key {
                self.sealer.set_key(key.as_bytes());
            }
        }
    }

    fn end(&mut self, wire: &mut Wire) {
        let control = self.updates.end();
        self.send_control(control, wire);
        wire.push_back(self.sealer.end());
        self.sent_end = true;
    }

    /// The key that an end has sent with since the last update.
    fn key_of(&self, sender: End) -> Secret {
        self.updates.root.as_ref().expect("neither end has ended").key_of(sender)
    }

    /// Takes a record; whether there is something to send.
    fn receive(&mut self, mut record: Vec<u8>, now: Instant) -> Result<bool, Failure> {
        match self.opener.open(&mut record)? {
            Opened::Incomplete { .. } => panic!("records are whole"),
            Opened::Delivered { .. } => panic!("there are no copies"),
            Opened::Data { content, .. } => self.received.extend_from_slice(&record[content]),
            Opened::Control { control, content, .. } => {
                if let Some(key) = self.updates.receive(now, control, &record[content])? {
                    self.opener.set_key(key.as_bytes());
                }
            }
            Opened::End { .. } => self.updates.received_end(),
        }
        Ok(self.updates.received(now, self.opener.records_of_key())?)
    }
}

const EVERY: UpdateLimits = UpdateLimits { interval: Duration::from_secs(1), records: 1000 };

/// The initiator and the responder after a handshake.
fn session(kind: Flags, cipher: AeadCipher, limits: UpdateLimits, now: Instant) -> [Gateway; 2] {
    let params = params(cipher);
    let outcome = run_kind(kind, [&params, &params], paths(1), |_, _| {});
    [outcome.initiator, outcome.responder].map(|session| {
        let session = session.unwrap_or_else(|failure| panic!("{failure:?}"));
        let padding = Padding::new(64).expect("in range");
        Gateway {
            sealer: Sealer::new(session.cipher, session.send_key.as_bytes()).with_padding(padding),
            opener: Opener::new(session.cipher, session.recv_key.as_bytes()),
            updates: KeyUpdate::new(session.updates, limits, now),
            received: Vec::new(),
            sent_end: false,
        }
    })
}

/// What happens next in a session.
#[derive(Clone, Debug)]
enum Event {
    Send { end: usize, length: usize },
    Arrive { end: usize },
    End { end: usize },
    Pass { seconds: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..2_usize, 0..300_usize).prop_map(|(end, length)| Event::Send { end, length }),
        8 => (0..2_usize).prop_map(|end| Event::Arrive { end }),
        1 => (0..2_usize).prop_map(|end| Event::End { end }),
        3 => (0..3_u64).prop_map(|seconds| Event::Pass { seconds }),
    ]
}

fn kind() -> impl Strategy<Value = Flags> {
    prop::sample::select(vec![ANONYMOUS, HYBRID])
}

fn cipher() -> impl Strategy<Value = AeadCipher> {
    prop::sample::select(AeadCipher::ALL.to_vec())
}

/// An event, and after it what the ends have to send at once.
fn happen(
    ends: &mut [Gateway; 2],
    wires: &mut [Wire; 2],
    sent: &mut [Vec<u8>; 2],
    now: &mut Instant,
    event: &Event,
) -> Result<(), Failure> {
    match *event {
        Event::Send { end, length } if !ends[end].sent_end => {
            let data = vec![sent[end].len() as u8; length];
            ends[end].send(&data, *now, &mut wires[end])?;
            sent[end].extend(data);
        }
        Event::Arrive { end } => {
            if let Some(record) = wires[1 - end].pop_front()
                && ends[end].receive(record, *now)?
                && !ends[end].sent_end
            {
                ends[end].send(&[], *now, &mut wires[end])?;
            }
        }
        Event::End { end } if !ends[end].sent_end => ends[end].end(&mut wires[end]),
        Event::Pass { seconds } => *now += Duration::from_secs(seconds),
        Event::Send { .. } | Event::End { .. } => {}
    }
    Ok(())
}

/// What remains after the events: the rest arrives, and both directions end.
fn ending() -> impl Iterator<Item = Event> {
    let arrivals = || (0..400).map(|at| Event::Arrive { end: at % 2 });
    arrivals().chain((0..2).map(|end| Event::End { end })).chain(arrivals())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_whatever_the_order_of_updates_and_ends(
        kind in kind(),
        cipher in cipher(),
        events in prop::collection::vec(event(), 0..150),
    ) {
        let mut now = Instant::now();
        let mut ends = session(kind, cipher, EVERY, now);
        let (mut wires, mut sent) = ([Wire::new(), Wire::new()], [Vec::new(), Vec::new()]);
        for event in events.into_iter().chain(ending()) {
            let done = happen(&mut ends, &mut wires, &mut sent, &mut now, &event);
            prop_assert_eq!(done, Ok(()), "{:?}", event);
        }
        let [initiator, responder] = ends;
        prop_assert_eq!(&initiator.received, &sent[1]);
        prop_assert_eq!(&responder.received, &sent[0]);
        prop_assert_eq!(initiator.opener.finish(), Ok(()));
        prop_assert_eq!(responder.opener.finish(), Ok(()));
        prop_assert_eq!(initiator.updates.completed(), responder.updates.completed());
    }

    /// Of all records of a session, also those of updates: a flipped bit, a loss, a repetition, an exchange of two.
    #[test]
    fn every_change_of_a_record_is_an_error(
        kind in kind(),
        events in prop::collection::vec(event(), 0..60),
        victim in any::<Index>(),
        at in any::<Index>(),
        what in 0..4_usize,
    ) {
        let start = Instant::now();
        // The same once to count the records of a direction, then with the change.
        let direction = victim.index(2);
        let run = |change: Option<usize>| {
            let mut now = start;
            let mut ends = session(kind, AeadCipher::Aes256Gcm, EVERY, now);
            let (mut wires, mut sent) = ([Wire::new(), Wire::new()], [Vec::new(), Vec::new()]);
            let (mut passed, mut changed) = (0, false);
            for event in events.iter().cloned().chain(ending()) {
                if let Event::Arrive { end } = event && end != direction && !wires[direction].is_empty() {
                    let wire = &mut wires[direction];
                    if change == Some(passed) {
                        changed = true;
                        match what {
                            0 => {
                                let bit = at.index(8 * wire[0].len());
                                wire[0][bit / 8] ^= 1 << (bit % 8);
                                // A length that is still possible would wait for further bytes, which here never come.
                                if bit < 8 * LENGTH {
                                    return (passed, true, true);
                                }
                            }
                            1 => drop(wire.pop_front()),
                            2 => wire.push_front(wire[0].clone()),
                            _ if wire.len() > 1 => wire.swap(0, 1),
                            _ => return (passed, false, false),
                        }
                    }
                    passed += 1;
                }
                if happen(&mut ends, &mut wires, &mut sent, &mut now, &event).is_err() {
                    return (passed, changed, true);
                }
            }
            (passed, changed, ends.iter().any(|end| end.opener.finish().is_err()))
        };
        let (records, _, failed) = run(None);
        prop_assert!(!failed);
        let (_, changed, failed) = run(Some(victim.index(records)));
        prop_assert_eq!(changed, failed);
    }
}

/// Sends data until nothing is left to arrive.
fn settle(ends: &mut [Gateway; 2], now: Instant) -> Result<(), Failure> {
    let (mut wires, mut sent, mut now) = ([Wire::new(), Wire::new()], [Vec::new(), Vec::new()], now);
    let events = [Event::Send { end: 0, length: 1 }, Event::Send { end: 1, length: 1 }];
    for event in events.into_iter().chain((0..12).map(|at| Event::Arrive { end: at % 2 })) {
        happen(ends, &mut wires, &mut sent, &mut now, &event)?;
    }
    Ok(())
}

#[test]
fn an_update_begins_when_time_has_passed_or_records_of_either_direction_were_sent() {
    let start = Instant::now();
    let limits = UpdateLimits { interval: Duration::from_secs(60), records: 20 };
    let mut ends = session(ANONYMOUS, AeadCipher::Aes256Gcm, limits, start);
    let completed = |ends: &[Gateway; 2]| ends.each_ref().map(|end| end.updates.completed());
    settle(&mut ends, start + Duration::from_secs(59)).expect("carried");
    assert_eq!(completed(&ends), [0, 0]);
    settle(&mut ends, start + Duration::from_secs(60)).expect("carried");
    assert_eq!(completed(&ends), [1, 1]);
    settle(&mut ends, start + Duration::from_secs(119)).expect("carried");
    assert_eq!(completed(&ends), [1, 1]);
    for direction in 0..2 {
        let mut wires = [Wire::new(), Wire::new()];
        for _ in 0..20 {
            ends[direction].send(&[1], start + Duration::from_secs(61), &mut wires[direction]).expect("sent");
        }
        while let Some(record) = wires[direction].pop_front() {
            ends[1 - direction].receive(record, start + Duration::from_secs(61)).expect("received");
        }
        // The request may be among them already.
        settle(&mut ends, start + Duration::from_secs(61)).expect("carried");
        assert_eq!(completed(&ends), [direction as u64 + 2; 2]);
    }
}

#[test]
fn updates_give_both_directions_new_keys_and_differ() {
    let start = Instant::now();
    for kind in [ANONYMOUS, HYBRID] {
        let mut ends = session(kind, AeadCipher::Aes256Gcm, EVERY, start);
        let mut seen = Vec::new();
        for seconds in 1..4 {
            seen.extend([End::Initiator, End::Responder].map(|end| *ends[0].key_of(end).as_bytes()));
            settle(&mut ends, start + Duration::from_secs(seconds)).expect("carried");
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 6);
        assert!(ends.iter().all(|end| end.updates.completed() == 3));
    }
}

#[test]
fn violations_are_errors() {
    let now = Instant::now();
    let new = |kind| session(kind, AeadCipher::Aes256Gcm, EVERY, now).map(|end| end.updates);
    let unexpected = |control| Some(KeyUpdateError::Unexpected(control));
    let error =
        |updates: &mut KeyUpdate, control, content: &[u8]| updates.receive(now, control, content).err();
    let later = now + Duration::from_secs(1);
    let [mut initiator, mut responder] = new(ANONYMOUS);
    // Out of order, and of the wrong end.
    assert_eq!(error(&mut initiator, Control::UpdateResponse, &[9; 32]), unexpected(Control::UpdateResponse));
    assert_eq!(error(&mut initiator, Control::UpdateRequest, &[9; 32]), unexpected(Control::UpdateRequest));
    assert_eq!(error(&mut initiator, Control::NewKey, &[]), unexpected(Control::NewKey));
    assert_eq!(error(&mut responder, Control::NewKey, &[]), unexpected(Control::NewKey));
    assert_eq!(error(&mut responder, Control::UpdateResponse, &[9; 32]), unexpected(Control::UpdateResponse));
    // A second request before NEW_KEY, and NEW_KEY before the response was sent.
    let request = initiator.next(later, 0).expect("random").expect("due").content;
    assert_eq!(error(&mut responder, Control::UpdateRequest, &request), None);
    assert_eq!(error(&mut responder, Control::NewKey, &[]), unexpected(Control::NewKey));
    assert!(responder.next(later, 0).expect("random").is_some());
    assert_eq!(error(&mut responder, Control::UpdateRequest, &request), unexpected(Control::UpdateRequest));
    let long = KeyUpdateError::Length { control: Control::NewKey, expected: 0, got: 1 };
    assert_eq!(error(&mut responder, Control::NewKey, &[0]), Some(long));
    // Lengths, those of the other kind of session included.
    for (kind, wrong) in [(ANONYMOUS, 31), (ANONYMOUS, 1216), (HYBRID, 32), (HYBRID, 1232)] {
        let [mut initiator, mut responder] = new(kind);
        let control = Control::UpdateRequest;
        let expected = if kind.hybrid { 1216 } else { 32 };
        let length = KeyUpdateError::Length { control, expected, got: wrong };
        assert_eq!(error(&mut responder, control, &vec![9; wrong]), Some(length));
        let control = Control::UpdateResponse;
        initiator.next(later, 0).expect("random");
        let expected = if kind.hybrid { 1120 } else { 32 };
        let length = KeyUpdateError::Length { control, expected, got: wrong };
        assert_eq!(error(&mut initiator, control, &vec![9; wrong]), Some(length));
    }
    // Public keys that are none.
    for kind in [ANONYMOUS, HYBRID] {
        let [mut initiator, mut responder] = new(kind);
        let mut request = initiator.next(later, 0).expect("random").expect("due").content;
        request[..32].fill(0);
        let low = |control| Some(KeyUpdateError::LowOrder(control));
        assert_eq!(error(&mut responder, Control::UpdateRequest, &request), low(Control::UpdateRequest));
        let response = vec![0; if kind.hybrid { 1120 } else { 32 }];
        assert_eq!(error(&mut initiator, Control::UpdateResponse, &response), low(Control::UpdateResponse));
    }
    let [mut initiator, mut responder] = new(HYBRID);
    let mut request = initiator.next(later, 0).expect("random").expect("due").content;
    request[32..35].fill(0xff);
    let invalid = Some(KeyUpdateError::EncapsulationKey);
    assert_eq!(error(&mut responder, Control::UpdateRequest, &request), invalid);
}

#[test]
fn an_update_that_does_not_complete_is_an_error_once_patience_ends() {
    let now = Instant::now();
    let due = now + Duration::from_secs(1);
    let initiator = || {
        let [Gateway { mut updates, .. }, _] = session(ANONYMOUS, AeadCipher::Aes256Gcm, EVERY, now);
        assert!(updates.next(due, 7).expect("random").is_some());
        updates
    };
    let almost = due + Duration::from_secs(3599);
    let mut updates = initiator();
    assert!(matches!(updates.next(almost, 7), Ok(None)));
    assert!(matches!(updates.next(due + Duration::from_secs(3600), 7), Err(KeyUpdateError::Overdue)));
    let mut updates = initiator();
    assert!(matches!(updates.next(due, 6 + (1 << 20)), Ok(None)));
    assert!(matches!(updates.next(due, 7 + (1 << 20)), Err(KeyUpdateError::Overdue)));
    let mut updates = initiator();
    assert_eq!(updates.received(due, 1 << 20), Err(KeyUpdateError::Overdue));
    // Once a direction has ended, no update is possible, and none is missed.
    let mut updates = initiator();
    updates.received_end();
    assert!(matches!(updates.next(due + Duration::from_secs(7200), 7), Ok(None)));
    let mut updates = initiator();
    assert!(updates.end().is_none());
    assert_eq!(updates.received(due + Duration::from_secs(7200), 1 << 20), Ok(false));
}

#[test]
fn half_closed_connections_keep_no_root() {
    let now = Instant::now();
    let has_roots = |ends: &[Gateway; 2]| ends.each_ref().map(|end| end.updates.root.is_some());
    for sender in 0..2 {
        let mut ends = session(HYBRID, AeadCipher::Aes256Gcm, EVERY, now);
        let mut wire = Wire::new();
        assert_eq!(has_roots(&ends), [true, true]);
        ends[sender].end(&mut wire);
        assert!(ends[sender].updates.root.is_none(), "no update is open");
        ends[1 - sender].receive(wire.pop_front().expect("the end"), now).expect("it is valid");
        assert_eq!(has_roots(&ends), [false, false]);
    }
}

#[test]
fn an_end_that_crosses_a_request_cancels_it() {
    let now = Instant::now();
    let [mut initiator, mut responder] = session(HYBRID, AeadCipher::Aes256Gcm, EVERY, now);
    let later = now + Duration::from_secs(1);
    let (mut to_responder, mut to_initiator) = (Wire::new(), Wire::new());
    initiator.send(b"a", later, &mut to_responder).expect("sent");
    responder.end(&mut to_initiator);
    for _ in 0..2 {
        responder.receive(to_responder.pop_front().expect("data and a request"), later).expect("ignored");
    }
    initiator.receive(to_initiator.pop_front().expect("the end"), later).expect("the end");
    // What follows is under the old key.
    initiator.send(b"b", later, &mut to_responder).expect("sent");
    responder.receive(to_responder.pop_front().expect("data"), later).expect("data");
    assert_eq!(responder.received, b"ab");
    assert_eq!([initiator.updates.completed(), responder.updates.completed()], [0, 0]);
}

#[test]
fn an_initiator_that_has_ended_receives_under_the_new_key_and_sends_nothing() {
    let now = Instant::now();
    let [mut initiator, mut responder] = session(HYBRID, AeadCipher::Aes256Gcm, EVERY, now);
    let later = now + Duration::from_secs(1);
    let (mut to_responder, mut to_initiator) = (Wire::new(), Wire::new());
    initiator.send(b"a", later, &mut to_responder).expect("sent");
    initiator.end(&mut to_responder);
    assert!(initiator.updates.root.is_some(), "the response may come");
    while let Some(record) = to_responder.pop_front() {
        responder.receive(record, later).expect("data, a request, the end");
    }
    responder.send(b"b", later, &mut to_initiator).expect("sent");
    responder.send(b"c", later, &mut to_initiator).expect("sent");
    while let Some(record) = to_initiator.pop_front() {
        assert_eq!(initiator.receive(record, later), Ok(false));
    }
    assert_eq!(initiator.received, b"bc");
    assert_eq!([initiator.updates.completed(), responder.updates.completed()], [1, 1]);
    assert!([initiator, responder].iter().all(|end| end.updates.root.is_none()));
}

/// The ends of a test vector.
fn ends_of(vector: &Updates) -> [Gateway; 2] {
    let [mode] = fixed(&vector.mode);
    let cipher = cipher_of(mode);
    let keys = [&vector.initiator_to_responder, &vector.responder_to_initiator].map(|key| fixed::<32>(key));
    [End::Initiator, End::Responder].map(|end| {
        let [to_responder, to_initiator] = keys.map(|key| Secret::copy_of(&key));
        let split = Split { hash: fixed(&vector.handshake_hash), to_responder, to_initiator };
        let secrets = UpdateSecrets { end, hybrid: vector.hybrid, root: Root::of_handshake(&split) };
        let padding = Padding::new(vector.pad).expect("in range");
        Gateway {
            sealer: Sealer::new(cipher, &keys[end as usize]).with_padding(padding),
            opener: Opener::new(cipher, &keys[1 - end as usize]),
            updates: KeyUpdate::new(secrets, EVERY, Instant::now()),
            received: Vec::new(),
            sent_end: false,
        }
    })
}

/// An independent Python implementation computed them from the specification.
#[test]
fn updates_match_the_reference() {
    let Vectors { updates, .. } = serde_json::from_str(FILE).expect("the vectors");
    assert_eq!(updates.len(), 4);
    for vector in updates {
        let [mut initiator, mut responder] = ends_of(&vector);
        let now = Instant::now();
        let record = |gateway: &mut Gateway| {
            let mut wire = Wire::new();
            let control = gateway.updates.output.take();
            gateway.send_control(control, &mut wire);
            wire.pop_front().expect("a record to send")
        };
        for step in vector.steps {
            let [d, z, encapsulated] = step.kem.each_ref().map(|part| Secret::copy_of(&fixed(part)));
            let private = |bytes: &str| x25519::PrivateKey::from_bytes(&fixed(bytes));
            let kem = vector.hybrid.then(|| KeyPair::from_seed(&d, &z));
            initiator.updates.request(Private { x25519: private(&step.initiator_private), kem });
            let mut request = record(&mut initiator);
            assert_eq!(hex::encode(&request), step.request);

            let Ok(Opened::Control { control: Control::UpdateRequest, content, .. }) =
                responder.opener.open(&mut request)
            else {
                panic!("expected the request")
            };
            let private = private(&step.responder_private);
            responder.updates.respond(&request[content], &private, &encapsulated).expect("valid");
            let response = record(&mut responder);
            assert_eq!(hex::encode(&response), step.response);
            assert_eq!(initiator.receive(response, now), Ok(true));
            let new_key = record(&mut initiator);
            assert_eq!(hex::encode(&new_key), step.new_key);
            assert_eq!(responder.receive(new_key, now), Ok(false));

            let keys = [End::Initiator, End::Responder].map(|end| responder.key_of(end));
            let keys = keys.map(|key| hex::encode(key.as_bytes()));
            assert_eq!(keys, [step.initiator_to_responder, step.responder_to_initiator]);
            let mut wire = Wire::new();
            initiator.send(b"not every, not any", now, &mut wire).expect("sent");
            responder.send(b"every, and none", now, &mut wire).expect("sent");
            let sent: Vec<String> = wire.iter().map(hex::encode).collect();
            assert_eq!(sent, step.data);
            for (end, record) in [&mut responder, &mut initiator].into_iter().zip(wire) {
                assert_eq!(end.receive(record, now), Ok(false));
            }
        }
        assert_eq!(responder.received, b"not every, not any".repeat(2));
        assert_eq!(initiator.received, b"every, and none".repeat(2));
    }
}

#[test]
fn debug_shows_no_secret() {
    let [Gateway { mut updates, .. }, _] = session(HYBRID, AeadCipher::Aes256Gcm, EVERY, Instant::now());
    let control = updates.next(Instant::now() + Duration::from_secs(2), 0).expect("random").expect("due");
    assert_eq!(format!("{updates:?} {control:?}"), "KeyUpdate { .. } ControlRecord { .. }");
}
