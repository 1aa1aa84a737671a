//! The captured bytes of a stream.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::byte_ranges::ByteRanges;

const PAGE_LEN: usize = 4096;

/// The captured bytes of a stream, by position. Where a byte crossed more than once, the last copy counts.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// Where the stream starts in the pages.
    origin: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_LEN]>>,
    present: ByteRanges,
}

impl Payload {
    /// The positions that were captured.
    pub fn present(&self) -> &ByteRanges {
        &self.present
    }

    /// The bytes of `range`; `None` where they were not captured.
    pub fn bytes(&self, range: Range<u64>) -> Vec<Option<u8>> {
        let mut bytes = Vec::new();
        for part in self.present.within(range.clone()) {
            bytes.resize((part.start - range.start) as usize, None);
            bytes.extend(self.chunks(part).flatten().copied().map(Some));
        }
        bytes.resize(range.end.saturating_sub(range.start) as usize, None);
        bytes
    }

    /// The bytes of a run of [`present`](Self::present) in consecutive pieces; nothing if `run` is not completely present.
    pub fn chunks(&self, run: Range<u64>) -> impl Iterator<Item = &[u8]> {
        let (mut at, end) = if self.present.contains(&run) { (run.start, run.end) } else { (0, 0) };
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (page, offset) = place(self.origin + at);
            let len = (end - at).min((PAGE_LEN - offset) as u64);
            at += len;
            // A page exists wherever a byte is present.
            self.pages.get(&page).map(|page| &page[offset..offset + len as usize])
        })
    }

    /// Stores bytes at `position` and returns how many were stored: new pages are deducted from `budget`, in bytes.
    pub(crate) fn write(&mut self, position: u64, bytes: &[u8], budget: &mut u64) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            let (number, offset) = place(position + written as u64);
            let page = match self.pages.entry(number) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let Some(rest) = budget.checked_sub(PAGE_LEN as u64) else { break };
                    *budget = rest;
                    entry.insert(Box::new([0; PAGE_LEN]))
                }
            };
            let len = (bytes.len() - written).min(PAGE_LEN - offset);
            page[offset..offset + len].copy_from_slice(&bytes[written..written + len]);
            written += len;
        }
        self.present.insert(position..position + written as u64);
        written
    }

    /// Makes positions relative to `origin`.
    pub(crate) fn rebase(&mut self, origin: u64) {
        self.origin = origin;
        self.present = self.present.rebased(origin);
    }
}

fn place(position: u64) -> (u64, usize) {
    (position / PAGE_LEN as u64, (position % PAGE_LEN as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_a_plain_array(
            writes in vec((0..20_000u64, vec(any::<u8>(), 0..6000)), 0..12),
            origin in 0..9000u64,
            start in 0..20_000u64,
            len in 0..15_000u64,
        ) {
            let (mut payload, mut budget) = (Payload::default(), u64::MAX);
            let mut array = vec![None; 45_000];
            for (position, bytes) in writes {
                prop_assert_eq!(payload.write(position, &bytes, &mut budget), bytes.len());
                for (index, byte) in bytes.iter().enumerate() {
                    array[position as usize + index] = Some(*byte);
                }
            }
            payload.rebase(origin);
            let from = (origin + start) as usize;
            prop_assert_eq!(payload.bytes(start..start + len), &array[from..from + len as usize]);
        }
    }

    #[test]
    fn stops_at_the_budget() {
        let (mut payload, mut budget) = (Payload::default(), 10_000);
        assert_eq!(payload.write(4000, &[7; 10_000], &mut budget), 96 + 4096);
        assert_eq!(payload.present(), &std::iter::once(4000..8192).collect());
        assert_eq!(payload.write(50_000, &[7; 10], &mut budget), 0);
        assert_eq!(payload.write(100, &[8; 10], &mut budget), 10);
    }
}
