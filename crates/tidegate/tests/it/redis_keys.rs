//! What a reader of Redis sees: names and values that tell nobody's identity, and that go away.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use tidegate::{
    Algorithm, Charge, ChargeMode, ChargeResult, DecisionStatus, Key, Limit, Limiter, Quota,
    RedisConfig, RedisStore, Request, RuleSet, Span, Store, StoreError,
};
use tidegate_testkit::{Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];

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

/// Every name on a server.
fn names(server: &Redis) -> Vec<String> {
    server.query(&["KEYS", "*"])
}

/// The names of counters: nodes that announce themselves have a name with a second colon.
fn counters(server: &Redis) -> HashSet<String> {
    names(server).into_iter().filter(|name| name.matches(':').count() == 1).collect()
}

/// Everything there is on a server: names, and values as they would be written to disk.
fn dump(server: &Redis) -> Vec<Vec<u8>> {
    let mut connection = server.connection().unwrap();
    let mut seen = Vec::new();
    for name in names(server) {
        let kept: Vec<u8> = redis::cmd("DUMP").arg(&name).query(&mut connection).unwrap();
        let raw: Option<Vec<u8>> = redis::cmd("GET").arg(&name).query(&mut connection).ok();
        seen.extend([name.into_bytes(), kept, raw.unwrap_or_default()]);
    }
    seen
}

/// A text as it is, in hexadecimal, and in Base64 wherever in a longer text it begins.
fn spellings(text: &str) -> Vec<String> {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut spellings = vec![text.to_owned(), hex.to_uppercase(), hex];
    for before in 0..3 {
        let mut padded = vec![0; before];
        padded.extend_from_slice(text.as_bytes());
        for engine in [&BASE64_STANDARD, &BASE64_URL_SAFE] {
            let spelled = engine.encode(&padded);
            // The first and the last letters depend on what is around.
            let inner = &spelled[if before == 0 { 0 } else { 4 }..spelled.len() - 4];
            spellings.push(inner.to_owned());
        }
    }
    spellings
}

#[tokio::test]
async fn no_identity_is_to_be_found_in_redis() {
    if lacking(&NEEDED) {
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
    assert_eq!(counters(&server).len(), 5);
    let seen = dump(&server);
    for (_, identity) in identities {
        for spelling in spellings(identity) {
            let found = |bytes: &&Vec<u8>| {
                bytes.windows(spelling.len()).any(|part| part == spelling.as_bytes())
            };
            assert_eq!(seen.iter().find(found), None, "{identity} as {spelling}");
        }
    }
    // The search does find what is there.
    server.query::<()>(&["SET", "careless:user_4711_northwind", "1"]);
    let careless = dump(&server);
    assert!(careless.iter().any(|bytes| bytes.ends_with(b"user_4711_northwind")));
}

#[tokio::test]
async fn neither_two_identities_nor_two_rules_ever_share_a_counter() {
    if lacking(&NEEDED) {
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
            assert!(first.is_allowed(), "{identity:?} met somebody else under {rule}");
            let second = limiter.check_rule(rule, &request(identity)).await.unwrap();
            assert!(!second.is_allowed(), "{identity:?} did not meet itself under {rule}");
        }
    }
    assert_eq!(counters(&server).len(), 3 * identities.len());
}

