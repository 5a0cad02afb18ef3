//! Nodes with different versions of the rules on one Redis. While a rule change spreads, the nodes of each version admit
//! at most what their own limit admits alone. All nodes together admit at most the old bound plus the new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::{Charge, ChargeMode, ChargeResult, Key, Refund, State, Store};
use tidegate::{
    Algorithm, DecisionStatus, Limit, Limiter, Quota, Request, RuleSet, Span, Timestamp,
};
use tidegate_testkit::{Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};
use tokio::task::JoinSet;

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

/// Replaces the server clock by a key that the test sets. Each TTL is ten hours longer, so no key expires early.
const CONTROLLED_CLOCK_LUA: &str = "
local now = tonumber(redis.call('GET', 'clock'))
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + 36000000
end
";

const START_MICROS: u64 = 1_780_000_000_123_457;

fn config(server: &Redis) -> RedisConfig {
    let config: RedisConfig = server.url().parse().unwrap();
    let config = config
        .with_timeout(WAIT_TIMEOUT)
        .unwrap()
        .with_connect_timeout(crate::CONNECT_TIMEOUT)
        .unwrap();
    config.with_denial_memory(Duration::ZERO).unwrap()
}

/// Nodes on one Redis. The test sets the clock of the server.
struct Fleet {
    server: Redis,
    nodes: Vec<Arc<RedisStore>>,
    now: u64,
}

impl Fleet {
    async fn start(size: usize) -> Self {
        let server = Redis::start();
        server.query::<()>(&["SET", "clock", &START_MICROS.to_string()]);
        let mut nodes = Vec::new();
        for _ in 0..size {
            let store =
                RedisStore::connect_on_clock(config(&server), CONTROLLED_CLOCK_LUA).await.unwrap();
            nodes.push(Arc::new(store));
        }
        Self { server, nodes, now: START_MICROS }
    }

    fn advance(&mut self, span: Span) {
        self.now += span.as_micros();
        self.server.query::<()>(&["SET", "clock", &self.now.to_string()]);
    }
}

/// Charges one request, and returns whether the node admits it.
async fn charge_is_admitted(node: &RedisStore, key: Key, limit: &Arc<Limit>, cost: u64) -> bool {
    let charge = Charge { key, overflow_key: key, limit, cost, independent: false };
    match node.charge(&[charge], ChargeMode::of_cost(cost)).await.remove(0) {
        ChargeResult::Outcome(outcome) => outcome.is_allowed(),
        other => panic!("{limit} was not decided: {other:?}"),
    }
}

/// Returns limits of every algorithm, with different amounts and windows.
fn limits() -> Vec<Arc<Limit>> {
    let limits = [
        (Algorithm::TokenBucket, Quota::per_minute(60)),
        (Algorithm::TokenBucket, Quota::per_minute(6)),
        (Algorithm::TokenBucket, Quota::per_second(3).burst(40)),
        (Algorithm::LeakyBucket { queue: 0 }, Quota::per_minute(30)),
        (Algorithm::LeakyBucket { queue: 20 }, Quota::per_minute(60)),
        (Algorithm::FixedWindow, Quota::per_minute(50)),
        (Algorithm::FixedWindow, Quota::per_minute(20)),
        (Algorithm::FixedWindow, Quota::per_second(2)),
        (Algorithm::SlidingWindow, Quota::per_minute(40)),
        (Algorithm::SlidingWindow, Quota::per(5, Span::from_secs(7))),
        (Algorithm::SlidingLog, Quota::per_minute(45)),
        (Algorithm::SlidingLog, Quota::per(4, Span::from_secs(9))),
        (Algorithm::Concurrency { hold: Span::from_secs(30) }, Quota::in_flight(10)),
        (Algorithm::Concurrency { hold: Span::from_secs(20) }, Quota::in_flight(5)),
    ];
    limits.map(|(algorithm, quota)| Arc::new(Limit::new(algorithm, quota).unwrap())).to_vec()
}

/// One version of a limit: the admissions of its nodes, and the bound for a client under this limit alone.
struct LimitVersion {
    limit: Arc<Limit>,
    /// A state charged only with the admissions of this version's nodes.
    own: State,
    /// A state charged with all that the limit admits.
    greedy: State,
    admitted: u64,
    bound: u64,
}

