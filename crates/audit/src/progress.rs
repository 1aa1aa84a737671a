//! Progress reports of an audit.

use std::io::{self, Read};

/// What an audit has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Read this many bytes of captures; each capture is read twice.
    Read(u64),
    /// Finished reading; this many runs will be attacked.
    Planned(usize),
    /// Attacked one run.
    Attacked,
}

/// A reader that reports what it reads.
pub(crate) struct ProgressReader<'a, R> {
    pub(crate) input: R,
    pub(crate) progress: &'a (dyn Fn(Progress) + Sync),
}

impl<R: Read> Read for ProgressReader<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buf)?;
        (self.progress)(Progress::Read(count as u64));
        Ok(count)
    }
}
