//! Fuzz target: the parser of TCP and MPTCP options.

#![no_main]

#[path = "../checks/options.rs"]
mod options;

libfuzzer_sys::fuzz_target!(|input: &[u8]| options::check(input));
