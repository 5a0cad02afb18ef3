//! A bucket in thread shares has the same outcomes as an undivided bucket.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, LeaseId, LeaseRequest, Outcome, Quota};

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::store::memory::MemoryStore;
use crate::store::{Charge, ChargeMode, Refund};

const KEY: Key = Key::from_u128(7 << 64 | 7);
const OTHER: Key = Key::from_u128(8 << 64 | 8);

fn limit(quota: Quota) -> Arc<Limit> {
    Arc::new(Limit::new(Algorithm::TokenBucket, quota).unwrap())
}

fn charge(key: Key, limit: &Arc<Limit>, cost: u64) -> Charge<'_> {
    Charge { key, overflow_key: Key::from_u128(0), limit, cost, independent: false }
}

impl MemoryStore {
    /// Divides the bucket of a charged key, as after contention between threads.
    fn make_hot(&self, key: Key, limit: &Arc<Limit>) {
        let mut shard = self.shards[self.shard_index(key)].0.lock();
        self.hot.insert(&mut shard, &self.shared, (key, limit), self.clock.now());
    }

    fn is_hot(&self, key: Key) -> bool {
        let moved_out = self.shards[self.shard_index(key)].0.lock().is_moved_out(key);
        assert!(!moved_out || self.hot.may_contain(key));
        moved_out
    }

    fn charge_as(&self, share: usize, limit: &Arc<Limit>, cost: u64) -> Outcome {
        self.charge_hot(&charge(KEY, limit, cost), self.clock.now(), share)
    }
}

/// Returns a store with one hot key, of which 1 is spent.
fn hot_store(quota: Quota) -> (ManualClock, MemoryStore, Arc<Limit>) {
    let time = ManualClock::default();
    let store = MemoryStore::with_max_keys(1_000, time.clock());
    let limit = limit(quota);
    assert!(store.charge_one(&charge(KEY, &limit, 1), time.now()).is_allowed());
    store.make_hot(KEY, &limit);
    assert!(store.is_hot(KEY));
    (time, store, limit)
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Charge { share: usize, cost: u64, changed: bool },
    Both(u64),
    RefundLatest(u64),
    LeaseRequest(u64),
    Reset,
    Sweep,
    MakeHot,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let charge = |share: std::ops::Range<usize>, cost: std::ops::Range<u64>| {
        (share, cost).prop_map(|(share, cost)| Step::Charge { share, cost, changed: false })
    };
    let step = prop_oneof![
        8 => prop_oneof![0u64..10, 0u64..2_000, 0u64..300_000, 0u64..20_000_000].prop_map(Step::Wait),
        40 => charge(0..3, 1..4),
        5 => charge(0..40, 0..60),
        1 => (0..3usize).prop_map(|share| Step::Charge { share, cost: 1, changed: true }),
        1 => (0u64..4).prop_map(Step::Both),
        1 => (1u64..9).prop_map(Step::RefundLatest),
        1 => (0u64..4).prop_map(Step::LeaseRequest),
        1 => Just(Step::Reset),
        1 => Just(Step::Sweep),
        8 => Just(Step::MakeHot),
    ];
    proptest::collection::vec(step, 1..300)
}

fn quotas() -> impl Strategy<Value = Quota> {
    let amount = prop_oneof![1u64..20, 1u64..1_000, Just(1_000_000)];
    let window = prop_oneof![Just(Span::from_millis(7)), Just(Span::SECOND), Just(Span::MINUTE)];
    (amount, window, proptest::option::of(1u64..60)).prop_map(|(amount, window, burst)| {
        let quota = Quota::per(amount, window);
        burst.map_or(quota, |burst| quota.burst(burst))
    })
}

