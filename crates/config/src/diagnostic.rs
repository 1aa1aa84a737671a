//! Diagnostics: errors in a file, with the line and the span that cause them.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use serde::de::DeserializeOwned;

/// A range of bytes in a [`Source`].
pub type Span = Range<usize>;

/// The name and text of a file; clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source(Arc<(String, String)>);

/// An error in a file. Its `Display` shows the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    source: Source,
    /// The line number, from 1.
    pub line: usize,
    /// The column at which the span begins, in characters from 1.
    pub column: usize,
    /// The message: expected X, got Y.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
    /// The bytes of the line to underline.
    marked: Span,
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is invalid.
    #[error(transparent)]
    Invalid(#[from] Diagnostic),
}

/// Reads and deserializes a TOML file.
///
/// # Errors
/// The file cannot be read, or its contents do not match `T`.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    Ok(Source::read(path)?.parse()?)
}

impl Source {
    /// Creates a source from a file name and its text.
    pub fn new(file: &str, text: &str) -> Self {
        Self(Arc::new((file.into(), text.into())))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::new(&path.display().to_string(), &text)),
            Err(source) => Err(LoadError::Read { path: path.to_owned(), source }),
        }
    }

    /// The name of the file.
    pub fn file(&self) -> &str {
        &self.0.0
    }

    /// The text of the file.
    pub fn text(&self) -> &str {
        &self.0.1
    }

    /// The directory of the file, which relative paths in it refer to.
    pub fn directory(&self) -> &Path {
        Path::new(self.file()).parent().unwrap_or(Path::new(""))
    }

    /// Deserializes the text as TOML.
    ///
    /// # Errors
    /// The text is not TOML, or does not match `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Diagnostic> {
        toml::from_str(self.text()).map_err(|error| self.toml_error(&error))
    }

    /// A diagnostic for a span, or for the first line without one. Of a span over several lines, only the first is
    /// shown.
    pub fn diagnostic(&self, span: impl Into<Option<Span>>, message: impl Into<String>) -> Diagnostic {
        let text = self.text();
        let span = span.into().unwrap_or(0..0);
        let start = char_boundary(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let number = text[..line_start].matches('\n').count() + 1;
        let line = self.line(number);
        let within = |index: usize| char_boundary(line, index.saturating_sub(line_start));
        let marked = within(start)..within(span.end.max(start));
        let column = line[..marked.start].chars().count() + 1;
        Diagnostic { source: self.clone(), line: number, column, message: message.into(), help: None, marked }
    }

    /// The text of the line with this number, without white space at its end.
    fn line(&self, number: usize) -> &str {
        self.text().split('\n').nth(number - 1).unwrap_or_default().trim_end()
    }

    /// Converts an error of the TOML parser or serde.
    pub fn toml_error(&self, error: &toml::de::Error) -> Diagnostic {
        self.diagnostic(error.span(), error.message())
    }
}

/// The last character boundary up to `index`, or the end.
fn char_boundary(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0)
}

impl Diagnostic {
    /// Adds how to fix it.
    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = AnnotationKind::Primary.span(self.marked.clone());
        let snippet = Snippet::source(self.source.line(self.line)).path(self.source.file());
        let snippet = snippet.line_start(self.line).annotation(mark);
        let group = Level::ERROR.no_name().primary_title(&self.message).element(snippet);
        let help = self.help.as_deref().map(|help| Level::HELP.message(help));
        let renderer = Renderer::plain().decor_style(DecorStyle::Ascii);
        f.write_str(&renderer.render(&[group.elements(help)]))
    }
}

impl std::error::Error for Diagnostic {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shows_the_line_and_marks_the_span() {
        let source = Source::new("lab.toml", "# ä\n\tdelay = \"5\"\n");
        let start = source.text().find('"').expect("a quote");
        let diagnostic = source.diagnostic(start..start + 3, "expected a time, got \"5\"");
        assert_eq!((diagnostic.line, diagnostic.column), (2, 10));
        let shown = "\
expected a time, got \"5\"
 --> lab.toml:2:10
  |
2 |     delay = \"5\"
  |             ^^^
  |
  = help: add a unit, such as 5ms";
        assert_eq!(diagnostic.with_help("add a unit, such as 5ms").to_string(), shown);
    }

    #[test]
    fn without_a_span_shows_the_first_line() {
        let diagnostic = Source::new("f", "a = 1\nb = 2").diagnostic(None, "expected c");
        assert_eq!(diagnostic.to_string(), "expected c\n --> f:1:1\n  |\n1 | a = 1\n  | ^");
    }

    #[test]
    fn points_at_what_toml_and_serde_reject() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            #[serde(rename = "a")]
            _a: String,
        }
        for (text, line, column, message) in [
            ("a = 'x'\nb = 1", 2, 1, "unknown field `b`, expected `a`"),
            ("\na = 1", 2, 5, "invalid type: integer `1`, expected a string"),
            ("", 1, 1, "missing field `a`"),
            ("a = = 1", 1, 5, "extra `=`"),
            ("a = 'x'\na = 'x'", 2, 1, "duplicate key"),
        ] {
            let error = Source::new("f.toml", text).parse::<File>().expect_err(text);
            assert_eq!((error.line, error.column), (line, column), "{error}");
            assert!(error.message.starts_with(message), "{error}");
        }
    }

    #[test]
    fn loading_names_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("x.toml");
        let error = load::<toml::Table>(&file).expect_err("no such file").to_string();
        assert!(error.starts_with(&format!("cannot read {}: ", file.display())), "{error}");
        std::fs::write(&file, "a =").expect("a file");
        let error = load::<toml::Table>(&file).expect_err("no TOML").to_string();
        assert!(error.contains(&format!("--> {}:1:", file.display())), "{error}");
        std::fs::write(&file, "a = 1").expect("a file");
        assert_eq!(load::<toml::Table>(&file).expect("a table").len(), 1);
    }

    proptest! {
        #[test]
        fn any_span_of_any_text_can_be_shown(text in "[a-zäö\t\r\n]{0,20}|.*", start in 0..30usize, end in 0..30usize) {
            let diagnostic = Source::new("f", &text).diagnostic(start..end, "x");
            prop_assert!(diagnostic.line <= text.split('\n').count());
            let at = format!("f:{}:{}\n", diagnostic.line, diagnostic.column);
            prop_assert!(diagnostic.to_string().contains(&at), "{}", diagnostic);
        }
    }
}
