//! Lines between a benchmark and its node processes, and the limiter of a node.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{Limiter, RuleSet};

/// Timeout of a check, longer than that of a service, because the machine is overloaded on purpose.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects a store, and returns a limiter on it.
///
/// # Panics
/// The rules are invalid, or the server does not reply.
pub async fn connect_limiter(url: &str, rules: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().expect("a URL of Redis");
    let config = config.with_timeout(CHECK_TIMEOUT).expect("a valid timeout");
    let store = RedisStore::connect(config).await.expect("Redis replies");
    let rules = RuleSet::parse("bench", rules).expect("the rules are valid");
    Limiter::builder().rules(rules).store(Arc::new(store)).build()
}

/// Sends a line to the parent process.
///
/// # Panics
/// The parent process has ended.
#[allow(clippy::print_stdout, reason = "the parent process reads it")]
pub fn print_line(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("the parent process reads");
}

/// Waits for a line of the parent process.
///
/// # Panics
/// The parent process has ended.
#[must_use]
pub fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("the parent process writes");
    line.trim().to_owned()
}
