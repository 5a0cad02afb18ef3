//! A store whose bucket is in purses says what a store without them would say.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, LeaseId, LeaseRequest, Outcome, Quota};

use super::super::MemoryStore;
use super::*;
use crate::clock::{Clock, ManualClock};
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
    /// Splits the bucket of a key that was charged, as threads that fight over it would.
    fn heat(&self, key: Key, limit: &Arc<Limit>) {
        let mut shard = self.shards[self.place(key)].0.lock();
        self.hot.put(&mut shard, &self.common, (key, limit), self.clock.now());
    }

    fn is_hot(&self, key: Key) -> bool {
        let lent = self.shards[self.place(key)].0.lock().has_lent(key);
        assert!(!lent || self.hot.may_have(key));
        lent
    }

    fn ask_as(&self, purse: usize, limit: &Arc<Limit>, cost: u64) -> Outcome {
        self.charge_hot(&charge(KEY, limit, cost), self.clock.now(), purse)
    }
}

/// A store with one hot key, of which nothing is spent but 1.
fn hot_store(quota: Quota) -> (ManualClock, MemoryStore, Arc<Limit>) {
    let time = ManualClock::default();
    let store = MemoryStore::with_max_keys(1_000, time.clock());
    let limit = limit(quota);
    assert!(store.charge_one(&charge(KEY, &limit, 1), time.now()).is_allowed());
    store.heat(KEY, &limit);
    assert!(store.is_hot(KEY));
    (time, store, limit)
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Charge { purse: usize, cost: u64, changed: bool },
    Both(u64),
    GiveBack(u64),
    LeaseRequest(u64),
    Forget,
    Sweep,
    Heat,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let charge = |purse: std::ops::Range<usize>, cost: std::ops::Range<u64>| {
        (purse, cost).prop_map(|(purse, cost)| Step::Charge { purse, cost, changed: false })
    };
    let step = prop_oneof![
        8 => prop_oneof![0u64..10, 0u64..2_000, 0u64..300_000, 0u64..20_000_000].prop_map(Step::Wait),
        40 => charge(0..3, 1..4),
        5 => charge(0..40, 0..60),
        1 => (0..3usize).prop_map(|purse| Step::Charge { purse, cost: 1, changed: true }),
        1 => (0u64..4).prop_map(Step::Both),
        1 => (1u64..9).prop_map(Step::GiveBack),
        1 => (0u64..4).prop_map(Step::LeaseRequest),
        1 => Just(Step::Forget),
        1 => Just(Step::Sweep),
        8 => Just(Step::Heat),
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
    fn verdicts_are_those_of_a_bucket_that_is_not_split(quota in quotas(), steps in steps()) {
        let time = ManualClock::default();
        let split = MemoryStore::with_max_keys(1_000, time.clock());
        let plain = MemoryStore::with_max_keys(1_000, time.clock());
        let (usual, changed) = (limit(quota), limit(Quota::per_second(10).burst(15)));
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Wait(micros) => time.advance(Span::from_micros(micros)),
                Step::Charge { purse, cost, changed: is_changed } => {
                    let limit = if is_changed { &changed } else { &usual };
                    let ours = split.ask_as(purse, limit, cost);
                    let theirs = plain.charge_one(&charge(KEY, limit, cost), time.now());
                    if ours.refund_token().is_some() && theirs.refund_token().is_some() {
                        // What other purses have spent may be missing.
                        prop_assert!(ours.remaining >= theirs.remaining);
                        prop_assert!(ours.reset_after <= theirs.reset_after);
                    } else {
                        prop_assert_eq!(ours, theirs);
                    }
                }
                Step::Both(cost) => {
                    let charges = [charge(KEY, &usual, cost), charge(OTHER, &usual, cost)];
                    let mode = ChargeMode::of_cost(cost);
                    prop_assert_eq!(split.charge_all(&charges, mode), plain.charge_all(&charges, mode));
                }
                Step::GiveBack(cost) => {
                    let refund = Refund { key: KEY, limit: Arc::clone(&usual), cost, refund_token: None };
                    prop_assert_eq!(split.refund_one(&refund), plain.refund_one(&refund));
                }
                Step::LeaseRequest(cost) => {
                    let id = LeaseId { node: 1, number: number as u32 };
                    let life = Span::from_millis(50);
                    let ask =
                        LeaseRequest { cost, requested: 2, id, unreported: SmallVec::new(), reports: SmallVec::new(), ttl: life, fleet_size: 1 };
                    let asked = |store: &MemoryStore| store.lease_one(KEY, &usual, &ask).unwrap();
                    prop_assert_eq!(asked(&split), asked(&plain));
                }
                Step::Forget => {
                    split.forget_one(KEY);
                    plain.forget_one(KEY);
                }
                Step::Sweep => {
                    prop_assert_eq!(split.sweep(split.shards()), plain.sweep(plain.shards()));
                }
                Step::Heat => split.heat(KEY, &usual),
            }
            prop_assert_eq!(split.usage().keys, plain.usage().keys);
        }
    }

    #[test]
    fn refunds_from_purses_never_give_back_more_than_was_charged(
        quota in quotas(),
        charges in proptest::collection::vec((0..3usize, 0u64..40_000, 1u64..4, any::<bool>()), 1..60),
        wait in 0u64..100_000,
    ) {
        let (time, store, limit) = hot_store(quota);
        // A bucket that is charged only with what is not refunded later.
        let kept = MemoryStore::with_max_keys(1_000, time.clock());
        kept.charge_one(&charge(KEY, &limit, 1), time.now());
        let mut refunds = Vec::new();
        for (purse, wait, cost, refunded) in charges {
            time.advance(Span::from_micros(wait));
            let outcome = store.ask_as(purse, &limit, cost);
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
fn a_charge_from_a_purse_can_be_refunded() {
    let (_, store, limit) = hot_store(Quota::per_minute(100));
    store.ask_as(1, &limit, 10);
    let refund_token = store.ask_as(0, &limit, 20).refund_token();
    store.ask_as(1, &limit, 30);
    assert!(refund_token.is_some() && store.is_hot(KEY));
    let refund = Refund { key: KEY, limit: Arc::clone(&limit), cost: 20, refund_token };
    assert!(store.refund_one(&refund));
    assert_eq!(store.ask_as(0, &limit, 0).remaining, 100 - 1 - 10 - 30);
}

#[test]
fn what_a_thread_leaves_unspent_the_others_get() {
    let (_, store, limit) = hot_store(Quota::per_minute(1_000));
    let admitted = |asks: usize| (0..asks).filter(|_| own(&store, &limit)).count();
    let mut total = 1;
    for _ in 0..20 {
        total += std::thread::scope(|scope| scope.spawn(|| admitted(7)).join().unwrap());
    }
    assert!(store.is_hot(KEY));
    assert_eq!(total + admitted(2_000), 1_000);
}

fn own(store: &MemoryStore, limit: &Arc<Limit>) -> bool {
    store.charge_one(&charge(KEY, limit, 1), store.clock.now()).is_allowed()
}

/// Threads charge one key until told to stop, while `work` goes on beside them. What was admitted.
fn beset(
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
                    let count = if own(store, limit) { &admitted } else { &denied };
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
fn threads_on_a_hot_key_admit_exactly_what_the_limit_allows_while_time_goes_on() {
    const BURST: u64 = 500;
    let (time, store, limit) = hot_store(Quota::per_second(1_000).burst(BURST));
    let mut passed = 0;
    let admitted = beset(&store, &limit, 4, |denied| {
        for step in 0..400 {
            // Somebody is denied, so the bucket is empty, and nothing that refills is lost.
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
                _ => store.heat(KEY, &limit),
            }
            let millis = 1 + step * 37 % 300;
            time.advance(Span::from_millis(millis));
            passed += millis;
        }
    });
    let rest = (0..1_000).filter(|_| own(&store, &limit)).count() as u64;
    assert_eq!(1 + admitted + rest, BURST + passed);
}

#[test]
fn threads_on_a_hot_key_that_refills_faster_than_they_spend_are_never_denied() {
    let (time, store, limit) = hot_store(Quota::per_second(1_000_000));
    // Less than a hundredth of a burst is spent between two steps, however fast the threads are.
    let threads = 3;
    let spent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    assert!(own(&store, &limit));
                    if spent.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) {
                        time.advance(Span::from_millis(1));
                        store.heat(KEY, &limit);
                    }
                }
            });
        }
    });
    time.advance(Span::SECOND);
    assert_eq!(store.charge_one(&charge(KEY, &limit, 0), time.now()).remaining, 1_000_000);
}

