//! Fuzz target: the readers of capture files.

#![no_main]

#[path = "../checks/reader.rs"]
mod reader;

libfuzzer_sys::fuzz_target!(|input: &[u8]| reader::check(input));
