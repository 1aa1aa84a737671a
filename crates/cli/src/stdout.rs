//! Buffered stdout, whose reader may close it early, as `head` does.

use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

use serde::Serialize;

/// Buffered stdout; flush it at the end.
pub(crate) struct Stdout(BufWriter<Pipe>);

struct Pipe {
    out: StdoutLock<'static>,
    ignore_closed: bool,
}

impl Stdout {
    /// Discards output once the reader has closed the pipe. For commands that do more than print.
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(Pipe { out: io::stdout().lock(), ignore_closed: true }))
    }

    /// Fails with [`ErrorKind::BrokenPipe`] once the reader has closed the pipe. For commands that only print.
    pub(crate) fn until_closed() -> Self {
        Self(BufWriter::new(Pipe { out: io::stdout().lock(), ignore_closed: false }))
    }
}

/// Prints a document as indented JSON.
pub(crate) fn print_json(document: &impl Serialize) -> anyhow::Result<()> {
    print_text(&(serde_json::to_string_pretty(document)? + "\n"))
}

pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The lines of a table: the columns named in `left` are aligned left, the others right.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]], left: &[usize]) -> Vec<String> {
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    });
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match left.contains(&column) {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

impl Write for Stdout {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Pipe {
    fn unless_closed<T>(&self, result: io::Result<T>, otherwise: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe && self.ignore_closed => Ok(otherwise),
            Err(error) => Err(io::Error::new(error.kind(), format!("cannot write to stdout: {error}"))),
            Ok(value) => Ok(value),
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buf);
        self.unless_closed(written, buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.unless_closed(flushed, ())
    }
}
