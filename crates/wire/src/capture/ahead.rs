use super::CaptureError;

/// What comes next in a capture, looked for once however often it is asked for. After the end, or an error, there is
/// nothing more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ahead<T> {
    Unknown,
    At(T),
    Nothing,
}

impl<T: Copy> Ahead<T> {
    /// What comes next, which `find` finds where it is not known.
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

    /// As [`peek`](Self::peek), and goes on to what follows.
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
