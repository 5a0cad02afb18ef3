//! Any text as a limit is parsed or rejected, without a panic. A parsed limit is equal after printing and parsing again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::{Algorithm, Limit, Quota};

fuzz_target!(|text: &str| {
    match text.parse::<Quota>() {
        Ok(quota) => {
            assert_eq!(quota.validate(), Ok(()));
            assert_eq!(quota.to_string().parse(), Ok(quota), "{quota}");
            let _ = Limit::new(Algorithm::TokenBucket, quota);
        }
        Err(error) => assert!(error.to_string().len() < 1_000),
    }
});
