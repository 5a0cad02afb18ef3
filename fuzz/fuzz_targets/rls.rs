//! Any bytes as a call of Envoy's rate limit service are decoded or rejected. Each text stands for the bytes that were sent.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_transport::fuzzing::rls(bytes));
