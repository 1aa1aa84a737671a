//! Fuzz target: the messages of mode `sealed`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plait_proto::sealed::fuzz::messages(input));
