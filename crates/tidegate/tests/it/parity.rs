//! Parity of the Lua scripts with the Rust core: both return the same results, to the microsecond.

mod leases;
mod random_charges;
mod seeded_random;
mod uniform_charges;
mod vectors;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::Key;
use tidegate::{Limit, Timestamp};
use tidegate_testkit::Redis;
use tokio::runtime::Runtime;

/// Replaces the server clock by a key that the test sets. Redis expires no key while a test runs: each TTL is ten hours
/// longer than the scripts request. The sorted set `expiries` records the requested expiry of each key.
const CONTROLLED_CLOCK_LUA: &str = "
local now = tonumber(redis.call('GET', 'clock'))
local LONGER = 36000000
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + LONGER
end
local server = redis
local redis = setmetatable({}, {__index = server})
function redis.call(...)
  local command, key, millis = ...
  if command == 'PSETEX' then
    server.call('ZADD', 'expiries', now + (millis - LONGER) * 1000, key)
  elseif command == 'DEL' then
    server.call('ZREM', 'expiries', key)
  end
  return server.call(...)
end
";

/// A store on its own Redis server. Only the test advances the clock of the server.
struct ParityFixture {
    _server: Redis,
    control: redis::Connection,
    store: Arc<RedisStore>,
    runtime: Runtime,
}

impl ParityFixture {
    fn new() -> Self {
        let server = Redis::start();
        let control = server.connection().unwrap();
        // One thread: concurrent calls of a test are all queued before the first is sent.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let config: RedisConfig = server.url().parse().unwrap();
        let config = config
            .with_timeout(Duration::from_secs(60))
            .unwrap()
            .with_connect_timeout(crate::CONNECT_TIMEOUT)
            .unwrap();
        let config = config.with_denial_memory(Duration::ZERO).unwrap();
        server.query::<()>(&["SET", "clock", "0"]);
        let store =
            runtime.block_on(RedisStore::connect_on_clock(config, CONTROLLED_CLOCK_LUA)).unwrap();
        Self { _server: server, control, store: Arc::new(store), runtime }
    }

    /// Removes the state and leases of a client under limits other than the last one, as expiry would.
    fn remove_older_limits(&mut self, key: Key, last: &Limit) {
        let state = self.runtime.block_on(self.store.state(key)).unwrap();
        if state.is_some_and(|(limit, _)| !limit.shares_state_with(last)) {
            redis::cmd("DEL").arg(self.store.name_of(key)).exec(&mut self.control).unwrap();
        }
        for name in [self.store.name_of(key), self.store.name_of_leases(key)] {
            let value: Option<Vec<u8>> =
                redis::cmd("GET").arg(&name).query(&mut self.control).unwrap();
            // A value with several sections starts with byte 2; each section starts with its length.
            if let Some([2, a, b, c, d, rest @ ..]) = value.as_deref() {
                let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap();
                let set = redis::cmd("SET")
                    .arg(&name)
                    .arg(&rest[..length])
                    .arg("KEEPTTL")
                    .exec(&mut self.control);
                set.unwrap();
            }
        }
    }

    fn set_time(&mut self, now: Timestamp) {
        let now = now.as_micros().to_string();
        redis::cmd("SET").arg("clock").arg(now).exec(&mut self.control).unwrap();
    }

    /// Deletes the keys with a TTL that has ended by the test's clock, as the server would. Returns their names.
    fn expire_keys(&mut self, now: Timestamp) -> HashSet<String> {
        let due_before = now.as_micros().to_string();
        let mut due_keys = redis::cmd("ZRANGEBYSCORE");
        let names: HashSet<String> =
            due_keys.arg("expiries").arg("-inf").arg(due_before).query(&mut self.control).unwrap();
        for name in &names {
            redis::cmd("DEL").arg(name).exec(&mut self.control).unwrap();
            redis::cmd("ZREM").arg("expiries").arg(name).exec(&mut self.control).unwrap();
        }
        names
    }

    /// Returns the expiry of a key by the test's clock, or `None` if the key does not exist.
    fn expiry(&mut self, name: &str) -> Option<Timestamp> {
        let exists: bool = redis::cmd("EXISTS").arg(name).query(&mut self.control).unwrap();
        let expiry: Option<f64> =
            redis::cmd("ZSCORE").arg("expiries").arg(name).query(&mut self.control).unwrap();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
        expiry.filter(|_| exists).map(|micros| Timestamp::from_micros(micros as u64))
    }
}
