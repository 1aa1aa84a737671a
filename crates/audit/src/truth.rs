//! The real content of streams, and how right a listener is.

use std::collections::HashMap;

use plait_trace::{Payload, Stream};

use crate::recovery::Recovery;

/// The length of the pieces by which recovered bytes are found in the real content.
const PIECE: usize = 16;

/// How many pieces of the real content are remembered.
const PIECES: usize = 1 << 20;

/// How many recovered bytes of a direction are compared to find its place.
const COMPARED: usize = 1 << 20;

/// What was really sent, to compare with.
pub(crate) struct Truth<'c> {
    content: &'c [u8],
    /// Where pieces are, of those that are there once.
    pieces: HashMap<[u8; PIECE], Option<usize>, foldhash::fast::RandomState>,
}

/// How many of the bytes of the real content that crossed a path were recovered right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Score {
    /// Those that crossed.
    pub(crate) crossed: u64,
    /// Those that were recovered as they are.
    pub(crate) right: u64,
}

impl<'c> Truth<'c> {
    pub(crate) fn new(content: &'c [u8]) -> Self {
        let step = content.len().div_ceil(PIECES).max(PIECE);
        let mut pieces: HashMap<[u8; PIECE], Option<usize>, _> = HashMap::default();
        for at in (0..content.len()).step_by(step) {
            if let Some(piece) = content[at..].first_chunk() {
                // One that is there twice tells no place.
                pieces.entry(*piece).and_modify(|place| *place = None).or_insert(Some(at));
            }
        }
        Self { content, pieces }
    }

    /// At which position of a stream the content begins, by what was recovered of the stream on any path. Where that
    /// finds nothing: so that it ends with the stream. `None` where the stream is too short for that.
    pub(crate) fn place<'a>(
        &self,
        stream: &Stream,
        recovered: impl Iterator<Item = (&'a Recovery, &'a Payload)>,
    ) -> Option<i64> {
        let mut votes: HashMap<i64, u32> = HashMap::new();
        for (recovery, payload) in recovered {
            self.vote(recovery, payload, &mut votes);
        }
        let most = votes.into_iter().max_by_key(|(place, votes)| (*votes, *place)).map(|(place, _)| place);
        let last =
            || stream.length().checked_sub(self.content.len() as u64).and_then(|at| i64::try_from(at).ok());
        most.or_else(last)
    }

    fn vote(&self, recovery: &Recovery, payload: &Payload, votes: &mut HashMap<i64, u32>) {
        // The last bytes in a row.
        let (mut window, mut length, mut next) = ([0; PIECE], 0, 0);
        let mut compared = 0;
        recovery.pieces(payload, |position, _, plain| {
            if next != position {
                length = 0;
            }
            next = position + plain.len() as u64;
            if compared > COMPARED {
                return;
            }
            compared += plain.len();
            for (at, byte) in (position..).zip(plain) {
                let Some(byte) = byte else {
                    length = 0;
                    continue;
                };
                window.copy_within(1.., 0);
                window[PIECE - 1] = *byte;
                length += 1;
                if length >= PIECE
                    && let Some(Some(place)) = self.pieces.get(&window)
                {
                    let start = at as i64 + 1 - PIECE as i64;
                    *votes.entry(start - *place as i64).or_default() += 1;
                }
            }
        });
    }

    /// How much of the content, which begins at position `place` of the stream, was recovered right.
    pub(crate) fn score(&self, place: i64, recovery: &Recovery, payload: &Payload) -> Score {
        let mut score = Score::default();
        recovery.pieces(payload, |position, _, plain| {
            for (at, found) in (position as i64 - place..).zip(plain) {
                if let Some(real) = usize::try_from(at).ok().and_then(|at| self.content.get(at)) {
                    score.crossed += 1;
                    score.right += u64::from(*found == Some(*real));
                }
            }
        });
        score
    }
}

impl std::ops::AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        self.crossed += other.crossed;
        self.right += other.right;
    }
}
