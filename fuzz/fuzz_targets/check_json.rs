//! Any bytes as the body of a check, a batch or an Envoy call are parsed, or rejected with a position.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_transport::fuzzing::check_json(bytes));
