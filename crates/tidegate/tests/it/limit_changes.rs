//! Limits that change as they do in life: by new rules, by a tier, by an override that ends. Every
//! answer is what the core says of the limit in force and of what was there, on every store.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tidegate::rule::{Condition, ValueTest};
use tidegate::{
    Algorithm, ClientStates, Limit, Limiter, ManualClock, Outcome, Quota, Request, Rule, RuleSet,
    Span, Store, Timestamp,
};
use tokio::runtime::Runtime;

/// The numbers of one rule: its own, those of a tier and those of an override, and how soon that ends.
#[derive(Clone, Debug)]
struct Numbers {
    algorithm: Algorithm,
    own: Quota,
    tier: Quota,
    overriding: Quota,
    lasts: Span,
}

impl Numbers {
    fn rules(&self, now: Timestamp) -> RuleSet {
        let until = Some(now + self.lasts);
        let vip = vec![Condition::new("vip", ValueTest::Present)];
        let rule = Rule::new("api", self.algorithm, self.own).unwrap();
        let rule = rule.with_per("user").unwrap().with_tiers("plan", [("pro", self.tier)]).unwrap();
        let rule = rule.with_overrides([(vip, self.overriding, until)]).unwrap();
        RuleSet::new(vec![rule]).unwrap()
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Thousandths of a second or of a minute.
    Advance(Span),
    Check {
        vip: bool,
        pro: bool,
        cost: u64,
    },
    Rules(Numbers),
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

fn numbers() -> impl Strategy<Value = Numbers> {
    (algorithms(), quotas(), quotas(), quotas(), 0u64..3_000).prop_map(
        |(algorithm, own, tier, overriding, lasts)| {
            let quota = |(amount, window, burst): (u64, Span, Option<u64>)| {
                let has_burst = algorithm == Algorithm::TokenBucket && amount > 0;
                let quota = Quota::per(amount, window);
                burst.filter(|_| has_burst).map_or(quota, |burst| quota.burst(burst))
            };
            let lasts = Span::from_millis(lasts);
            let (own, tier, overriding) = (quota(own), quota(tier), quota(overriding));
            Numbers { algorithm, own, tier, overriding, lasts }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => prop_oneof![0u64..50, 0u64..2_000_000].prop_map(|span| Step::Advance(Span::from_micros(span))),
        8 => (any::<bool>(), any::<bool>(), prop_oneof![0u64..4, 0u64..40])
            .prop_map(|(vip, pro, cost)| Step::Check { vip, pro, cost }),
        2 => numbers().prop_map(Step::Rules),
    ];
    proptest::collection::vec(step, 1..60)
}

/// What is kept of the client.
struct Kept {
    states: ClientStates,
    /// Whether nodes with different rules share the store, which then keeps a state for each limit.
    is_shared: bool,
}

impl Kept {
    fn charge(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome {
        let mut states = self.states.clone();
        let is_foreign = states.is_foreign(limit);
        let outcome = limit.charge(states.enter(limit, now), now, cost);
        if !self.is_shared {
            self.states = states.iter().take(1).cloned().collect();
        } else if is_foreign || outcome.refund_token().is_some() {
            // A request that spends nothing changes nothing, except by a takeover.
            states.drop_expired(now);
            self.states = states;
        }
        outcome
    }
}

/// Walks one user through the steps; `show` tells a store that has a clock of its own what time it is.
async fn walk<S: Store>(
    mut limiter: Limiter<S>,
    time: &ManualClock,
    user: &str,
    (first, steps): &(Numbers, Vec<Step>),
    is_shared: bool,
    show: impl Fn(Timestamp),
) -> Result<(), TestCaseError> {
    let (mut numbers, mut until) = (first.clone(), time.now() + first.lasts);
    limiter = limiter.with_rules(numbers.rules(time.now()));
    show(time.now());
    let mut kept = Kept { states: ClientStates::default(), is_shared };
    for step in steps {
        match step {
            Step::Advance(span) => {
                time.advance(*span);
                show(time.now());
            }
            Step::Rules(next) => {
                limiter = limiter.with_rules(next.rules(time.now()));
                (numbers, until) = (next.clone(), time.now() + next.lasts);
            }
            Step::Check { vip, pro, cost } => {
                let mut request = Request::new().with("user", user).unwrap().cost(*cost);
                if *vip {
                    request.insert("vip", "yes").unwrap();
                }
                if *pro {
                    request.insert("plan", "pro").unwrap();
                }
                let quota = match (*vip && time.now() < until, *pro) {
                    (true, _) => numbers.overriding,
                    (false, true) => numbers.tier,
                    (false, false) => numbers.own,
                };
                let limit = Limit::new(numbers.algorithm, quota).unwrap();
                let wanted = kept.charge(&limit, time.now(), *cost);
                let decision = limiter.check(&request).await;
                let told = decision.rule_outcomes().first().map(|policy| policy.outcome);
                prop_assert_eq!(told, Some(wanted), "{} at {:?}", limit, time.now());
            }
        }
    }
    Ok(())
}

/// Number of cases of each property; `make soak` asks for many more.
#[allow(clippy::disallowed_methods, reason = "a soak says how long it is")]
fn cases(usual: u32) -> u32 {
    std::env::var("TIDEGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

fn runner(cases: u32) -> TestRunner {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn limits_that_change_in_memory_answer_as_the_core_does() {
    let runtime = runtime();
    let property = runner(cases(1_000)).run(&(numbers(), steps()), |case| {
        let time = ManualClock::default();
        let limiter = Limiter::builder().clock(time.clock()).build();
        runtime.block_on(walk(limiter, &time, "alice", &case, false, |_| {}))
    });
    property.unwrap();
}

#[cfg(feature = "redis")]
#[test]
fn limits_that_change_in_redis_answer_as_the_core_does() {
    use std::cell::{Cell, RefCell};

    use tidegate::{RedisConfig, RedisStore};

    /// Time by a key that the test sets. Nothing expires while the test is at it.
    const CLOCK: &str = "
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
    let store = runtime.block_on(RedisStore::connect_on_clock(config, CLOCK)).unwrap();
    let store = Arc::new(store);
    let control = RefCell::new(server.connection().unwrap());
    let show = |now: Timestamp| {
        let now = now.as_micros().to_string();
        redis::cmd("SET").arg("clock").arg(now).exec(&mut *control.borrow_mut()).unwrap();
    };
    let users = Cell::new(0);
    let property = runner(cases(150)).run(&(numbers(), steps()), |case| {
        users.set(users.get() + 1);
        let user = format!("user-{}", users.get());
        let limiter = Limiter::builder().clock(time.clock()).store(Arc::clone(&store)).build();
        runtime.block_on(walk(limiter, &time, &user, &case, true, show))
    });
    property.unwrap();
}
