//! A mistake in a file that a person wrote, told with the line it is on.

use std::fmt;
use std::ops::Range;

/// A file's name and its text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'t> {
    pub(super) file: &'t str,
    pub(super) text: &'t str,
}

/// Where something stands in a [`Source`]: bytes from its first to after its last.
pub(super) type Place = Range<usize>;

/// A mistake in a file that a person wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The file's name as it was given.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The character of the line at which it begins, from 1.
    pub column: usize,
    /// The line itself.
    pub text: String,
    /// How many characters of the line are concerned, at least 1.
    pub width: usize,
    /// What was expected and what was found.
    pub message: String,
}

impl Source<'_> {
    pub(super) fn mistake(&self, place: Place, message: impl Into<String>) -> Mistake {
        let text = self.text;
        let start = floor(text, place.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let end = floor(text, place.end).clamp(start, line_end);
        Mistake {
            file: self.file.into(),
            line: text[..line_start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            text: text[line_start..line_end].trim_end().into(),
            width: text[start..end].trim_end().chars().count().max(1),
            message: message.into(),
        }
    }

    /// What the TOML reader found wrong.
    pub(super) fn refused(&self, error: &toml::de::Error) -> Mistake {
        let message = match error.message() {
            "duplicate key" => "expected each key once, found it again".into(),
            message => match message.split_once(", expected ") {
                Some((found, expected)) => format!("expected {expected}, found {found}"),
                None => message.to_owned(),
            },
        };
        self.mistake(error.span().unwrap_or(0..0), message)
    }
}

/// The last place up to `index` at which a character begins, or the text's end.
fn floor(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0)
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, text, width, message } = self;
        let gutter = " ".repeat(line.to_string().len());
        // Tabs stay tabs, so that the marks stand below what they mark.
        let indent: String = text.chars().take(column - 1).map(|c| if c == '\t' { c } else { ' ' }).collect();
        writeln!(f, "{file}:{line}:{column}: {message}")?;
        writeln!(f, " {line} | {text}")?;
        write!(f, " {gutter} | {indent}{}", "^".repeat(*width))
    }
}

impl std::error::Error for Mistake {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_shows_its_line() {
        let source = Source { file: "tenant.toml", text: "# ä\n\thook = \"in\"\n" };
        let place = source.text.find('"').expect("a quote");
        let mistake = source.mistake(place..place + 4, "expected \"ingress\" or \"egress\", found \"in\"");
        let shown = "tenant.toml:2:9: expected \"ingress\" or \"egress\", found \"in\"\n 2 | \thook = \"in\"\n   | \t       ^^^^";
        assert_eq!(mistake.to_string(), shown);
    }

    #[test]
    fn any_place_in_any_text_can_be_told() {
        for text in ["", "\n", "ä\nö", "a"] {
            for (start, end) in [(0, 0), (0, 9), (1, 2), (9, 1), (9, 99)] {
                let _ = Source { file: "f", text }.mistake(start..end, "x").to_string();
            }
        }
    }
}
