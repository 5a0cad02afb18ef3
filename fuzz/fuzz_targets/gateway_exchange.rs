//! Any bytes as a common request of the gateway or as the response of an upstream are rejected, or have the same meaning
//! after they were encoded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_gateway::fuzzing::gateway_exchange(bytes));
