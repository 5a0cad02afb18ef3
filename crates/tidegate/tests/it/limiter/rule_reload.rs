//! Rules that are replaced while requests are decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate::store::FailureCounts;
use tidegate::{Limiter, LiveLimiter, ManualClock, MemoryStore, Request, RuleSet, Span};

use super::store_failure::FailingStore;
use super::{limiter, remaining, request};

fn rules(yaml: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", &format!("rules: [{yaml}]")).unwrap()
}

#[tokio::test]
async fn usage_is_kept_under_new_rules() {
    let time = ManualClock::default();
    let before = limiter(&time, "rules: [{name: api, per: [user], limit: 10 per hour}]");
    let alice = request(&[("user", "alice")]);
    before.check(&alice.clone().cost(4)).await;
    let raised = before.with_rules(rules("{name: api, per: [user], limit: 100 per hour}"));
    assert_eq!(remaining(&raised.check(&alice).await), [("api", 59)]);
    let lowered = raised.with_rules(rules("{name: api, per: [user], limit: 10 per hour}"));
    assert_eq!(remaining(&lowered.check(&alice).await), [("api", 4)]);
    // A rule with another name has another bucket.
    let renamed = lowered.with_rules(rules("{name: other, per: [user], limit: 10 per hour}"));
    assert_eq!(remaining(&renamed.check(&alice).await), [("other", 9)]);
}

#[tokio::test]
async fn blocks_and_denial_counts_are_kept_under_new_rules() {
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
async fn failure_counts_continue_under_new_rules() {
    let before = Limiter::builder()
        .rules(rules("{name: a, limit: 1/s}, {name: b, limit: 1/s}"))
        .store(Arc::new(FailingStore::default()))
        .build();
    before.check(&Request::new()).await;
    let after = before.with_rules(rules("{name: c, limit: 1/s}, {name: b, limit: 1/s}"));
    after.check(&Request::new()).await;
    let counts: Vec<(&str, u64)> =
        after.failures().map(|(rule, FailureCounts { open, .. })| (rule.name(), open)).collect();
    assert_eq!(counts, [("c", 1), ("b", 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reloads_during_checks_never_admit_more_than_the_limit() {
    let rule = "{name: api, per: [user], limit: 1000 per 10 days, algorithm: fixed_window}";
    let limiter = LiveLimiter::new(Limiter::builder().rules(rules(rule)).build());
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
            let mut replacements = 0;
            while !done.load(Ordering::Relaxed) {
                // Insert another rule before it, so that the index of the rule changes.
                let other_rule = if replacements % 2 == 0 {
                    "{name: x, match: {path: /x}, limit: 1/s}, "
                } else {
                    ""
                };
                limiter.replace(rules(&format!("{other_rule}{rule}")));
                replacements += 1;
                tokio::task::yield_now().await;
            }
            replacements
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
