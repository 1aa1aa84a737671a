//! A transform as a function on a set of buffers: what is measured.

use std::cell::RefCell;
use std::rc::Rc;

/// Encode: also encrypt, seal, copy. Decode: also decrypt, open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Encode,
    Decode,
}

impl Direction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Encode => "encode",
            Self::Decode => "decode",
        }
    }
}

/// Buffers of equal length, consecutive in memory.
pub(super) struct Buffers {
    memory: Vec<u8>,
    start: usize,
    size: usize,
}

impl Buffers {
    /// `count` buffers of `size` bytes, the first aligned to a cache line.
    pub(super) fn new(size: usize, count: usize) -> Self {
        const LINE: usize = 64;
        let memory = vec![0x5a; size * count + LINE];
        let start = memory.as_ptr().align_offset(LINE);
        Self { memory, start, size }
    }

    /// The size of all buffers together in bytes.
    pub(super) fn total(&self) -> usize {
        (self.memory.len() - self.start) / self.size * self.size
    }

    /// The size of each buffer in bytes.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// All bytes of the buffers, and some more before and after.
    #[cfg(test)]
    pub(super) fn memory(&mut self) -> &mut Vec<u8> {
        &mut self.memory
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.memory[self.start..].chunks_exact_mut(self.size)
    }
}

/// What a transform sends over the paths.
#[derive(Clone, Copy)]
pub(super) struct Wire {
    /// Bytes on all paths together for this many bytes of plaintext.
    pub(super) bytes: fn(usize) -> usize,
    /// What an eavesdropper on one of two paths learns who knows everything but the keys.
    pub(super) one_path_of_two: &'static str,
}

/// A transform in one direction.
pub(super) struct Transform {
    /// The name in the JSON output and the tables.
    pub(super) name: String,
    pub(super) direction: Direction,
    pub(super) wire: Wire,
    /// Brings the buffers into the state that `pass` expects; not timed.
    pub(super) prepare: Box<dyn FnMut(&mut Buffers)>,
    /// Transforms every buffer once; timed.
    pub(super) pass: Box<dyn FnMut(&mut Buffers)>,
}

impl Transform {
    /// A transform that works in place, on buffers of any content.
    pub(super) fn new(
        name: impl Into<String>,
        direction: Direction,
        wire: Wire,
        mut each: impl FnMut(&mut [u8]) + 'static,
    ) -> Self {
        let pass = move |buffers: &mut Buffers| buffers.each().for_each(&mut each);
        Self { name: name.into(), direction, wire, prepare: Box::new(|_| ()), pass: Box::new(pass) }
    }

    /// A transform whose `prepare` leaves something in a state that `pass` works on.
    pub(super) fn prepared<S: Default + 'static>(
        name: impl Into<String>,
        direction: Direction,
        wire: Wire,
        mut prepare: impl FnMut(&mut S, &mut Buffers) + 'static,
        mut pass: impl FnMut(&mut S, &mut Buffers) + 'static,
    ) -> Self {
        let state = Rc::new(RefCell::new(S::default()));
        let prepared = Rc::clone(&state);
        Self {
            name: name.into(),
            direction,
            wire,
            prepare: Box::new(move |buffers| prepare(&mut state.borrow_mut(), buffers)),
            pass: Box::new(move |buffers| pass(&mut prepared.borrow_mut(), buffers)),
        }
    }
}
