//! Redis keys and values: they contain no client identity, and they expire.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use tidegate::error::StoreError;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::{Charge, ChargeMode, ChargeResult, Key, Store};
use tidegate::{Algorithm, DecisionStatus, Limit, Limiter, Quota, Request, RuleSet, Span};
use tidegate_testkit::{Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

fn config(server: &Redis) -> RedisConfig {
    let config: RedisConfig = server.url().parse().unwrap();
    let config = config
        .with_timeout(WAIT_TIMEOUT)
        .unwrap()
        .with_connect_timeout(crate::CONNECT_TIMEOUT)
        .unwrap();
    config.with_denial_memory(Duration::ZERO).unwrap()
}

async fn limiter(config: RedisConfig, rules: &str) -> Limiter<RedisStore> {
    let store = Arc::new(RedisStore::connect(config).await.unwrap());
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    Limiter::builder().rules(rules).store(store).build()
}

fn request(attributes: &[(&str, &str)]) -> Request<'static> {
    let with = |request: Request<'static>, (name, value): &(&str, &str)| {
        request.with((*name).to_owned(), (*value).to_owned()).unwrap()
    };
    attributes.iter().fold(Request::new(), with)
}

/// Returns all keys of a server.
fn all_keys(server: &Redis) -> Vec<String> {
    server.query(&["KEYS", "*"])
}

/// Returns the keys of counters. Keys of the fleet contain a second colon.
fn counter_keys(server: &Redis) -> HashSet<String> {
    all_keys(server).into_iter().filter(|name| name.matches(':').count() == 1).collect()
}

/// Returns all keys and values of a server; values also as Redis writes them to disk.
fn dump(server: &Redis) -> Vec<Vec<u8>> {
    let mut connection = server.connection().unwrap();
    let mut seen = Vec::new();
    for name in all_keys(server) {
        let dumped: Vec<u8> = redis::cmd("DUMP").arg(&name).query(&mut connection).unwrap();
        let raw: Option<Vec<u8>> = redis::cmd("GET").arg(&name).query(&mut connection).ok();
        seen.extend([name.into_bytes(), dumped, raw.unwrap_or_default()]);
    }
    seen
}

/// Returns a text in plain form, in hexadecimal, and in Base64 at each of the three possible offsets.
fn encodings(text: &str) -> Vec<String> {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut encodings = vec![text.to_owned(), hex.to_uppercase(), hex];
    for before in 0..3 {
        let mut padded = vec![0; before];
        padded.extend_from_slice(text.as_bytes());
        for engine in [&BASE64_STANDARD, &BASE64_URL_SAFE] {
            let spelled = engine.encode(&padded);
            // The first and last characters depend on the surrounding text.
            let inner = &spelled[if before == 0 { 0 } else { 4 }..spelled.len() - 4];
            encodings.push(inner.to_owned());
        }
    }
    encodings
}

#[tokio::test]
async fn redis_contains_no_client_identity() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    const RULES: &str = "
rules:
  - {name: by-key, per: [api_key], limit: 9 per hour}
  - {name: by-user, per: [user], limit: 9 per hour, algorithm: leaky_bucket, queue: 9}
  - {name: by-email, per: [email], limit: 9 per hour, algorithm: fixed_window}
  - {name: by-two, per: [user, email], limit: 9 per hour, algorithm: sliding_window}
  - {name: by-all, per: [api_key, user, email], limit: 9 per hour, algorithm: sliding_log}
";
    let server = Redis::start();
    let limiter = limiter(config(&server), RULES).await;
    let identities = [
        ("api_key", "tk_live_51HzY7d0cQ8mXw2Lr9"),
        ("user", "user_4711_northwind"),
        ("email", "marlene.dietrich@example.com"),
    ];
    for _ in 0..3 {
        assert!(limiter.check(&request(&identities)).await.is_allowed());
    }
    assert_eq!(counter_keys(&server).len(), 5);
    let seen = dump(&server);
    for (_, identity) in identities {
        for encoding in encodings(identity) {
            let found = |bytes: &&Vec<u8>| {
                bytes.windows(encoding.len()).any(|part| part == encoding.as_bytes())
            };
            assert_eq!(seen.iter().find(found), None, "{identity} as {encoding}");
        }
    }
    // The search finds an identity that is present.
    server.query::<()>(&["SET", "careless:user_4711_northwind", "1"]);
    let careless = dump(&server);
    assert!(careless.iter().any(|bytes| bytes.ends_with(b"user_4711_northwind")));
}

#[tokio::test]
async fn identities_and_rules_never_share_a_counter() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    const RULES: &str = "
rules:
  - {name: one, per: [a, b], limit: 1 per hour}
  - {name: two, per: [a, b], limit: 1 per hour}
  - {name: three, per: [b, a], limit: 1 per hour}
