//! Any bytes as a file of envoyproxy/ratelimit: read or refused with its place, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        tidegate_service::fuzzing::envoy_yaml(text);
    }
});
