//! Key updates: both ends exchange keys anew within the records of a session, so that an attacker who learns its keys
//! at some moment can read neither what was sent before the last update, nor, if he only listens, what is sent after the next.
//!
//! | record | sender | content |
//! |---|---|---|
//! | UPDATE_REQUEST | initiator | X25519 public key; in a hybrid session ML-KEM-768 encapsulation key; numbers of paths |
//! | UPDATE_RESPONSE | responder | X25519 public key; in a hybrid session ciphertext |
//! | NEW_KEY | initiator | none |
//!
//! UPDATE_RESPONSE is the last record under the responder's sending key, NEW_KEY the last under the initiator's. Data goes on
//! under the old keys meanwhile. [`root`](super::root) defines the new ones.
//!
//! Only the initiator begins, one update at a time, so that two never cross. It begins when [`UpdateLimits`] are reached and
//! records are carried. If an update does not complete within [`PATIENCE`], the session ends with an error: going on under the
//! old keys would be weaker than promised.
//!
//! # Late witnesses
//!
//! An update also mixes in the shares of [late witnesses](super::late_witness) that were verified since the last one: the
//! request names their paths, in ascending order. Such a witness makes an update due at once.
//!
//! # Half-closed sessions
//!
//! An update takes both directions: none begins after one of them has ended. A responder that has sent its end ignores a
//! request; an initiator that receives the end forgets its request. An initiator that has sent its end sends no NEW_KEY, but
//! receives under the new key.
//!
//! # Cost
//!
//! A responder computes once per request, and accepts the next only after NEW_KEY. A peer can thus ask for one update per
//! round trip, each of which costs it at least as much as the responder: what a handshake without static keys costs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ring::digest;

use super::kem::{self, KeyPair};
use super::keys::{End, Shares};
use super::late_witness::LateShares;
use super::paths::{MAX_WITNESSES, PathId, PathIds, PathsError};
use super::root::Root;
use super::x25519;
use crate::codec::records::Control;
use crate::secret::{RandomError, Secret};

/// The time and the records of either direction within which an update must complete, from when it is due: far more than
/// any network takes.
const PATIENCE: UpdateLimits = UpdateLimits { interval: Duration::from_secs(3600), records: 1 << 20 };

/// When an update is due: whichever comes first since the last one, or since the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateLimits {
    /// So much time.
    pub interval: Duration,
    /// So many records of either direction.
    pub records: u64,
}

impl Default for UpdateLimits {
    /// An hour, or 2^20 records.
    fn default() -> UpdateLimits {
        UpdateLimits { interval: Duration::from_secs(3600), records: 1 << 20 }
    }
}

/// What a [`KeyUpdate`] starts from: the result of a handshake.
pub struct UpdateSecrets {
    pub(super) end: End,
    pub(super) hybrid: bool,
    pub(super) root: Root,
}

/// The key updates of a session at one end. The directions of its records are owned by others, who call:
///
/// - before a record is sent, [`next`](Self::next), and instead of it at last [`end`](Self::end);
/// - for each control record received, [`receive`](Self::receive), after others [`received`](Self::received), and for the
///   record that ends the direction [`received_end`](Self::received_end).
///
/// If a call fails, the session must end.
pub struct KeyUpdate {
    end: End,
    hybrid: bool,
    /// `None` once no update is possible: the keys since the last one follow from it.
    root: Option<Root>,
    limits: UpdateLimits,
    since: Instant,
    /// Records under the current keys.
    sent: u64,
    received: u64,
    state: State,
    /// Of late witnesses, to be mixed in by the next update.
    late: BTreeMap<PathId, Shares>,
    /// Since when an update is due.
    due: Option<Due>,
    /// To be sent next.
    output: Option<ControlRecord>,
    sent_end: bool,
    received_end: bool,
    completed: u64,
}

enum State {
    Idle,
    /// The initiator has sent UPDATE_REQUEST.
    Requested {
        private: Private,
        late: BTreeMap<PathId, Shares>,
        request: Vec<u8>,
    },
    /// The responder has computed UPDATE_RESPONSE, and will receive under this key after NEW_KEY.
    Responded {
        receive_key: Secret,
    },
}

