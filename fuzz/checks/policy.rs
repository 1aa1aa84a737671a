//! The input is the text of a policy in TOML.

use plait_policy::Policy;

/// What is a policy can be written as TOML, and that reads back as the same policy.
pub(crate) fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(policy) = Policy::parse(text, "fuzz.toml") else { return };
    let written = policy.to_string();
    let read = Policy::parse(&written, "written.toml").unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(read, policy, "{written}");
}
