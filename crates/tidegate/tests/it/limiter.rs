//! Decisions of a limiter with several rules.

mod admission;
mod check_all;
mod exemptions;
mod refund_latest;
mod rule_reload;
mod slot_guards;
mod store_failure;

use tidegate::error::{AcquireError, NotASingleKeyRule};
use tidegate::{Decision, DecisionStatus, Limiter, ManualClock, Quota, Request, RuleSet, Span};

fn limiter(time: &ManualClock, rules: &str) -> Limiter {
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    Limiter::builder().rules(rules).clock(time.clock()).build()
}

fn request<'a>(attributes: &[(&'a str, &'a str)]) -> Request<'a> {
    let mut request = Request::new();
    for (name, value) in attributes {
        request.insert(*name, *value).unwrap();
    }
    request
}

/// Returns the name and remaining amount of each rule that was charged or peeked.
fn remaining(decision: &Decision) -> Vec<(&str, u64)> {
    decision
        .rule_outcomes()
        .iter()
        .map(|rule_outcome| (&*rule_outcome.rule, rule_outcome.outcome.remaining))
        .collect()
}

const STACK: &str = "
rules:
  - {name: per-user, per: [user], limit: 3 per minute}
  - {name: per-ip, per: [ip], limit: 10 per minute, algorithm: sliding_log}
  - {name: everyone, limit: 100 per minute, algorithm: fixed_window}
";

/// Two limiters with the same history decide the same, one with futures and one without.
#[tokio::test]
async fn check_now_decides_as_check_does() {
    let time = ManualClock::default();
    let rules = "
rules:
  - {name: login, match: {path: /login}, per: [user], limit: 3 per minute, penalty: {after: 4, within: 1m, block: 5m}}
  - {name: trial, match: {path: /trial}, per: [user], limit: 2 per minute, mode: shadow}
";
    let (now, awaited) = (limiter(&time, rules), limiter(&time, rules));
    for path in ["/login", "/trial", "/other", "/login", "/login"] {
        let alice = request(&[("path", path), ("user", "alice")]);
        for cost in [1, 1, 2, 1, 1] {
            let alice = alice.clone().cost(cost);
            let decision = now.check_now(&alice).unwrap();
            assert_eq!(decision, awaited.check(&alice).await, "{path}");
        }
        time.advance(Span::from_secs(20));
    }
    let blocked = now.check_now(&request(&[("path", "/login"), ("user", "alice")])).unwrap();
    assert!(blocked.block().is_some());
}

#[tokio::test]
async fn check_now_leaves_peeks_and_several_rules_to_check_and_charges_nothing() {
    let time = ManualClock::default();
    let limiter = limiter(&time, STACK);
    let alice = request(&[("user", "alice"), ("ip", "192.0.2.1")]);
    for _ in 0..10 {
        assert_eq!(limiter.check_now(&alice), None);
        assert_eq!(limiter.check_now(&alice.clone().cost(0)), None);
    }
    let first = limiter.check(&alice).await;
    assert_eq!(remaining(&first), [("per-user", 2), ("per-ip", 9), ("everyone", 99)]);
}

#[tokio::test]
async fn denied_request_consumes_nothing() {
    let time = ManualClock::default();
    let limiter = limiter(&time, STACK);
    let alice = request(&[("user", "alice"), ("ip", "192.0.2.1")]);
    for _ in 0..3 {
        assert!(limiter.check(&alice).await.is_allowed());
    }
    for _ in 0..50 {
        let denied = limiter.check(&alice).await;
        assert_eq!(denied.status(), DecisionStatus::Deny);
        assert_eq!(remaining(&denied), [("per-user", 0), ("per-ip", 7), ("everyone", 97)]);
        assert_eq!(&*denied.strictest_rule().unwrap().rule, "per-user");
    }
    let bob = limiter.check(&request(&[("user", "bob"), ("ip", "192.0.2.1")])).await;
    assert_eq!(remaining(&bob), [("per-user", 2), ("per-ip", 6), ("everyone", 96)]);
}

#[tokio::test]
async fn shadow_rule_is_charged_independently_and_never_denies() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - {name: tight, per: [user], limit: 1 per minute}
  - {name: trial, per: [user], limit: 3 per minute, mode: shadow}
  - {name: gone, limit: 0 per minute, mode: off}
