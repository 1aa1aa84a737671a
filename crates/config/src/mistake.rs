//! A mistake in a file that a person wrote, told with the line it is on.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A file's name and its text; clones share them.
#[derive(Debug, Clone)]
pub struct Source(Arc<(String, String)>);

/// Where something stands in a [`Source`]: bytes from its first to after its last.
pub type Place = Range<usize>;

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

impl Source {
    /// A file of this name and with this text.
    pub fn new(file: &str, text: &str) -> Self {
        Self(Arc::new((file.into(), text.into())))
    }

    /// The name.
    pub fn file(&self) -> &str {
        &self.0.0
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0.1
    }

    /// What is wrong at a place; without one, on the first line.
    pub fn mistake(&self, place: impl Into<Option<Place>>, message: impl Into<String>) -> Mistake {
        let (file, text) = &*self.0;
        let place = place.into().unwrap_or(0..0);
        let start = floor(text, place.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let end = floor(text, place.end).clamp(start, line_end);
        Mistake {
            file: file.clone(),
            line: text[..line_start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            text: text[line_start..line_end].trim_end().into(),
            width: text[start..end].trim_end().chars().count().max(1),
            message: message.into(),
        }
    }

    /// What the TOML reader or serde found wrong.
    pub fn refused(&self, error: &toml::de::Error) -> Mistake {
        self.mistake(error.span(), expected_first(error.message()))
    }
}

/// The last place up to `index` at which a character begins, or the text's end.
fn floor(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0)
}

/// serde's sentences, in the order in which all others are: what was expected, what was found.
fn expected_first(message: &str) -> String {
    let named = |prefix: &str| message.strip_prefix(prefix)?.split_once(", expected ");
    if let Some((found, expected)) = named("unknown field ") {
        return format!("expected {expected}, found the unknown key {found}");
    }
    let others = ["unknown variant ", "invalid type: ", "invalid value: ", "invalid length "];
    if let Some((found, expected)) = others.iter().find_map(|prefix| named(prefix)) {
        return format!("expected {expected}, found {found}");
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        return format!("expected the key {field}, found none");
    }
    if message == "duplicate key" {
        return "expected each key once, found it again".into();
    }
    match message.split_once(", expected ") {
        Some((found, expected)) => format!("expected {expected}, found {found}"),
        None => message.into(),
    }
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
    use proptest::prelude::*;

    #[test]
    fn a_mistake_shows_its_line() {
        let source = Source::new("lab.toml", "# ä\n\tdelay = \"5\"\n");
        let place = source.text().find('"').expect("a quote");
        let mistake = source.mistake(place..place + 3, "expected a time, found \"5\"");
        let shown = "lab.toml:2:10: expected a time, found \"5\"\n 2 | \tdelay = \"5\"\n   | \t        ^^^";
        assert_eq!(mistake.to_string(), shown);
    }

    #[test]
    fn without_a_place_the_first_line_is_shown() {
        let mistake = Source::new("f", "a = 1\nb = 2").mistake(None, "expected c");
        assert_eq!(mistake.to_string(), "f:1:1: expected c\n 1 | a = 1\n   | ^");
    }

    #[test]
    fn what_serde_says_begins_with_what_was_expected() {
        let said = [
            ("unknown field `x`, expected `y`", "expected `y`, found the unknown key `x`"),
            ("invalid type: integer `1`, expected a string", "expected a string, found integer `1`"),
            ("missing field `x`", "expected the key `x`, found none"),
            ("expected a, found b", "expected a, found b"),
        ];
        for (serde, ours) in said {
            assert_eq!(expected_first(serde), ours);
        }
    }

    proptest! {
        #[test]
        fn any_place_in_any_text_can_be_told(text in "[a-zäö\t\r\n]{0,20}", start in 0..30usize, end in 0..30usize) {
            let mistake = Source::new("f", &text).mistake(start..end, "x");
            prop_assert_eq!(text.split('\n').nth(mistake.line - 1).map(str::trim_end), Some(&*mistake.text));
            prop_assert!(mistake.to_string().ends_with(&"^".repeat(mistake.width)));
        }
    }
}
