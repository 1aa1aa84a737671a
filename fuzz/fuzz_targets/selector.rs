//! Fuzz target: the parser of policy selectors.

#![no_main]

#[path = "../checks/selector.rs"]
mod selector;

libfuzzer_sys::fuzz_target!(|input: &[u8]| selector::check(input));
