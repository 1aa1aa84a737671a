//! Traces of delivery opportunities, in the format of mahimahi.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::error::Error;

/// Recorded delivery opportunities of a link, each for up to 1504 bytes, in the format of mahimahi: a text file with
/// one time in milliseconds per line, ascending. The last time is the period of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Milliseconds since the start of the period. Ascending, not empty, and the last is above 0.
    pub(crate) opportunities: Vec<u64>,
}

/// One day: longer than any recording, and far from overflowing in nanoseconds.
const MAX_TIME_MS: u64 = 86_400_000;
const MAX_FILE_SIZE: u64 = 256 << 20;

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is malformed. The message names the file and the line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let refused = Error::refused(format!("read the trace {}", path.display()));
        let length = fs::metadata(path).map_err(&refused)?.len();
        if length > MAX_FILE_SIZE {
            return Err(bad(path, 1, "a file of at most 256 MiB", format!("one of {length} bytes")));
        }
        Self::parse(&fs::read_to_string(path).map_err(refused)?, path)
    }

    /// Parses the text of a file; errors show `name` as the file.
    pub fn parse(text: &str, name: &Path) -> Result<Self, Error> {
        let mut opportunities = Vec::new();
        let mut last = 0;
        for (number, line) in (1..).zip(text.lines()) {
            let text = line.trim();
            let at = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
            match at {
                Some(at) if at > MAX_TIME_MS => {
                    return Err(bad(name, number, "at most 86400000 ms, a day", text.into()));
                }
                Some(at) if at < last => {
                    let expected = "a time not before that of the line above";
                    return Err(bad(name, number, expected, format!("{at} after {last}")));
                }
                Some(at) => {
                    opportunities.push(at);
                    last = at;
                }
                None => {
                    let expected = "a whole number of milliseconds, such as 17";
                    return Err(bad(name, number, expected, format!("{text:?}")));
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

    /// The time after which the trace repeats.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.opportunities.last().copied().unwrap_or_default())
    }
}

fn bad(name: &Path, line: usize, expected: &'static str, got: String) -> Error {
    Error::Line { file: name.to_owned(), line, expected, got }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Trace, Error> {
        Trace::parse(text, Path::new("lte.trace"))
    }

    #[test]
    fn parses_ascending_milliseconds_and_their_period() {
        let trace = parse("0\n3\n3\n7\n").expect("a trace");
        assert_eq!(trace.opportunities, [0, 3, 3, 7]);
        assert_eq!(trace.period(), Duration::from_millis(7));
        assert_eq!(parse("5\r\n9").expect("other line ends").opportunities, [5, 9]);
    }

    #[test]
    fn errors_name_the_line() {
        let cases = [
            ("", "lte.trace:1: expected a whole number of milliseconds, such as 17, got the end of the file"),
            ("1\nx\n", "lte.trace:2: expected a whole number of milliseconds, such as 17, got \"x\""),
            ("1\n\n2\n", "lte.trace:2: expected a whole number of milliseconds, such as 17, got \"\""),
            ("1\n-2\n", "lte.trace:2: expected a whole number of milliseconds, such as 17, got \"-2\""),
            ("5\n7\n6\n", "lte.trace:3: expected a time not before that of the line above, got 6 after 7"),
            ("0\n0\n", "lte.trace:2: expected a last line above 0: the period of the trace, got 0"),
            ("86400001\n", "lte.trace:1: expected at most 86400000 ms, a day, got 86400001"),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text).expect_err(text).to_string(), message);
        }
    }

    #[test]
    fn errors_name_a_missing_file() {
        let error = Trace::read(Path::new("/nonexistent/lte.trace")).expect_err("no such file").to_string();
        assert!(error.starts_with("cannot read the trace /nonexistent/lte.trace: "), "{error}");
    }

    proptest! {
        #[test]
        fn never_panics(text in "[0-9\n -]{0,40}|.*") {
            let _ = parse(&text);
        }
    }
}
