//! Fuzz target: the messages of datagrams to an exit and back.

#![no_main]

#[path = "../checks/datagrams.rs"]
mod datagrams;

libfuzzer_sys::fuzz_target!(|input: &[u8]| datagrams::check(input));
