//! A fleet in a program that has no runtime and owns the time: what is due in the background is done when
//! somebody says so.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::rule::{Accuracy, MaxAhead, SyncInterval, SyncSettings};
use tidegate::{
    Algorithm, Charge, ChargeMode, ChargeResults, Key, Keyer, LeaseGrant, LeaseRequest, Limit,
    Limiter, ManualClock, MemoryStore, Quota, Refund, Request, Rule, RuleSet, Span, Store,
    StoreError,
};

/// A store in memory that nodes share.
struct Shared(MemoryStore);

impl Store for Shared {
    fn keyer(&self) -> Keyer {
        self.0.keyer()
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        self.0.charge(charges, mode).await
    }

    fn supports_leases(&self) -> bool {
        true
    }

    async fn lease(
        &self,
        requests: &[(Key, Arc<Limit>, LeaseRequest)],
    ) -> Vec<Result<LeaseGrant, StoreError>> {
        self.0.lease(requests).await
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.0.refund(refunds).await
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        for refund in &refunds {
            self.0.refund_one(refund);
        }
    }

    async fn forget(&self, key: Key) -> Result<(), StoreError> {
        self.0.forget(key).await
    }
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits for somebody"),
    }
}

fn nodes<const N: usize>(time: &ManualClock, accuracy: Accuracy) -> [Limiter<Shared>; N] {
    let rule = Rule::new("api", Algorithm::FixedWindow, Quota::per_second(60)).unwrap();
    let rules = RuleSet::new(vec![rule.with_accuracy(accuracy).unwrap()]).unwrap();
    let store = Arc::new(Shared(MemoryStore::new(time.clock())));
    std::array::from_fn(|_| {
        let builder = Limiter::builder().rules(rules.clone()).clock(time.clock());
        builder.store(Arc::clone(&store)).build()
    })
}

/// A leased rule that all share, beside a stricter one that denies nearly everything.
fn stacked(time: &ManualClock) -> Limiter<Shared> {
    let rules = "rules:
      - {name: all, limit: 20000 per 10 days, algorithm: fixed_window, accuracy: leased}
      - {name: each, per: [user], limit: 5 per 10 days, algorithm: fixed_window}";
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    let store = Arc::new(Shared(MemoryStore::new(time.clock())));
    Limiter::builder().rules(rules).clock(time.clock()).store(store).build()
}

fn left_of_all(node: &Limiter<Shared>) -> u64 {
    let look = at_once(node.peek(&Request::new().with("user", "bob").unwrap()));
    let all = look.rule_outcomes().iter().find(|policy| &*policy.rule == "all").unwrap();
    all.outcome.remaining
}

fn passes(node: &Limiter<Shared>) -> bool {
    at_once(node.check(&Request::new())).is_allowed()
}

#[test]
fn a_busy_client_of_a_leased_rule_gets_its_limit_in_every_window() {
    let time = ManualClock::default();
    let [one, two] = nodes(&time, Accuracy::Leased);
    for second in 0..5 {
        let mut admitted = 0;
        for _ in 0..100 {
            admitted += u32::from(passes(&one)) + u32::from(passes(&two));
            time.advance(Span::from_millis(10));
        }
        assert!((54..=60).contains(&admitted), "{second}: {admitted}");
    }
}

#[test]
fn what_is_held_for_a_client_that_has_gone_is_given_back_when_it_is_tended() {
    let time = ManualClock::default();
    let [one] = nodes(&time, Accuracy::Leased);
    for _ in 0..20 {
        assert!(passes(&one));
        time.advance(Span::from_millis(5));
    }
    assert!(one.leased().1 > 0);
    time.advance(Span::from_millis(600));
    at_once(one.run_background_once());
    assert_eq!(one.leased(), (0, 0));
}