impl LimitVersion {
    fn new(limit: &Arc<Limit>) -> Self {
        let (own, greedy) = (limit.fresh(), limit.fresh());
        Self { limit: Arc::clone(limit), own, greedy, admitted: 0, bound: 0 }
    }

    /// Charges `greedy` until it is denied, and adds the admissions to the bound.
    fn exhaust(&mut self, now: Timestamp) {
        while self.limit.charge(&mut self.greedy, now, 1).is_allowed() {
            self.bound += 1;
        }
    }
}

/// An old and a new version of one client's limit, in this order.
struct LimitChange {
    key: Key,
    versions: [LimitVersion; 2],
}

impl LimitChange {
    /// Sends up to twelve requests to each node, in alternating groups of four. A group ends with a denial.
    async fn alternate_requests(&mut self, nodes: &[Arc<RedisStore>], now: Timestamp) {
        let shared = self.versions[0].limit.shares_state_with(&self.versions[1].limit);
        for _ in 0..3 {
            for (node, version) in nodes.iter().zip(&mut self.versions) {
                for _ in 0..4 {
                    if !charge_is_admitted(node, self.key, &version.limit, 1).await {
                        break;
                    }
                    version.admitted += 1;
                    let fits = version.limit.charge(&mut version.own, now, 1).is_allowed();
                    assert!(fits || shared, "{} admitted more than alone", version.limit);
                }
            }
        }
        self.versions.iter_mut().for_each(|version| version.exhaust(now));
    }
}

