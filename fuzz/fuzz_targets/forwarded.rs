//! Any bytes as `X-Forwarded-For` and `Forwarded` cause no panic, and never change the client address.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_service::fuzzing::forwarded(bytes));
