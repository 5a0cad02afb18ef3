//! Blocked clients, and penalties that block them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::block::{BlockAction, BlockOrigin, Entry, Reason};
use tidegate::error::{AcquireError, NotASingleKeyRule, StoreError};
use tidegate::store::{Charge, ChargeMode, ChargeResults, Key, Keyer, Refund, Store};
use tidegate::{
    BlockList, Decision, DecisionStatus, Limiter, ManualClock, MemoryStore, Request, RuleSet, Span,
};

/// A store that counts its calls.
struct CallCounter {
    store: Arc<MemoryStore>,
    calls: AtomicUsize,
}

impl Store for CallCounter {
    fn keyer(&self) -> Keyer {
        self.store.keyer()
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.store.charge(charges, mode).await
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.store.refund(refunds).await
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        self.store.refund_detached(refunds);
    }

    async fn reset(&self, key: Key) -> Result<(), StoreError> {
        self.store.reset(key).await
    }
}

fn rules(yaml: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", &format!("rules: [{yaml}]")).unwrap()
}

fn limiter(time: &ManualClock, yaml: &str) -> Limiter {
    Limiter::builder().rules(rules(yaml)).clock(time.clock()).build()
}

fn request<'a>(attributes: &[(&'a str, &'a str)]) -> Request<'a> {
    let mut request = Request::new();
    for (name, value) in attributes {
        request.insert(*name, *value).unwrap();
    }
    request
}

fn block(blocks: &BlockList, time: &ManualClock, attribute: &str, value: &str, span: Span) {
    let now = time.clock().now();
    let subject = blocks.client(attribute, value).unwrap();
    let (reason, origin) = (Reason::default(), BlockOrigin::Operator);
    blocks
        .add(
            Entry {
                subject,
                action: BlockAction::Block,
                until: now + span,
                reason,
                origin,
                added: now,
            },
            now,
        )
        .unwrap();
}

fn block_seconds(decision: &Decision) -> Option<u64> {
    decision.block().map(|block| block.retry_after.as_secs_ceil())
}

const LOGIN: &str = "{name: login, per: [ip], limit: 5 per minute, algorithm: fixed_window, \
                     penalty: {after: 2x, within: 1m, block: 10m}}";

