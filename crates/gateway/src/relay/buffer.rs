//! Relay buffers: large ones for speed, small ones while [`MAX_LARGE`] large ones are in use.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use plait_proto::codec::records::MAX_RECORD;

/// Size of a large buffer, and the most that is held in one direction.
const LARGE: usize = 256 << 10;
const SMALL: usize = MAX_RECORD;

/// Large buffers in use at once, by all connections together.
const MAX_LARGE: usize = 256;

/// Large buffers that a worker thread keeps for reuse.
const MAX_SPARE: usize = 8;

thread_local! {
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

static LARGE_IN_USE: AtomicUsize = AtomicUsize::new(0);

/// A buffer; a large one returns to the worker thread's spares when dropped.
pub(super) struct Buffer {
    pub(super) bytes: Box<[u8]>,
}

impl Buffer {
    pub(super) fn take() -> Buffer {
        if LARGE_IN_USE.fetch_add(1, Ordering::Relaxed) >= MAX_LARGE {
            LARGE_IN_USE.fetch_sub(1, Ordering::Relaxed);
            return Buffer { bytes: vec![0; SMALL].into_boxed_slice() };
        }
        let spare = SPARE.with_borrow_mut(Vec::pop);
        Buffer { bytes: spare.unwrap_or_else(|| vec![0; LARGE].into_boxed_slice()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() < LARGE {
            return;
        }
        LARGE_IN_USE.fetch_sub(1, Ordering::Relaxed);
        let bytes = std::mem::take(&mut self.bytes);
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MAX_SPARE {
                spare.push(bytes);
            }
        });
    }
}
