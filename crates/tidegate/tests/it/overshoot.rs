//! Concurrency on the memory store: racing threads never exceed the limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use tidegate::store::{Charge, ChargeMode, Key};
use tidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Quota, Span};

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket { queue: 999 },
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
];

/// Runs `work` on `threads` threads that start at the same time. Returns the sum of their results.
fn run_on_threads(threads: usize, work: impl Fn(usize) -> usize + Sync) -> usize {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    work(number)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    })
}

#[test]
fn sixty_four_threads_on_one_key_admit_exactly_the_limit() {
    for algorithm in ALGORITHMS {
        let time = ManualClock::default();
        let store = Arc::new(MemoryStore::new(time.clock()));
        let handle = Limiter::per_key_in(store, algorithm, Quota::per_minute(1000)).unwrap();
        let admitted =
            run_on_threads(64, |_| (0..100).filter(|_| handle.check("one").is_allowed()).count());
        assert_eq!(admitted, 1000, "{algorithm}");
    }
}

#[test]
fn batches_and_single_checks_share_one_limit() {
    let time = ManualClock::default();
    let handle = Limiter::per_key_on(Quota::per_minute(1000), time.clock()).unwrap();
    let admitted = run_on_threads(8, |number| {
        let keys = vec!["one"; 50];
        let batches = (0..20).map(|_| match number % 2 {
            0 => handle.check_many(&keys).iter().filter(|outcome| outcome.is_allowed()).count(),
            _ => keys.iter().filter(|key| handle.check(key).is_allowed()).count(),
        });
        batches.sum()
    });
    assert_eq!(admitted, 1000);
}

#[test]
fn concurrent_checks_of_an_expired_key_admit_the_limit_once() {
    let time = ManualClock::default();
    for algorithm in ALGORITHMS {
        let store = Arc::new(MemoryStore::new(time.clock()));
        let algorithm = match algorithm {
            Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { queue: 2 },
            other => other,
        };
        let quota = Quota::per(3, Span::SECOND);
        let handle = Limiter::per_key_in(Arc::clone(&store), algorithm, quota).unwrap();
        let (start, end) = (Barrier::new(5), Barrier::new(5));
        let admitted = AtomicUsize::new(0);
        const ROUNDS: usize = 200;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        start.wait();
                        let passed = (0..2).filter(|_| handle.check("one").is_allowed()).count();
                        admitted.fetch_add(passed, Ordering::Relaxed);
                        end.wait();
                    }
                });
            }
            for round in 0..ROUNDS {
                // The state of the previous round has expired, and is swept in every third round.
                time.advance(Span::from_secs(2));
                if round % 3 == 0 {
                    store.sweep(store.shards());
                }
                admitted.store(0, Ordering::Relaxed);
                start.wait();
                end.wait();
                assert_eq!(admitted.load(Ordering::Relaxed), 3, "{algorithm}, round {round}");
            }
        });
    }
}

/// Requests that charge the same keys in different orders neither exceed a limit nor deadlock.
#[test]
fn multi_limit_charges_in_any_order_admit_exactly_the_smallest_limit() {
    let time = ManualClock::default();
    let store = MemoryStore::new(time.clock());
    let limits: Vec<Arc<Limit>> = [
        (Algorithm::TokenBucket, 500),
        (Algorithm::FixedWindow, 300),
        (Algorithm::SlidingLog, 400),
    ]
    .map(|(algorithm, amount)| Arc::new(Limit::new(algorithm, Quota::per_minute(amount)).unwrap()))
    .to_vec();
    let admitted = run_on_threads(16, |number| {
        (0..100)
            .filter(|turn| {
                let mut charges: Vec<Charge<'_>> = limits
                    .iter()
                    .enumerate()
                    .map(|(index, limit)| Charge {
                        key: Key::from_u128((index as u128 + 1) << 120),
                        overflow_key: Key::from_u128(1),
                        limit,
                        cost: 1,
                        independent: false,
                    })
                    .collect();
                charges.rotate_left((number + turn) % 3);
                store
                    .charge_all(&charges, ChargeMode::Spend)
                    .iter()
                    .all(|outcome| outcome.is_allowed())
            })
            .count()
    });
    assert_eq!(admitted, 300);
    let peek = |index: usize| Charge {
        key: Key::from_u128((index as u128 + 1) << 120),
        overflow_key: Key::from_u128(1),
        limit: &limits[index],
        cost: 0,
        independent: false,
    };
    let remaining: Vec<u64> = (0..3)
        .map(|index| store.charge_all(&[peek(index)], ChargeMode::Peek)[0].remaining)
        .collect();
    assert_eq!(remaining, [200, 0, 100], "denied requests were not charged");
}

