//! Any bytes as an access log are parsed, or rejected with the value found and the value wanted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_sim::log::parse_only(bytes));
