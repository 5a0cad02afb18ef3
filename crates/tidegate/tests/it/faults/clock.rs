//! A server whose clock goes back, as after a failover to one that is behind.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{DecisionStatus, Limiter, RedisConfig, RedisStore, Request, RuleSet};
use tidegate_testkit::Redis;

/// Time by a key that the test sets.
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

/// A whole minute.
const START: u64 = 29_700_000 * MINUTE;

struct Bed {
    redis: Redis,
    limiter: Limiter<RedisStore>,
}

impl Bed {
    async fn start() -> Self {
        let redis = Redis::start();
        let config: RedisConfig = redis.url().parse().unwrap();
        let config = config.with_timeout(Duration::from_secs(5)).unwrap();
        let config = config.with_denial_memory(Duration::ZERO).unwrap();
        let store = RedisStore::connect_on_clock(config, CLOCK).await.unwrap();
        let rules = RuleSet::parse("clock.yaml", RULES).unwrap();
        Self { limiter: Limiter::builder().store(Arc::new(store)).rules(rules).build(), redis }
    }

    /// How many of so many checks are admitted at an instant.
    async fn admitted(&self, rule: &str, client: &str, at: u64, times: u64) -> u64 {
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
async fn a_clock_that_goes_back_gives_nothing_away_by_any_algorithm() {
    let bed = Bed::start().await;
    // In the middle of a window, and where five seconds lead back into the one before.
    for (place, from) in [("middle", START + MINUTE / 2), ("edge", START + 2 * SECOND)] {
        for rule in bed.limiter.rules().rules().iter().map(|rule| rule.name()) {
            let full = format!("full-{place}");
            assert_eq!(bed.admitted(rule, &full, from, 40).await, 30, "{rule}");
            let back = from - 5 * SECOND;
            assert_eq!(bed.admitted(rule, &full, back, 5).await, 0, "{rule} at the {place}");
            let half = format!("half-{place}");
            let early = bed.admitted(rule, &half, from, 10).await;
            let late = bed.admitted(rule, &half, back, 40).await;
            assert!(early + late <= 30, "{rule} at the {place}: {early} and then {late}");
            // What a clock ahead has left behind is over when its time has come.
            let later = from + 10 * MINUTE;
            assert_eq!(bed.admitted(rule, &full, later, 40).await, 30, "{rule} at the {place}");
        }
    }
}
