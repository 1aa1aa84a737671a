//! Copies of records, sent on other connections over other paths as well: the first that arrives is delivered.
//!
//! A copy is the record itself, byte for byte, behind its place in the direction:
//!
//! ```text
//! key updates before it (4 bytes, big-endian) | number of the record (8 bytes, big-endian) | record
//! ```
//!
//! No plaintext is ever sealed a second time, so a copy uses no nonce of its own. The place is not authenticated by itself: a
//! copy with a wrong one fails, because the number is the record's nonce.
//!
//! Only records with data are copied. Those of the direction itself are all opened as if there were no copies, and what a copy
//! delivered is left out when its record arrives. So whatever happens to copies, the direction ends, changes its key and fails as
//! without them. A copy is opened if it is under the key of the direction's next record; so none overtakes a change of the key.

use std::collections::BTreeMap;
use std::ops::Range;

use zeroize::{Zeroize, Zeroizing};

use super::{Error, LENGTH, LENGTHS, Opened, Opener, Sealer, State, parse};

/// Bytes of a copy before its record.
pub const COPY_HEADER: usize = 12;

/// The most copies that wait for records before them, and the most bytes of data that they hold.
pub const MAX_AHEAD: (usize, usize) = (64, 256 << 10);

/// The place of a record in its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPosition {
    /// Key updates before the record.
    pub epoch: u32,
    /// The number of the record.
    pub number: u64,
}

impl CopyPosition {
    fn to_bytes(self) -> [u8; COPY_HEADER] {
        let mut bytes = [0; COPY_HEADER];
        bytes[..4].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[4..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; COPY_HEADER]) -> CopyPosition {
        let (epoch, number) = (&bytes[..4], &bytes[4..]);
        CopyPosition {
            epoch: u32::from_be_bytes(epoch.try_into().expect("4 bytes")),
            number: u64::from_be_bytes(number.try_into().expect("8 bytes")),
        }
    }
}

/// The copies of consecutive records.
#[derive(Debug)]
pub struct Copies<'a> {
    next: CopyPosition,
    records: &'a [u8],
}

impl<'a> Copies<'a> {
    /// Those of the sealed `records`, the first of which was at this [position](Sealer::position).
    #[must_use]
    pub fn new(first: CopyPosition, records: &'a [u8]) -> Copies<'a> {
        Copies { next: first, records }
    }
}

impl Iterator for Copies<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let length = usize::from(u16::from_be_bytes(*self.records.first_chunk()?));
        let (record, rest) = self.records.split_at_checked(LENGTH + length)?;
        let copy = [&self.next.to_bytes()[..], record].concat();
        self.records = rest;
        self.next.number += 1;
        Some(copy)
    }
}

impl Sealer {
    /// The place of the next record, for its copies.
    #[must_use]
    pub fn position(&self) -> CopyPosition {
        CopyPosition { epoch: self.keys.replaced(), number: self.keys.used() }
    }
}

/// What is no copy of a record: its connection is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCopy {
    /// A length field that no record has.
    #[error("expected a copy of a record with a length from 17 to 16401, got {0}")]
    Length(usize),
    /// An invalid tag.
    #[error("the copy of record {0} failed authentication: it was modified on the way")]
    Tag(u64),
    /// A record without data.
    #[error("expected data in the copy of record {0}, got another record: the peer violates the protocol")]
    NotData(u64),
}

/// The length of the copy at the start of `bytes`; `None` if too few have arrived to tell.
///
/// # Errors
/// [`InvalidCopy::Length`].
pub fn copy_len(bytes: &[u8]) -> Result<Option<usize>, InvalidCopy> {
    let Some(length) = bytes.get(COPY_HEADER..).and_then(|record| record.first_chunk::<LENGTH>()) else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes(*length));
    if LENGTHS.contains(&length) {
        Ok(Some(COPY_HEADER + LENGTH + length))
    } else {
        Err(InvalidCopy::Length(length))
    }
}

/// What became of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// It is the next record: deliver its data, then that which [waits](Opener::next_waiting) behind it.
    Next {
        /// The range of the data in the copy.
        content: Range<usize>,
    },
    /// It waits for the records before it.
    Waiting,
    /// Its data was delivered before, or waits already.
    Repeated,
    /// It is under another key than the next record, or too much waits already.
    Dropped,
}

