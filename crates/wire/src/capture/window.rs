use std::io::{ErrorKind, Read};

use super::CaptureError;

/// How much is asked of the input at once. The buffer grows beyond it only for a longer record.
const BUFFER_LEN: usize = 256 << 10;

/// The part of an input that is in memory: one buffer, whatever the input's length, that lends what it holds.
#[derive(Debug)]
pub(super) struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    start: usize,
    end: usize,
    /// Where `start` lies in the input.
    offset: u64,
}

impl<R: Read> Window<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, buffer: vec![0; BUFFER_LEN], start: 0, end: 0, offset: 0 }
    }

    /// Where the unread part starts in the input.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads until `need` bytes are unread, and says how many there are: fewer only at the end.
    #[inline]
    pub(super) fn fill(&mut self, need: usize) -> Result<usize, CaptureError> {
        while self.end - self.start < need {
            if self.read_more(need)? == 0 {
                break;
            }
        }
        Ok(self.end - self.start)
    }

    /// The first `len` unread bytes, which are read from now on. There must be so many.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> &[u8] {
        let taken = &self.buffer[self.start..self.end][..len];
        self.start += len;
        self.offset += len as u64;
        taken
    }

    /// Says that the unread part should have had `expected` bytes.
    pub(super) fn truncated(&self, expected: usize) -> CaptureError {
        CaptureError::Truncated { offset: self.offset, expected, got: self.end - self.start }
    }

    #[cold]
    fn read_more(&mut self, need: usize) -> Result<usize, CaptureError> {
        if self.start + need > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if need > self.buffer.len() {
                self.buffer.resize(need, 0);
            }
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    // An input may claim more than it was asked for; believing that would panic later.
                    let read = read.min(self.buffer.len() - self.end);
                    self.end += read;
                    return Ok(read);
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    // Files do not say these; decoders of compressed files do.
                    ErrorKind::UnexpectedEof => return Err(self.truncated(need)),
                    ErrorKind::InvalidData => {
                        let offset = self.offset + (self.end - self.start) as u64;
                        return Err(CaptureError::Damaged { offset, reason: error });
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }
}
