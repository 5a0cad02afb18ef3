//! A fleet without a Tokio runtime and with a manual clock. The program runs background work by an explicit call.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::error::StoreError;
use tidegate::rules::{Accuracy, MaxAhead, SyncInterval, SyncSettings};
use tidegate::store::{
    Charge, ChargeMode, ChargeResults, Key, Keyer, LeaseGrant, LeaseRequest, Refund, Store,
};
use tidegate::{
    Algorithm, Limit, Limiter, ManualClock, MemoryStore, Quota, Request, Rule, RuleSet, Span,
};

/// A memory store that several nodes share.
struct SharedMemoryStore(MemoryStore);

impl Store for SharedMemoryStore {
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

    async fn reset(&self, key: Key) -> Result<(), StoreError> {
        self.0.reset(key).await
    }
}

fn poll_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the future is pending"),
    }
}

fn start_nodes<const N: usize>(
    time: &ManualClock,
    accuracy: Accuracy,
) -> [Limiter<SharedMemoryStore>; N] {
    let rule = Rule::new("api", Algorithm::FixedWindow, Quota::per_second(60)).unwrap();
    let rules = RuleSet::new(vec![rule.with_accuracy(accuracy).unwrap()]).unwrap();
    let store = Arc::new(SharedMemoryStore(MemoryStore::new(time.clock())));
    std::array::from_fn(|_| {
        let builder = Limiter::builder().rules(rules.clone()).clock(time.clock());
        builder.store(Arc::clone(&store)).build()
    })
}

/// Returns a limiter with a leased rule for all clients, and a stricter rule per user that denies most requests.
fn limiter_with_two_rules(time: &ManualClock) -> Limiter<SharedMemoryStore> {
    let rules = "rules:
      - {name: all, limit: 20000 per 10 days, algorithm: fixed_window, accuracy: leased}
      - {name: each, per: [user], limit: 5 per 10 days, algorithm: fixed_window}";
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    let store = Arc::new(SharedMemoryStore(MemoryStore::new(time.clock())));
    Limiter::builder().rules(rules).clock(time.clock()).store(store).build()
}

fn remaining_of_all(node: &Limiter<SharedMemoryStore>) -> u64 {
    let peeked = poll_ready(node.peek(&Request::new().with("user", "bob").unwrap()));
    let all =
        peeked.rule_outcomes().iter().find(|rule_outcome| &*rule_outcome.rule == "all").unwrap();
    all.outcome.remaining
}

fn is_admitted(node: &Limiter<SharedMemoryStore>) -> bool {
    poll_ready(node.check(&Request::new())).is_allowed()
}

#[test]
fn busy_client_of_a_leased_rule_gets_its_limit_in_every_window() {
    let time = ManualClock::default();
    let [one, two] = start_nodes(&time, Accuracy::Leased);
    for second in 0..5 {
        let mut admitted = 0;
        for _ in 0..100 {
            admitted += u32::from(is_admitted(&one)) + u32::from(is_admitted(&two));
            time.advance(Span::from_millis(10));
        }
        assert!((54..=60).contains(&admitted), "{second}: {admitted}");
    }
}

#[test]
fn background_run_releases_leases_of_idle_clients() {
    let time = ManualClock::default();
    let [one] = start_nodes(&time, Accuracy::Leased);
    for _ in 0..20 {
        assert!(is_admitted(&one));
        time.advance(Span::from_millis(5));
    }
    assert!(one.leased().1 > 0);
    time.advance(Span::from_millis(600));
    poll_ready(one.run_background_once());
    assert_eq!(one.leased(), (0, 0));
}

