//! The load, from common load generators.

use std::path::PathBuf;

use tidegate_bench::host::{self, LOAD_CORE};
use tidegate_bench::server::BenchServer;

/// Request bodies. `%d` stands for the number of the client.
pub(crate) const CHECK_BODY: &str = r#"{"rule":"api","client":"user_%d"}"#;
pub(crate) const THROTTLE_BODY: &str =
    r#"{"key":"user_%d","max_burst":1000000,"count_per_period":1000000,"period":1,"quantity":1}"#;

pub(crate) const GET_COMMAND: &[&str] = &["GET", "key:__rand_int__"];
pub(crate) const CL_THROTTLE_COMMAND: &[&str] =
    &["CL.THROTTLE", "user:__rand_int__", "1000000", "1000000", "1"];
pub(crate) const TG_CHECK_COMMAND: &[&str] = &["TG.CHECK", "api", "user:__rand_int__"];
pub(crate) const THROTTLECRAB_COMMAND: &[&str] =
    &["THROTTLE", "user:__rand_int__", "1000000", "1000000", "1"];

pub(crate) const RLS_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(crate) const THROTTLECRAB_PATH: &str = "/throttlecrab.RateLimiter/Throttle";

/// Number of clients.
const CLIENTS: &str = "100000";

/// The end of a script for wrk: reports responses with an error status.
const DONE: &str = "function done(summary) if summary.errors.status > 0 then print('BAD ' .. summary.errors.status) end end";

/// Checks in one request of [`ListenerLoad::batch`].
const BATCH_SIZE: usize = 100;
/// Different prepared batches.
const BATCHES: usize = 200;

pub(crate) enum ListenerLoad {
    Wrk { script: PathBuf, checks_per_request: usize },
    H2load { path: &'static str, body: PathBuf, connections: u32, streams: u32 },
    RedisBenchmark { pipeline: u32, command: &'static [&'static str] },
}

/// Result of one run.
#[derive(Clone, Copy)]
pub(crate) struct LoadResult {
    /// Checks per second.
    pub(crate) rate: f64,
    /// CPU time of the server per check.
    pub(crate) cpu_micros: f64,
    /// CPU time of its Redis per check, 0 without one.
    pub(crate) redis_cpu_micros: f64,
}

impl ListenerLoad {
    /// Returns a load that posts a body with a different client in each request.
    pub(crate) fn http(path: &str, body: &str) -> Self {
        Self::wrk(&format!(
            "wrk.format('POST', '{path}', {{['content-type'] = 'application/json'}}, string.format('{body}', i))"
        ))
    }

    /// Returns a load of subrequests as NGINX sends them for a client's request.
    pub(crate) fn authorize() -> Self {
        Self::wrk(
            "wrk.format('GET', '/v1/authorize', {['X-Original-URI'] = '/v1/orders', \
             ['X-Original-Method'] = 'GET', ['X-API-Key'] = 'user_' .. i})",
        )
    }

    pub(crate) fn get() -> Self {
        Self::wrk("wrk.format('GET', '/?user=user_' .. i)")
    }

    /// Returns a load of batches of checks, each check of another client.
    pub(crate) fn batch() -> Self {
        let script = format!(
            "local all, at = {{}}, 0
             function init() for i = 1, {BATCHES} do
               local checks = {{}}
               for j = 1, {BATCH_SIZE} do
                 checks[j] = string.format('{CHECK_BODY}', i * {BATCH_SIZE} + j)
               end
               local body = '{{\"checks\":[' .. table.concat(checks, ',') .. ']}}'
               all[i] = wrk.format('POST', '/v1/check/batch', {{['content-type'] = 'application/json'}}, body)
             end end
             function request() at = at % {BATCHES} + 1 return all[at] end
             {DONE}"
        );
        let script = write_temp_file("batch.lua", script.as_bytes());
        Self::Wrk { script, checks_per_request: BATCH_SIZE }
    }

    /// Returns a load of prepared requests, so that building them takes no CPU time during the run.
    fn wrk(request: &str) -> Self {
        let script = format!(
            "local all, at = {{}}, 0
             function init() for i = 1, 10000 do all[i] = {request} end end
             function request() at = at % 10000 + 1 return all[at] end
             {DONE}"
        );
        let name = request.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
        let script = write_temp_file(&format!("{name:x}.lua"), script.as_bytes());
        Self::Wrk { script, checks_per_request: 1 }
    }

    pub(crate) fn grpc(
        path: &'static str,
        message: Vec<u8>,
        connections: u32,
        streams: u32,
    ) -> Self {
        let length = u32::try_from(message.len()).unwrap();
        let mut frame = vec![0];
        frame.extend(length.to_be_bytes());
        frame.extend(message);
        let body = write_temp_file(&format!("{}.grpc", path.len()), &frame);
        Self::H2load { path, body, connections, streams }
    }

