#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| plait_gateway::fuzzing::messages(input));
