//! Any bytes from a Redis client: answered or refused, never a panic, and the same in any pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_transport::fuzzing::resp(bytes));
