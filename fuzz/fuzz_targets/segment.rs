//! Fuzz target: the parsers of captured frames.

#![no_main]

#[path = "../checks/segment.rs"]
mod segment;

libfuzzer_sys::fuzz_target!(|input: &[u8]| segment::check(input));
