//! The plaintext that was really sent, and how much of it an eavesdropper recovered correctly.

use std::collections::HashMap;

use plait_trace::{Payload, Stream};

use crate::recovery::Recovery;

/// The length of the blocks by which recovered bytes are located in the plaintext.
const BLOCK: usize = 16;

/// How many blocks of the plaintext are indexed.
const MAX_BLOCKS: usize = 1 << 20;

/// How many recovered bytes of a direction are looked up to locate the plaintext.
const MAX_COMPARED: usize = 1 << 20;

/// The plaintext that was really sent.
pub(crate) struct GroundTruth<'c> {
    content: &'c [u8],
    /// The offset of each block; `None` for a block that occurs more than once.
    blocks: HashMap<[u8; BLOCK], Option<usize>, foldhash::fast::RandomState>,
}

/// How many bytes of the plaintext crossed a path, and how many of those were recovered correctly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Score {
    /// Bytes that crossed.
    pub(crate) crossed: u64,
    /// Bytes recovered correctly.
    pub(crate) correct: u64,
}

impl<'c> GroundTruth<'c> {
    pub(crate) fn new(content: &'c [u8]) -> Self {
        let step = content.len().div_ceil(MAX_BLOCKS).max(BLOCK);
        let mut blocks: HashMap<[u8; BLOCK], Option<usize>, _> = HashMap::default();
        for at in (0..content.len()).step_by(step) {
            if let Some(block) = content[at..].first_chunk() {
                // A block that occurs twice cannot be located.
                blocks.entry(*block).and_modify(|offset| *offset = None).or_insert(Some(at));
            }
        }
        Self { content, blocks }
    }

    /// The position in a stream at which the plaintext starts, from what was recovered on any path. If no block is found, the
    /// plaintext is assumed to end with the stream; `None` if the stream is too short for that.
    pub(crate) fn locate<'a>(
        &self,
        stream: &Stream,
        recovered: impl Iterator<Item = (&'a Recovery, &'a Payload)>,
    ) -> Option<i64> {
        let mut votes: HashMap<i64, u32> = HashMap::new();
        for (recovery, payload) in recovered {
            self.vote(recovery, payload, &mut votes);
        }
        let best = votes.into_iter().max_by_key(|(start, votes)| (*votes, *start)).map(|(start, _)| start);
        let at_end = || {
            let start = stream.length().checked_sub(self.content.len() as u64)?;
            i64::try_from(start).ok()
        };
        best.or_else(at_end)
    }

    fn vote(&self, recovery: &Recovery, payload: &Payload, votes: &mut HashMap<i64, u32>) {
        // The last contiguous recovered bytes.
        let (mut window, mut length, mut next) = ([0; BLOCK], 0, 0);
        let mut compared = 0;
        recovery.for_each_chunk(payload, |position, _, plain| {
            if next != position {
                length = 0;
            }
            next = position + plain.len() as u64;
            if compared > MAX_COMPARED {
                return;
            }
            compared += plain.len();
            for (at, byte) in (position..).zip(plain) {
                let Some(byte) = byte else {
                    length = 0;
                    continue;
                };
                window.copy_within(1.., 0);
                window[BLOCK - 1] = *byte;
                length += 1;
                if length >= BLOCK
                    && let Some(Some(offset)) = self.blocks.get(&window)
                {
                    let start = at as i64 + 1 - BLOCK as i64;
                    *votes.entry(start - *offset as i64).or_default() += 1;
                }
            }
        });
    }

    /// How much of the plaintext, which starts at position `start` of the stream, was recovered correctly.
    pub(crate) fn score(&self, start: i64, recovery: &Recovery, payload: &Payload) -> Score {
        let mut score = Score::default();
        recovery.for_each_chunk(payload, |position, _, plain| {
            for (at, found) in (position as i64 - start..).zip(plain) {
                if let Some(expected) = usize::try_from(at).ok().and_then(|at| self.content.get(at)) {
                    score.crossed += 1;
                    score.correct += u64::from(*found == Some(*expected));
                }
            }
        });
        score
    }
}

impl std::ops::AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        self.crossed += other.crossed;
        self.correct += other.correct;
    }
}
