//! Fuzz target: the records of mode `sealed`.

#![no_main]

#[path = "../checks/records.rs"]
mod records;

libfuzzer_sys::fuzz_target!(|input: &[u8]| records::check(input));
