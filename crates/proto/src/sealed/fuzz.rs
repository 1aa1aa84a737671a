//! The checks of the fuzz targets `messages`, `handshake` and `key_updates`, which need private parts of this module.

use std::cell::LazyCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::framing::{Bytes, Message};
use super::handshake::Responder;
use super::key_update::{KeyUpdate, KeyUpdateError, UpdateLimits};
use super::late_witness::SessionWitnesses;
use super::loopback::{config, late_witness, params, parse, paths, recorded, run_kind, static_keys};
use super::messages::{Confirm, FirstMessage, Flags, Hello, Identity, Reply, Share, Witness};
use super::paths::{PathId, PathIds, Paths};
use crate::codec::records::{AeadCipher, Control};
use crate::secret::Secret;

/// The input is what a peer sends: if it parses as a message, that is encoded as the same bytes.
pub fn messages(input: &[u8]) {
    check_one_encoding(input, Hello::to_bytes);
    check_one_encoding(input, Reply::to_bytes);
    check_one_encoding(input, Witness::to_bytes);
    check_one_encoding(input, Share::to_bytes);
    check_one_encoding(input, Confirm::to_bytes);
    check_one_encoding(input, Identity::to_bytes);
    check_one_encoding(input, |first: &FirstMessage| match first {
        FirstMessage::Hello(hello) => hello.to_bytes(),
        FirstMessage::Witness(witness) => witness.to_bytes(),
        FirstMessage::Side(side) => side.to_bytes(),
    });
    if let Ok(hello) = parse(input) {
        // The result does not matter: no input forges the tag by chance.
        let [_, key] = static_keys();
        let _ = Responder::accept(&params(AeadCipher::ChaCha20Poly1305), &hello, config(Some(&key)));
    }
}

/// Messages of a handshake with three witnesses: three on the main path, three on every other.
const MAX_MESSAGES: u8 = 3 + 3 * 3;

fn check_one_encoding<M: Message>(input: &[u8], write: impl Fn(&M) -> Bytes) {
    if let Ok(message) = parse(input) {
        let written = write(&message);
        assert_eq!(written[..], input[..written.len()], "a message has one encoding");
    }
}

/// The input is a list of modifications of a handshake's messages, 4 bytes each: message, position, kind and value. The
/// ends both complete the handshake if and only if every message arrives unmodified; their keys then agree.
pub fn handshake(input: &[u8]) {
    let Some((&setting, edits)) = input.split_first() else { return };
    let cipher = if setting & 1 == 0 { AeadCipher::ChaCha20Poly1305 } else { AeadCipher::Aes256Gcm };
    let paths = paths(1 + (setting >> 1) % 4);
    let kind = Flags { identified: setting & 8 != 0, hybrid: setting & 16 != 0 };
    let (edits, _) = edits.as_chunks::<4>();
    let other_session = LazyCell::new(|| recorded(kind, cipher, paths));
    let params = params(cipher);

    let mut changed = false;
    let mut number = 0;
    let outcome = run_kind(kind, [&params, &params], paths, |_, bytes| {
        let sent = bytes.clone();
        for [_, at, what, with] in edits.iter().filter(|edit| edit[0] % MAX_MESSAGES == number) {
            match what % 4 {
                3 => *bytes = other_session[usize::from(*with) % other_session.len()].1.clone(),
                kind => modify(bytes, [*at, kind, *with]),
            }
        }
        // Bytes after a message are left in the stream.
        changed |= !bytes.starts_with(&sent);
        number += 1;
    });
    assert_eq!(outcome.both(), !changed, "completed if and only if nothing was modified");
    if let (Ok(initiator), Ok(responder)) = (outcome.initiator, outcome.responder) {
        assert_eq!(initiator.send_key.as_bytes(), responder.recv_key.as_bytes());
        assert_eq!(initiator.recv_key.as_bytes(), responder.send_key.as_bytes());
        assert_eq!(initiator.witnesses.level(), responder.witnesses.level());
    }
}

/// The paths of the sessions of `key_updates`; the first of those beside the main one has a witness from the handshake.
const SESSION_PATHS: u8 = 4;

/// One end of a session, without the content of its records.
struct SessionEnd {
    witnesses: SessionWitnesses,
    updates: KeyUpdate,
    /// Records under the current keys.
    sent: u64,
    received: u64,
    sent_end: bool,
    /// All keys that it has sent and received under, from the first update on.
    send_keys: Vec<Secret>,
    recv_keys: Vec<Secret>,
    /// What it has sent and the peer not yet received.
    wire: VecDeque<Sent>,
}

enum Sent {
    Control(Control, Vec<u8>),
    End,
}

impl SessionEnd {
    /// Sends as many records, and before them what is due.
    fn send(&mut self, now: Instant, records: u64) -> Result<(), KeyUpdateError> {
        while let Some(record) = self.updates.next(now, self.sent)? {
            self.sent += 1;
            self.wire.push_back(Sent::Control(record.control, record.content));
            self.change_send_key(record.next_key);
        }
        self.sent += records;
        Ok(())
    }

    fn end(&mut self) {
        if let Some(record) = self.updates.end() {
            self.wire.push_back(Sent::Control(record.control, record.content));
            self.change_send_key(record.next_key);
        }
        self.wire.push_back(Sent::End);
        self.sent_end = true;
    }

