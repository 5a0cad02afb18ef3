//! The load, from common load generators, on the second core.

use std::path::PathBuf;
use std::process::Command;

use crate::server::Server;

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

pub(crate) enum ListenerLoad {
    Wrk { script: PathBuf },
    H2load { path: &'static str, body: PathBuf, connections: u32, streams: u32 },
    RedisBenchmark { pipeline: u32, command: &'static [&'static str] },
}

/// Result of one run.
pub(crate) struct LoadResult {
    /// Requests per second.
    pub(crate) rate: f64,
    pub(crate) cpu_micros: f64,
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

    /// Returns a load of prepared requests, so that building them takes no CPU time during the run.
    fn wrk(request: &str) -> Self {
        let script = format!(
            "local all, at = {{}}, 0
             function init() for i = 1, 10000 do all[i] = {request} end end
             function request() at = at % 10000 + 1 return all[at] end
             function done(summary) if summary.errors.status > 0 then print('BAD ' .. summary.errors.status) end end"
        );
        let name = request.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
        Self::Wrk { script: write_temp_file(&format!("{name:x}.lua"), script.as_bytes()) }
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

    pub(crate) fn run(&self, server: &Server, seconds: u64) -> LoadResult {
        let port = server.port;
        let mut command = Command::new("taskset");
        command.args(["-c", "1"]);
        match self {
            Self::Wrk { script } => {
                let time = format!("-d{seconds}s");
                command.args(["wrk", "-t1", "-c50", &time, "-s"]).arg(script);
                command.arg(format!("http://127.0.0.1:{port}/"));
            }
            Self::H2load { path, body, connections, streams } => {
                command.args(["h2load", "-t1", "-c", &connections.to_string()]);
                command
                    .args(["-m", &streams.to_string(), "-D", &seconds.to_string(), "-d"])
                    .arg(body);
                command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
                command.arg(format!("http://127.0.0.1:{port}{path}"));
            }
            Self::RedisBenchmark { pipeline, command: redis_command } => {
                let count = seconds * u64::from(requests_per_second(*pipeline));
                let (pipeline, count) = (pipeline.to_string(), count.to_string());
                command.args(["redis-benchmark", "-q", "--csv", "-c", "50", "-r", CLIENTS]);
                command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
                command.args(["-P", &pipeline, "-n", &count]).args(*redis_command);
            }
        }
        let cpu_before = server.cpu_micros();
        let output = command.output().unwrap();
        let cpu = server.cpu_micros() - cpu_before;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (count, rate) = self.parse_output(&text, seconds).unwrap_or_else(|| {
            panic!("{command:?}: {text} {}", String::from_utf8_lossy(&output.stderr))
        });
        LoadResult { rate, cpu_micros: cpu / count }
    }

    /// Parses the output of the load generator: the number of requests, and requests per second.
    fn parse_output(&self, text: &str, seconds: u64) -> Option<(f64, f64)> {
        match self {
            Self::Wrk { .. } => {
                if text.contains("BAD ") {
                    return None;
                }
                let count = number_before(text, " requests in ")?;
                Some((count, number_after(text, "Requests/sec:")?))
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
            Self::RedisBenchmark { pipeline, .. } => {
                let line = text.lines().last()?;
                let rate: f64 = line.split("\",\"").nth(1)?.parse().ok()?;
                Some((f64::from(requests_per_second(*pipeline)) * seconds as f64, rate))
            }
        }
    }
}

/// Returns the requests to send per second of the run. redis-benchmark is limited by requests, not by time.
fn requests_per_second(pipeline: u32) -> u32 {
    if pipeline > 1 { 600_000 } else { 90_000 }
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
