//! Fuzz target: the handshake of mode `sealed`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plait_proto::sealed::fuzz::handshake(input));