    fn change_send_key(&mut self, key: Option<Secret>) {
        if let Some(key) = key {
            self.sent = 0;
            self.send_keys.push(key);
        }
    }

    /// Receives as many records, and a control record.
    fn receive(&mut self, now: Instant, records: u64, sent: &Sent) -> Result<(), KeyUpdateError> {
        self.received += records;
        match sent {
            Sent::End => self.updates.received_end(),
            Sent::Control(control, content) => {
                if let Some(key) = self.updates.receive(now, *control, content)? {
                    self.received = 0;
                    self.recv_keys.push(key);
                }
            }
        }
        self.updates.received(now, self.received).map(drop)
    }
}

/// Modifies a message: kind 0 flips bits, 1 cuts, 2 inserts, others change nothing.
fn modify(bytes: &mut Vec<u8>, [at, kind, with]: [u8; 3]) {
    let at = usize::from(at) % bytes.len().max(1);
    match kind {
        0 if !bytes.is_empty() => bytes[at] ^= with,
        1 => bytes.truncate(at),
        2 => bytes.insert(at, with),
        _ => {}
    }
}

/// A late witness on the path `value % 4`, of whose messages one is modified at a position: the one that the bits of
/// `kind` above the lowest two name, in the way of those. Both ends verify it if and only if nothing was modified.
fn add_late_witness(ends: &mut [SessionEnd; 2], [at, kind, value]: [u8; 3]) {
    let path = value % SESSION_PATHS;
    let Ok(path) = PathId::new(path) else { return };
    let mut changed = false;
    let mut number = 0;
    let [initiator, responder] = &*ends;
    let is_new = initiator.witnesses.witness(path).is_ok();
    let outcome = late_witness([&initiator.witnesses, &responder.witnesses], path, |_, bytes| {
        if number == kind >> 2 {
            let sent = bytes.clone();
            modify(bytes, [at, kind & 3, value]);
            // Bytes after a message are left in the stream.
            changed |= !bytes.starts_with(&sent);
        }
        number += 1;
    });
    assert_eq!(outcome.is_ok(), is_new && !changed, "verified if and only if nothing was modified");
    for (end, shares) in ends.iter_mut().zip(outcome.into_iter().flatten()) {
        end.witnesses.add(&shares).expect("the path has no witness yet");
        end.updates.mix(shares);
    }
    assert_eq!(ends[0].witnesses.level(), ends[1].witnesses.level());
}

/// The input is what happens in a session after its handshake, 4 bytes each: event, position, kind and value. The control
/// records of key updates and the messages of late witnesses come from the peer, who may send anything. As long as all
/// arrives unmodified, no end fails unless an update is overdue, and the ends get the same keys; never the same ones after
/// a modification that neither of them refused.
pub fn key_updates(input: &[u8]) {
    let Some((&setting, events)) = input.split_first() else { return };
    let kind = Flags { identified: false, hybrid: setting & 1 != 0 };
    let params = params(AeadCipher::ChaCha20Poly1305);
    let number = |number| PathId::new(number).expect("a path's number");
    let listed =
        Paths::new(SESSION_PATHS, PathIds::from_iter([number(1)])).expect("fewer witnesses than paths");
    let outcome = run_kind(kind, [&params, &params], listed, |_, _| {});
    let mut now = Instant::now();
    let limits = UpdateLimits { interval: Duration::from_secs(60), records: 100 };
    let mut ends = [outcome.initiator, outcome.responder].map(|session| {
        let session = session.unwrap_or_else(|failure| panic!("{failure:?}"));
        SessionEnd {
            witnesses: session.witnesses,
            updates: KeyUpdate::new(session.updates, limits, now),
            sent: 0,
            received: 0,
            sent_end: false,
            send_keys: Vec::new(),
            recv_keys: Vec::new(),
            wire: VecDeque::new(),
        }
    });
    // Of a control record; from then on the keys differ.
    let mut modified = false;
    for &[event, at, kind, value] in events.as_chunks::<4>().0 {
        let end = usize::from(event & 1);
        let mut result = Ok(());
        match event >> 1 & 7 {
            0 => now += Duration::from_secs(u64::from(value)),
            1 if !ends[end].sent_end => ends[end].end(),
            2 => add_late_witness(&mut ends, [at, kind, value]),
            3 | 4 if !ends[end].sent_end => result = ends[end].send(now, u64::from(value)),
            1 | 3 | 4 => {}
            _ => {
                let Some(mut sent) = ends[1 - end].wire.pop_front() else { continue };
                if let Sent::Control(_, content) = &mut sent {
                    let original = content.clone();
                    modify(content, [at, kind, value]);
                    modified |= *content != original;
                }
                let keys = ends[end].recv_keys.len();
                result = ends[end].receive(now, u64::from(value), &sent);
                if let Some(key) = ends[end].recv_keys.get(keys) {
                    let is_same = key.as_bytes() == ends[1 - end].send_keys[keys].as_bytes();
                    assert_eq!(is_same, !modified, "the same keys if and only if nothing was modified");
                }
            }
        }
        match result {
            Ok(()) => {}
            // The session ends.
            Err(KeyUpdateError::Overdue) => return,
            Err(error) => {
                assert!(modified, "{error}");
                return;
            }
        }
    }
}
