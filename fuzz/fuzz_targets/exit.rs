//! Fuzz target: the messages to and from an exit.

#![no_main]

#[path = "../checks/exit.rs"]
mod exit;

libfuzzer_sys::fuzz_target!(|input: &[u8]| exit::check(input));
