//! The byte budget against a naive model.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::{Algorithm, LeaseId, Quota, RefundToken, Span};

use super::*;
use crate::ManualClock;

const CLIENTS: u128 = 24;
const OVERFLOW_KEY: Key = Key::from_u128(0xffff << 100);

/// Returns keys in all shards of a small store.
fn key(client: u128) -> Key {
    Key::from_u128(client.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn limits() -> Vec<Arc<Limit>> {
    let limits = [
        (Algorithm::TokenBucket, Quota::per(20, Span::from_secs(10))),
        (Algorithm::FixedWindow, Quota::per(20, Span::from_secs(10))),
        (Algorithm::SlidingLog, Quota::per(20, Span::from_secs(10))),
        (Algorithm::SlidingLog, Quota::per(200, Span::from_secs(10))),
        (Algorithm::Concurrency { hold: Span::from_secs(10) }, Quota::in_flight(20)),
    ];
    limits
        .into_iter()
        .map(|(algorithm, quota)| Arc::new(Limit::new(algorithm, quota).unwrap()))
        .collect()
}

fn charge(client: u128, limit: &Arc<Limit>, cost: u64) -> Charge<'_> {
    Charge { key: key(client), overflow_key: OVERFLOW_KEY, limit, cost, independent: false }
}

#[derive(Clone, Debug)]
enum Step {
    Charge {
        client: u128,
        limit: usize,
        cost: u64,
    },
    ChargeTwo {
        clients: (u128, u128),
        limits: (usize, usize),
    },
    /// Refunds an earlier charge, or releases its slots.
    Refund(usize),
    Renew(usize),
    Reset(u128),
    Lease {
        client: u128,
        requested: u64,
    },
    Wait(u64),
    Sweep(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 1..CLIENTS;
    let limit = || 0..limits().len();
    let step = prop_oneof![
        12 => (client(), limit(), 0u64..4)
            .prop_map(|(client, limit, cost)| Step::Charge { client, limit, cost }),
        3 => ((client(), client()), (limit(), limit()))
            .prop_map(|(clients, limits)| Step::ChargeTwo { clients, limits }),
        2 => any::<usize>().prop_map(Step::Refund),
        1 => any::<usize>().prop_map(Step::Renew),
        1 => client().prop_map(Step::Reset),
        1 => (client(), 0u64..20).prop_map(|(client, requested)| Step::Lease { client, requested }),
        4 => (1u64..500_000).prop_map(Step::Wait),
        1 => (1u64..30_000_000).prop_map(Step::Wait),
        1 => (1usize..8).prop_map(Step::Sweep),
    ];
    vec(step, 1..300)
}

/// Adds up everything that the store keeps.
fn kept_bytes(store: &MemoryStore) -> usize {
    let shards: usize = store.shards.iter().map(|shard| shard.0.lock().kept_bytes()).sum();
    shards + store.lease_table.kept_bytes()
}

fn refund(charged: &(Key, Arc<Limit>, RefundToken, u64)) -> Refund {
    let (key, limit, token, cost) = charged;
    Refund { key: *key, limit: Arc::clone(limit), refund_token: Some(*token), cost: *cost }
}

proptest! {
    #[test]
    fn accounted_bytes_are_the_sum_of_what_is_kept(
        steps in steps(),
        max_keys in prop_oneof![Just(8), Just(1_000)],
        max_bytes in prop_oneof![Just(2_000), Just(6_000), Just(1_000_000)],
    ) {
        let (time, limits) = (ManualClock::default(), limits());
        let store = MemoryStore::with_capacity(max_keys, max_bytes, time.clock());
        let mut charged: Vec<(Key, Arc<Limit>, RefundToken, u64)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Charge { client, limit, cost } => {
                    let charge = charge(client, &limits[limit], cost);
                    let outcome = store.charge_one(&charge, time.now());
                    if let Some(token) = outcome.refund_token() {
                        charged.push((charge.key, Arc::clone(&limits[limit]), token, cost));
                    }
                }
                Step::ChargeTwo { clients, limits: indices } => {
                    let charges = [
                        charge(clients.0, &limits[indices.0], 1),
                        charge(clients.1, &limits[indices.1], 1),
                    ];
                    store.charge_all(&charges, ChargeMode::Spend);
                }
                Step::Refund(_) | Step::Renew(_) if charged.is_empty() => {}
                Step::Refund(index) => {
                    store.refund_one(&refund(&charged[index % charged.len()]));
                }
                Step::Renew(index) => {
                    store.renew_one(&refund(&charged[index % charged.len()]));
                }
                Step::Reset(client) => store.reset_one(key(client)),
                Step::Lease { client, requested } => {
                    let request = LeaseRequest {
                        cost: 1,
                        requested,
                        id: LeaseId { node: 1, number: u32::try_from(number).unwrap() },
                        unreported: SmallVec::new(),
                        reports: SmallVec::new(),
                        ttl: Span::from_secs(5),
                        fleet_size: 1,
                    };
                    let _ = store.lease_one(key(client), &limits[0], &request);
                }
                Step::Wait(micros) => time.advance(Span::from_micros(micros)),
                Step::Sweep(shards) => {
                    store.sweep(shards);
                }
            }
            prop_assert_eq!(store.shared.bytes(), kept_bytes(&store));
        }
        time.advance(Span::HOUR);
        store.sweep(store.shards());
        prop_assert_eq!(store.usage().keys, 0);
        prop_assert_eq!(store.shared.bytes(), store.lease_table.kept_bytes());
    }

    #[test]
    fn full_store_admits_no_client_more_than_its_limit(
        charges in vec((1..CLIENTS, 0u64..3_000_000), 1..600),
        max_bytes in 500usize..8_000,
    ) {
        let (time, limit) = (ManualClock::default(), &limits()[2]);
        let store = MemoryStore::with_capacity(1_000, max_bytes, time.clock());
        let mut admitted: HashMap<u128, Vec<Timestamp>> = HashMap::new();
        for (client, wait) in charges {
            // Short waits, so that logs become long.
            time.advance(Span::from_micros(wait / 30));
            if store.charge_one(&charge(client, limit, 1), time.now()).is_allowed() {
                let log = admitted.entry(client).or_default();
                log.push(time.now());
                let window = log.iter().filter(|at| **at + Span::from_secs(10) > time.now());
                prop_assert!(window.count() <= 20, "client {}: {:?}", client, log);
            }
        }
        // Overflow buckets are in addition: at most 16, with at most 20 entries each.
        let overflow = 16 * (200 + 32 * 16) * 2;
        prop_assert!(store.usage().bytes <= max_bytes + overflow, "{:?}", store.usage());
    }
}