#[tokio::test]
async fn alternating_nodes_admit_at_most_the_sum_of_both_bounds() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let mut fleet = Fleet::start(2).await;
    let limits = limits();
    let pairs = limits.iter().flat_map(|old| limits.iter().map(move |new| (old, new)));
    let pairs = pairs.filter(|(old, new)| old != new);
    let mut changes: Vec<LimitChange> = (1..)
        .zip(pairs)
        .map(|(number, (old, new))| LimitChange {
            key: Key::from_u128(number << 64 | number),
            versions: [LimitVersion::new(old), LimitVersion::new(new)],
        })
        .collect();
    for _ in 0..16 {
        let now = Timestamp::from_micros(fleet.now);
        let nodes = &fleet.nodes;
        join_all(changes.iter_mut().map(|change| change.alternate_requests(nodes, now))).await;
        fleet.advance(Span::from_millis(2_737));
    }
    let mut violations = Vec::new();
    for LimitChange { versions: [old, new], .. } in changes {
        let (admitted, bound) = (old.admitted + new.admitted, old.bound + new.bound);
        println!("{} -> {}: {admitted} of at most {bound}", old.limit, new.limit);
        assert!(admitted > 0, "{} -> {}: nothing was admitted", old.limit, new.limit);
        if admitted > bound {
            violations.push(format!("{} -> {}: {admitted}, not {bound}", old.limit, new.limit));
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Nodes of both versions send concurrent requests. Each is decided, and neither version exceeds its limit. The clock
/// does not advance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_under_two_versions_are_all_decided_within_both_bounds() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(3).await;
    let (limits, mut number) = (limits(), 0);
    for old in &limits {
        for new in &limits {
            if old == new {
                continue;
            }
            number += 1;
            let key = Key::from_u128(number << 64 | number);
            let mut tasks = JoinSet::new();
            let admitted: Arc<[AtomicU64; 2]> = Arc::default();
            for task in 0..12 {
                let (node, version_index) =
                    (Arc::clone(&fleet.nodes[task % 3]), usize::from(task % 3 == 0));
                let limit = Arc::clone([old, new][version_index]);
                let admitted = Arc::clone(&admitted);
                tasks.spawn(async move {
                    for _ in 0..8 {
                        if charge_is_admitted(&node, key, &limit, 1).await {
                            admitted[version_index].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            tasks.join_all().await;
            for (version_index, limit) in [old, new].into_iter().enumerate() {
                let admitted = admitted[version_index].load(Ordering::Relaxed);
                assert!(admitted <= limit.capacity(), "{old} -> {new}: {admitted} by {limit}");
            }
        }
    }
}

/// Covers requests with several rules, for which other nodes have other limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_rule_requests_are_decided_while_versions_are_mixed() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(2).await;
    let bucket = |amount| Limit::new(Algorithm::TokenBucket, Quota::per_hour(amount)).unwrap();
    let log = |amount| Limit::new(Algorithm::SlidingLog, Quota::per_hour(amount)).unwrap();
    let versions = [bucket(300), log(40)].map(Arc::new);
    let mut tasks = JoinSet::new();
    for task in 0..12 {
        let node = Arc::clone(&fleet.nodes[task % 2]);
        let limit = Arc::clone(&versions[task % 2]);
        tasks.spawn(async move {
            let mut admitted = [0, 0];
            for turn in 0..30_u128 {
                let key = |number: u128| Key::from_u128(number << 64 | number);
                let charges = [turn % 3 + 1, turn % 5 + 11, turn % 7 + 21].map(|number| Charge {
                    key: key(number),
                    overflow_key: key(0),
                    limit: &limit,
                    cost: 1,
                    independent: false,
                });
                let charge_results = node.charge(&charges, ChargeMode::Spend).await;
                let outcomes: Option<Vec<_>> =
                    charge_results.iter().map(ChargeResult::outcome).collect();
                let outcomes = outcomes.unwrap_or_else(|| panic!("{charge_results:?}"));
                admitted[task % 2] +=
                    u64::from(outcomes.iter().all(|outcome| outcome.is_allowed()));
            }
            admitted
        });
    }
    let admitted = tasks.join_all().await;
    let admitted_by_log: u64 = admitted.iter().map(|by| by[1]).sum();
    // The first rule has three keys, and admits at most 40 requests for each.
    assert!(admitted_by_log <= 3 * 40, "{admitted_by_log}");
}

/// Nodes release and renew their slots also while other nodes use another algorithm for the same key.
#[tokio::test]
async fn slots_can_be_released_while_other_nodes_use_another_algorithm() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(2).await;
    let [old, new] = [&fleet.nodes[0], &fleet.nodes[1]];
    let in_flight = |amount| {
        let hold = Algorithm::Concurrency { hold: Span::MINUTE };
        Arc::new(Limit::new(hold, Quota::in_flight(amount)).unwrap())
    };
    let (slots, fewer) = (in_flight(10), in_flight(5));
    let bucket = Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_hour(100)).unwrap());
    let key = Key::from_u128(7);
    let mut held = Vec::new();
    for _ in 0..10 {
        let charge = Charge { key, overflow_key: key, limit: &slots, cost: 1, independent: false };
        let refund_token =
            old.charge(&[charge], ChargeMode::Spend).await[0].outcome().unwrap().refund_token();
        held.push(Refund { key, limit: Arc::clone(&slots), cost: 1, refund_token });
        assert!(charge_is_admitted(new, key, &bucket, 1).await);
    }
    assert!(!charge_is_admitted(old, key, &slots, 1).await);
    assert!(!charge_is_admitted(new, key, &fewer, 1).await);
    assert!(charge_is_admitted(new, key, &bucket, 1).await);
    assert_eq!(old.renew(&held).await, Ok(10));
    assert_eq!(old.refund(&held[..6]).await, Ok(6));
    // All concurrency limits of a key share one set of slots. Four are in use.
    assert!(charge_is_admitted(new, key, &fewer, 1).await);
    assert!(!charge_is_admitted(new, key, &fewer, 1).await);
    assert!(charge_is_admitted(old, key, &slots, 5).await);
    assert!(!charge_is_admitted(old, key, &slots, 1).await);
    let results = new
        .charge(
            &[Charge { key, overflow_key: key, limit: &bucket, cost: 0, independent: false }],
            ChargeMode::Peek,
        )
        .await;
    assert_eq!(results[0].outcome().unwrap().remaining, 100 - 11);
}

/// After all nodes have changed their rules, the usage of a client is kept, also after a rollback.
#[tokio::test]
async fn rolled_back_limit_counts_admissions_of_the_newer_limit() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(1).await;
    let node = &fleet.nodes[0];
    let limit =
        |algorithm, amount| Arc::new(Limit::new(algorithm, Quota::per_hour(amount)).unwrap());
    let pairs = [
        (limit(Algorithm::TokenBucket, 10), limit(Algorithm::TokenBucket, 100), 50),
        (limit(Algorithm::FixedWindow, 10), limit(Algorithm::FixedWindow, 100), 50),
        (limit(Algorithm::FixedWindow, 10), limit(Algorithm::SlidingLog, 100), 50),
        (limit(Algorithm::SlidingLog, 10), limit(Algorithm::TokenBucket, 100), 50),
    ];
    for (number, (first, second, spent)) in (1..).zip(pairs) {
        let key = Key::from_u128(number);
        assert!(charge_is_admitted(node, key, &first, 2).await);
        assert!(charge_is_admitted(node, key, &second, spent).await);
        let used = if first.algorithm() == second.algorithm() && number == 1 { 7 } else { 10 };
        let peek = Charge { key, overflow_key: key, limit: &first, cost: 0, independent: false };
        let results = node.charge(&[peek], ChargeMode::Peek).await;
        assert_eq!(results[0].outcome().unwrap().remaining, 10 - used, "{first} after {second}");
    }
}

async fn limiter(server: &Redis, rule: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = server.url().parse().unwrap();
    let store = RedisStore::connect(
        config
            .with_timeout(WAIT_TIMEOUT)
            .unwrap()
            .with_connect_timeout(crate::CONNECT_TIMEOUT)
            .unwrap(),
    )
    .await
    .unwrap();
    let rules = format!("rules: [{{name: api, per: [user], on_store_failure: deny, {rule}}}]");
    let rules = RuleSet::parse("rules.yaml", &rules).unwrap();
    Limiter::builder().rules(rules).store(Arc::new(store)).build()
}

/// Nodes of two accuracies, or of two limits of which one or both are leased. The windows outlast the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_two_accuracies_admit_at_most_the_sum_of_both_bounds() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let fixed = |amount: u64| format!("limit: {amount} per 10 days, algorithm: fixed_window");
    let bucket = |amount: u64| format!("limit: {amount} per 10 days");
    let log = |amount: u64| format!("limit: {amount} per 10 days, algorithm: sliding_log");
    let leased = |rule: String| format!("{rule}, accuracy: leased");
    let hot = |rule: String| format!("{rule}, hot: leased");
    let synced = |rule: String| format!("{rule}, accuracy: synced, max_ahead: 10");
    // Two nodes have the second rule, so twice its `max_ahead` comes on top of its bound.
    let pairs = [
        (fixed(400), leased(fixed(400)), 800),
        (leased(bucket(400)), bucket(400), 800),
        (leased(bucket(400)), hot(bucket(400)), 800),
        (leased(fixed(400)), leased(fixed(100)), 500),
        (leased(bucket(400)), leased(bucket(100)), 500),
        (leased(bucket(100)), leased(fixed(400)), 500),
        (log(300), leased(bucket(200)), 500),
        (leased(fixed(300)), log(200), 500),
        (fixed(300), synced(fixed(300)), 620),
        (leased(bucket(200)), synced(fixed(300)), 520),
    ];
    for (number, (old, new, bound)) in pairs.into_iter().enumerate() {
        let user = format!("user-{number}");
        let nodes = [
            limiter(&server, &old).await,
            limiter(&server, &new).await,
            limiter(&server, &new).await,
        ];
        let mut tasks = JoinSet::new();
        for (place, node) in nodes.iter().enumerate() {
            let (node, user) = (node.clone(), user.clone());
            tasks.spawn(async move {
                let (mut admitted, mut failed) = (0, 0);
                for _ in 0..700 {
                    match node
                        .check(&Request::new().with("user", user.as_str()).unwrap())
                        .await
                        .status()
                    {
                        DecisionStatus::Allow => admitted += 1,
                        DecisionStatus::Deny => tokio::task::yield_now().await,
                        DecisionStatus::Unavailable => failed += 1,
                    }
                }
                (place, admitted, failed)
            });
        }
        let results = tasks.join_all().await;
        let failed: u64 = results.iter().map(|(_, _, failed)| failed).sum();
        let admitted: u64 = results.iter().map(|(_, admitted, _)| admitted).sum();
        println!("{old} and {new}: {admitted} of at most {bound}, {failed} undecided, {results:?}");
        assert_eq!(failed, 0, "{old} and {new}");
        assert!(admitted <= bound, "{old} and {new}: {admitted} admitted, {bound} at the most");
        assert!(admitted > 0, "{old} and {new}: nothing was admitted");
    }
}
