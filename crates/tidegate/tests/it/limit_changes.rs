//! Limits that change by new rules, by a tier, or by an override that ends. On every store, each outcome equals that of
//! the core for the active limit and the migrated state.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tidegate::rules::{Condition, ValueTest};
use tidegate::store::{ClientStates, Store};
use tidegate::{
    Algorithm, Limit, Limiter, ManualClock, Outcome, Quota, Request, Rule, RuleSet, Span, Timestamp,
};
use tokio::runtime::Runtime;

/// The quotas of one rule, of its tier and of its override, and the duration of the override.
#[derive(Clone, Debug)]
struct RuleQuotas {
    algorithm: Algorithm,
    base: Quota,
    tier: Quota,
    override_quota: Quota,
    override_duration: Span,
}

impl RuleQuotas {
    fn rules(&self, now: Timestamp) -> RuleSet {
        let override_end = Some(now + self.override_duration);
        let vip = vec![Condition::new("vip", ValueTest::Present)];
        let rule = Rule::new("api", self.algorithm, self.base).unwrap();
        let rule = rule.with_per("user").unwrap().with_tiers("plan", [("pro", self.tier)]).unwrap();
        let rule = rule.with_overrides([(vip, self.override_quota, override_end)]).unwrap();
        RuleSet::new(vec![rule]).unwrap()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(Span),
    Check { vip: bool, pro: bool, cost: u64 },
    Rules(RuleQuotas),
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        4 => Just(Algorithm::TokenBucket),
        1 => (0u64..12).prop_map(|queue| Algorithm::LeakyBucket { queue }),
        1 => Just(Algorithm::FixedWindow),
        1 => Just(Algorithm::SlidingWindow),
        1 => Just(Algorithm::SlidingLog),
    ]
}

fn quotas() -> impl Strategy<Value = (u64, Span, Option<u64>)> {
    let windows = [Span::from_millis(7), Span::SECOND, Span::from_millis(1_500), Span::MINUTE];
    (0u64..30, proptest::sample::select(windows.to_vec()), proptest::option::of(1u64..60))
}