",
    );
    let alice = request(&[("user", "alice")]);
    assert!(limiter.check(&alice).await.is_allowed());
    let second = limiter.check(&alice).await;
    assert_eq!(second.status(), DecisionStatus::Deny);
    assert_eq!(remaining(&second), [("tight", 0), ("trial", 1)]);
    limiter.check(&alice).await;
    let fourth = limiter.check(&alice).await;
    assert!(!fourth.rule_outcomes()[1].outcome.is_allowed(), "the trial would have denied by now");
    assert_eq!(fourth.enforced().count(), 1);
    let other = limiter.check(&request(&[("user", "bob")])).await;
    assert!(other.is_allowed());
}

#[tokio::test]
async fn clients_without_the_attribute_share_one_bucket() {
    let time = ManualClock::default();
    let limiter = limiter(&time, "rules: [{name: api, per: [api_key], limit: 2 per minute}]");
    let decide = async |attributes: &[(&'static str, &'static str)]| {
        limiter.check(&request(attributes)).await.is_allowed()
    };
    assert!(decide(&[("ip", "192.0.2.1")]).await);
    assert!(decide(&[("ip", "192.0.2.2"), ("api_key", "")]).await);
    assert!(!decide(&[("ip", "192.0.2.3")]).await);
    assert!(decide(&[("api_key", "k")]).await);
}

#[tokio::test]
async fn tier_or_override_selects_the_limit_and_a_tier_change_keeps_the_used_fraction() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - name: api
    per: [user]
    limit: 10 per minute
    tiers: {by: plan, limits: {pro: 100 per minute}}
    overrides: [{match: {user: carol}, limit: 7 per minute, until: 2026-01-01T01:00:00Z}]
",
    );
    let check = async |user: &'static str, plan: &'static str, cost: u64| {
        let request = request(&[("user", user), ("plan", plan)]).cost(cost);
        let decision = limiter.check(&request).await;
        let outcome = decision.strictest_rule().unwrap().outcome;
        (outcome.is_allowed(), outcome.limit, outcome.remaining)
    };
    assert_eq!(check("alice", "free", 5).await, (true, 10, 5));
    assert_eq!(check("alice", "pro", 0).await, (true, 100, 50));
    assert_eq!(check("alice", "pro", 25).await, (true, 100, 25));
    assert_eq!(check("alice", "free", 0).await, (true, 10, 2));
    assert_eq!(check("carol", "pro", 1).await, (true, 7, 6));
    time.advance(Span::HOUR);
    assert_eq!(check("carol", "pro", 1).await, (true, 100, 99));
}

#[tokio::test]
async fn single_key_handle_uses_the_same_buckets_as_requests() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - {name: api, match: {path: '/v1/**'}, per: [user | ip], limit: 5 per minute}
  - {name: both, per: [user, ip], limit: 5 per minute}
  - {name: tiered, per: [user], limit: 5 per minute, tiers: {by: plan, limits: {pro: 9 per minute}}}
",
    );
    let api = limiter.rule("api").unwrap();
    assert_eq!(api.check("alice").remaining, 4);
    let decision = limiter.check(&request(&[("path", "/v1/x"), ("user", "alice")])).await;
    assert_eq!(remaining(&decision)[0], ("api", 3));
    let named = limiter.check_rule("api", &request(&[("user", "alice")])).await.unwrap();
    assert_eq!(remaining(&named), [("api", 2)]);
    let by_ip = limiter.check_rule("api", &request(&[("ip", "alice")])).await.unwrap();
    assert_eq!(
        remaining(&by_ip),
        [("api", 4)],
        "an address that reads like a user is not that user"
    );
    assert!(matches!(limiter.rule("both"), Err(NotASingleKeyRule::Parts { found: 2, .. })));
    assert!(matches!(limiter.rule("tiered"), Err(NotASingleKeyRule::Varies { .. })));
    let error = limiter.rule("nope").unwrap_err().to_string();
    assert_eq!(error, r#"no rule is named "nope""#);
}

#[tokio::test]
async fn client_outside_a_rollout_is_not_limited_by_any_kind_of_check() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - {name: half, per: [user], limit: 5 per minute, rollout: 50%}
  - {name: all, per: [user], limit: 7 per minute, overrides: [{match: {}, limit: 2 per minute, rollout: 50%}]}
