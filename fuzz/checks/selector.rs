//! The input is the text of a selector.

use plait_policy::Selector;

/// What is a selector can be written as text, and that reads back as the same selector.
pub(crate) fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(selector) = text.parse::<Selector>() else { return };
    let written = selector.to_string();
    let read: Selector = written.parse().unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(read, selector, "{written}");
}
