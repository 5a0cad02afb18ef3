//! Paths without a listener: this program runs itself under callgrind.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{Limiter, Request, RuleSet};
use tidegate_testkit::Redis;
use tokio::task::JoinSet;

use crate::HotPath;
use crate::callgrind::CountFile;

/// The first argument of a run under callgrind.
pub(crate) const RUN_ARGUMENT: &str = "--run";

const REDIS_URL: &str = "TIDEGATE_INSTRUCTIONS_REDIS";
const RULES: &str = "rules: [{name: api, per: [user], limit: 1000000 per second}]";
/// Clients that take turns.
const CLIENTS: u64 = 1_000;
/// Checks that wait for Redis at the same time.
const CONCURRENT_CHECKS: u64 = 64;

pub(crate) fn count(path: HotPath, operations: u64, attempt: usize) -> u64 {
    let file = CountFile::new(path.name(), attempt);
    let mut command = file.command(std::env::current_exe().unwrap());
    command.args([RUN_ARGUMENT, path.name(), &operations.to_string()]);
    let redis = (path == HotPath::Redis).then(Redis::start);
    if let Some(redis) = &redis {
        command.env(REDIS_URL, redis.url());
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file.read()
}

/// Runs the operations of a path; callgrind counts this process.
pub(crate) fn run(name: &str, operations: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match name {
            "memory" => run_memory_checks(operations).await,
            "redis" => run_redis_checks(operations).await,
            other => panic!("found {other:?}, wanted memory or redis"),
        }
    });
}

async fn run_memory_checks(operations: u64) {
    let limiter = Limiter::builder().rules(RuleSet::parse("", RULES).unwrap()).build();
    let users: Vec<String> = (0..CLIENTS).map(|number| format!("user_{number}")).collect();
    for user in users.iter().cycle().take(usize::try_from(operations).unwrap()) {
        let request = Request::new().with("user", user.as_str()).unwrap();
        assert!(black_box(limiter.check(&request).await).is_allowed());
    }
}

async fn run_redis_checks(operations: u64) {
    let config: RedisConfig = std::env::var(REDIS_URL).unwrap().parse().unwrap();
    let timeout = Duration::from_secs(60);
    let config = config.with_timeout(timeout).unwrap().with_connect_timeout(timeout).unwrap();
    let store = Arc::new(RedisStore::connect(config).await.unwrap());
    let rules = RuleSet::parse("", RULES).unwrap();
    let limiter = Limiter::builder().rules(rules).store(store).build();
    for batch in 0..operations / CONCURRENT_CHECKS {
        let mut checks = JoinSet::new();
        for number in 0..CONCURRENT_CHECKS {
            let limiter = limiter.clone();
            let user = format!("user_{}", (batch * CONCURRENT_CHECKS + number) % CLIENTS);
            checks.spawn(async move {
                let request = Request::new().with("user", user.as_str()).unwrap();
                limiter.check(&request).await.is_allowed()
            });
        }
        assert!(checks.join_all().await.into_iter().all(|allowed| allowed));
    }
}
