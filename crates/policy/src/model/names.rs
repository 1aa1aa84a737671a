//! Which words may be names in a policy.

/// The maximum length of a policy's, chain's or custom program's name.
pub(super) const MAX_NAME_LENGTH: usize = 32;

/// The built-in selectors.
pub(crate) const SELECTOR_NAMES: &[&str] = &[
    "any",
    "subflow",
    "ip_pair",
    "src",
    "dst",
    "sequence",
    "packet",
    "connection",
    "path",
    "size",
    "connection_size",
    "mark",
    "cgroup",
];

/// Whether a character ends a word in the text of a selector.
pub(crate) fn is_delimiter(character: char) -> bool {
    character.is_whitespace() || "(),=\"'".contains(character)
}

/// Whether the text is a single word in the syntax of selectors.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(is_delimiter)
}

/// Whether a policy or a chain may have this name.
pub(super) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_LENGTH).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Whether a custom selector may have this name: a C identifier that is neither a keyword nor a built-in selector.
pub(crate) fn is_custom_name(name: &str) -> bool {
    is_name(name)
        && !name.contains('-')
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !["and", "or", "not"].contains(&name)
        && !SELECTOR_NAMES.contains(&name)
}