    pub(crate) fn resp(pipeline: u32, command: &'static [&'static str]) -> Self {
        Self::RedisBenchmark { pipeline, command }
    }

    /// Runs the load on a core, or on all. `expected_rate` is the rate of an earlier run: redis-benchmark is limited by
    /// requests, not by time.
    pub(crate) fn run(
        &self,
        server: &BenchServer,
        core: Option<usize>,
        seconds: u64,
        expected_rate: f64,
    ) -> LoadResult {
        let port = server.port();
        let requests = (expected_rate * seconds as f64) as u64;
        let mut command = host::command(self.program(), core);
        match self {
            Self::Wrk { script, .. } => {
                command.args(["-t1", "-c50", &format!("-d{seconds}s"), "-s"]).arg(script);
                command.arg(format!("http://127.0.0.1:{port}/"));
            }
            Self::H2load { path, body, connections, streams } => {
                command.args(["-t1", "-c", &connections.to_string(), "-m", &streams.to_string()]);
                command.args(["-D", &seconds.to_string(), "-d"]).arg(body);
                command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
                command.arg(format!("http://127.0.0.1:{port}{path}"));
            }
            Self::RedisBenchmark { pipeline, command: redis_command } => {
                command.args(["-q", "--csv", "-c", "50", "-r", CLIENTS]);
                command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
                command.args(["-P", &pipeline.to_string(), "-n", &requests.to_string()]);
                command.args(*redis_command);
            }
        }
        let (before, redis_before) = (server.cpu_micros(), server.resource_cpu_micros());
        let output = command.output().unwrap();
        let cpu = server.cpu_micros() - before;
        let redis_cpu = server.resource_cpu_micros() - redis_before;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (count, rate) = self.parse_output(&text, requests).unwrap_or_else(|| {
            panic!("{command:?}: {text} {}", String::from_utf8_lossy(&output.stderr))
        });
        LoadResult { rate, cpu_micros: cpu / count, redis_cpu_micros: redis_cpu / count }
    }

    /// Returns the core of the load in a run with pinned processes.
    pub(crate) const PINNED: Option<usize> = Some(LOAD_CORE);

    fn program(&self) -> &'static str {
        match self {
            Self::Wrk { .. } => "wrk",
            Self::H2load { .. } => "h2load",
            Self::RedisBenchmark { .. } => "redis-benchmark",
        }
    }

    /// Parses the output of the load generator: the number of checks, and checks per second.
    fn parse_output(&self, text: &str, requests: u64) -> Option<(f64, f64)> {
        match self {
            Self::Wrk { checks_per_request, .. } => {
                if text.contains("BAD ") {
                    return None;
                }
                let factor = *checks_per_request as f64;
                let count = number_before(text, " requests in ")?;
                Some((count * factor, number_after(text, "Requests/sec:")? * factor))
            }
            Self::H2load { .. } => {
                let done = text.lines().find(|line| line.starts_with("requests:"))?;
                let succeeded = number_before(done, " succeeded")?;
                if number_before(done, " failed")? > 0.0 {
                    return None;
                }
                let rate = text.lines().find(|line| line.starts_with("finished in"))?;
                Some((succeeded, number_before(rate, " req/s")?))
            }
            Self::RedisBenchmark { .. } => {
                let line = text.lines().last()?;
                let rate: f64 = line.split("\",\"").nth(1)?.parse().ok()?;
                Some((requests as f64, rate))
            }
        }
    }
}

fn number_before(text: &str, mark: &str) -> Option<f64> {
    let (head, _) = text.split_once(mark)?;
    head.rsplit([' ', '\n', ',']).next()?.parse().ok()
}

fn number_after(text: &str, mark: &str) -> Option<f64> {
    let (_, tail) = text.split_once(mark)?;
    tail.split_whitespace().next()?.parse().ok()
}

/// `RateLimitRequest` of domain bench with one descriptor `user=user_1`.
pub(crate) fn rate_limit_request() -> Vec<u8> {
    let entry = [field(1, b"user"), field(2, b"user_1")].concat();
    [field(1, b"bench"), field(2, &field(1, &entry))].concat()
}

/// throttlecrab's `ThrottleRequest`: key, burst, count, period, quantity.
pub(crate) fn throttle_request() -> Vec<u8> {
    let mut message = field(1, b"user_1");
    for (tag, value) in [(2, 1_000_000u64), (3, 1_000_000), (4, 1), (5, 1)] {
        message.push(tag << 3);
        let mut rest = value;
        while rest >= 0x80 {
            message.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        message.push(u8::try_from(rest).unwrap());
    }
    message
}

/// Encodes a bytes field in protobuf format.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[(tag << 3) | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn write_temp_file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-bench-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}