impl Opener {
    /// Opens, in place, a complete copy of a record, as [`copy_len`] delimits it.
    ///
    /// # Errors
    /// It is no copy of a record of this direction. This opener is as before.
    pub fn open_copy(&mut self, copy: &mut [u8]) -> Result<CopyOutcome, InvalidCopy> {
        let opened = self.open_any_copy(copy);
        if opened.is_err() {
            copy.zeroize();
        }
        opened
    }

    fn open_any_copy(&mut self, copy: &mut [u8]) -> Result<CopyOutcome, InvalidCopy> {
        let Some((header, record)) = copy.split_first_chunk_mut::<COPY_HEADER>() else {
            return Err(InvalidCopy::Length(0));
        };
        let CopyPosition { epoch, number } = CopyPosition::from_bytes(*header);
        let Some((&mut length, sealed)) = record.split_first_chunk_mut::<LENGTH>() else {
            return Err(InvalidCopy::Length(0));
        };
        let written = usize::from(u16::from_be_bytes(length));
        if !LENGTHS.contains(&written) || written != sealed.len() {
            return Err(InvalidCopy::Length(written));
        }
        let next = self.next_to_deliver();
        if number < next || self.ahead.waiting.contains_key(&number) || !matches!(self.state, State::Open) {
            return Ok(CopyOutcome::Repeated);
        }
        if epoch != self.keys.replaced() {
            return Ok(CopyOutcome::Dropped);
        }
        let Some((key, nonce)) = self.keys.for_record(number) else { return Ok(CopyOutcome::Dropped) };
        if number != next && !self.ahead.has_room(written) {
            return Ok(CopyOutcome::Dropped);
        }
        let plaintext = key.open(nonce, &length, sealed).ok_or(InvalidCopy::Tag(number))?;
        let Ok(Opened::Data { content, .. }) = parse(&sealed[..plaintext], 0) else {
            return Err(InvalidCopy::NotData(number));
        };
        if number == next {
            self.ahead.next = next + 1;
            return Ok(CopyOutcome::Next { content: COPY_HEADER + content.start..COPY_HEADER + content.end });
        }
        // The range counts from the start of the record.
        self.ahead.wait(number, &record[content]);
        Ok(CopyOutcome::Waiting)
    }

    /// The data of a copy that waited for what was delivered by now, which is delivered with it. Call it until there is none.
    pub fn next_waiting(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        let next = self.next_to_deliver();
        let content = self.ahead.take(next)?;
        self.ahead.next = next + 1;
        Some(content)
    }

    /// The number of the first record that was not delivered.
    fn next_to_deliver(&self) -> u64 {
        self.ahead.next.max(self.keys.used())
    }
}

/// What copies delivered before the direction's own records, and those that wait.
#[derive(Default)]
pub(super) struct Ahead {
    /// Copies delivered all data of records before this one.
    next: u64,
    waiting: BTreeMap<u64, Zeroizing<Vec<u8>>>,
    waiting_bytes: usize,
}

impl Ahead {
    /// A record of the direction itself was opened.
    pub(super) fn arrived(&mut self, number: u64, opened: Opened) -> Result<Opened, Error> {
        if number >= self.next {
            self.take(number);
            return Ok(opened);
        }
        match opened {
            Opened::Data { consumed, .. } => Ok(Opened::Delivered { consumed }),
            _ => Err(Error::Malformed { record: number, reason: "expected data, as in its copy, got none" }),
        }
    }

    /// Forgets copies that wait: they were under another key.
    pub(super) fn forget_waiting(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    fn has_room(&self, length: usize) -> bool {
        self.waiting.len() < MAX_AHEAD.0 && self.waiting_bytes + length <= MAX_AHEAD.1
    }

    fn wait(&mut self, number: u64, content: &[u8]) {
        self.waiting_bytes += content.len();
        self.waiting.insert(number, Zeroizing::new(content.to_vec()));
    }

    fn take(&mut self, number: u64) -> Option<Zeroizing<Vec<u8>>> {
        let content = self.waiting.remove(&number)?;
        self.waiting_bytes -= content.len();
        Some(content)
    }
}

#[cfg(test)]
mod tests;