#[derive(Clone, Copy)]
struct Due {
    since: Instant,
    sent: u64,
    received: u64,
}

/// The initiator's private keys of one update.
struct Private {
    x25519: x25519::PrivateKey,
    kem: Option<KeyPair>,
}

/// A record to send.
pub struct ControlRecord {
    /// Which one.
    pub control: Control,
    /// Its content.
    pub content: Vec<u8>,
    /// The key of all records after it, if it is the last under its key.
    pub next_key: Option<Secret>,
}

/// An update failed: nothing more may be sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyUpdateError {
    /// A record that may not come now.
    #[error("unexpected {}: the peer violates the protocol", name(*.0))]
    Unexpected(Control),
    /// A record of the wrong length.
    #[error("expected {expected} bytes in {}, got {got}", name(*.control))]
    Length {
        /// Which one.
        control: Control,
        /// The length of its content.
        expected: usize,
        /// The length found.
        got: usize,
    },
    /// An X25519 public key of low order.
    #[error("expected an X25519 public key in {}, got one of low order", name(*.0))]
    LowOrder(Control),
    /// The encapsulation key is none.
    #[error("expected an ML-KEM-768 encapsulation key in UPDATE_REQUEST, got a value out of range")]
    EncapsulationKey,
    /// A request names paths in another order than ascending, or numbers that no path has.
    #[error("UPDATE_REQUEST: {0}")]
    Paths(#[from] PathsError),
    /// A request names a path without a late witness that both ends have verified.
    #[error("UPDATE_REQUEST names path {0}, which has no late witness to mix in")]
    NoLateWitness(PathId),
    /// The update did not complete in time.
    #[error(
        "the keys could not be renewed within {} s or {} records since it was due: the peer did not answer, or its \
         application has stopped reading",
        PATIENCE.interval.as_secs(), PATIENCE.records
    )]
    Overdue,
    /// No random bytes.
    #[error(transparent)]
    Random(#[from] RandomError),
}

fn name(control: Control) -> &'static str {
    match control {
        Control::UpdateRequest => "UPDATE_REQUEST",
        Control::UpdateResponse => "UPDATE_RESPONSE",
        Control::NewKey => "NEW_KEY",
    }
}

impl KeyUpdate {
    /// Right after the handshake.
    #[must_use]
    pub fn new(secrets: UpdateSecrets, limits: UpdateLimits, now: Instant) -> KeyUpdate {
        let UpdateSecrets { end, hybrid, root } = secrets;
        KeyUpdate {
            end,
            hybrid,
            root: Some(root),
            limits,
            since: now,
            sent: 0,
            received: 0,
            state: State::Idle,
            late: BTreeMap::new(),
            due: None,
            output: None,
            sent_end: false,
            received_end: false,
            completed: 0,
        }
    }

    /// How many updates have given this end new keys.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Mixes the shares of a late witness, which both ends have verified, into the keys of the next update. Returns whether
    /// [`next`](Self::next) begins it now.
    pub fn mix(&mut self, LateShares { path, shares }: LateShares) -> bool {
        self.late.insert(path, shares);
        self.end == End::Initiator && matches!(self.state, State::Idle)
    }

    /// The control record to send now, if any. `sent` is the number of records sent under the current key.
    ///
    /// # Errors
    /// An update is overdue, or there are no random bytes.
    pub fn next(&mut self, now: Instant, sent: u64) -> Result<Option<ControlRecord>, KeyUpdateError> {
        // Until the sender has taken it, its number of records may be that of the key before.
        if self.output.is_some() {
            return Ok(self.output.take());
        }
        self.sent = sent;
        self.check_due(now)?;
        if self.due.is_some() && matches!(self.state, State::Idle) {
            let x25519 = x25519::PrivateKey::generate()?;
            let kem = if self.hybrid { Some(KeyPair::generate()?) } else { None };
            self.request(Private { x25519, kem });
        }
        Ok(self.output.take())
    }

    /// The last control record to send before the record that ends the sending direction, if any.
    pub fn end(&mut self) -> Option<ControlRecord> {
        self.sent_end = true;
        self.wipe_root_after_the_last_update();
        self.output.take()
    }

