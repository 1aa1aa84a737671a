#![no_main]

#[path = "../checks/reader.rs"]
mod reader;

libfuzzer_sys::fuzz_target!(|input: &[u8]| reader::check(input));