#[test]
fn denied_requests_consume_almost_nothing_of_a_shared_leased_limit() {
    // With background runs, and without any.
    for runs_background in [true, false] {
        let time = ManualClock::default();
        let node = limiter_with_two_rules(&time);
        let (mut admitted, mut checked, mut min_remaining) = (0, 0, u64::MAX);
        // Bursts for 34 seconds. The pauses are too short to make the client idle; leases end during them.
        for burst in 0..79 {
            for _ in 0..247 {
                let decision =
                    poll_ready(node.check(&Request::new().with("user", "alice").unwrap()));
                admitted += u64::from(decision.is_allowed());
                checked += 1;
            }
            for _ in 0..2 {
                time.advance(Span::from_millis(215));
                if runs_background {
                    poll_ready(node.run_background_once());
                }
            }
            if burst % 10 == 9 {
                min_remaining = min_remaining.min(remaining_of_all(&node));
            }
        }
        time.advance(Span::from_secs(10));
        let remaining = remaining_of_all(&node);
        assert_eq!(admitted, 5);
        assert!(
            remaining >= 19_900,
            "{remaining} of 20000 left after {checked} requests, background runs: {runs_background}"
        );
        assert!(
            min_remaining >= 19_900,
            "{min_remaining} of 20000 left at some time, background runs: {runs_background}"
        );
    }
}

#[test]
fn unused_leased_tokens_are_returned_when_a_client_slows_down() {
    for millis in [250, 1_000] {
        let time = ManualClock::default();
        let node = limiter_with_two_rules(&time);
        let check = |user: u64| {
            let user = user.to_string();
            let request = Request::new().with("user", user.as_str()).unwrap();
            u64::from(poll_ready(node.check(&request)).is_allowed())
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
                poll_ready(node.run_background_once());
            }
            admitted += check(number / 5);
        }
        time.advance(Span::from_secs(10));
        assert_eq!(remaining_of_all(&node) + admitted, 20_000, "one check in {millis} ms");
    }
}

/// Waits until no lease is held. Only the sweeper releases leases of idle clients.
#[allow(clippy::disallowed_methods, reason = "a sweep gives no event to wait for")]
async fn wait_until_swept(node: &Limiter<SharedMemoryStore>) -> bool {
    let deadline = tokio::time::Instant::now() + tidegate_testkit::WAIT_TIMEOUT;
    while node.leased() != (0, 0) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    node.leased() == (0, 0)
}

#[test]
fn leases_are_swept_by_the_first_runtime_and_by_its_successor() {
    let time = ManualClock::default();
    let node = limiter_with_two_rules(&time);
    // The first lease request is sent without a runtime.
    assert!(poll_ready(node.check(&Request::new())).is_allowed());
    for user in ["alice", "bob"] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for _ in 0..20 {
                node.check(&Request::new().with("user", user).unwrap()).await;
                time.advance(Span::from_millis(5));
            }
            assert!(node.leased().1 > 0);
            // The client is idle, and its lease has not expired.
            time.advance(Span::from_millis(600));
            assert!(wait_until_swept(&node).await, "the lease was not released");
        });
        time.advance(Span::SECOND);
    }
}

#[test]
fn background_runs_sync_usage_between_nodes_when_due() {
    let time = ManualClock::default();
    let interval = SyncInterval::new(Span::from_millis(200)).unwrap();
    let settings = SyncSettings { every: interval, max_ahead: MaxAhead::Unbounded };
    let [one, two] = start_nodes(&time, Accuracy::Synced(settings));
    assert_eq!(one.next_sync_at(), None);
    // The first check of each node goes to the store. Afterwards each node admits up to the limit alone.
    let admitted = (0..60).filter(|_| is_admitted(&one) | is_admitted(&two)).count();
    assert_eq!(admitted, 60);
    let next = one.next_sync_at().unwrap();
    assert_eq!(next, time.now() + interval.span());
    time.advance(interval.span());
    for node in [&one, &two] {
        poll_ready(node.run_background_once());
        assert!(node.next_sync_at().unwrap() > time.now());
    }
    // Together both nodes have exceeded the limit, and both have received that at the sync.
    assert!(!is_admitted(&one) && !is_admitted(&two));
}
