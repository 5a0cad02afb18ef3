//! A fleet in a program that has no runtime and owns the time: what is due in the background is done when
//! somebody says so.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::rule::{Accuracy, Every, MaxAhead, Synced};
use tidegate::{
    Algorithm, Answers, Ask, Charge, Granted, Key, Keyer, Limit, Limiter, ManualClock, MemoryStore,
    Quota, Refund, Request, Rule, RuleSet, Span, Store, StoreError,
};

/// A store in memory that nodes share.
struct Shared(MemoryStore);

impl Store for Shared {
    fn keyer(&self) -> Keyer {
        self.0.keyer()
    }

    async fn charge(&self, charges: &[Charge<'_>]) -> Answers {
        self.0.charge(charges).await
    }

    fn leases(&self) -> bool {
        true
    }

    async fn ask(&self, asks: &[(Key, Arc<Limit>, Ask)]) -> Vec<Result<Granted, StoreError>> {
        self.0.ask(asks).await
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
    at_once(one.tend_fleet());
    assert_eq!(one.leased(), (0, 0));
}

#[test]
fn nodes_hear_of_each_other_when_they_are_tended_at_their_next_sync() {
    let time = ManualClock::default();
    let every = Every::new(Span::from_millis(200)).unwrap();
    let synced = Synced { every, max_ahead: MaxAhead::Unbounded };
    let [one, two] = nodes(&time, Accuracy::Synced(synced));
    assert_eq!(one.next_sync(), None);
    // The first of each asks, and then each has a limit of its own.
    let admitted = (0..60).filter(|_| passes(&one) | passes(&two)).count();
    assert_eq!(admitted, 60);
    let next = one.next_sync().unwrap();
    assert_eq!(next, time.now() + every.span());
    time.advance(every.span());
    for node in [&one, &two] {
        at_once(node.tend_fleet());
        assert!(node.next_sync().unwrap() > time.now());
    }
    // What both admitted is too much for this window, and both know.
    assert!(!passes(&one) && !passes(&two));
}