    /// Notes that data has arrived; whether [`next`](Self::next) has something to send. `received` is the number of records
    /// received under the current key.
    ///
    /// # Errors
    /// An update is overdue.
    pub fn received(&mut self, now: Instant, received: u64) -> Result<bool, KeyUpdateError> {
        self.received = received;
        self.check_due(now)?;
        let begins = self.due.is_some() && matches!(self.state, State::Idle);
        Ok(self.output.is_some() || begins)
    }

    /// Takes a control record that has arrived. Returns the key of all records after it, if it is the last under its key.
    ///
    /// # Errors
    /// It is not what may come now.
    pub fn receive(
        &mut self,
        now: Instant,
        control: Control,
        content: &[u8],
    ) -> Result<Option<Secret>, KeyUpdateError> {
        match (self.end, control) {
            (End::Responder, Control::UpdateRequest) => {
                let private = x25519::PrivateKey::generate()?;
                self.respond(content, &private, &Secret::random()?)?;
                Ok(None)
            }
            (End::Initiator, Control::UpdateResponse) => self.finish(now, content).map(Some),
            (End::Responder, Control::NewKey) if self.output.is_none() => {
                check_length(control, content, 0)?;
                match std::mem::replace(&mut self.state, State::Idle) {
                    State::Responded { receive_key } => Ok(Some(receive_key)),
                    State::Idle | State::Requested { .. } => Err(KeyUpdateError::Unexpected(control)),
                }
            }
            _ => Err(KeyUpdateError::Unexpected(control)),
        }
    }

    /// Notes that the receiving direction has ended: no answer will come.
    pub fn received_end(&mut self) {
        self.received_end = true;
        self.due = None;
        self.state = State::Idle;
        self.wipe_root_after_the_last_update();
    }

    /// In a half-closed connection keys are renewed by REKEY alone, and do not follow from those of later.
    fn wipe_root_after_the_last_update(&mut self) {
        let awaits_response = matches!(self.state, State::Requested { .. });
        let may_update = match self.end {
            End::Initiator => !self.received_end && (!self.sent_end || awaits_response),
            End::Responder => !self.received_end && !self.sent_end,
        };
        if !may_update {
            self.root = None;
        }
    }

    /// Finds out whether an update is due, at the initiator.
    fn check_due(&mut self, now: Instant) -> Result<(), KeyUpdateError> {
        // Without both directions there is no update.
        if self.end == End::Responder || self.sent_end || self.received_end {
            self.due = None;
            return Ok(());
        }
        match self.due {
            None => {
                let is_due = !self.late.is_empty()
                    || now.duration_since(self.since) >= self.limits.interval
                    || self.sent.max(self.received) >= self.limits.records;
                self.due = is_due.then_some(Due { since: now, sent: self.sent, received: self.received });
                Ok(())
            }
            Some(due) => {
                let records =
                    self.sent.saturating_sub(due.sent).max(self.received.saturating_sub(due.received));
                if now.duration_since(due.since) >= PATIENCE.interval || records >= PATIENCE.records {
                    return Err(KeyUpdateError::Overdue);
                }
                Ok(())
            }
        }
    }

    fn request(&mut self, private: Private) {
        let mut content = private.x25519.public().to_vec();
        content.extend(private.kem.iter().flat_map(|pair| &pair.public[..]));
        let late = std::mem::take(&mut self.late);
        content.extend(late.keys().map(|path| path.number()));
        self.state = State::Requested { private, late, request: content.clone() };
        self.output = Some(ControlRecord { control: Control::UpdateRequest, content, next_key: None });
    }

