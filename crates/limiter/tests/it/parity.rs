//! The scripts in a real Redis answer what the Rust core answers, to the microsecond.

mod leases;
mod random;
mod vectors;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use tidegate::{RedisConfig, RedisStore, Timestamp};
use tidegate_testkit::Redis;
use tokio::runtime::Runtime;

/// Time by a key that the test sets. Nothing expires while the test is at it.
const CLOCK: &str = "
local now = tonumber(redis.call('GET', 'clock'))
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + 36000000
end
";

/// A store on a server of its own whose time stands still until it is set.
struct Bench {
    _server: Redis,
    control: redis::Connection,
    store: Arc<RedisStore>,
    runtime: Runtime,
}

impl Bench {
    fn new() -> Self {
        let server = Redis::start();
        let control = server.connection().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let config: RedisConfig = server.url().parse().unwrap();
        let config = config.with_timeout(Duration::from_secs(60)).unwrap();
        let config = config.with_denial_memory(Duration::ZERO).unwrap();
        server.query::<()>(&["SET", "clock", "0"]);
        let store = runtime.block_on(RedisStore::connect_on_clock(config, CLOCK)).unwrap();
        Self { _server: server, control, store: Arc::new(store), runtime }
    }

    fn set_time(&mut self, now: Timestamp) {
        let now = now.as_micros().to_string();
        redis::cmd("SET").arg("clock").arg(now).exec(&mut self.control).unwrap();
    }
}
