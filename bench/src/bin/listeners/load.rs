//! The load, from the tools that people measure with, on the second core.

use std::path::PathBuf;
use std::process::Command;

use crate::server::Server;

/// Bodies with %d where the number of a client goes.
pub(crate) const CHECK: &str = r#"{"rule":"api","client":"user_%d"}"#;
pub(crate) const THROTTLE: &str =
    r#"{"key":"user_%d","max_burst":1000000,"count_per_period":1000000,"period":1,"quantity":1}"#;

pub(crate) const GET: &[&str] = &["GET", "key:__rand_int__"];
pub(crate) const CL_THROTTLE: &[&str] =
    &["CL.THROTTLE", "user:__rand_int__", "1000000", "1000000", "1"];
pub(crate) const TG_CHECK: &[&str] = &["TG.CHECK", "api", "user:__rand_int__"];
pub(crate) const CRAB: &[&str] = &["THROTTLE", "user:__rand_int__", "1000000", "1000000", "1"];

pub(crate) const RLS_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(crate) const CRAB_PATH: &str = "/throttlecrab.RateLimiter/Throttle";

/// Clients that take turns.
const CLIENTS: &str = "100000";

pub(crate) enum Load {
    Wrk { script: PathBuf },
    H2load { path: &'static str, body: PathBuf, connections: u32, streams: u32 },
    RedisBenchmark { pipeline: u32, command: &'static [&'static str] },
}

/// What one run came to.
pub(crate) struct Measured {
    /// Requests per second.
    pub(crate) rate: f64,
    pub(crate) cpu_micros: f64,
}

impl Load {
    /// Posts a body whose client changes with every request.
    pub(crate) fn http(path: &str, body: &str) -> Self {
        Self::wrk(&format!(
            "wrk.format('POST', '{path}', {{['content-type'] = 'application/json'}}, string.format('{body}', i))"
        ))
    }

    /// Asks as NGINX would for somebody's request.
    pub(crate) fn authorize() -> Self {
        Self::wrk(
            "wrk.format('GET', '/v1/authorize', {['X-Original-URI'] = '/v1/orders', \
             ['X-Original-Method'] = 'GET', ['X-API-Key'] = 'user_' .. i})",
        )
    }

    pub(crate) fn get() -> Self {
        Self::wrk("wrk.format('GET', '/?user=user_' .. i)")
    }

    /// Requests are made beforehand, so that making them takes no time of the load's core.
    fn wrk(request: &str) -> Self {
        let script = format!(
            "local all, at = {{}}, 0
             function init() for i = 1, 10000 do all[i] = {request} end end
             function request() at = at % 10000 + 1 return all[at] end
             function done(summary) if summary.errors.status > 0 then print('BAD ' .. summary.errors.status) end end"
        );
        let name = request.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
        Self::Wrk { script: scratch(&format!("{name:x}.lua"), script.as_bytes()) }
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
        let body = scratch(&format!("{}.grpc", path.len()), &frame);
        Self::H2load { path, body, connections, streams }
    }

    pub(crate) fn resp(pipeline: u32, command: &'static [&'static str]) -> Self {
        Self::RedisBenchmark { pipeline, command }
    }

    pub(crate) fn run(&self, server: &Server, seconds: u64) -> Measured {
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
            Self::RedisBenchmark { pipeline, command: asked } => {
                let count = seconds * u64::from(per_second(*pipeline));
                let (pipeline, count) = (pipeline.to_string(), count.to_string());
                command.args(["redis-benchmark", "-q", "--csv", "-c", "50", "-r", CLIENTS]);
                command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
                command.args(["-P", &pipeline, "-n", &count]).args(*asked);
            }
        }
        let before = server.cpu_micros();
        let output = command.output().unwrap();
        let cpu = server.cpu_micros() - before;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (count, rate) = self.read(&text, seconds).unwrap_or_else(|| {
            panic!("{command:?}: {text} {}", String::from_utf8_lossy(&output.stderr))
        });
        Measured { rate, cpu_micros: cpu / count }
    }

    /// How many requests there were, and how many per second.
    fn read(&self, text: &str, seconds: u64) -> Option<(f64, f64)> {
        match self {
            Self::Wrk { .. } => {
                if text.contains("BAD ") {
                    return None;
                }
                let count = before(text, " requests in ")?;
                Some((count, after(text, "Requests/sec:")?))
            }
            Self::H2load { .. } => {
                let done = text.lines().find(|line| line.starts_with("requests:"))?;
                let succeeded = before(done, " succeeded")?;
                if before(done, " failed")? > 0.0 {
                    return None;
                }
                let rate = text.lines().find(|line| line.starts_with("finished in"))?;
                Some((succeeded, before(rate, " req/s")?))
            }
            Self::RedisBenchmark { pipeline, .. } => {
                let line = text.lines().last()?;
                let rate: f64 = line.split("\",\"").nth(1)?.parse().ok()?;
                Some((f64::from(per_second(*pipeline)) * seconds as f64, rate))
            }
        }
    }
}

/// What redis-benchmark, which counts requests and not seconds, is asked to send for each second.
fn per_second(pipeline: u32) -> u32 {
    if pipeline > 1 { 600_000 } else { 90_000 }
}

fn before(text: &str, mark: &str) -> Option<f64> {
    let (head, _) = text.split_once(mark)?;
    head.rsplit([' ', '\n', ',']).next()?.parse().ok()
}

fn after(text: &str, mark: &str) -> Option<f64> {
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

/// A field of bytes, as protobuf writes it.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[(tag << 3) | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-bench-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}