#[tokio::test]
async fn a_fleet_secret_changes_every_name_and_a_prefix_begins_it() {
    if lacking(&NEEDED) {
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
    let mut known = HashSet::new();
    for config in variants {
        let prefix = config.prefix().to_owned();
        let limiter = limiter(config.clone(), RULES).await;
        assert!(limiter.check(&ann).await.is_allowed(), "{config}: somebody else's counter");
        let new: Vec<String> = counters(&server).difference(&known).cloned().collect();
        assert!(matches!(new.as_slice(), [name] if name.starts_with(&prefix)), "{config}: {new:?}");
        known.extend(new);
        // A node that is told the same agrees.
        let same = self::limiter(config, RULES).await;
        assert!(!same.check(&ann).await.is_allowed());
    }
    let bare = |name: &String| name.split_once(':').unwrap().1.to_owned();
    let hashes: HashSet<String> = known.iter().map(bare).collect();
    assert_eq!((known.len(), hashes.len()), (4, 3), "a prefix is all that it changes: {known:?}");
    let all = names(&server);
    assert!(all.iter().all(|name| name.starts_with("tg:") || name.starts_with("shop:")), "{all:?}");
}

#[tokio::test]
async fn a_counter_lives_as_long_as_its_state_says_something() {
    if lacking(&NEEDED) {
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
        // The second charge finds a counter.
        for cost in [1, 2] {
            let charge = Charge { key, overflow_key: key, limit: &limit, cost, independent: false };
            let answers = store.charge(&[charge], ChargeMode::of_cost(cost)).await;
            assert!(answers[0].outcome().unwrap().is_allowed());
            let (kept_under, mut state) = store.state(key).await.unwrap().unwrap();
            let over = kept_under.expires_at(&mut state).as_micros();
            let gone: u64 = server.query(&["PEXPIRETIME", &store.name_of(key)]);
            let late = gone * 1_000 - over.min(gone * 1_000);
            assert!(gone * 1_000 >= over, "{limit:?}: forgotten {} us early", over - gone * 1_000);
            assert!(late <= 1_000_000, "{limit:?}: kept {late} us too long");
        }
    }
    for name in names(&server) {
        let left: i64 = server.query(&["PTTL", &name]);
        assert!(left > 0, "{name} never goes away");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_in_the_middle_of_traffic_lose_nothing() {
    if lacking(&NEEDED) {
        return;
    }
    const RULES: &str = "rules: [{name: r, per: [user], limit: 1000 per day, algorithm: sliding_log, on_store_failure: deny}]";
    let server = Redis::start();
    let limiter = limiter(config(&server), RULES).await;
    let done = AtomicBool::new(false);
    let (rulings, flushes) = std::thread::scope(|scope| {
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
        let rulings = tokio::task::block_in_place(|| {
            runtime.block_on(async {
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..16 {
                    let limiter = limiter.clone();
                    tasks.spawn(async move {
                        let mut rulings = Vec::new();
                        for _ in 0..100 {
                            let ann = request(&[("user", "ann")]);
                            let (decision, receipt) = limiter.check_with_receipt(&ann).await;
                            // Refunds are scripts too. One in five comes back and is spent again.
                            let refunded = decision.is_allowed() && rulings.len() % 5 == 0;
                            if refunded {
                                assert_eq!(limiter.refund(receipt).await, Ok(1));
                                rulings.push(limiter.check(&ann).await.status());
                            } else {
                                rulings.push(decision.status());
                            }
                        }
                        rulings
                    });
                }
                tasks.join_all().await.concat()
            })
        });
        done.store(true, Ordering::Relaxed);
        (rulings, flushing.join().unwrap())
    });
    let count = |wanted| rulings.iter().filter(|ruling| **ruling == wanted).count();
    let counted = (
        count(DecisionStatus::Allow),
        count(DecisionStatus::Deny),
        count(DecisionStatus::Unavailable),
    );
    assert_eq!(counted, (1_000, 600, 0), "after {flushes} flushes");
    assert!(flushes > 10, "{flushes}");
}

#[tokio::test]
async fn a_key_that_can_not_be_read_fails_its_own_request_and_no_other() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = RedisStore::connect(config(&server)).await.unwrap();
    let limits = [Algorithm::TokenBucket, Algorithm::SlidingLog]
        .map(|algorithm| Arc::new(Limit::new(algorithm, Quota::per_hour(10)).unwrap()));
    let key = |number: u128| Key::from_u128(number << 64 | number);
    let ask = async |number: u128, limit: &Arc<Limit>| {
        let charge =
            Charge { key: key(number), overflow_key: key(0), limit, cost: 1, independent: false };
        store.charge(&[charge], ChargeMode::Spend).await.remove(0)
    };
    // What another release may have written, what nobody wrote, and what is no string at all.
    server.query::<()>(&["SET", &store.name_of(key(1)), "\u{2}\u{3}\u{1}"]);
    server.query::<()>(&["SET", &store.name_of(key(2)), "\u{1}"]);
    server.query::<()>(&["RPUSH", &store.name_of(key(3)), "x"]);
    let [bucket, log] = &limits;
    let answers = tokio::join!(
        ask(1, bucket),
        ask(11, bucket),
        ask(2, bucket),
        ask(12, log),
        ask(3, log),
        ask(13, bucket),
    );
    let (one, good, two, other, three, last) = answers;
    for answer in [one, two, three] {
        assert!(matches!(answer, ChargeResult::Failed(StoreError::Corrupt { .. })), "{answer:?}");
    }
    for answer in [good, other, last] {
        assert_eq!(answer.outcome().unwrap().remaining, 9);
    }
    assert_eq!(store.counts().opened, 0, "the server did nothing wrong");
}

/// A regression: a denial from memory was remembered as if the store had said it, without end for
/// whoever kept asking.
#[tokio::test]
async fn who_keeps_asking_is_denied_by_the_store_again_after_the_memory_of_a_denial() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let config = config(&server).with_denial_memory(Duration::from_millis(50)).unwrap();
    let limiter = limiter(config, "rules: [{name: api, per: [user], limit: 1 per hour}]").await;
    let user = request(&[("user", "alice")]);
    assert!(limiter.check(&user).await.is_allowed());
    assert!(!limiter.check(&user).await.is_allowed());
    let asked = limiter.store().counts();
    let again = tokio::time::timeout(WAIT_TIMEOUT, async {
        while limiter.store().counts().carried == asked.carried {
            assert!(!limiter.check(&user).await.is_allowed());
            tokio::task::yield_now().await;
        }
    });
    again.await.expect("the store was never asked again");
    assert!(limiter.store().counts().remembered > asked.remembered);
}
