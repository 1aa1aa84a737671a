//! Recorded delivery opportunities of a link, as the mahimahi tools write and read them.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Error;

/// Recorded opportunities to deliver, each for up to 1504 bytes: one millisecond per line of a text file, ascending, the
/// last of which is the period after which the trace repeats (the format of the mahimahi tools).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Milliseconds since the start of the period; ascending; not empty; the last is above 0.
    pub(crate) opportunities: Vec<u64>,
}

/// A day: longer than any recording, and far from where nanoseconds would overflow.
const LONGEST_MS: u64 = 86_400_000;
const LARGEST_FILE: u64 = 256 << 20;

thread_local! {
    static DIRECTORY: RefCell<PathBuf> = RefCell::default();
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or a line is not what it should be; the text names file and line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let refused = |source| Error::Refused { step: format!("read the trace {}", path.display()), source };
        let length = fs::metadata(path).map_err(refused)?.len();
        if length > LARGEST_FILE {
            return Err(bad(path, 1, "a file of at most 256 MiB", format!("one of {length} bytes")));
        }
        Self::parse(&fs::read_to_string(path).map_err(refused)?, path)
    }

    /// Reads the text of a file; `name` is what errors call it.
    pub fn parse(text: &str, name: &Path) -> Result<Self, Error> {
        let mut opportunities = Vec::new();
        let mut last = 0;
        for (number, line) in (1..).zip(text.lines()) {
            let found = line.trim();
            let at = found.bytes().all(|byte| byte.is_ascii_digit()).then(|| found.parse().ok()).flatten();
            match at {
                Some(at) if at > LONGEST_MS => {
                    return Err(bad(name, number, "at most 86400000 ms, a day", found.into()));
                }
                Some(at) if at < last => {
                    let expected = "a moment not before that of the line above";
                    return Err(bad(name, number, expected, format!("{at} after {last}")));
                }
                Some(at) => {
                    opportunities.push(at);
                    last = at;
                }
                None => {
                    let expected = "a whole number of milliseconds, such as 17";
                    return Err(bad(name, number, expected, format!("{found:?}")));
                }
            }
        }
        match opportunities.last() {
            None => {
                Err(bad(name, 1, "a whole number of milliseconds, such as 17", "the end of the file".into()))
            }
            Some(0) => {
                let expected = "a last line above 0: the period of the trace";
                Err(bad(name, opportunities.len(), expected, "0".into()))
            }
            Some(_) => Ok(Self { opportunities }),
        }
    }

    /// Runs `f`, in which the relative paths of traces that this thread deserializes are looked for in `directory`: that of
    /// the file which names them. Otherwise they are looked for in the current directory.
    pub fn relative_to<T>(directory: &Path, f: impl FnOnce() -> T) -> T {
        struct Restore(PathBuf);
        impl Drop for Restore {
            fn drop(&mut self) {
                DIRECTORY.set(std::mem::take(&mut self.0));
            }
        }
        let _restore = Restore(DIRECTORY.replace(directory.to_owned()));
        f()
    }

    /// Reads the file that a deserialized text names.
    pub(crate) fn named(text: &str) -> Result<Self, Error> {
        Self::read(&DIRECTORY.with_borrow(|directory| directory.join(text)))
    }

    /// After which the trace repeats.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.opportunities.last().copied().unwrap_or_default())
    }
}

fn bad(name: &Path, line: usize, expected: &'static str, found: String) -> Error {
    Error::Line { file: name.to_owned(), line, expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Trace, Error> {
        Trace::parse(text, Path::new("lte.trace"))
    }

    #[test]
    fn reads_ascending_milliseconds_and_their_period() {
        let trace = parse("0\n3\n3\n7\n").expect("a trace");
        assert_eq!(trace.opportunities, [0, 3, 3, 7]);
        assert_eq!(trace.period(), Duration::from_millis(7));
        assert_eq!(parse("5\r\n9").expect("other line ends").opportunities, [5, 9]);
    }

    #[test]
    fn says_which_line_is_wrong_what_was_expected_and_found() {
        let cases = [
            (
                "",
                "lte.trace:1: expected a whole number of milliseconds, such as 17, found the end of the file",
            ),
            ("1\nx\n", "lte.trace:2: expected a whole number of milliseconds, such as 17, found \"x\""),
            ("1\n\n2\n", "lte.trace:2: expected a whole number of milliseconds, such as 17, found \"\""),
            ("1\n-2\n", "lte.trace:2: expected a whole number of milliseconds, such as 17, found \"-2\""),
            (
                "5\n7\n6\n",
                "lte.trace:3: expected a moment not before that of the line above, found 6 after 7",
            ),
            ("0\n0\n", "lte.trace:2: expected a last line above 0: the period of the trace, found 0"),
            ("86400001\n", "lte.trace:1: expected at most 86400000 ms, a day, found 86400001"),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text).expect_err(text).to_string(), message);
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Trace::read(Path::new("/nonexistent/lte.trace")).expect_err("no such file").to_string();
        assert!(error.starts_with("cannot read the trace /nonexistent/lte.trace: "), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text in "[0-9\n -]{0,40}|.*") {
            let _ = parse(&text);
        }
    }
}
