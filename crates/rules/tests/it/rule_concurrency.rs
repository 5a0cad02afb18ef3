//! Limits in flight in a rules document.

use tidegate_core::{Algorithm, Limit, Quota, Span};
use tidegate_rules::RuleSet;

#[test]
fn limit_in_flight_is_parsed_and_printed() {
    let read = |rule: &str| {
        let yaml = format!("rules:\n- {{name: api, {rule}}}\n");
        RuleSet::parse("rules.yaml", &yaml).unwrap().rules()[0].limit().to_string()
    };
    assert_eq!(read("limit: 20 in flight"), "20 in flight, hold 60 s (concurrency)");
    assert_eq!(
        read("limit: 20 in flight, algorithm: concurrency, hold: 5m"),
        "20 in flight, hold 5 min (concurrency)"
    );
    let limit = Limit::new(Algorithm::Concurrency { hold: Span::MINUTE }, Quota::in_flight(20));
    assert_eq!(limit.unwrap().bound().to_string(), "at most 20 at any instant");
}

#[test]
fn settings_that_concurrency_does_not_support_are_rejected() {
    for (rule, error) in [
        (
            "limit: 20 in flight, algorithm: token_bucket",
            "a limit in flight needs algorithm concurrency, found token_bucket",
        ),
        (
            "limit: 20 per second, algorithm: concurrency",
            r#"concurrency needs a limit like "20 in flight", found 20 per 1 s"#,
        ),
        (
            "limit: 20 in flight, tiers: {by: plan, limits: {pro: 9/s}}",
            r#"concurrency needs a limit like "20 in flight", found 9 per 1 s"#,
        ),
        (
            "limit: 10001 in flight",
            "concurrency remembers each slot, so at most 10000 can be in flight, found 10001",
        ),
        ("limit: 20 in flight, hold: 2h", "hold must be from 1 s to 60 min, found 2 h"),
        ("limit: 20 in flight, hold: 500ms", "hold must be from 1 s to 60 min, found 500 ms"),
        (
            "limit: 20 in flight, hold: soon",
            r#"hold: unit of time must be ms, second, minute, hour, day, week, month (30 days) or year (365 days), found "soon""#,
        ),
        ("limit: 20/s, hold: 5s", "hold needs algorithm concurrency, found token_bucket"),
        ("limit: 20 in flight, queue: 5", "queue needs algorithm leaky_bucket, found concurrency"),
        ("limit: 20 in flight, burst: 5", "burst needs algorithm token_bucket, found concurrency"),
        (
            "limit: 20 in flight, accuracy: leased",
            "accuracy leased needs token_bucket, fixed_window or sliding_window, found concurrency",
        ),
        (
            "limit: 20 in flight, accuracy: synced",
            "accuracy synced needs token_bucket, fixed_window or sliding_window, found concurrency",
        ),
        (
            "limit: 20 in flight, hot: leased",
            "hot needs token_bucket, fixed_window or sliding_window, found concurrency",
        ),
        (
            "limit: 20 in flight, accuracy: split",
            "accuracy split needs a limit per time, found concurrency",
        ),
        ("limit: 20 in flight, shards: 4", "shards needs a limit per time, found concurrency"),
        (
            "limit: 20 in flight, on_store_failure: local",
            "on_store_failure must be allow or deny with algorithm concurrency, found local",
        ),
    ] {
        let yaml = format!("rules:\n- {{name: api, {rule}}}\n");
        let error_text = RuleSet::parse("rules.yaml", &yaml).unwrap_err().to_string();
        assert_eq!(error_text, format!(r#"rules.yaml:2: rule "api": {error}"#));
    }
}