proptest! {
    #[test]
    fn verdicts_equal_those_of_an_undivided_bucket(quota in quotas(), steps in steps()) {
        let time = ManualClock::default();
        let divided = MemoryStore::with_max_keys(1_000, time.clock());
        let plain = MemoryStore::with_max_keys(1_000, time.clock());
        let (usual, changed) = (limit(quota), limit(Quota::per_second(10).burst(15)));
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Wait(micros) => time.advance(Span::from_micros(micros)),
                Step::Charge { share, cost, changed: is_changed } => {
                    let limit = if is_changed { &changed } else { &usual };
                    let outcome = divided.charge_as(share, limit, cost);
                    let expected = plain.charge_one(&charge(KEY, limit, cost), time.now());
                    if outcome.refund_token().is_some() && expected.refund_token().is_some() {
                        // The outcome may omit what other shares have spent.
                        prop_assert!(outcome.remaining >= expected.remaining);
                        prop_assert!(outcome.reset_after <= expected.reset_after);
                    } else {
                        prop_assert_eq!(outcome, expected);
                    }
                }
                Step::Both(cost) => {
                    let charges = [charge(KEY, &usual, cost), charge(OTHER, &usual, cost)];
                    let mode = ChargeMode::of_cost(cost);
                    prop_assert_eq!(divided.charge_all(&charges, mode), plain.charge_all(&charges, mode));
                }
                Step::RefundLatest(cost) => {
                    let refund = Refund { key: KEY, limit: Arc::clone(&usual), cost, refund_token: None };
                    prop_assert_eq!(divided.refund_one(&refund), plain.refund_one(&refund));
                }
                Step::LeaseRequest(cost) => {
                    let id = LeaseId { node: 1, number: number as u32 };
                    let ttl = Span::from_millis(50);
                    let request =
                        LeaseRequest { cost, requested: 2, id, unreported: SmallVec::new(), reports: SmallVec::new(), ttl, fleet_size: 1 };
                    let lease = |store: &MemoryStore| store.lease_one(KEY, &usual, &request).unwrap();
                    prop_assert_eq!(lease(&divided), lease(&plain));
                }
                Step::Reset => {
                    divided.reset_one(KEY);
                    plain.reset_one(KEY);
                }
                Step::Sweep => {
                    prop_assert_eq!(divided.sweep(divided.shards()), plain.sweep(plain.shards()));
                }
                Step::MakeHot => divided.make_hot(KEY, &usual),
            }
            prop_assert_eq!(divided.usage().keys, plain.usage().keys);
        }
    }

    #[test]
    fn refunds_to_a_hot_key_never_exceed_the_charges(
        quota in quotas(),
        charges in proptest::collection::vec((0..3usize, 0u64..40_000, 1u64..4, any::<bool>()), 1..60),
        wait in 0u64..100_000,
    ) {
        let (time, store, limit) = hot_store(quota);
        // A bucket with only the charges that are not refunded later.
        let kept = MemoryStore::with_max_keys(1_000, time.clock());
        kept.charge_one(&charge(KEY, &limit, 1), time.now());
        let mut refunds = Vec::new();
        for (share, wait, cost, refunded) in charges {
            time.advance(Span::from_micros(wait));
            let outcome = store.charge_as(share, &limit, cost);
            let Some(refund_token) = outcome.refund_token() else { continue };
            if refunded {
                let limit = Arc::clone(&limit);
                refunds.push(Refund { key: KEY, limit, cost, refund_token: Some(refund_token) });
            } else {
                prop_assert!(kept.charge_one(&charge(KEY, &limit, cost), time.now()).is_allowed());
            }
        }
        for refund in refunds {
            time.advance(Span::from_micros(wait));
            store.refund_one(&refund);
            let left = |store: &MemoryStore| {
                store.charge_one(&charge(KEY, &limit, 0), time.now()).remaining
            };
            prop_assert!(left(&store) <= left(&kept));
        }
    }
}

#[test]
fn charge_of_a_thread_share_can_be_refunded() {
    let (_, store, limit) = hot_store(Quota::per_minute(100));
    store.charge_as(1, &limit, 10);
    let refund_token = store.charge_as(0, &limit, 20).refund_token();
    store.charge_as(1, &limit, 30);
    assert!(refund_token.is_some() && store.is_hot(KEY));
    let refund = Refund { key: KEY, limit: Arc::clone(&limit), cost: 20, refund_token };
    assert!(store.refund_one(&refund));
    assert_eq!(store.charge_as(0, &limit, 0).remaining, 100 - 1 - 10 - 30);
}

#[test]
fn unspent_tokens_of_a_thread_share_are_available_to_other_threads() {
    let (_, store, limit) = hot_store(Quota::per_minute(1_000));
    let admitted = |count: usize| (0..count).filter(|_| admits_one(&store, &limit)).count();
    let mut total = 1;
    for _ in 0..20 {
        total += std::thread::scope(|scope| scope.spawn(|| admitted(7)).join().unwrap());
    }
    assert!(store.is_hot(KEY));
    assert_eq!(total + admitted(2_000), 1_000);
}

