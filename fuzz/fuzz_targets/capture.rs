//! Fuzz target: the analysis of damaged captures.

#![no_main]

#[path = "../checks/capture.rs"]
mod capture;

libfuzzer_sys::fuzz_target!(|input: &[u8]| capture::check(input));
