//! Decisions while the store fails, for all keys or for some.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::error::{AcquireError, StoreError};
use tidegate::store::{
    Charge, ChargeMode, ChargeResult, ChargeResults, FailureCounts, Key, Keyer, Refund, Share,
    Store,
};
use tidegate::{DecisionStatus, Limit, Limiter, ManualClock, MemoryStore, Request, RuleSet, Span};

use super::{remaining, request};

/// A store that counts its calls, and lets all of them time out.
#[derive(Default)]
pub(crate) struct FailingStore {
    calls: AtomicUsize,
}

impl FailingStore {
    fn error() -> StoreError {
        StoreError::Timeout { store: "test store".into(), after: Duration::from_millis(10) }
    }
}

impl Store for FailingStore {
    fn keyer(&self) -> Keyer {
        Keyer::Fleet { secret: [0; 32] }
    }

    async fn charge(&self, charges: &[Charge<'_>], _: ChargeMode) -> ChargeResults {
        self.calls.fetch_add(1, Ordering::Relaxed);
        charges.iter().map(|_| ChargeResult::Failed(Self::error())).collect()
    }

    async fn refund(&self, _: &[Refund]) -> Result<usize, StoreError> {
        Err(Self::error())
    }

    fn refund_detached(self: &Arc<Self>, _: Vec<Refund>) {}

    async fn reset(&self, _: Key) -> Result<(), StoreError> {
        Err(Self::error())
    }
}

#[tokio::test]
async fn each_rule_follows_on_store_failure_without_retries() {
    let store = Arc::new(FailingStore::default());
    let rules = RuleSet::parse(
        "rules.yaml",
        "
rules:
  - {name: open, match: {path: /open}, limit: 1/s}
  - {name: trial, limit: 1/s, mode: shadow, on_store_failure: deny}
  - {name: closed, match: {path: /closed}, limit: 1/s, on_store_failure: deny}
",
    );
    let limiter = Limiter::builder().rules(rules.unwrap()).store(Arc::clone(&store)).build();
    let open = limiter.check(&request(&[("path", "/open")])).await;
    assert_eq!(open.status(), DecisionStatus::Allow);
    assert_eq!(
        open.undecided().iter().map(|undecided| &*undecided.rule).collect::<Vec<_>>(),
        ["open"]
    );
    let closed = limiter.check(&request(&[("path", "/closed")])).await;
    assert_eq!(closed.status(), DecisionStatus::Unavailable);
    assert_eq!(store.calls.load(Ordering::Relaxed), 2);
    let error = limiter.acquire(&request(&[("path", "/closed")])).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)));
    let error = limiter.reset("open", &Request::new()).await.unwrap_err().to_string();
    assert_eq!(error, "test store: no reply within 10ms");
}

/// A store that fails for some keys, as when one of several servers is down.
pub(crate) struct PartlyFailingStore {
    memory: MemoryStore,
    pub(crate) refunded: AtomicUsize,
    fails: fn(&Limit) -> bool,
}

impl Store for PartlyFailingStore {
    fn keyer(&self) -> Keyer {
        self.memory.keyer()
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        let working: Vec<Charge<'_>> =
            charges.iter().filter(|charge| !(self.fails)(charge.limit)).cloned().collect();
        let mut outcomes = self.memory.charge_all(&working, mode).into_iter();
        let result_of = |charge: &Charge<'_>| match (self.fails)(charge.limit) {
            true => ChargeResult::Failed(FailingStore::error()),
            false => ChargeResult::Outcome(outcomes.next().unwrap()),
        };
        charges.iter().map(result_of).collect()
    }

    fn share(&self) -> Share {
        Share { index: 1, of: 3 }
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.memory.refund(refunds).await
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        let refund_count = refunds.iter().filter(|refund| self.memory.refund_one(refund)).count();
        self.refunded.fetch_add(refund_count, Ordering::Relaxed);
    }

    async fn reset(&self, _: Key) -> Result<(), StoreError> {
        Err(FailingStore::error())
    }
}

pub(crate) fn limiter_with_failing_keys(
    time: &ManualClock,
    rules: &str,
    fails: fn(&Limit) -> bool,
) -> Limiter<PartlyFailingStore> {
    let memory = MemoryStore::new(time.clock());
    let store = Arc::new(PartlyFailingStore { memory, refunded: AtomicUsize::new(0), fails });
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    Limiter::builder().rules(rules).clock(time.clock()).store(store).build()
}

#[tokio::test]
async fn rule_with_a_working_store_is_enforced_while_another_fails_open() {
    let time = ManualClock::default();
    let rules = "
rules:
  - {name: gone, limit: 9 per minute}
  - {name: there, per: [user], limit: 2 per minute}
";
    let limiter = limiter_with_failing_keys(&time, rules, |limit| limit.capacity() == 9);
    let alice = request(&[("user", "alice")]);
    let first = limiter.check(&alice).await;
    assert_eq!((first.status(), remaining(&first)), (DecisionStatus::Allow, vec![("there", 1)]));
    assert_eq!(first.undecided().len(), 1);
    assert!(limiter.check(&alice).await.is_allowed());
    assert_eq!(limiter.check(&alice).await.status(), DecisionStatus::Deny);
    let counts: Vec<_> = limiter.failures().map(|(rule, counts)| (rule.name(), counts)).collect();
    let open = FailureCounts { open: 3, ..FailureCounts::default() };
    assert_eq!(counts, [("gone", open), ("there", FailureCounts::default())]);
}

#[tokio::test]
async fn request_denied_by_a_store_failure_is_refunded_under_other_rules() {
    let time = ManualClock::default();
    let rules = "
rules:
  - {name: gone, limit: 9 per minute, on_store_failure: deny}
  - {name: there, per: [user], limit: 2 per minute}
  - {name: trial, per: [user], limit: 5 per minute, mode: shadow}
";
    let limiter = limiter_with_failing_keys(&time, rules, |limit| limit.capacity() == 9);
    let alice = request(&[("user", "alice")]);
    for calls in 1..5 {
        let decision = limiter.check(&alice).await;
        assert_eq!(decision.status(), DecisionStatus::Unavailable);
        assert_eq!(limiter.store().refunded.load(Ordering::Relaxed), calls);
        // The shadow rule is charged independently.
        assert_eq!(remaining(&decision), [("there", 1), ("trial", 5 - calls as u64)]);
    }
}

#[tokio::test]
async fn node_without_its_store_admits_its_share_of_the_limit() {
    let time = ManualClock::default();
    let rules = "rules: [{name: api, per: [user], limit: 8 per minute, on_store_failure: local}]";
    let limiter = limiter_with_failing_keys(&time, rules, |_| true);
    let alice = request(&[("user", "alice")]);
    let mut admitted = 0;
    while limiter.check(&alice).await.is_allowed() {
        admitted += 1;
    }
    // The second of three nodes has a share of 3 of 8; the others have 3 and 2.
    assert_eq!(admitted, 3);
    let denied = limiter.check(&alice).await;
    assert_eq!(denied.status(), DecisionStatus::Deny);
    assert_eq!(denied.strictest_rule().unwrap().outcome.retry_after(), Some(Span::from_secs(20)));
    let counts = limiter.failures().next().unwrap().1;
    assert_eq!(counts, FailureCounts { local: 5, ..FailureCounts::default() });
}
