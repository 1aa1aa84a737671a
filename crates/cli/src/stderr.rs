//! Everything that plait prints on stderr: messages, the log, wrong usage, and the text beside progress bars. It is
//! [escaped](crate::escape), and failures to print it are ignored.
#![expect(clippy::disallowed_methods, reason = "the module that writes to stderr")]

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _, Write as _};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use indicatif::ProgressBar;
use tracing::field::Field;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::escape::{escape, escape_line};

/// As the standard library's macro of this name.
macro_rules! eprintln {
    ($($message:tt)*) => {
        $crate::stderr::print(&(format!($($message)*) + "\n"))
    };
}
pub(crate) use eprintln;

pub(crate) fn print(text: &str) {
    let _ = io::stderr().write_all(escape(text).as_bytes());
}

pub(crate) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Shows text beside a progress bar.
pub(crate) fn set_message(bar: &ProgressBar, text: &str) {
    bar.set_message(escape_line(text).into_owned());
}

/// The log: for each event its level and its message, of which further lines are indented, so that no text looks like
/// another event.
pub(crate) struct Log {
    coloured: bool,
    /// Each line starts with its priority instead of its level (`sd-daemon(3)`).
    journal: bool,
}

impl Log {
    pub(crate) fn new() -> Self {
        let coloured = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
        Self { coloured, journal: is_journal() }
    }
}

/// Whether stderr is a stream of the journal, whose device and inode the service manager passes (`systemd.exec(5)`).
fn is_journal() -> bool {
    let Ok(passed) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = rustix::fs::fstat(io::stderr());
    stderr.is_ok_and(|found| passed == format!("{}:{}", found.st_dev, found.st_ino))
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event, _: Context<S>) {
        let mut text = String::new();
        event.record(&mut |field: &Field, value: &dyn fmt::Debug| {
            // Writing to a String cannot fail.
            let _ = match field.name() {
                "message" => write!(text, " {value:?}"),
                name => write!(text, " {name}={value:?}"),
            };
        });
        let level = *event.metadata().level();
        if self.journal {
            let prefix = format!("<{}>", priority(level));
            let text = escape(text.trim_start()).replace('\n', &format!("\n{prefix}"));
            let _ = io::stderr().write_all(format!("{prefix}{text}\n").as_bytes());
            return;
        }
        let style = if self.coloured { style(level) } else { Style::new() };
        let text = escape(&text).replace('\n', "\n      ");
        let _ = io::stderr().write_all(format!("{style}{level:>5}{style:#}{text}\n").as_bytes());
    }
}

/// As in `syslog(3)`.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

fn style(level: Level) -> Style {
    let colour = match level {
        Level::ERROR => AnsiColor::Red,
        Level::WARN => AnsiColor::Yellow,
        Level::INFO => AnsiColor::Green,
        Level::DEBUG => AnsiColor::Blue,
        _ => AnsiColor::Magenta,
    };
    colour.on_default()
}
