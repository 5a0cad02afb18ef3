//! Any bytes from a Redis client get a reply or an error, without a panic, and the same one however they are split.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_transport::fuzzing::resp(bytes));
