//! The scripts in a real Redis answer what the Rust core answers, to the microsecond.

mod leases;
mod random;
mod vectors;
mod walk;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Key, Limit, RedisConfig, RedisStore, Timestamp};
use tidegate_testkit::Redis;
use tokio::runtime::Runtime;

/// Time by a key that the test sets. The server itself expires nothing while a test runs: each time to live
/// is ten hours longer than the scripts want it. The instant that they want is kept in `expiries`.
const CLOCK: &str = "
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
        let config = config
            .with_timeout(Duration::from_secs(60))
            .unwrap()
            .with_connect_timeout(crate::CONNECT_TIMEOUT)
            .unwrap();
        let config = config.with_denial_memory(Duration::ZERO).unwrap();
        server.query::<()>(&["SET", "clock", "0"]);
        let store = runtime.block_on(RedisStore::connect_on_clock(config, CLOCK)).unwrap();
        Self { _server: server, control, store: Arc::new(store), runtime }
    }

    /// Drops what other limits than the last one left of a client, as when it has expired.
    fn keep_last_limit(&mut self, key: Key, last: &Limit) {
        let state = self.runtime.block_on(self.store.state(key)).unwrap();
        if state.is_some_and(|(limit, _)| !limit.shares_state_with(last)) {
            redis::cmd("DEL").arg(self.store.name_of(key)).exec(&mut self.control).unwrap();
        }
        for name in [self.store.name_of(key), self.store.name_of_leases(key)] {
            let kept: Option<Vec<u8>> =
                redis::cmd("GET").arg(&name).query(&mut self.control).unwrap();
            // A value of several sections begins with 2, each section with its length.
            if let Some([2, a, b, c, d, rest @ ..]) = kept.as_deref() {
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

    /// Deletes the keys whose time to live is over by the test's clock, as the server would. Their names.
    fn expire_keys(&mut self, now: Timestamp) -> HashSet<String> {
        let until = now.as_micros().to_string();
        let mut due = redis::cmd("ZRANGEBYSCORE");
        let names: HashSet<String> =
            due.arg("expiries").arg("-inf").arg(until).query(&mut self.control).unwrap();
        for name in &names {
            redis::cmd("DEL").arg(name).exec(&mut self.control).unwrap();
            redis::cmd("ZREM").arg("expiries").arg(name).exec(&mut self.control).unwrap();
        }
        names
    }

    /// When a key expires by the test's clock; nothing for a key that is not there.
    fn expiry(&mut self, name: &str) -> Option<Timestamp> {
        let exists: bool = redis::cmd("EXISTS").arg(name).query(&mut self.control).unwrap();
        let expiry: Option<f64> =
            redis::cmd("ZSCORE").arg("expiries").arg(name).query(&mut self.control).unwrap();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
        expiry.filter(|_| exists).map(|micros| Timestamp::from_micros(micros as u64))
    }
}