    /// The responder's part. `encapsulated` are the random bytes of a ciphertext.
    fn respond(
        &mut self,
        request: &[u8],
        private: &x25519::PrivateKey,
        encapsulated: &Secret,
    ) -> Result<(), KeyUpdateError> {
        let control = Control::UpdateRequest;
        let keys_len = x25519::KEY_LEN + if self.hybrid { kem::KEY_LEN } else { 0 };
        let (keys, paths) = request.split_at(keys_len.min(request.len()));
        let (public, key) = split_message(control, keys, self.hybrid.then_some(kem::KEY_LEN))?;
        if paths.len() > usize::from(MAX_WITNESSES) {
            return Err(KeyUpdateError::Length { control, expected: keys_len, got: request.len() });
        }
        let paths = PathIds::ascending(paths)?;
        if !matches!(self.state, State::Idle) {
            return Err(KeyUpdateError::Unexpected(control));
        }
        // It was sent before this end's end had arrived.
        if self.sent_end {
            return Ok(());
        }
        let shared = private.agree(public).ok_or(KeyUpdateError::LowOrder(control))?;
        let (mut content, mut kem) = (private.public().to_vec(), None);
        if self.hybrid {
            let key = Box::new(key.try_into().expect("of the length that was checked"));
            let encapsulated = kem::encapsulate(&key, encapsulated);
            let (ciphertext, secret) =
                encapsulated.map_err(|kem::InvalidKey| KeyUpdateError::EncapsulationKey)?;
            content.extend_from_slice(&ciphertext[..]);
            kem = Some(secret);
        }
        let taken = paths.iter().map(|path| Ok((path, self.late.remove(&path).ok_or(path)?)));
        let late: Result<BTreeMap<PathId, Shares>, PathId> = taken.collect();
        let late = late.map_err(KeyUpdateError::NoLateWitness)?;
        let root = self.root.as_ref().ok_or(KeyUpdateError::Unexpected(control))?;
        let root = root.next(&shared, kem.as_ref(), &late, &transcript(request, &content));
        self.state = State::Responded { receive_key: root.key_of(End::Initiator) };
        let next_key = Some(root.key_of(End::Responder));
        self.root = Some(root);
        self.output = Some(ControlRecord { control: Control::UpdateResponse, content, next_key });
        self.completed += 1;
        Ok(())
    }

    /// The initiator's last step; the key of the records that it receives from now on.
    fn finish(&mut self, now: Instant, response: &[u8]) -> Result<Secret, KeyUpdateError> {
        let control = Control::UpdateResponse;
        let State::Requested { private, late, request } = std::mem::replace(&mut self.state, State::Idle)
        else {
            return Err(KeyUpdateError::Unexpected(control));
        };
        let (public, ciphertext) =
            split_message(control, response, self.hybrid.then_some(kem::CIPHERTEXT_LEN))?;
        let shared = private.x25519.agree(public).ok_or(KeyUpdateError::LowOrder(control))?;
        let kem = private.kem.map(|pair| {
            pair.decapsulate(&Box::new(ciphertext.try_into().expect("of the length that was checked")))
        });
        let root = self.root.take().ok_or(KeyUpdateError::Unexpected(control))?;
        let root = root.next(&shared, kem.as_ref(), &late, &transcript(&request, response));
        (self.since, self.due, self.sent, self.received) = (now, None, 0, 0);
        self.completed += 1;
        if !self.sent_end {
            let next_key = Some(root.key_of(End::Initiator));
            self.output = Some(ControlRecord { control: Control::NewKey, content: Vec::new(), next_key });
        }
        let receive_key = root.key_of(End::Responder);
        self.root = Some(root);
        self.wipe_root_after_the_last_update();
        Ok(receive_key)
    }
}

fn check_length(control: Control, content: &[u8], expected: usize) -> Result<(), KeyUpdateError> {
    let got = content.len();
    if got == expected { Ok(()) } else { Err(KeyUpdateError::Length { control, expected, got }) }
}

/// The X25519 public key of a message, and what follows: `more` bytes in a hybrid session.
fn split_message(
    control: Control,
    content: &[u8],
    more: Option<usize>,
) -> Result<(&[u8; x25519::KEY_LEN], &[u8]), KeyUpdateError> {
    check_length(control, content, x25519::KEY_LEN + more.unwrap_or(0))?;
    Ok(content.split_first_chunk().expect("at least as long as a public key"))
}

fn transcript(request: &[u8], response: &[u8]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(request);
    context.update(response);
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

crate::derive::opaque_debug!(KeyUpdate, ControlRecord, UpdateSecrets);

#[cfg(test)]
mod tests;
