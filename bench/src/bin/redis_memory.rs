//! Redis memory per counter, for each algorithm, at a million keys.
//!
//! `cargo run --profile dist -p tidegate-bench --bin redis_memory [-- --quick] [KEYS]`
//!
//! Each algorithm fills its own server through the real store. The figure is the growth of the server's used memory per
//! key: names, values, expiries and the hash tables.
#![allow(clippy::print_stderr, reason = "failed charges are reported")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::{Charge, ChargeMode, Key, Store};
use tidegate::{Algorithm, Limit, Quota};
use tidegate_bench::measure::{self, progress};
use tidegate_bench::table::Table;
use tidegate_testkit::Redis;
use tokio::task::JoinSet;

const KEYS: u64 = 1_000_000;
/// Concurrent tasks.
const TASKS: u64 = 512;
/// Rounds that a fill is divided into; each prints its progress.
const ROUNDS: u64 = 10;

/// Cost of a charge, high enough that no bucket refills and expires before it is measured.
const CHARGE_COST: u64 = 9;

/// Returns typical limits, and the number of charges per client.
fn limits() -> [(&'static str, Algorithm, Quota, u64); 7] {
    let quota = Quota::per_hour(100);
    [
        ("100 per hour", Algorithm::TokenBucket, quota, 1),
        ("70 per hour, in parts of microseconds", Algorithm::TokenBucket, Quota::per_hour(70), 1),
        ("100 per hour, queue 10", Algorithm::LeakyBucket { queue: 10 }, quota, 1),
        ("100 per hour", Algorithm::FixedWindow, quota, 1),
        ("100 per hour", Algorithm::SlidingWindow, quota, 1),
        ("100 per hour, 1 entry", Algorithm::SlidingLog, quota, 1),
        ("100 per hour, 10 entries", Algorithm::SlidingLog, quota, 10),
    ]
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let keys = match measure::names().first() {
        Some(keys) => keys.parse()?,
        None if measure::is_quick() => KEYS / 10,
        None => KEYS,
    };
    let mut table = Table::new(
        "redis_memory",
        "Growth of the used memory of Redis per client: names, values, expiries and the hash tables.",
        ["algorithm", "limit", "clients", "bytes per client", "of that the value"],
    );
    for (text, algorithm, quota, times) in limits() {
        let limit = Arc::new(Limit::new(algorithm, quota)?);
        let server = Redis::start();
        let config: RedisConfig = server.url().parse()?;
        let store = RedisStore::connect(config.with_timeout(Duration::from_secs(60))?).await?;
        let before = used_memory(&server);
        for time in 0..times {
            fill(&store, &limit, keys, &format!("{algorithm}, {text}: {} of {times}", time + 1))
                .await;
        }
        let grown = used_memory(&server) - before;
        let counted: u64 = server.query(&["DBSIZE"]);
        let value: u64 = server.query(&["STRLEN", &store.name_of(key(0))]);
        let bytes = (grown / counted.max(1)).to_string();
        table.add_row([
            algorithm.to_string(),
            text.to_owned(),
            counted.to_string(),
            bytes,
            value.to_string(),
        ]);
    }
    table.print();
    Ok(())
}

/// Returns a key that is distributed like a hash.
fn key(number: u64) -> Key {
    let mixed = u128::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Key::from_u128(mixed ^ (mixed >> 61))
}

fn used_memory(server: &Redis) -> u64 {
    server.info("used_memory").and_then(|used| used.parse().ok()).unwrap_or_default()
}

async fn fill(store: &RedisStore, limit: &Arc<Limit>, keys: u64, pass: &str) {
    for round in 0..ROUNDS {
        let (from, to) = (keys * round / ROUNDS, keys * (round + 1) / ROUNDS);
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (store, limit) = (store.clone(), Arc::clone(limit));
            tasks.spawn(async move {
                for number in (from + task..to).step_by(usize::try_from(TASKS).unwrap_or(1)) {
                    let key = key(number);
                    let charge = Charge {
                        key,
                        overflow_key: key,
                        limit: &limit,
                        cost: CHARGE_COST,
                        independent: false,
                    };
                    if !store
                        .charge(&[charge], ChargeMode::Spend)
                        .await
                        .iter()
                        .all(|answer| answer.outcome().is_some())
                    {
                        eprintln!("  key {number}: the charge failed");
                    }
                }
            });
        }
        tasks.join_all().await;
        progress(&format!("{pass}: {to} of {keys} keys"));
    }
    progress("");
}
