use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

/// Stdout, whose reader may leave before the end, as `head` does. That is an error like any other, or, where there is
/// more to do than to print, nothing to stop for.
pub(super) struct Stdout(BufWriter<Reader>);

struct Reader {
    out: StdoutLock<'static>,
    may_leave: bool,
}

impl Stdout {
    pub(super) fn new(reader_may_leave: bool) -> Self {
        Self(BufWriter::new(Reader { out: io::stdout().lock(), may_leave: reader_may_leave }))
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