";
    let server = Redis::start();
    let limiter = limiter(config(&server), RULES).await;
    let identities: [&[(&str, &str)]; 7] = [
        &[("a", "user"), ("b", "id_5")],
        &[("a", "user_id"), ("b", "5")],
        &[("a", "user_id5"), ("b", "0")],
        &[("a", "id_5"), ("b", "user")],
        &[("a", "user_id5")],
        &[("b", "user_id5")],
        &[],
    ];
    for identity in identities {
        for rule in ["one", "two", "three"] {
            let first = limiter.check_rule(rule, &request(identity)).await.unwrap();
            assert!(
                first.is_allowed(),
                "{identity:?} shares a counter with another client under {rule}"
            );
            let second = limiter.check_rule(rule, &request(identity)).await.unwrap();
            assert!(!second.is_allowed(), "{identity:?} has two counters under {rule}");
        }
    }
    assert_eq!(counter_keys(&server).len(), 3 * identities.len());
}

#[tokio::test]
async fn fleet_secret_changes_every_key_and_the_prefix_starts_it() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    const RULES: &str = "rules: [{name: r, per: [user], limit: 1 per hour}]";
    let server = Redis::start();
    let ann = request(&[("user", "ann")]);
    let variants = [
        config(&server),
        config(&server).with_fleet_secret("one secret").unwrap(),
        config(&server).with_fleet_secret("another secret").unwrap(),
        config(&server).with_prefix("shop:").unwrap(),
    ];
    let mut known_keys = HashSet::new();
    for config in variants {
        let prefix = config.prefix().to_owned();
        let limiter = limiter(config.clone(), RULES).await;
        assert!(limiter.check(&ann).await.is_allowed(), "{config}: the counter of another client");
        let new: Vec<String> = counter_keys(&server).difference(&known_keys).cloned().collect();
        assert!(matches!(new.as_slice(), [name] if name.starts_with(&prefix)), "{config}: {new:?}");
        known_keys.extend(new);
        // A node with the same configuration uses the same counter.
        let same = self::limiter(config, RULES).await;
        assert!(!same.check(&ann).await.is_allowed());
    }
    let bare = |name: &String| name.split_once(':').unwrap().1.to_owned();
    let hashes: HashSet<String> = known_keys.iter().map(bare).collect();
    assert_eq!(
        (known_keys.len(), hashes.len()),
        (4, 3),
        "the prefix changes nothing else: {known_keys:?}"
    );
    let all = all_keys(&server);
    assert!(all.iter().all(|name| name.starts_with("tg:") || name.starts_with("shop:")), "{all:?}");
}

