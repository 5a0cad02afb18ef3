//! Any bytes as a configuration of envoyproxy/ratelimit are parsed or rejected with a position, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        tidegate_service::fuzzing::envoy_yaml(text);
    }
});
