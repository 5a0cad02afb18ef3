//! Any bytes as `X-Forwarded-For` and `Forwarded`: never a panic, and no client gets through with them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_service::fuzzing::forwarded(bytes));