#[tokio::test]
async fn blocked_client_never_reaches_the_store() {
    let time = ManualClock::default();
    let store = Arc::new(MemoryStore::new(time.clock()));
    let store = Arc::new(CallCounter { store, calls: AtomicUsize::new(0) });
    let limiter = Limiter::builder()
        .rules(rules(LOGIN))
        .clock(time.clock())
        .store(Arc::clone(&store))
        .build();
    let mallory = request(&[("ip", "192.0.2.7")]);
    assert!(limiter.check(&mallory).await.is_allowed());
    assert_eq!(store.calls.load(Ordering::SeqCst), 1);
    block(limiter.blocks(), &time, "ip", "192.0.2.0/24", Span::MINUTE);
    for _ in 0..100 {
        let denied = limiter.check(&mallory).await;
        assert_eq!((denied.status(), block_seconds(&denied)), (DecisionStatus::Deny, Some(60)));
        assert!(denied.rule_outcomes().is_empty());
    }
    assert_eq!(block_seconds(&limiter.peek(&mallory).await), Some(60));
    assert_eq!(block_seconds(&limiter.check_rule("login", &mallory).await.unwrap()), Some(60));
    let refused = limiter.acquire(&mallory).await.unwrap_err();
    assert!(
        matches!(refused, AcquireError::Blocked(decision) if block_seconds(&decision) == Some(60))
    );
    assert_eq!(store.calls.load(Ordering::SeqCst), 1);
    assert!(limiter.check(&request(&[("ip", "192.0.3.7")])).await.is_allowed());
    time.advance(Span::MINUTE);
    assert!(limiter.check(&mallory).await.is_allowed());
    assert_eq!(store.calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn client_is_blocked_after_the_configured_denials() {
    let time = ManualClock::default();
    let limiter = limiter(&time, LOGIN);
    let mallory = request(&[("ip", "192.0.2.7")]);
    for _ in 0..5 {
        assert!(limiter.check(&mallory).await.is_allowed());
    }
    // The rule denies twice its limit, and then blocks the client.
    for _ in 0..10 {
        let denied = limiter.check(&mallory).await;
        assert_eq!((denied.status(), denied.block()), (DecisionStatus::Deny, None));
    }
    let blocked = limiter.check(&mallory).await;
    assert_eq!(block_seconds(&blocked), Some(600));
    assert_eq!(blocked.block().unwrap().rule.as_deref(), Some("login"));
    // The block applies to every path, and with any other attributes.
    let elsewhere = request(&[("ip", "::ffff:192.0.2.7"), ("path", "/"), ("user", "alice")]);
    assert_eq!(block_seconds(&limiter.check(&elsewhere).await), Some(600));
    assert!(limiter.check(&request(&[("ip", "192.0.2.8")])).await.is_allowed());
    time.advance(Span::from_secs(599));
    assert_eq!(block_seconds(&limiter.check(&mallory).await), Some(1));
    time.advance(Span::SECOND);
    assert!(limiter.check(&mallory).await.is_allowed());
}

#[tokio::test]
async fn client_that_respects_retry_after_is_not_blocked() {
    let time = ManualClock::default();
    let limiter = limiter(&time, LOGIN);
    let patient = request(&[("ip", "192.0.2.7")]);
    for _ in 0..1_000 {
        let decision = limiter.check(&patient).await;
        assert_eq!(decision.block(), None);
        if let Some(wait) = decision.retry_after() {
            time.advance(wait);
        }
    }
    assert!(limiter.blocks().is_empty());
}

#[tokio::test]
async fn client_below_the_penalty_threshold_is_not_blocked() {
    let time = ManualClock::default();
    let limiter = limiter(&time, LOGIN);
    let eager = request(&[("ip", "192.0.2.7")]);
    // Five are admitted and nine denied in every minute.
    for _ in 0..100 {
        for _ in 0..14 {
            assert_eq!(limiter.check(&eager).await.block(), None);
        }
        time.advance(Span::MINUTE);
    }
}

#[tokio::test]
async fn peeks_and_acquire_waits_do_not_count_towards_a_penalty() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "{name: api, per: [user], limit: 1 per second, penalty: {after: 1, within: 1m, block: 10m}}",
    );
    let alice = request(&[("user", "alice")]);
    assert!(limiter.check(&alice).await.is_allowed());
    for _ in 0..100 {
        assert!(!limiter.peek(&alice).await.is_allowed());
    }
    let waiting = tokio::spawn({
        let (limiter, alice) = (limiter.clone(), request(&[("user", "alice")]));
        async move { limiter.acquire(&alice).await }
    });
    tokio::task::yield_now().await;
    time.advance(Span::SECOND);
    assert!(waiting.await.unwrap().is_ok());
    assert!(limiter.blocks().is_empty());
    limiter.check(&alice).await;
    assert_eq!(block_seconds(&limiter.check(&alice).await), Some(600));
}

#[tokio::test]
async fn requests_without_the_attribute_cause_no_block() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "{name: api, per: [user, path], limit: 1 per minute, penalty: {after: 1, within: 1m, block: 10m}}",
    );
    for _ in 0..100 {
        limiter.check(&request(&[("path", "/a")])).await;
        limiter.check(&request(&[("user", ""), ("path", "/a")])).await;
    }
    assert!(limiter.blocks().is_empty());
}

#[tokio::test]
async fn penalty_of_a_rule_with_two_attributes_blocks_their_combination() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "{name: api, per: [user | ip, path], limit: 1 per minute, penalty: {after: 3, within: 1m, block: 10m}}",
    );
    for _ in 0..5 {
        limiter.check(&request(&[("user", "mallory"), ("path", "/a"), ("ip", "192.0.2.7")])).await;
    }
    let blocked = async |attributes: &[(&'static str, &'static str)]| {
        limiter.check(&request(attributes)).await.block().is_some()
    };
    assert!(blocked(&[("user", "mallory"), ("path", "/a")]).await);
    assert!(blocked(&[("user", "mallory"), ("path", "/a"), ("ip", "192.0.2.8")]).await);
    assert!(!blocked(&[("user", "mallory"), ("path", "/b")]).await);
    assert!(!blocked(&[("user", "alice"), ("path", "/a"), ("ip", "192.0.2.7")]).await);
    assert!(!blocked(&[("user", "mallory")]).await);
}

