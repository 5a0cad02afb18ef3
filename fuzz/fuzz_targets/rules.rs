//! Any bytes as a rules document are parsed or rejected, without a panic. Parsed rules can match a request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::{Request, Timestamp};
use tidegate_rules::RuleSet;

fuzz_target!(|bytes: &[u8]| {
    let Ok(yaml) = std::str::from_utf8(bytes) else {
        return;
    };
    let rules = match RuleSet::parse("fuzz", yaml) {
        Ok(rules) => rules,
        Err(errors) => {
            assert!(errors.iter().next().is_some(), "rejected without a reason");
            assert!(
                errors
                    .iter()
                    .all(|error| error.to_string().starts_with("fuzz:"))
            );
            return;
        }
    };
    let Ok(request) = Request::new()
        .with("path", "/v1/a")
        .and_then(|request| request.with("ip", "10.0.0.1"))
        .and_then(|request| request.with("a", "b"))
    else {
        return;
    };
    let found: Vec<&str> = rules
        .matching(&request)
        .iter()
        .map(|rule| rule.name())
        .collect();
    let expected: Vec<&str> = rules
        .rules()
        .iter()
        .filter(|rule| rule.matches(&request).is_ok())
        .map(|rule| rule.name())
        .collect();
    assert_eq!(found, expected);
    for rule in rules.rules() {
        let _ = rule.limit_for(&request, Timestamp::from_secs(1_700_000_000));
        assert_eq!(rule.parts(&request).len(), rule.per().len());
        if let Err(mismatch) = rule.matches(&request) {
            let _ = mismatch.to_string();
        }
    }
});