fn admits_one(store: &MemoryStore, limit: &Arc<Limit>) -> bool {
    store.charge_one(&charge(KEY, limit, 1), store.clock.now()).is_allowed()
}

/// Charges one key from several threads until `work` returns. Returns the number of admissions.
fn charge_from_threads(
    store: &MemoryStore,
    limit: &Arc<Limit>,
    threads: usize,
    work: impl FnOnce(&AtomicU64),
) -> u64 {
    let (stop, admitted, denied) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let count = if admits_one(store, limit) { &admitted } else { &denied };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        work(&denied);
        stop.store(true, Ordering::Relaxed);
    });
    admitted.into_inner()
}

#[test]
fn threads_on_a_hot_key_admit_exactly_the_limit_while_time_advances() {
    const BURST: u64 = 500;
    let (time, store, limit) = hot_store(Quota::per_second(1_000).burst(BURST));
    let mut passed = 0;
    let admitted = charge_from_threads(&store, &limit, 4, |denied| {
        for step in 0..400 {
            // A thread was denied, so the bucket is empty and no refill is lost.
            let before = denied.load(Ordering::Relaxed);
            while denied.load(Ordering::Relaxed) <= before + 4 {
                std::thread::yield_now();
            }
            match step % 8 {
                0 => assert_eq!(store.sweep(store.shards()), 0),
                1 => drop(store.charge_all(
                    &[charge(KEY, &limit, 0), charge(OTHER, &limit, 0)],
                    ChargeMode::Peek,
                )),
                2 => assert_eq!(store.usage().keys, 1),
                _ => store.make_hot(KEY, &limit),
            }
            let millis = 1 + step * 37 % 300;
            time.advance(Span::from_millis(millis));
            passed += millis;
        }
    });
    let rest = (0..1_000).filter(|_| admits_one(&store, &limit)).count() as u64;
    assert_eq!(1 + admitted + rest, BURST + passed);
}

#[test]
fn threads_that_spend_slower_than_a_hot_key_refills_are_never_denied() {
    let (time, store, limit) = hot_store(Quota::per_second(1_000_000));
    // Less than a hundredth of the burst is spent between two steps, at any speed of the threads.
    let threads = 3;
    let spent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    assert!(admits_one(&store, &limit));
                    if spent.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) {
                        time.advance(Span::from_millis(1));
                        store.make_hot(KEY, &limit);
                    }
                }
            });
        }
    });
    time.advance(Span::SECOND);
    assert_eq!(store.charge_one(&charge(KEY, &limit, 0), time.now()).remaining, 1_000_000);
}

#[test]
fn threads_on_a_hot_key_stay_within_the_bound_under_the_system_clock() {
    let clock = Clock::system();
    let store = MemoryStore::with_max_keys(1_000, clock.clone());
    let limit = limit(Quota::per_second(100_000).burst(1_000));
    let start = clock.now();
    admits_one(&store, &limit);
    let admitted = charge_from_threads(&store, &limit, 3, |denied| {
        while denied.load(Ordering::Relaxed) < 50_000 {
            store.make_hot(KEY, &limit);
            std::thread::yield_now();
        }
    });
    let passed = clock.now().since(start).as_micros();
    let admitted = admitted + 1;
    assert!(admitted <= 1_000 + passed / 10, "{admitted} in {passed} us");
}

#[test]
fn key_becomes_hot_after_enough_waits_within_the_window() {
    let time = ManualClock::default();
    let store = MemoryStore::with_max_keys(1_000, time.clock());
    let limit = limit(Quota::per_minute(1_000));
    let wait = || {
        let shard_index = store.shard_index(KEY);
        store.charge_contended(shard_index, &charge(KEY, &limit, 1), time.now());
    };
    for _ in 0..2 * HOT_AFTER_WAITS {
        wait();
        time.advance(HOT_WINDOW);
    }
    assert!(!store.is_hot(KEY));
    time.advance(HOT_WINDOW);
    (0..HOT_AFTER_WAITS).for_each(|_| wait());
    assert!(store.is_hot(KEY));
}

