//! The contract suite on a real Redis and on Valkey, with a clock that the test advances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{Span, Timestamp};
use tidegate_testkit::{Flavour, Redis};
use tokio::runtime::Runtime;

use super::{
    StoreCall, Testbed, calls, cases, charges_of_one_key_add_up, denied_request_consumes_nothing,
    matches_reference_model, peek_of_any_cost_spends_nothing,
};

/// Replaces the server clock by a key that the test sets. Each TTL is an hour longer, so no key expires during a test.
const CONTROLLED_CLOCK_LUA: &str = "
local now = tonumber(redis.call('GET', 'clock') or '0')
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + 3600000
end
";

const START_MICROS: u64 = 1_780_000_000_123_457;

pub(crate) struct RedisTestbed {
    servers: Vec<Redis>,
    store: Arc<RedisStore>,
    time: AtomicU64,
    runtime: Runtime,
}

impl RedisTestbed {
    fn new(servers: Vec<Redis>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let shards = servers.iter().map(|server| {
            let config: RedisConfig = server.url().parse().unwrap();
            let config = config
                .with_timeout(Duration::from_secs(30))
                .unwrap()
                .with_connect_timeout(crate::CONNECT_TIMEOUT)
                .unwrap();
            config.with_denial_memory(Duration::ZERO).unwrap()
        });
        let mut shards: Vec<RedisConfig> = shards.collect();
        let config = match shards.len() {
            1 => shards.remove(0),
            _ => RedisConfig::shards(shards).unwrap(),
        };
        let store =
            runtime.block_on(RedisStore::connect_on_clock(config, CONTROLLED_CLOCK_LUA)).unwrap();
        let testbed =
            Self { servers, store: Arc::new(store), time: AtomicU64::new(START_MICROS), runtime };
        testbed.advance(Span::ZERO);
        testbed
    }

    /// Deletes all data on the servers, and resets the clock.
    fn reset(&self) {
        for server in &self.servers {
            server.query::<()>(&["FLUSHALL"]);
        }
        self.time.store(START_MICROS, Ordering::Relaxed);
        self.advance(Span::ZERO);
    }
}

impl Testbed for RedisTestbed {
    type Store = RedisStore;
    const IS_SHARED: bool = true;

    fn store(&self) -> &Arc<RedisStore> {
        &self.store
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.time.load(Ordering::Relaxed))
    }

    fn advance(&self, span: Span) {
        self.time.fetch_add(span.as_micros(), Ordering::Relaxed);
        let now = self.time.load(Ordering::Relaxed).to_string();
        for server in &self.servers {
            server.query::<()>(&["SET", "clock", &now]);
        }
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

fn expect_contract(testbed: &RedisTestbed, cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(calls in calls(), together: bool)| {
        testbed.reset();
        matches_reference_model(testbed, &calls, together)?;
    });
    testbed.reset();
    testbed.block_on(charges_of_one_key_add_up(testbed));
    testbed.reset();
    testbed.block_on(denied_request_consumes_nothing(testbed));
    testbed.reset();
    testbed.block_on(peek_of_any_cost_spends_nothing(testbed));
}

#[test]
fn redis_store_fulfils_the_contract() {
    expect_contract(&RedisTestbed::new(vec![Redis::start()]), cases() / 3);
}

#[test]
fn redis_store_on_valkey_fulfils_the_contract() {
    if !Redis::available(Flavour::Valkey) {
        eprintln!("skipped: Valkey is not installed");
        return;
    }
    let server = Redis::builder().flavour(Flavour::Valkey).start();
    expect_contract(&RedisTestbed::new(vec![server]), cases() / 6);
}

/// Regression: the renewal was confirmed, and the slot was dropped as the state of a fifth limit.
#[test]
fn slot_that_is_renewed_beside_the_states_of_four_limits_is_counted() {
    let charge = |limit, cost| StoreCall::Charge(vec![(0, limit, cost, false)]);
    let (slot, others) = (9, [0, 5, 1, 2]);
    let mut calls = vec![charge(slot, 1)];
    calls.extend(others.map(|limit| charge(limit, 1)));
    calls.extend([StoreCall::Renew(0), charge(slot, 0)]);
    let testbed = RedisTestbed::new(vec![Redis::start()]);
    matches_reference_model(&testbed, &calls, false).unwrap();
}