",
    );
    let (mut inside, mut limited) = (0, 0);
    for number in 0..200 {
        let user = format!("user-{number}");
        let client = request(&[("user", &user)]);
        let matched = limiter.check(&client).await;
        let named = limiter.check_rule("half", &client).await.unwrap();
        assert_eq!(named.rule_outcomes().len(), matched.rule_outcomes().len() - 1);
        inside += named.rule_outcomes().len();
        let all = limiter.check_rule("all", &client).await.unwrap();
        limited += usize::from(all.strictest_rule().unwrap().outcome.limit == 2);
        // No bucket is charged, so a client that enters the rollout later starts with a full one.
        if named.rule_outcomes().is_empty() {
            assert_eq!(
                remaining(&matched),
                [("all", all.strictest_rule().unwrap().outcome.remaining + 1)]
            );
            assert!(limiter.check_rule("half", &client.cost(99)).await.unwrap().is_allowed());
        }
    }
    assert!((60..140).contains(&inside) && (60..140).contains(&limited), "{inside} {limited}");
    assert!(matches!(limiter.rule("half"), Err(NotASingleKeyRule::Varies { .. })));
}

#[tokio::test]
async fn request_without_a_matching_rule_is_allowed_without_a_limit() {
    let limiter =
        limiter(&ManualClock::default(), "rules: [{name: a, match: {path: /x}, limit: 1/s}]");
    let decision = limiter.check(&request(&[("path", "/y")])).await;
    assert!(decision.is_allowed() && decision.strictest_rule().is_none());
}

#[tokio::test]
async fn refund_returns_every_charge_of_the_request() {
    let time = ManualClock::default();
    let limiter = limiter(&time, STACK);
    let alice = request(&[("user", "alice"), ("ip", "192.0.2.1")]).cost(2);
    let (decision, receipt) = limiter.check_with_receipt(&alice).await;
    assert_eq!(remaining(&decision), [("per-user", 1), ("per-ip", 8), ("everyone", 98)]);
    assert_eq!(limiter.refund(receipt).await, Ok(3));
    let peeked = limiter.peek(&alice).await;
    assert_eq!(remaining(&peeked), [("per-user", 3), ("per-ip", 10), ("everyone", 100)]);
    let (denied, receipt) = limiter.check_with_receipt(&alice.clone().cost(4)).await;
    assert_eq!(denied.status(), DecisionStatus::Deny);
    assert!(receipt.is_empty(), "nothing was charged, nothing can be refunded");
}

#[tokio::test]
async fn reset_clears_a_client_under_one_rule() {
    let time = ManualClock::default();
    let limiter = limiter(&time, STACK);
    let alice = request(&[("user", "alice"), ("ip", "192.0.2.1")]);
    limiter.check(&alice.clone().cost(3)).await;
    limiter.reset("per-user", &alice).await.unwrap();
    assert_eq!(
        remaining(&limiter.peek(&alice).await),
        [("per-user", 3), ("per-ip", 7), ("everyone", 97)]
    );
    assert!(limiter.reset("nope", &alice).await.is_err());
}

#[tokio::test]
async fn acquire_waits_for_the_next_token() {
    let time = ManualClock::default();
    let handle = Limiter::per_key_on(Quota::per_minute(1), time.clock()).unwrap();
    assert!(handle.acquire("a", 1).await.is_ok());
    let waiter = tokio::spawn({
        let handle = handle.clone();
        async move { handle.acquire("a", 1).await }
    });
    time.advance(Span::from_secs(59));
    assert!(!handle.peek("a").is_allowed());
    time.advance(Span::SECOND);
    assert!(waiter.await.unwrap().unwrap().is_allowed());
    assert_eq!(
        handle.acquire("a", 2).await.unwrap_err().to_string(),
        "a cost of 2 never fits a limit of 1"
    );
}

#[tokio::test]
async fn acquire_waits_for_its_slot_and_a_cancelled_last_waiter_frees_its_slot() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules: [{name: slow, limit: 1 per second, algorithm: leaky_bucket, queue: 2}]
",
    );
    let anyone = Request::new();
    assert_eq!(limiter.acquire(&anyone).await.unwrap().delay(), Span::ZERO);
    let mut second = Box::pin(limiter.acquire(&anyone));
    let mut third = Box::pin(limiter.acquire(&anyone));
    // One poll charges the slot of each waiter; both wait.
    assert!(poll_once(&mut second).is_none());
    assert!(poll_once(&mut third).is_none());
    assert!(!limiter.peek(&anyone).await.is_allowed(), "the queue is full");
    drop(third);
    let peeked = limiter.peek(&anyone).await;
    assert_eq!(peeked.delay(), Span::from_secs(2), "the last slot is free again");
    time.advance(Span::SECOND);
    assert_eq!(second.await.unwrap().delay(), Span::SECOND);
    let never = limiter.acquire(&Request::new().cost(4)).await;
    assert!(matches!(never, Err(AcquireError::ExceedsCapacity(_))));
}

fn poll_once<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