#[test]
fn key_used_by_one_thread_cools_down_at_the_end_of_the_window() {
    let (time, store, limit) = hot_store(Quota::per_minute(1_000));
    for (shares, is_hot) in [(2, true), (2, true), (1, true), (1, false)] {
        (0..10)
            .for_each(|number| assert!(store.charge_as(number % shares, &limit, 1).is_allowed()));
        assert_eq!(store.is_hot(KEY), is_hot);
        time.advance(Span::from_millis(100));
    }
}

#[test]
fn idle_hot_key_is_evicted_for_another_key() {
    let (time, store, limit) = hot_store(Quota::per_second(1_000));
    store.charge_as(0, &limit, 1);
    // The same place as that of the first key.
    let next = Key::from_u128(KEY.as_u128() + MAX_HOT_KEYS as u128);
    let wait = || {
        let shard_index = store.shard_index(next);
        (0..HOT_AFTER_WAITS).for_each(|_| {
            store.charge_contended(shard_index, &charge(next, &limit, 1), time.now());
        });
    };
    wait();
    assert!(store.is_hot(KEY) && !store.is_hot(next));
    time.advance(Span::from_secs(2));
    wait();
    assert!(!store.is_hot(KEY) && store.is_hot(next));
    assert_eq!(store.hot.keys().collect::<Vec<_>>(), [next]);
}

#[test]
fn new_keys_do_not_evict_a_hot_key() {
    let (time, store, limit) = hot_store(Quota::per_minute(100));
    store.charge_as(0, &limit, 39);
    // All in the same shard, and more than its capacity.
    for number in 0..1_000 {
        store.charge_one(&charge(Key::from_u128(number << 50), &limit, 1), time.now());
    }
    assert!(store.usage().overflowed > 0 && store.is_hot(KEY));
    assert_eq!(store.charge_as(1, &limit, 0).remaining, 60);
}

#[test]
fn expired_hot_key_is_removed_for_a_new_key() {
    let time = ManualClock::default();
    let store = MemoryStore::with_max_keys(1, time.clock());
    let limit = limit(Quota::per_second(10));
    store.charge_one(&charge(KEY, &limit, 1), time.now());
    store.make_hot(KEY, &limit);
    store.charge_one(&charge(OTHER, &limit, 1), time.now());
    assert_eq!(store.usage().overflowed, 1);
    time.advance(Span::from_secs(1));
    store.charge_as(0, &limit, 0);
    assert!(!store.is_hot(KEY));
    store.charge_one(&charge(OTHER, &limit, 1), time.now());
    assert_eq!(store.usage().overflowed, 1);
}

#[test]
fn sweep_and_reset_cool_a_hot_key_down() {
    let (time, store, limit) = hot_store(Quota::per_minute(60));
    store.charge_as(0, &limit, 9);
    assert_eq!((store.sweep(store.shards()), store.usage().keys), (0, 1));
    store.make_hot(KEY, &limit);
    store.charge_as(0, &limit, 20);
    time.advance(Span::from_secs(31));
    assert_eq!((store.sweep(store.shards()), store.usage().keys), (1, 0));
    store.charge_as(0, &limit, 50);
    store.make_hot(KEY, &limit);
    store.reset_one(KEY);
    assert!(!store.is_hot(KEY));
    assert_eq!(store.charge_as(0, &limit, 0).remaining, 60);
}

#[test]
fn equal_limits_at_different_addresses_charge_the_same_bucket() {
    let (_, store, one) = hot_store(Quota::per_minute(100));
    let two = limit(Quota::per_minute(100));
    for number in 1..100 {
        let limit = if number % 3 == 0 { &one } else { &two };
        assert!(store.charge_as(number % 2, limit, 1).is_allowed());
    }
    assert!(store.is_hot(KEY));
    assert!(!store.charge_as(0, &one, 1).is_allowed() && !store.charge_as(1, &two, 1).is_allowed());
}

#[test]
fn hot_key_is_charged_in_the_exact_form_beyond_the_reach_of_the_compact_form() {
    let (time, store, limit) = hot_store(Quota::per_minute(100));
    let late = time.now() + flat_bucket(&limit).unwrap().reach() + Span::SECOND;
    for left in (0..100).rev() {
        let outcome = store.charge_hot(&charge(KEY, &limit, 1), late, 0);
        assert!(outcome.is_allowed());
        assert_eq!(outcome.remaining, left);
    }
    assert!(!store.charge_hot(&charge(KEY, &limit, 1), late, 1).is_allowed());
}
