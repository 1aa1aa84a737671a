//! What payload looks like as it was captured: text, random bytes, something between.

use std::ops::Range;

use plait_trace::{ByteRanges, Payload};

use crate::randomness::Histogram;

/// The least share of text's characters in text.
const TEXT: f64 = 0.95;

/// Payload is looked at in blocks of this many bytes.
const BLOCK: usize = 1024;

/// What the payload of one direction on one path looks like.
#[derive(Clone, Default)]
pub(crate) struct Content {
    pub(crate) bytes: Histogram,
    /// The exclusive ors of neighbours in a run.
    pub(crate) steps: Histogram,
    /// Where bytes look random.
    pub(crate) random: ByteRanges,
    /// Whether records of TLS were found within.
    pub(crate) tls_records: bool,
}

impl Content {
    pub(crate) fn of(payload: &Payload) -> Self {
        let mut content = Self::default();
        for run in payload.present().runs() {
            content.add_run(payload, run);
        }
        content
    }

    fn add_run(&mut self, payload: &Payload, run: &Range<u64>) {
        let mut last = None;
        let mut start = run.start;
        let mut block = Vec::with_capacity(BLOCK);
        let mut looked_random = false;
        for byte in payload.chunks(run.clone()).flatten().copied() {
            if let Some(last) = last.replace(byte) {
                self.steps.add([last ^ byte]);
            }
            block.push(byte);
            if block.len() == BLOCK {
                looked_random = self.add_block(payload, start, &block, looked_random);
                start += BLOCK as u64;
                block.clear();
            }
        }
        self.add_block(payload, start, &block, looked_random);
    }

    fn add_block(&mut self, payload: &Payload, start: u64, block: &[u8], looked_random: bool) -> bool {
        let mut histogram = Histogram::default();
        histogram.add(block.iter().copied());
        self.bytes.merge(&histogram);
        self.tls_records |= has_tls_records(payload, start, block);
        // A few bytes say nothing, but those before them do.
        let random = if block.len() < BLOCK / 4 { looked_random } else { histogram.looks_random() };
        if random {
            self.random.insert(start..start + block.len() as u64);
        }
        random
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.bytes.merge(&other.bytes);
        self.steps.merge(&other.steps);
        self.tls_records |= other.tls_records;
    }

    /// In a word: `nothing`, `text`, `data` or `random`.
    pub(crate) fn kind(&self) -> &'static str {
        match self.bytes.total() {
            0 => "nothing",
            total if self.bytes.text() as f64 >= TEXT * total as f64 => "text",
            _ if self.bytes.looks_random() => "random",
            _ => "data",
        }
    }
}

/// Whether a record of application data begins in the block and another one behind it, which is rare in anything else
/// (RFC 8446 5.1).
fn has_tls_records(payload: &Payload, start: u64, block: &[u8]) -> bool {
    block.windows(5).zip(start..).any(|(header, at)| match header {
        &[23, 3, 3, high, low] => {
            let next = at + 5 + u64::from(u16::from_be_bytes([high, low]));
            payload.bytes(next..next + 3) == [Some(23), Some(3), Some(3)]
        }
        _ => false,
    })
}