#[test]
fn log_that_cannot_grow_denies_until_its_first_entry_expires() {
    let (time, limit) = (ManualClock::default(), &limits()[3]);
    let store = MemoryStore::with_capacity(1_000, 3_000, time.clock());
    let check = |client| {
        time.advance(Span::from_millis(1));
        store.charge_one(&charge(client, limit, 1), time.now())
    };
    let start = time.now() + Span::from_millis(1);
    let admitted = (0..200).take_while(|_| check(1).is_allowed()).count();
    assert!((32..200).contains(&admitted), "{admitted} admitted");
    let denied = check(1);
    assert!(!denied.is_allowed() && denied.remaining > 0, "{denied:?}");
    assert_eq!(time.now() + denied.retry_after().unwrap(), start + Span::from_secs(10));
    assert!(
        store.usage().bytes <= 3_000 && store.usage().growth_denied == 2,
        "{:?}",
        store.usage()
    );
    time.advance(denied.retry_after().unwrap());
    assert!(store.charge_one(&charge(1, limit, 1), time.now()).is_allowed());
    assert!(store.usage().bytes <= 3_000);
}

#[test]
fn request_with_several_limits_is_not_charged_if_one_log_cannot_grow() {
    let (time, limits) = (ManualClock::default(), limits());
    let store = MemoryStore::with_capacity(1_000, 3_000, time.clock());
    let charges = [charge(1, &limits[3], 1), charge(2, &limits[1], 0)];
    let peek = || store.charge_all(&charges, ChargeMode::Peek);
    let spend = |log_cost| {
        time.advance(Span::from_millis(1));
        let charges = [Charge { cost: log_cost, ..charges[0] }, Charge { cost: 1, ..charges[1] }];
        store.charge_all(&charges, ChargeMode::Spend)
    };
    assert!(spend(1).iter().all(Outcome::is_allowed));
    while store.usage().growth_denied == 0 {
        time.advance(Span::from_millis(1));
        store.charge_one(&charges[0], time.now());
    }
    let before = [peek()[0].remaining, peek()[1].remaining];
    let outcomes = spend(1);
    assert!(!outcomes[0].is_allowed() && outcomes[1].is_allowed(), "{outcomes:?}");
    assert_eq!([peek()[0].remaining, peek()[1].remaining], before);
    assert_eq!(before[1], 19);
}

#[test]
fn expired_logs_make_room_for_new_clients() {
    let (time, limit) = (ManualClock::default(), &limits()[2]);
    let store = MemoryStore::with_capacity(1_000, 5_000, time.clock());
    for client in 1..200 {
        store.charge_one(&charge(client, limit, 1), time.now());
    }
    let full = store.usage();
    assert!(full.overflowed > 0, "{full:?}");
    time.advance(Span::from_secs(11));
    // Each new client sweeps its own shard.
    for client in 1_000..1_010 {
        assert!(store.charge_one(&charge(client, limit, 1), time.now()).is_allowed());
    }
    assert!(store.usage().expired > 0, "{:?}", store.usage());
    assert!(store.usage().overflowed < full.overflowed + 10, "{:?}", store.usage());
}

#[test]
fn renewed_slots_exceed_a_full_store_by_a_bounded_and_reported_size() {
    let (time, limit) = (ManualClock::default(), &limits()[4]);
    let max_bytes = 20_000;
    let store = MemoryStore::with_capacity(1_000, max_bytes, time.clock());
    // Returns the slots of clients with a bucket of their own; the others use overflow buckets.
    let fill = |clients: std::ops::Range<u128>| -> Vec<_> {
        let acquired = clients.filter_map(|client| {
            let before = store.usage().overflowed;
            let outcome = store.charge_one(&charge(client, limit, 1), time.now());
            let is_own = store.usage().overflowed == before;
            let token = outcome.refund_token().filter(|_| is_own)?;
            Some((key(client), Arc::clone(limit), token, 1))
        });
        acquired.collect()
    };
    let first = fill(1..1_000);
    assert!(first.len() > 10, "{}", first.len());
    // The holds end, other clients fill the store, and the first clients renew late.
    time.advance(Span::HOUR);
    store.sweep(store.shards());
    fill(1_000..2_000);
    let full = store.usage();
    assert!(first.iter().all(|charged| store.renew_one(&refund(charged))));
    let usage = store.usage();
    assert!(usage.bytes > max_bytes && usage.bytes > full.bytes, "{full:?} {usage:?}");
    assert_eq!(usage.bytes, kept_bytes(&store));
    // A table has at most twice the slots that it needs.
    let renewed = first.len() * 2 * (125 + 48);
    assert!(usage.bytes <= full.bytes + renewed, "{full:?} {usage:?}, {} renewed", first.len());
}
