//! Overrides that exempt requests from a rule.

use tidegate::{ManualClock, Request, Span};

use super::{limiter, remaining, request};

fn rules(more: &str) -> String {
    format!(
        "
rules:
  - name: shared
    limit: 10 per minute
    overrides: [{{match: {{api_key: monitor}}, limit: exempt, until: '2200-01-01T00:00:00Z'}}]
    {more}
  - {{name: everyone, limit: 1000 per minute, algorithm: fixed_window}}
"
    )
}

fn client(key: &'static str) -> Request<'static> {
    request(&[("api_key", key)])
}

#[tokio::test]
async fn exempt_request_is_not_charged_and_other_rules_still_apply() {
    for more in [
        "accuracy: exact",
        "accuracy: leased",
        "accuracy: synced",
        "accuracy: split",
        "shards: 2",
        "hot: leased",
        "algorithm: fixed_window",
        "algorithm: sliding_log",
    ] {
        let time = ManualClock::default();
        let limiter = limiter(&time, &rules(more));
        for used in 1..=50 {
            let decision = limiter.check(&client("monitor")).await;
            assert!(decision.is_allowed(), "{more}");
            assert_eq!(remaining(&decision), [("everyone", 1000 - used)], "{more}");
        }
        let peek = limiter.peek(&client("customer")).await;
        assert_eq!(remaining(&peek)[0], ("shared", 10), "{more}");
        for _ in 0..10 {
            assert!(limiter.check(&client("customer")).await.is_allowed(), "{more}");
        }
        assert!(!limiter.check(&client("customer")).await.is_allowed(), "{more}");
        assert!(limiter.check(&client("monitor")).await.is_allowed(), "{more}");
    }
}

#[tokio::test]
async fn exempt_request_is_not_charged_to_a_shadow_rule() {
    let limiter = limiter(&ManualClock::default(), &rules("mode: shadow"));
    assert_eq!(remaining(&limiter.check(&client("monitor")).await), [("everyone", 999)]);
    let decision = limiter.check(&client("customer")).await;
    assert_eq!(remaining(&decision), [("shared", 9), ("everyone", 998)]);
}

#[tokio::test]
async fn exemption_applies_where_a_call_names_the_rule_and_ends() {
    let time = ManualClock::default();
    let limiter = limiter(&time, &rules(""));
    let named = limiter.check_rule("shared", &client("monitor")).await.unwrap();
    assert!(named.is_allowed() && named.rule_outcomes().is_empty());
    time.advance(Span::from_secs(10_000_000_000));
    let decision = limiter.check(&client("monitor")).await;
    assert_eq!(remaining(&decision), [("shared", 9), ("everyone", 999)]);
}

#[tokio::test]
async fn exempt_request_takes_no_slot_and_no_place_in_a_queue() {
    let rules = "
rules:
  - {name: slots, limit: 1 in flight, overrides: [{match: {api_key: monitor}, limit: exempt}]}
  - name: queue
    algorithm: leaky_bucket
    limit: 1 per minute
    queue: 1
    overrides: [{match: {api_key: monitor}, limit: exempt}]
";
    let limiter = limiter(&ManualClock::default(), rules);
    let mut guards = Vec::new();
    for _ in 0..5 {
        let (decision, admission) = limiter.admit(&client("monitor"), Span::SECOND).await;
        assert!(decision.is_allowed() && decision.delay() == Span::ZERO);
        guards.push(admission.wait().await);
    }
    let (decision, _admission) = limiter.admit(&client("customer"), Span::SECOND).await;
    assert!(decision.is_allowed() && decision.delay() == Span::ZERO);
}

#[tokio::test]
async fn exempt_client_can_be_reset_and_refunds_nothing() {
    let limiter = limiter(&ManualClock::default(), &rules(""));
    assert!(limiter.check(&client("customer").cost(4)).await.is_allowed());
    let refunded = limiter.refund_latest(&client("monitor").cost(4)).await.unwrap();
    assert_eq!(remaining(&refunded).len(), 1);
    assert_eq!(remaining(&limiter.peek(&client("customer")).await)[0], ("shared", 6));
    // The bucket is one for all clients, so that a reset by any of them clears it.
    limiter.reset("shared", &client("monitor")).await.unwrap();
    assert_eq!(remaining(&limiter.peek(&client("customer")).await)[0], ("shared", 10));
}
