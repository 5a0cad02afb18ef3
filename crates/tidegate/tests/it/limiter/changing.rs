//! Rules that change while requests are decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate::{
    FailureCounts, Limiter, LiveLimiter, ManualClock, MemoryStore, Request, RuleSet, Span,
};

use super::failing::Failing;
use super::{left, limiter, request};

fn rules(yaml: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", &format!("rules: [{yaml}]")).unwrap()
}

#[tokio::test]
async fn what_was_spent_stays_spent_under_the_next_rules() {
    let time = ManualClock::default();
    let before = limiter(&time, "rules: [{name: api, per: [user], limit: 10 per hour}]");
    let alice = request(&[("user", "alice")]);
    before.check(&alice.clone().cost(4)).await;
    let raised = before.with_rules(rules("{name: api, per: [user], limit: 100 per hour}"));
    assert_eq!(left(&raised.check(&alice).await), [("api", 59)]);
    let lowered = raised.with_rules(rules("{name: api, per: [user], limit: 10 per hour}"));
    assert_eq!(left(&lowered.check(&alice).await), [("api", 4)]);
    // Under another name, or counted by something else, it is another bucket.
    let renamed = lowered.with_rules(rules("{name: other, per: [user], limit: 10 per hour}"));
    assert_eq!(left(&renamed.check(&alice).await), [("other", 9)]);
}

#[tokio::test]
async fn who_is_blocked_and_who_is_about_to_be_stays_so() {
    let time = ManualClock::default();
    let rule =
        "{name: login, per: [ip], limit: 1 per hour, penalty: {after: 3, within: 1h, block: 1h}}";
    let mut limiter = limiter(&time, &format!("rules: [{rule}]"));
    let mallory = request(&[("ip", "192.0.2.7")]);
    assert!(limiter.check(&mallory).await.is_allowed());
    for _ in 0..3 {
        assert!(limiter.check(&mallory).await.block().is_none());
        limiter = limiter.with_rules(rules(rule));
    }
    assert!(limiter.check(&mallory).await.block().is_some());
    let limiter = limiter.with_rules(RuleSet::default());
    assert!(limiter.check(&mallory).await.block().is_some());
    time.advance(Span::HOUR);
    assert!(limiter.check(&mallory).await.is_allowed());
}

#[tokio::test]
async fn failures_are_counted_on() {
    let before = Limiter::builder()
        .rules(rules("{name: a, limit: 1/s}, {name: b, limit: 1/s}"))
        .store(Arc::new(Failing::default()))
        .build();
    before.check(&Request::new()).await;
    let after = before.with_rules(rules("{name: c, limit: 1/s}, {name: b, limit: 1/s}"));
    after.check(&Request::new()).await;
    let counts: Vec<(&str, u64)> =
        after.failures().map(|(rule, FailureCounts { open, .. })| (rule.name(), open)).collect();
    assert_eq!(counts, [("c", 1), ("b", 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_more_is_admitted_than_one_limit_allows_while_rules_are_replaced() {
    let written = "{name: api, per: [user], limit: 1000 per 10 days, algorithm: fixed_window}";
    let limiter = LiveLimiter::new(Limiter::builder().rules(rules(written)).build());
    let (admitted, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let checking = (0..3).map(|_| {
        let (limiter, admitted) = (limiter.clone(), Arc::clone(&admitted));
        tokio::spawn(async move {
            for _ in 0..20_000 {
                let decision = limiter.check(&request(&[("user", "alice")])).await;
                admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
            }
        })
    });
    let checking: Vec<_> = checking.collect();
    let replacing = {
        let (limiter, done) = (limiter.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let mut times = 0;
            while !done.load(Ordering::Relaxed) {
                // The same rule among others, so that its place changes.
                let more =
                    if times % 2 == 0 { "{name: x, match: {path: /x}, limit: 1/s}, " } else { "" };
                limiter.replace(rules(&format!("{more}{written}")));
                times += 1;
                tokio::task::yield_now().await;
            }
            times
        })
    };
    for task in checking {
        task.await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    assert!(replacing.await.unwrap() > 0);
    assert_eq!(admitted.load(Ordering::Relaxed), 1_000);
    let store: Arc<MemoryStore> = Arc::clone(limiter.limiter().store());
    assert_eq!(store.usage().keys, 1);
}
