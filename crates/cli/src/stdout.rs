//! Stdout, which may be full, and whose reader may leave before the end, as `head` does.

use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

/// Buffered stdout, to be flushed at the end. Its errors say what they are of.
pub(crate) struct Stdout(BufWriter<Reader>);

struct Reader {
    out: StdoutLock<'static>,
    may_leave: bool,
}

impl Stdout {
    /// Where a reader that left is nothing to stop for: what is written then goes nowhere.
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(Reader { out: io::stdout().lock(), may_leave: true }))
    }

    /// Where there is nothing to do but to print, so that a reader that left is an error ([`ErrorKind::BrokenPipe`]).
    pub(crate) fn while_read() -> Self {
        Self(BufWriter::new(Reader { out: io::stdout().lock(), may_leave: false }))
    }
}

impl Write for Stdout {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Reader {
    fn unless_gone<T>(&self, result: io::Result<T>, otherwise: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe && self.may_leave => Ok(otherwise),
            Err(error) => Err(io::Error::new(error.kind(), format!("cannot write to stdout: {error}"))),
            Ok(value) => Ok(value),
        }
    }
}

impl Write for Reader {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buf);
        self.unless_gone(written, buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.unless_gone(flushed, ())
    }
}