#[tokio::test]
async fn counter_ttl_ends_when_its_state_expires() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = RedisStore::connect(config(&server)).await.unwrap();
    let (hour, minute) = (Quota::per_hour(5), Quota::per_minute(100));
    let limits = [
        (Algorithm::TokenBucket, hour),
        (Algorithm::TokenBucket, minute.burst(1_000)),
        (Algorithm::LeakyBucket { queue: 4 }, hour),
        (Algorithm::FixedWindow, hour),
        (Algorithm::FixedWindow, minute),
        (Algorithm::SlidingWindow, hour),
        (Algorithm::SlidingWindow, minute),
        (Algorithm::SlidingLog, hour),
        (Algorithm::SlidingLog, minute),
        (Algorithm::Concurrency { hold: Span::MINUTE }, Quota::in_flight(5)),
    ];
    for (number, (algorithm, quota)) in (1..).zip(limits) {
        let (key, limit) =
            (Key::from_u128(number), Arc::new(Limit::new(algorithm, quota).unwrap()));
        // The second charge updates an existing counter.
        for cost in [1, 2] {
            let charge = Charge { key, overflow_key: key, limit: &limit, cost, independent: false };
            let answers = store.charge(&[charge], ChargeMode::of_cost(cost)).await;
            assert!(answers[0].outcome().unwrap().is_allowed());
            let (kept_under, mut state) = store.state(key).await.unwrap().unwrap();
            let expires_at = kept_under.expires_at(&mut state).as_micros();
            let ttl_end: u64 = server.query(&["PEXPIRETIME", &store.name_of(key)]);
            let excess = ttl_end * 1_000 - expires_at.min(ttl_end * 1_000);
            assert!(
                ttl_end * 1_000 >= expires_at,
                "{limit:?}: expires {} us early",
                expires_at - ttl_end * 1_000
            );
            assert!(excess <= 1_000_000, "{limit:?}: kept {excess} us too long");
        }
    }
    for name in all_keys(&server) {
        let ttl_millis: i64 = server.query(&["PTTL", &name]);
        assert!(ttl_millis > 0, "{name} has no TTL");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flushes_during_traffic_lose_no_charge() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    const RULES: &str = "rules: [{name: r, per: [user], limit: 1000 per day, algorithm: sliding_log, on_store_failure: deny}]";
    let server = Redis::start();
    let limiter = limiter(config(&server), RULES).await;
    let done = AtomicBool::new(false);
    let (statuses, flushes) = std::thread::scope(|scope| {
        let flushing = scope.spawn(|| {
            let mut flushes = 0;
            let mut connection = server.connection().unwrap();
            while !done.load(Ordering::Relaxed) {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
                flushes += 1;
            }
            flushes
        });
        let runtime = tokio::runtime::Handle::current();
        let statuses = tokio::task::block_in_place(|| {
            runtime.block_on(async {
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..16 {
                    let limiter = limiter.clone();
                    tasks.spawn(async move {
                        let mut statuses = Vec::new();
                        for _ in 0..100 {
                            let ann = request(&[("user", "ann")]);
                            let (decision, receipt) = limiter.check_with_receipt(&ann).await;
                            // Refunds are scripts too. One check in five is refunded and repeated.
                            let refunded = decision.is_allowed() && statuses.len() % 5 == 0;
                            if refunded {
                                assert_eq!(limiter.refund(receipt).await, Ok(1));
                                statuses.push(limiter.check(&ann).await.status());
                            } else {
                                statuses.push(decision.status());
                            }
                        }
                        statuses
                    });
                }
                tasks.join_all().await.concat()
            })
        });
        done.store(true, Ordering::Relaxed);
        (statuses, flushing.join().unwrap())
    });
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    let counted = (
        count(DecisionStatus::Allow),
        count(DecisionStatus::Deny),
        count(DecisionStatus::Unavailable),
    );
    assert_eq!(counted, (1_000, 600, 0), "after {flushes} flushes");
    assert!(flushes > 10, "{flushes}");
}

#[tokio::test]
async fn corrupt_value_fails_only_its_own_request() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = RedisStore::connect(config(&server)).await.unwrap();
    let limits = [Algorithm::TokenBucket, Algorithm::SlidingLog]
        .map(|algorithm| Arc::new(Limit::new(algorithm, Quota::per_hour(10)).unwrap()));
    let key = |number: u128| Key::from_u128(number << 64 | number);
    let charge = async |number: u128, limit: &Arc<Limit>| {
        let charge =
            Charge { key: key(number), overflow_key: key(0), limit, cost: 1, independent: false };
        store.charge(&[charge], ChargeMode::Spend).await.remove(0)
    };
    // A value of another release, an invalid value, and a value that is not a string.
    server.query::<()>(&["SET", &store.name_of(key(1)), "\u{2}\u{3}\u{1}"]);
    server.query::<()>(&["SET", &store.name_of(key(2)), "\u{1}"]);
    server.query::<()>(&["RPUSH", &store.name_of(key(3)), "x"]);
    let [bucket, log] = &limits;
    let answers = tokio::join!(
        charge(1, bucket),
        charge(11, bucket),
        charge(2, bucket),
        charge(12, log),
        charge(3, log),
        charge(13, bucket),
    );
    let (one, good, two, other, three, last) = answers;
    for answer in [one, two, three] {
        assert!(matches!(answer, ChargeResult::Failed(StoreError::Corrupt { .. })), "{answer:?}");
    }
    for answer in [good, other, last] {
        assert_eq!(answer.outcome().unwrap().remaining, 9);
    }
    assert_eq!(store.counts().opened, 0, "corrupt values open no breaker");
}

/// Regression: a denial served from the cache renewed its own cache entry, so a client that kept sending requests was
/// denied without end.
#[tokio::test]
async fn repeated_checks_reach_the_store_again_after_the_denial_cache_ttl() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let config = config(&server).with_denial_memory(Duration::from_millis(50)).unwrap();
    let limiter = limiter(config, "rules: [{name: api, per: [user], limit: 1 per hour}]").await;
    let user = request(&[("user", "alice")]);
    assert!(limiter.check(&user).await.is_allowed());
    assert!(!limiter.check(&user).await.is_allowed());
    let counts_before = limiter.store().counts();
    let store_is_asked_again = tokio::time::timeout(WAIT_TIMEOUT, async {
        while limiter.store().counts().carried == counts_before.carried {
            assert!(!limiter.check(&user).await.is_allowed());
            tokio::task::yield_now().await;
        }
    });
    store_is_asked_again.await.expect("the store received no further check");
    assert!(limiter.store().counts().remembered > counts_before.remembered);
}
