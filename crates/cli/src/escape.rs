//! Escapes text that others wrote: names of files, interfaces and peers, and what peers and programs answered.
//!
//! A terminal executes the control characters that it is sent: they hide and overwrite what it shows, retitle it, and make
//! some type into their shell. So everything that plait prints is escaped: on stdout by `stdout.rs`, on stderr by `stderr.rs`,
//! the only modules that write there. Styles are kept apart from text until then.

use std::borrow::Cow;
use std::io::{self, Write};
use std::mem;

/// Escapes control characters other than line feeds and tabs, and characters that override the direction of text. The
/// escapes are those of JSON, so that a JSON document keeps its meaning.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    escape_if(text, |character| is_unsafe(character) && !matches!(character, '\n' | '\t'))
}

/// As [`escape`], with line feeds and tabs: for text that must not end its line or leave its column.
pub(crate) fn escape_line(text: &str) -> Cow<'_, str> {
    escape_if(text, is_unsafe)
}

fn is_unsafe(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape_if(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    let Some(first) = text.find(&is_escaped) else { return Cow::Borrowed(text) };
    let mut escaped = text[..first].to_owned();
    for character in text[first..].chars() {
        match is_escaped(character) {
            true => escaped += &format!("\\u{:04x}", u32::from(character)),
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

/// Escapes what is written to it, and replaces what is not UTF-8.
pub(crate) struct EscapingWriter<W> {
    out: W,
    /// The beginning of a character whose end is not written yet.
    incomplete: Vec<u8>,
}

impl<W: Write> EscapingWriter<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, incomplete: Vec::new() }
    }

    /// The writer behind this one, for control sequences of plait's own.
    pub(crate) fn unescaped(&mut self) -> &mut W {
        &mut self.out
    }
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let begun = mem::take(&mut self.incomplete);
        let text = if begun.is_empty() { Cow::from(bytes) } else { [&begun, bytes].concat().into() };
        let mut chunks = text.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.out.write_all(escape(chunk.valid()).as_bytes())?;
            let invalid = chunk.invalid();
            if chunks.peek().is_none()
                && str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
            {
                self.incomplete = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.out.write_all("\u{fffd}".as_bytes())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::char;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn written(pieces: &[&[u8]]) -> String {
        let mut writer = EscapingWriter::new(Vec::new());
        pieces.iter().for_each(|piece| writer.write_all(piece).expect("memory"));
        String::from_utf8(writer.out).expect("UTF-8")
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            escape("a\x1b]0;x\x07\r\x7f\u{9b}2J\0"),
            "a\\u001b]0;x\\u0007\\u000d\\u007f\\u009b2J\\u0000"
        );
        assert_eq!(escape("\u{202e}gpj.\u{2066}"), "\\u202egpj.\\u2066");
        assert_eq!(escape("Grüße,\t\u{1f600}\n"), "Grüße,\t\u{1f600}\n");
        assert_eq!(escape_line("a\n\tb"), "a\\u000a\\u0009b");
    }

    #[test]
    fn what_is_not_text_is_replaced() {
        assert_eq!(written(&[b"a\x9b2J", b"\xc3(", b"\xff"]), "a\u{fffd}2J\u{fffd}(\u{fffd}");
    }

    fn text() -> impl Strategy<Value = String> {
        let character =
            prop_oneof![any::<char>(), char::range('\0', '\u{a0}'), char::range('\u{2028}', '\u{2070}')];
        vec(character, 0..40).prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn pieces_are_escaped_as_the_whole(text in text(), at in any::<Index>()) {
            let (before, after) = text.as_bytes().split_at(at.index(text.len() + 1));
            prop_assert_eq!(written(&[before, after]), escape(&text));
        }

        #[test]
        fn json_keeps_its_meaning(text in text()) {
            let document = serde_json::to_string(&text).expect("a document");
            let escaped = escape_line(&document);
            prop_assert!(!escaped.contains(is_unsafe));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).expect("a document"), text);
        }
    }
}
