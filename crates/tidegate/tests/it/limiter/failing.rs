//! What rules say when a store fails, in whole or in part.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{
    AcquireError, Charge, ChargeMode, ChargeResult, ChargeResults, DecisionStatus, FailureCounts,
    Key, Keyer, Limit, Limiter, ManualClock, MemoryStore, Refund, Request, RuleSet, Share, Span,
    Store, StoreError,
};

use super::{left, request};

/// A store that never answers in time, and counts how often it was asked.
#[derive(Default)]
pub(crate) struct Failing {
    asked: AtomicUsize,
}

impl Failing {
    fn error() -> StoreError {
        StoreError::Timeout { store: "test store".into(), after: Duration::from_millis(10) }
    }
}

impl Store for Failing {
    fn keyer(&self) -> Keyer {
        Keyer::Fleet { secret: [0; 32] }
    }

    async fn charge(&self, charges: &[Charge<'_>], _: ChargeMode) -> ChargeResults {
        self.asked.fetch_add(1, Ordering::Relaxed);
        charges.iter().map(|_| ChargeResult::Failed(Self::error())).collect()
    }

    async fn refund(&self, _: &[Refund]) -> Result<usize, StoreError> {
        Err(Self::error())
    }

    fn refund_detached(self: &Arc<Self>, _: Vec<Refund>) {}

    async fn forget(&self, _: Key) -> Result<(), StoreError> {
        Err(Self::error())
    }
}

#[tokio::test]
async fn each_rule_says_what_a_failing_store_means_and_nothing_is_retried() {
    let store = Arc::new(Failing::default());
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
    assert_eq!(store.asked.load(Ordering::Relaxed), 2);
    let error = limiter.acquire(&request(&[("path", "/closed")])).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)));
    let error = limiter.forget("open", &Request::new()).await.unwrap_err().to_string();
    assert_eq!(error, "test store: no reply within 10ms");
}

/// A store where some keys answer and others fail, as when one of several servers is away.
pub(crate) struct Partly {
    memory: MemoryStore,
    pub(crate) refunded: AtomicUsize,
    failing: fn(&Limit) -> bool,
}

impl Store for Partly {
    fn keyer(&self) -> Keyer {
        self.memory.keyer()
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        let there: Vec<Charge<'_>> =
            charges.iter().filter(|charge| !(self.failing)(charge.limit)).cloned().collect();
        let mut outcomes = self.memory.charge_all(&there, mode).into_iter();
        let answer = |charge: &Charge<'_>| match (self.failing)(charge.limit) {
            true => ChargeResult::Failed(Failing::error()),
            false => ChargeResult::Outcome(outcomes.next().unwrap()),
        };
        charges.iter().map(answer).collect()
    }

    fn share(&self) -> Share {
        Share { index: 1, of: 3 }
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.memory.refund(refunds).await
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        let given = refunds.iter().filter(|refund| self.memory.refund_one(refund)).count();
        self.refunded.fetch_add(given, Ordering::Relaxed);
    }

    async fn forget(&self, _: Key) -> Result<(), StoreError> {
        Err(Failing::error())
    }
}

pub(crate) fn partly(
    time: &ManualClock,
    rules: &str,
    failing: fn(&Limit) -> bool,
) -> Limiter<Partly> {
    let memory = MemoryStore::new(time.clock());
    let store = Arc::new(Partly { memory, refunded: AtomicUsize::new(0), failing });
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    Limiter::builder().rules(rules).clock(time.clock()).store(store).build()
}

#[tokio::test]
async fn a_rule_that_can_be_asked_is_enforced_while_another_fails_open() {
    let time = ManualClock::default();
    let rules = "
rules:
  - {name: gone, limit: 9 per minute}
  - {name: there, per: [user], limit: 2 per minute}
";
    let limiter = partly(&time, rules, |limit| limit.capacity() == 9);
    let alice = request(&[("user", "alice")]);
    let first = limiter.check(&alice).await;
    assert_eq!((first.status(), left(&first)), (DecisionStatus::Allow, vec![("there", 1)]));
    assert_eq!(first.undecided().len(), 1);
    assert!(limiter.check(&alice).await.is_allowed());
    assert_eq!(limiter.check(&alice).await.status(), DecisionStatus::Deny);
    let counts: Vec<_> = limiter.failures().map(|(rule, counts)| (rule.name(), counts)).collect();
    let open = FailureCounts { open: 3, ..FailureCounts::default() };
    assert_eq!(counts, [("gone", open), ("there", FailureCounts::default())]);
}

#[tokio::test]
async fn what_is_refused_for_want_of_a_store_is_given_back_elsewhere() {
    let time = ManualClock::default();
    let rules = "
rules:
  - {name: gone, limit: 9 per minute, on_store_failure: deny}
  - {name: there, per: [user], limit: 2 per minute}
  - {name: trial, per: [user], limit: 5 per minute, mode: shadow}
";
    let limiter = partly(&time, rules, |limit| limit.capacity() == 9);
    let alice = request(&[("user", "alice")]);
    for asked in 1..5 {
        let decision = limiter.check(&alice).await;
        assert_eq!(decision.status(), DecisionStatus::Unavailable);
        assert_eq!(limiter.store().refunded.load(Ordering::Relaxed), asked);
        // The trial counts as if it were alone.
        assert_eq!(left(&decision), [("there", 1), ("trial", 5 - asked as u64)]);
    }
}

#[tokio::test]
async fn on_its_own_a_node_admits_its_share_of_the_limit() {
    let time = ManualClock::default();
    let rules = "rules: [{name: api, per: [user], limit: 8 per minute, on_store_failure: local}]";
    let limiter = partly(&time, rules, |_| true);
    let alice = request(&[("user", "alice")]);
    let mut admitted = 0;
    while limiter.check(&alice).await.is_allowed() {
        admitted += 1;
    }
    // The second of three nodes has 3 of 8; the others have 3 and 2.
    assert_eq!(admitted, 3);
    let denied = limiter.check(&alice).await;
    assert_eq!(denied.status(), DecisionStatus::Deny);
    assert_eq!(denied.strictest_rule().unwrap().outcome.retry_after(), Some(Span::from_secs(20)));
    let counts = limiter.failures().next().unwrap().1;
    assert_eq!(counts, FailureCounts { local: 5, ..FailureCounts::default() });
}