fn rule_quotas() -> impl Strategy<Value = RuleQuotas> {
    (algorithms(), quotas(), quotas(), quotas(), 0u64..3_000).prop_map(
        |(algorithm, base, tier, override_quota, override_duration)| {
            let quota = |(amount, window, burst): (u64, Span, Option<u64>)| {
                let has_burst = algorithm == Algorithm::TokenBucket && amount > 0;
                let quota = Quota::per(amount, window);
                burst.filter(|_| has_burst).map_or(quota, |burst| quota.burst(burst))
            };
            let override_duration = Span::from_millis(override_duration);
            let (base, tier, override_quota) = (quota(base), quota(tier), quota(override_quota));
            RuleQuotas { algorithm, base, tier, override_quota, override_duration }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => prop_oneof![0u64..50, 0u64..2_000_000].prop_map(|span| Step::Advance(Span::from_micros(span))),
        8 => (any::<bool>(), any::<bool>(), prop_oneof![0u64..4, 0u64..40])
            .prop_map(|(vip, pro, cost)| Step::Check { vip, pro, cost }),
        2 => rule_quotas().prop_map(Step::Rules),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Reference state of the client.
struct ReferenceState {
    states: ClientStates,
    /// True if nodes with different rules share the store. Such a store keeps one state per limit.
    is_shared: bool,
}

impl ReferenceState {
    fn charge(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome {
        let mut states = self.states.clone();
        let is_foreign = states.is_foreign(limit);
        let outcome = limit.charge(states.enter(limit, now), now, cost);
        if !self.is_shared {
            self.states = states.iter().take(1).cloned().collect();
        } else if is_foreign || outcome.refund_token().is_some() {
            // A request that spends nothing changes the state only by a migration.
            states.drop_expired(now);
            self.states = states;
        }
        outcome
    }
}

/// Runs the steps for one user. `set_store_clock` sets the clock of a store that has its own.
async fn run_steps<S: Store>(
    mut limiter: Limiter<S>,
    time: &ManualClock,
    user: &str,
    (first, steps): &(RuleQuotas, Vec<Step>),
    is_shared: bool,
    set_store_clock: impl Fn(Timestamp),
) -> Result<(), TestCaseError> {
    let (mut rule_quotas, mut override_end) = (first.clone(), time.now() + first.override_duration);
    limiter = limiter.with_rules(rule_quotas.rules(time.now()));
    set_store_clock(time.now());
    let mut reference = ReferenceState { states: ClientStates::default(), is_shared };
    for step in steps {
        match step {
            Step::Advance(span) => {
                time.advance(*span);
                set_store_clock(time.now());
            }
            Step::Rules(next) => {
                limiter = limiter.with_rules(next.rules(time.now()));
                (rule_quotas, override_end) = (next.clone(), time.now() + next.override_duration);
            }
            Step::Check { vip, pro, cost } => {
                let mut request = Request::new().with("user", user).unwrap().cost(*cost);
                if *vip {
                    request.insert("vip", "yes").unwrap();
                }
                if *pro {
                    request.insert("plan", "pro").unwrap();
                }
                let quota = match (*vip && time.now() < override_end, *pro) {
                    (true, _) => rule_quotas.override_quota,
                    (false, true) => rule_quotas.tier,
                    (false, false) => rule_quotas.base,
                };
                let limit = Limit::new(rule_quotas.algorithm, quota).unwrap();
                let expected = reference.charge(&limit, time.now(), *cost);
                let decision = limiter.check(&request).await;
                let found =
                    decision.rule_outcomes().first().map(|rule_outcome| rule_outcome.outcome);
                prop_assert_eq!(found, Some(expected), "{} at {:?}", limit, time.now());
            }
        }
    }
    Ok(())
}

/// Returns the number of cases of each property, from `TIDEGATE_CASES`. `make soak` sets it.
#[allow(clippy::disallowed_methods, reason = "the test size is set by the environment")]
fn cases(default_cases: u32) -> u32 {
    std::env::var("TIDEGATE_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(default_cases)
}

fn runner(cases: u32) -> TestRunner {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn changed_limits_in_memory_match_the_core() {
    let runtime = runtime();
    let property = runner(cases(1_000)).run(&(rule_quotas(), steps()), |case| {
        let time = ManualClock::default();
        let limiter = Limiter::builder().clock(time.clock()).build();
        runtime.block_on(run_steps(limiter, &time, "alice", &case, false, |_| {}))
    });
    property.unwrap();
}

#[cfg(feature = "redis")]
#[test]
fn changed_limits_in_redis_match_the_core() {
    use std::cell::{Cell, RefCell};

    use tidegate::redis::{RedisConfig, RedisStore};

    /// Replaces the server clock by a key that the test sets. Each TTL is ten hours longer, so no key expires early.
    const CONTROLLED_CLOCK_LUA: &str = "
local now = tonumber(redis.call('GET', 'clock'))
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + 36000000
end
";
    let (server, runtime, time) =
        (tidegate_testkit::Redis::start(), runtime(), ManualClock::default());
    server.query::<()>(&["SET", "clock", "0"]);
    let config: RedisConfig = server.url().parse().unwrap();
    let config = config
        .with_timeout(std::time::Duration::from_secs(60))
        .unwrap()
        .with_connect_timeout(crate::CONNECT_TIMEOUT)
        .unwrap();
    let config = config.with_denial_memory(std::time::Duration::ZERO).unwrap();
    let store =
        runtime.block_on(RedisStore::connect_on_clock(config, CONTROLLED_CLOCK_LUA)).unwrap();
    let store = Arc::new(store);
    let control = RefCell::new(server.connection().unwrap());
    let set_store_clock = |now: Timestamp| {
        let now = now.as_micros().to_string();
        redis::cmd("SET").arg("clock").arg(now).exec(&mut *control.borrow_mut()).unwrap();
    };
    let users = Cell::new(0);
    let property = runner(cases(150)).run(&(rule_quotas(), steps()), |case| {
        users.set(users.get() + 1);
        let user = format!("user-{}", users.get());
        let limiter = Limiter::builder().clock(time.clock()).store(Arc::clone(&store)).build();
        runtime.block_on(run_steps(limiter, &time, &user, &case, true, set_store_clock))
    });
    property.unwrap();
}
