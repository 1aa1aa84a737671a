//! The buffer through which captures are read.

use std::io::{ErrorKind, Read};

use super::CaptureError;

/// How much is read at once. The buffer grows beyond it only for a longer record.
const BUFFER_LEN: usize = 256 << 10;

/// The part of an input that is in memory: one buffer, whatever the length of the input, from which records are
/// borrowed.
#[derive(Debug)]
pub(super) struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    start: usize,
    end: usize,
    /// The offset of `start` in the input.
    offset: u64,
}

impl<R: Read> Window<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, buffer: vec![0; BUFFER_LEN], start: 0, end: 0, offset: 0 }
    }

    /// The offset of the unread part in the input.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads until `need` bytes are unread, and returns how many there are: fewer only at the end.
    #[inline]
    pub(super) fn fill(&mut self, need: usize) -> Result<usize, CaptureError> {
        while self.end - self.start < need {
            if self.read_more(need)? == 0 {
                break;
            }
        }
        Ok(self.end - self.start)
    }

    /// Consumes the first `len` unread bytes, which must be present.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> &[u8] {
        let taken = &self.buffer[self.start..self.end][..len];
        self.start += len;
        self.offset += len as u64;
        taken
    }

    /// The error for an unread part of fewer than `expected` bytes.
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
                    // A faulty input may claim to have read more than the buffer holds, which would cause a panic
                    // later.
                    let read = read.min(self.buffer.len() - self.end);
                    self.end += read;
                    return Ok(read);
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    // Decoders of compressed files return these; files do not.
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