#[test]
fn ten_times_max_keys_of_new_clients_frees_no_limited_client() {
    const MAX_KEYS: usize = 2_000;
    for algorithm in ALGORITHMS {
        let algorithm = match algorithm {
            Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { queue: 4 },
            other => other,
        };
        let time = ManualClock::default();
        let store = Arc::new(MemoryStore::with_max_keys(MAX_KEYS, time.clock()));
        let handle =
            Limiter::per_key_in(Arc::clone(&store), algorithm, Quota::per_minute(5)).unwrap();
        let limited: Vec<String> = (0..100).map(|number| format!("limited {number}")).collect();
        for client in &limited {
            let passed = (0..10).filter(|_| handle.check(client).is_allowed()).count();
            assert_eq!(passed, 5, "{algorithm}");
        }
        let sprayed = (0..10 * MAX_KEYS)
            .filter(|number| handle.check(format!("spray {number}")).is_allowed());
        let sprayed = sprayed.count();
        for client in &limited {
            assert!(!handle.check(client).is_allowed(), "{algorithm}: {client} was freed");
        }
        // Clients beyond the cap share a few buckets.
        let shared = 5 * usize::try_from(MemoryStore::OVERFLOW_BUCKETS).unwrap();
        assert!(sprayed <= MAX_KEYS + shared, "{algorithm}: {sprayed} passed");
        let usage = store.usage();
        assert!(
            usage.keys <= MAX_KEYS + usize::try_from(MemoryStore::OVERFLOW_BUCKETS).unwrap(),
            "{usage:?}"
        );
        assert!(usage.overflowed > 0, "{usage:?}");
        // After the old buckets have expired, new clients get their own buckets again.
        time.advance(Span::from_secs(121));
        let passed = (0..10).filter(|_| handle.check("late").is_allowed()).count();
        assert_eq!(passed, 5, "{algorithm}");
        assert_eq!(store.usage().overflowed, usage.overflowed, "{algorithm}");
    }
}

#[test]
fn request_with_several_limits_overflows_all_of_its_keys() {
    let time = ManualClock::default();
    let store = MemoryStore::with_max_keys(64, time.clock());
    let limit = Arc::new(Limit::new(Algorithm::FixedWindow, Quota::per_minute(5)).unwrap());
    let charge = |number: u128, scope: u128| Charge {
        key: Key::from_u128(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) ^ scope),
        overflow_key: Key::from_u128(scope << 100),
        limit: &limit,
        cost: 1,
        independent: false,
    };
    let passed = (1..2_000u128)
        .filter(|number| {
            let outcomes =
                store.charge_all(&[charge(*number, 1), charge(*number, 2)], ChargeMode::Spend);
            outcomes.iter().all(|outcome| outcome.is_allowed())
        })
        .count();
    assert!(passed <= 64 + 2 * 5 * 16, "{passed} passed");
    assert!(store.usage().keys <= 64 + 2 * 16, "{:?}", store.usage());
}

#[test]
fn memory_is_released_after_clients_expire() {
    let time = ManualClock::default();
    let handle = Limiter::per_key_on(Quota::per_minute(60), time.clock()).unwrap();
    for number in 0..100_000 {
        handle.check(format!("client {number}"));
    }
    let busy = handle.store().usage();
    assert_eq!(busy.keys, 100_000);
    time.advance(Span::MINUTE);
    assert_eq!(handle.store().sweep(handle.store().shards()), 100_000);
    let idle = handle.store().usage();
    assert_eq!(idle.expired, busy.keys as u64, "each is counted once");
    assert_eq!((idle.keys, idle.bytes), (0, 0));
}
