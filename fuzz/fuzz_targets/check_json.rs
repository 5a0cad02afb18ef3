//! Any bytes as the body of a check, a batch or a call for Envoy: read, or refused with its place.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_transport::fuzzing::check_json(bytes));
