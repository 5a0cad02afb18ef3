//! Any bytes as an access log: read, or refused with what was found and wanted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidegate_sim::log::parse_only(bytes));