#[test]
fn threads_on_a_hot_key_stay_within_the_bound_under_a_real_clock() {
    let clock = Clock::system();
    let store = MemoryStore::with_max_keys(1_000, clock.clone());
    let limit = limit(Quota::per_second(100_000).burst(1_000));
    let start = clock.now();
    own(&store, &limit);
    let admitted = beset(&store, &limit, 3, |denied| {
        while denied.load(Ordering::Relaxed) < 50_000 {
            store.heat(KEY, &limit);
            std::thread::yield_now();
        }
    });
    let passed = clock.now().since(start).as_micros();
    let admitted = admitted + 1;
    assert!(admitted <= 1_000 + passed / 10, "{admitted} in {passed} us");
}

#[test]
fn a_bucket_is_split_once_threads_waited_for_each_other_often_in_a_short_while() {
    let time = ManualClock::default();
    let store = MemoryStore::with_max_keys(1_000, time.clock());
    let limit = limit(Quota::per_minute(1_000));
    let wait = || {
        let place = store.place(KEY);
        store.charge_contended(place, &charge(KEY, &limit, 1), time.now());
    };
    for _ in 0..2 * OFTEN {
        wait();
        time.advance(SHORT_WHILE);
    }
    assert!(!store.is_hot(KEY));
    time.advance(SHORT_WHILE);
    (0..OFTEN).for_each(|_| wait());
    assert!(store.is_hot(KEY));
}

