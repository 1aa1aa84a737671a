//! Statistics of captured payload: whether it is text, random bytes, or something in between.

use std::ops::Range;

use plait_trace::{ByteRanges, Payload};

use crate::histogram::Histogram;

/// The share of printable characters above which payload counts as text.
const MIN_PRINTABLE: f64 = 0.95;

/// Payload is classified in blocks of this many bytes.
const BLOCK: usize = 1024;

/// Statistics of the payload of one direction on one path.
#[derive(Clone, Default)]
pub(crate) struct Content {
    pub(crate) bytes: Histogram,
    /// The XORs of neighbouring bytes in a run.
    pub(crate) deltas: Histogram,
    /// Positions whose bytes look random.
    pub(crate) random: ByteRanges,
    /// Whether TLS records were found.
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
                self.deltas.add([last ^ byte]);
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
        // A short block is inconclusive: assume it continues the one before.
        let random = if block.len() < BLOCK / 4 { looked_random } else { histogram.looks_random() };
        if random {
            self.random.insert(start..start + block.len() as u64);
        }
        random
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.bytes.merge(&other.bytes);
        self.deltas.merge(&other.deltas);
        self.tls_records |= other.tls_records;
    }

    /// `nothing`, `text`, `data` or `random`.
    pub(crate) fn kind(&self) -> &'static str {
        match self.bytes.total() {
            0 => "nothing",
            total if self.bytes.printable() as f64 >= MIN_PRINTABLE * total as f64 => "text",
            _ if self.bytes.looks_random() => "random",
            _ => "data",
        }
    }
}

/// Whether the block contains the header of a TLS application data record that another record follows (RFC 8446,
/// section 5.1); other content rarely does.
fn has_tls_records(payload: &Payload, start: u64, block: &[u8]) -> bool {
    block.windows(5).zip(start..).any(|(header, at)| match header {
        &[23, 3, 3, high, low] => {
            let next = at + 5 + u64::from(u16::from_be_bytes([high, low]));
            payload.bytes(next..next + 3) == [Some(23), Some(3), Some(3)]
        }
        _ => false,
    })
}
