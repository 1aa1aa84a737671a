//! Buffered stdout, whose reader may close it early, as `head` does. Text is [escaped](crate::escape); styles and control
//! sequences are plait's own.
#![expect(clippy::disallowed_methods, reason = "the module that writes to stdout")]

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, StdoutLock, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use plait_config::Versioned;
use serde::Serialize;

use crate::escape::{EscapingWriter, escape_line};

/// Headings.
pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// What a reader should look at, and need not be wrong.
pub(crate) const ATTENTION: Style = AnsiColor::Yellow.on_default();

/// Buffered stdout; flush it at the end.
pub(crate) struct Stdout(EscapingWriter<BufWriter<Pipe>>);

struct Pipe {
    out: StdoutLock<'static>,
    ignore_closed: bool,
}

impl Stdout {
    /// Discards output once the reader has closed the pipe. For commands that do more than print.
    pub(crate) fn new() -> Self {
        Self::open(true)
    }

    /// Fails with [`ErrorKind::BrokenPipe`] once the reader has closed the pipe. For commands that only print.
    pub(crate) fn until_closed() -> Self {
        Self::open(false)
    }

    fn open(ignore_closed: bool) -> Self {
        Self(EscapingWriter::new(BufWriter::new(Pipe { out: io::stdout().lock(), ignore_closed })))
    }

    /// Writes text in its styles, if stdout is a terminal.
    pub(crate) fn write_styled(&mut self, text: &StyledText) -> io::Result<()> {
        let coloured = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        for (style, part) in &text.0 {
            let style = if coloured { *style } else { Style::new() };
            write!(self.0.unescaped(), "{style}")?;
            write!(self, "{part}")?;
            write!(self.0.unescaped(), "{style:#}")?;
        }
        Ok(())
    }

    /// Clears the terminal.
    pub(crate) fn clear_screen(&mut self) -> io::Result<()> {
        self.0.unescaped().write_all(b"\x1b[H\x1b[2J")
    }
}

pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Text in parts, each with its style. What is written to it without one has none.
#[derive(Default)]
pub(crate) struct StyledText(Vec<(Style, String)>);

impl StyledText {
    pub(crate) fn new(style: Style, text: impl fmt::Display) -> StyledText {
        StyledText(vec![(style, text.to_string())])
    }

    pub(crate) fn push(&mut self, style: Style, text: impl fmt::Display) {
        self.0.push((style, text.to_string()));
    }

    /// The text without styles.
    pub(crate) fn plain(&self) -> String {
        self.0.iter().map(|(_, part)| part.as_str()).collect()
    }
}

impl fmt::Write for StyledText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(Style::new(), text);
        Ok(())
    }
}

/// Prints a document, which is an object, as indented JSON with its version.
pub(crate) fn print_json(document: &impl Serialize) -> anyhow::Result<()> {
    print_text(&(json_text(document)? + "\n"))
}

/// A document, which is an object, as indented JSON with its version.
pub(crate) fn json_text(document: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Versioned::new(document))
}

/// A document, which is an object, as JSON with its version, without line breaks.
pub(crate) fn json_line(document: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Versioned::new(document))
}

/// Prints a list as indented JSON, which has no version.
pub(crate) fn print_json_list(list: &[impl Serialize]) -> anyhow::Result<()> {
    print_text(&(serde_json::to_string_pretty(list)? + "\n"))
}

pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The lines of a table: the columns named in `left` are aligned left, the others right. Cells are escaped, as they must not
/// end their line.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]], left: &[usize]) -> Vec<String> {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| escape_line(cell))).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    });
    let line = |row: &[Cow<str>; N]| {
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
