//! One item of lookahead in a capture.

use super::CaptureError;

/// The next item of a capture, searched for once, however often it is requested. Nothing follows the end or an error.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peeked<T> {
    Unknown,
    At(T),
    Nothing,
}

impl<T: Copy> Peeked<T> {
    /// The next item, found by `find` if it is not known yet.
    #[inline]
    pub(super) fn peek(
        &mut self,
        find: impl FnOnce() -> Result<Option<T>, CaptureError>,
    ) -> Result<Option<T>, CaptureError> {
        if let Self::Unknown = self {
            *self = Self::Nothing;
            if let Some(found) = find()? {
                *self = Self::At(found);
            }
        }
        Ok(match *self {
            Self::At(found) => Some(found),
            Self::Unknown | Self::Nothing => None,
        })
    }

    /// Like [`peek`](Self::peek), and advances to the item after it.
    #[inline]
    pub(super) fn next(
        &mut self,
        find: impl FnOnce() -> Result<Option<T>, CaptureError>,
    ) -> Result<Option<T>, CaptureError> {
        let found = self.peek(find)?;
        if found.is_some() {
            *self = Self::Unknown;
        }
        Ok(found)
    }
}