#[tokio::test]
async fn penalty_threshold_is_a_multiple_of_the_tier_limit() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "{name: api, per: [user], limit: 1 per minute, tiers: {by: plan, limits: {pro: 10 per minute}}, \
         penalty: {after: 3x, within: 1m, block: 10m}}",
    );
    let until_blocked = async |user: &'static str, plan: &'static str| {
        let request = request(&[("user", user), ("plan", plan)]);
        let mut count = 0;
        while limiter.check(&request).await.block().is_none() {
            count += 1;
        }
        count
    };
    assert_eq!(until_blocked("a", "free").await, 1 + 3);
    assert_eq!(until_blocked("b", "pro").await, 10 + 30);
}

#[tokio::test]
async fn shadow_rule_causes_no_block() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "{name: api, per: [user], limit: 1 per minute, mode: shadow, penalty: {after: 1, within: 1m, block: 10m}}",
    );
    for _ in 0..100 {
        assert!(limiter.check(&request(&[("user", "alice")])).await.is_allowed());
    }
    assert!(limiter.blocks().is_empty());
}

#[tokio::test]
async fn checks_by_rule_name_count_towards_a_penalty() {
    let time = ManualClock::default();
    let limiter = limiter(&time, LOGIN);
    let mallory = request(&[("ip", "192.0.2.7")]);
    for _ in 0..15 {
        assert_eq!(limiter.check_rule("login", &mallory).await.unwrap().block(), None);
    }
    assert_eq!(block_seconds(&limiter.check_rule("login", &mallory).await.unwrap()), Some(600));
}

#[tokio::test]
async fn unblocked_client_starts_with_no_denials() {
    let time = ManualClock::default();
    let limiter = limiter(&time, LOGIN);
    let mallory = request(&[("ip", "192.0.2.7")]);
    for _ in 0..2 {
        while limiter.check(&mallory).await.block().is_none() {}
        let subject = limiter.blocks().client("ip", "192.0.2.7").unwrap();
        limiter.blocks().remove(&subject, time.clock().now()).unwrap();
        for _ in 0..9 {
            assert_eq!(limiter.check(&mallory).await.block(), None);
        }
        // Resetting the client under the rule also resets its denial count.
        limiter.reset("login", &mallory).await.unwrap();
        for _ in 0..5 + 9 {
            assert_eq!(limiter.check(&mallory).await.block(), None);
        }
        limiter.reset("login", &mallory).await.unwrap();
    }
}

#[tokio::test]
async fn limiters_can_share_a_block_list() {
    let time = ManualClock::default();
    let one = limiter(&time, LOGIN);
    let other = Limiter::builder().clock(time.clock()).blocks(Arc::clone(one.blocks())).build();
    let mallory = request(&[("ip", "192.0.2.7")]);
    while one.check(&mallory).await.block().is_none() {}
    assert_eq!(block_seconds(&other.check(&mallory).await), Some(600));
    time.advance(Span::HOUR);
    one.sweep_blocks(1);
    assert_eq!(one.blocks().usage().entries, 0);
}

#[test]
fn rule_with_a_penalty_is_no_single_key_rule() {
    let error = limiter(&ManualClock::default(), LOGIN).rule("login").unwrap_err();
    assert!(matches!(error, NotASingleKeyRule::Varies { .. }), "{error}");
}

#[tokio::test]
async fn api_key_never_appears_in_the_block_list() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "{name: api, per: [api_key], limit: 1 per minute, penalty: {after: 1, within: 1m, block: 10m}}",
    );
    let secret = "sk-live-0123456789";
    while limiter.check(&request(&[("api_key", secret)])).await.block().is_none() {}
    let now = time.clock().now();
    let blocks = limiter.blocks();
    let entries = blocks.entries(now);
    let kept = serde_json::to_string(&entries.iter().map(|entry| &**entry).collect::<Vec<_>>());
    let shown = format!("{} {blocks:?} {:?} {:?}", kept.unwrap(), blocks.export(now), limiter);
    assert_eq!(entries.len(), 1);
    assert!(shown.contains("api_key") && !shown.contains(secret), "{shown}");
    assert!(blocks.export(now).is_empty());
}
