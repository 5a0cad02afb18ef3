//! Server clocks that go back, as after a failover to a server with a clock that is behind.

use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{DecisionStatus, Limiter, Request, RuleSet};
use tidegate_testkit::Redis;

/// Replaces the server clock by a key that the test sets.
const CLOCK: &str = "
local now = tonumber(redis.call('GET', 'clock') or '0')
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + 3600000
end
";

const RULES: &str = "
rules:
  - {name: token_bucket, per: [client], limit: 30 per minute, algorithm: token_bucket, on_store_failure: deny}
  - {name: leaky_bucket, per: [client], limit: 30 per minute, algorithm: leaky_bucket, queue: 29, on_store_failure: deny}
  - {name: fixed_window, per: [client], limit: 30 per minute, algorithm: fixed_window, on_store_failure: deny}
  - {name: sliding_window, per: [client], limit: 30 per minute, algorithm: sliding_window, on_store_failure: deny}
  - {name: sliding_log, per: [client], limit: 30 per minute, algorithm: sliding_log, on_store_failure: deny}
";

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

/// Start of a one-minute window.
const START: u64 = 29_700_000 * MINUTE;

struct ClockFixture {
    redis: Redis,
    limiter: Limiter<RedisStore>,
}

impl ClockFixture {
    async fn start() -> Self {
        let redis = Redis::start();
        let config: RedisConfig = redis.url().parse().unwrap();
        let config = config.with_timeout(Duration::from_secs(5)).unwrap();
        let config = config.with_denial_memory(Duration::ZERO).unwrap();
        let store = RedisStore::connect_on_clock(config, CLOCK).await.unwrap();
        let rules = RuleSet::parse("clock.yaml", RULES).unwrap();
        Self { limiter: Limiter::builder().store(Arc::new(store)).rules(rules).build(), redis }
    }

    /// Sets the clock to `at`, sends `times` checks, and returns the number of admitted ones.
    async fn count_admitted(&self, rule: &str, client: &str, at: u64, times: u64) -> u64 {
        self.redis.query::<()>(&["SET", "clock", &at.to_string()]);
        let mut admitted = 0;
        for _ in 0..times {
            let request = Request::new().with("client", client).unwrap();
            match self.limiter.check_rule(rule, &request).await.unwrap().status() {
                DecisionStatus::Allow => admitted += 1,
                DecisionStatus::Deny => {}
                DecisionStatus::Unavailable => panic!("{rule}: {client} can't be decided at {at}"),
            }
        }
        admitted
    }
}

#[tokio::test]
async fn server_clock_set_back_admits_no_more_with_any_algorithm() {
    let fixture = ClockFixture::start().await;
    // One step stays within its window; the other leads back into the previous window.
    for (position, now) in [("middle", START + MINUTE / 2), ("edge", START + 2 * SECOND)] {
        for rule in fixture.limiter.rules().rules().iter().map(|rule| rule.name()) {
            let exhausted = format!("full-{position}");
            assert_eq!(fixture.count_admitted(rule, &exhausted, now, 40).await, 30, "{rule}");
            let set_back = now - 5 * SECOND;
            assert_eq!(
                fixture.count_admitted(rule, &exhausted, set_back, 5).await,
                0,
                "{rule} at the {position}"
            );
            let half_used = format!("half-{position}");
            let before_step = fixture.count_admitted(rule, &half_used, now, 10).await;
            let after_step = fixture.count_admitted(rule, &half_used, set_back, 40).await;
            assert!(
                before_step + after_step <= 30,
                "{rule} at the {position}: {before_step} and then {after_step}"
            );
            // State written by the earlier, later clock expires at its own time.
            let after_window = now + 10 * MINUTE;
            assert_eq!(
                fixture.count_admitted(rule, &exhausted, after_window, 40).await,
                30,
                "{rule} at the {position}"
            );
        }
    }
}
