//! The suite on a real Redis, on Valkey, and on independent shards, with time moved by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{RedisConfig, RedisStore, Span, Timestamp};
use tidegate_testkit::{Flavour, Redis};
use tokio::runtime::Runtime;

use super::{
    Testbed, a_denied_request_consumes_nothing, a_peek_of_any_cost_spends_nothing,
    answers_like_a_map, calls, cases, charges_of_one_key_add_up,
};

/// Time by a key that the test sets. Nothing expires while it stands still.
const CLOCK: &str = "
local now = tonumber(redis.call('GET', 'clock') or '0')
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + 3600000
end
";

const START: u64 = 1_780_000_000_123_457;

pub(crate) struct OnRedis {
    servers: Vec<Redis>,
    store: Arc<RedisStore>,
    time: AtomicU64,
    runtime: Runtime,
}

impl OnRedis {
    fn on(servers: Vec<Redis>) -> Self {
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
        let store = runtime.block_on(RedisStore::connect_on_clock(config, CLOCK)).unwrap();
        let bed = Self { servers, store: Arc::new(store), time: AtomicU64::new(START), runtime };
        bed.advance(Span::ZERO);
        bed
    }

    /// The same servers, with nothing in them.
    fn empty(&self) {
        for server in &self.servers {
            server.query::<()>(&["FLUSHALL"]);
        }
        self.time.store(START, Ordering::Relaxed);
        self.advance(Span::ZERO);
    }
}

impl Testbed for OnRedis {
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

fn keeps_the_contract(bed: &OnRedis, cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(calls in calls(), together: bool)| {
        bed.empty();
        answers_like_a_map(bed, &calls, together)?;
    });
    bed.empty();
    bed.block_on(charges_of_one_key_add_up(bed));
    bed.empty();
    bed.block_on(a_denied_request_consumes_nothing(bed));
    bed.empty();
    bed.block_on(a_peek_of_any_cost_spends_nothing(bed));
}

#[test]
fn redis_keeps_the_contract() {
    keeps_the_contract(&OnRedis::on(vec![Redis::start()]), cases() / 3);
}

#[test]
fn valkey_keeps_the_contract() {
    if !Redis::available(Flavour::Valkey) {
        eprintln!("skipped: there is no Valkey here");
        return;
    }
    let server = Redis::builder().flavour(Flavour::Valkey).start();
    keeps_the_contract(&OnRedis::on(vec![server]), cases() / 6);
}