#[test]
fn denied_requests_leave_a_leased_limit_of_all_clients_nearly_untouched() {
    // With a sweeper, and without one.
    for tends in [true, false] {
        let time = ManualClock::default();
        let node = stacked(&time);
        let (mut admitted, mut checked, mut least) = (0, 0, u64::MAX);
        // Bursts whose pauses are too short for an idle client, for 34 seconds: leases end between two.
        for burst in 0..79 {
            for _ in 0..247 {
                let decision = at_once(node.check(&Request::new().with("user", "alice").unwrap()));
                admitted += u64::from(decision.is_allowed());
                checked += 1;
            }
            for _ in 0..2 {
                time.advance(Span::from_millis(215));
                if tends {
                    at_once(node.run_background_once());
                }
            }
            if burst % 10 == 9 {
                least = least.min(left_of_all(&node));
            }
        }
        time.advance(Span::from_secs(10));
        let left = left_of_all(&node);
        assert_eq!(admitted, 5);
        assert!(left >= 19_900, "{left} of 20000 left after {checked} requests, tended: {tends}");
        assert!(least >= 19_900, "{least} of 20000 left at some time, tended: {tends}");
    }
}

#[test]
fn a_client_that_slows_down_keeps_what_it_does_not_use() {
    for millis in [250, 1_000] {
        let time = ManualClock::default();
        let node = stacked(&time);
        let check = |user: u64| {
            let user = user.to_string();
            let request = Request::new().with("user", user.as_str()).unwrap();
            u64::from(at_once(node.check(&request)).is_allowed())
        };
        let mut admitted = 0;
        for number in 0..1_000 {
            admitted += check(number / 5);
            time.advance(Span::from_millis(2));
        }
        assert!(node.leased().1 > 100);
        for number in 1_000..1_020 {
            for _ in 0..millis / 250 {
                time.advance(Span::from_millis(250));
                at_once(node.run_background_once());
            }
            admitted += check(number / 5);
        }
        time.advance(Span::from_secs(10));
        assert_eq!(left_of_all(&node) + admitted, 20_000, "one check in {millis} ms");
    }
}

/// Waits until nothing is leased: only a sweeper gives back what a client leaves behind.
#[allow(clippy::disallowed_methods, reason = "a sweep gives no event to wait for")]
async fn is_swept(node: &Limiter<Shared>) -> bool {
    let patience = tokio::time::Instant::now() + tidegate_testkit::WAIT_TIMEOUT;
    while node.leased() != (0, 0) && tokio::time::Instant::now() < patience {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    node.leased() == (0, 0)
}

#[test]
fn leases_are_swept_by_the_first_runtime_that_there_is_and_by_the_next() {
    let time = ManualClock::default();
    let node = stacked(&time);
    // The first question is asked without a runtime.
    assert!(at_once(node.check(&Request::new())).is_allowed());
    for user in ["alice", "bob"] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for _ in 0..20 {
                node.check(&Request::new().with("user", user).unwrap()).await;
                time.advance(Span::from_millis(5));
            }
            assert!(node.leased().1 > 0);
            // Idle, and its lease lasts.
            time.advance(Span::from_millis(600));
            assert!(is_swept(&node).await, "nothing is given back");
        });
        time.advance(Span::SECOND);
    }
}

#[test]
fn nodes_hear_of_each_other_when_they_are_tended_at_their_next_sync() {
    let time = ManualClock::default();
    let every = SyncInterval::new(Span::from_millis(200)).unwrap();
    let synced = SyncSettings { every, max_ahead: MaxAhead::Unbounded };
    let [one, two] = nodes(&time, Accuracy::Synced(synced));
    assert_eq!(one.next_sync_at(), None);
    // The first of each asks, and then each has a limit of its own.
    let admitted = (0..60).filter(|_| passes(&one) | passes(&two)).count();
    assert_eq!(admitted, 60);
    let next = one.next_sync_at().unwrap();
    assert_eq!(next, time.now() + every.span());
    time.advance(every.span());
    for node in [&one, &two] {
        at_once(node.run_background_once());
        assert!(node.next_sync_at().unwrap() > time.now());
    }
    // What both admitted is too much for this window, and both know.
    assert!(!passes(&one) && !passes(&two));
}
