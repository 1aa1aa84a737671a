//! Wipes secrets of types that do not wipe themselves.

use std::mem::{MaybeUninit, needs_drop};
use std::ops::Deref;

use zeroize::Zeroize;

/// A value whose memory is overwritten when it is dropped or replaced.
///
/// On the heap, so that moving its owner leaves no copy behind. Temporary copies on the stack during construction
/// cannot be wiped.
pub(crate) struct Wiped<T>(Box<MaybeUninit<T>>);

impl<T> Wiped<T> {
    pub(crate) fn new(secret: T) -> Self {
        const { assert!(!needs_drop::<T>(), "overwriting is all that happens when it is dropped") };
        Self(Box::new(MaybeUninit::new(secret)))
    }
}

impl<T> Deref for Wiped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` initialised it, and only `drop` changes it, after which it cannot be accessed.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}
