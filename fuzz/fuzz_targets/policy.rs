//! Fuzz target: the parser of policy files.

#![no_main]

#[path = "../checks/policy.rs"]
mod policy;

libfuzzer_sys::fuzz_target!(|input: &[u8]| policy::check(input));
