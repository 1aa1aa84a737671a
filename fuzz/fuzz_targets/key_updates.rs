//! Fuzz target: the key updates and late witnesses of mode `sealed`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plait_proto::sealed::fuzz::key_updates(input));