#[test]
fn a_key_to_which_one_thread_still_comes_is_whole_again_after_a_while() {
    let (time, store, limit) = hot_store(Quota::per_minute(1_000));
    for (purses, is_hot) in [(2, true), (2, true), (1, true), (1, false)] {
        (0..10).for_each(|number| assert!(store.ask_as(number % purses, &limit, 1).is_allowed()));
        assert_eq!(store.is_hot(KEY), is_hot);
        time.advance(Span::from_millis(100));
    }
}

#[test]
fn a_key_that_nobody_comes_to_any_more_makes_room() {
    let (time, store, limit) = hot_store(Quota::per_second(1_000));
    store.ask_as(0, &limit, 1);
    // At the same place as the first.
    let next = Key::from_u128(KEY.as_u128() + PLACES as u128);
    let wait = || {
        let place = store.place(next);
        (0..OFTEN).for_each(|_| {
            store.charge_contended(place, &charge(next, &limit, 1), time.now());
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
fn newcomers_do_not_push_a_hot_key_out() {
    let (time, store, limit) = hot_store(Quota::per_minute(100));
    store.ask_as(0, &limit, 39);
    // All in the same shard, and more than it has room for.
    for number in 0..1_000 {
        store.charge_one(&charge(Key::from_u128(number << 50), &limit, 1), time.now());
    }
    assert!(store.usage().overflowed > 0 && store.is_hot(KEY));
    assert_eq!(store.ask_as(1, &limit, 0).remaining, 60);
}

#[test]
fn a_key_that_was_hot_makes_room_for_newcomers_once_it_is_over() {
    let time = ManualClock::default();
    let store = MemoryStore::with_max_keys(1, time.clock());
    let limit = limit(Quota::per_second(10));
    store.charge_one(&charge(KEY, &limit, 1), time.now());
    store.heat(KEY, &limit);
    store.charge_one(&charge(OTHER, &limit, 1), time.now());
    assert_eq!(store.usage().overflowed, 1);
    time.advance(Span::from_secs(1));
    store.ask_as(0, &limit, 0);
    assert!(!store.is_hot(KEY));
    store.charge_one(&charge(OTHER, &limit, 1), time.now());
    assert_eq!(store.usage().overflowed, 1);
}

#[test]
fn what_is_swept_or_forgotten_is_no_longer_hot() {
    let (time, store, limit) = hot_store(Quota::per_minute(60));
    store.ask_as(0, &limit, 9);
    assert_eq!((store.sweep(store.shards()), store.usage().keys), (0, 1));
    store.heat(KEY, &limit);
    store.ask_as(0, &limit, 20);
    time.advance(Span::from_secs(31));
    assert_eq!((store.sweep(store.shards()), store.usage().keys), (1, 0));
    store.ask_as(0, &limit, 50);
    store.heat(KEY, &limit);
    store.forget_one(KEY);
    assert!(!store.is_hot(KEY));
    assert_eq!(store.ask_as(0, &limit, 0).remaining, 60);
}

#[test]
fn the_same_limit_in_another_place_meets_the_same_bucket() {
    let (_, store, one) = hot_store(Quota::per_minute(100));
    let two = limit(Quota::per_minute(100));
    for number in 1..100 {
        let limit = if number % 3 == 0 { &one } else { &two };
        assert!(store.ask_as(number % 2, limit, 1).is_allowed());
    }
    assert!(store.is_hot(KEY));
    assert!(!store.ask_as(0, &one, 1).is_allowed() && !store.ask_as(1, &two, 1).is_allowed());
}

#[test]
fn a_bucket_is_charged_in_the_exact_form_once_it_is_out_of_reach() {
    let (time, store, limit) = hot_store(Quota::per_minute(100));
    let late = time.now() + flat_of(&limit).unwrap().reach() + Span::SECOND;
    for left in (0..100).rev() {
        let outcome = store.charge_hot(&charge(KEY, &limit, 1), late, 0);
        assert!(outcome.is_allowed());
        assert_eq!(outcome.remaining, left);
    }
    assert!(!store.charge_hot(&charge(KEY, &limit, 1), late, 1).is_allowed());
}
