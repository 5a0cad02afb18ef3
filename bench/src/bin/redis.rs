//! Exact checks on one Redis, compared with one script call per check and with a plain INCR.
//!
//! `cargo run --profile dist -p tidegate-bench --bin redis [-- --quick] [--tidegate]`
//!
//! Starts a Redis on a free loopback port, pinned to the first core. The load is pinned to the second one. Without two
//! cores or `taskset`, neither is pinned. Each round measures all contenders. The first table is closed-loop: each caller
//! sends its next check when the previous one is answered. Decisions per second of Redis CPU time show the capacity of one
//! Redis core when the callers have more cores. The second table is open-loop: checks are sent at a fixed rate, whether or
//! not earlier ones were answered.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks and waits")]
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::{Charge, ChargeMode, ChargeResult, Key, Store};
use tidegate::{Algorithm, Limit, Quota};
use tidegate_bench::chart::LineChart;
use tidegate_bench::host;
use tidegate_bench::measure::{self, percentile_micros, progress};
use tidegate_bench::results::record_goal;
use tidegate_bench::table::{Spread, Table};
use tidegate_testkit::Redis;

/// Timeout of a check, longer than that of a service, because the machine is overloaded on purpose.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A typical handwritten script: one counter, one call per check.
const PLAIN_GCRA_LUA: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local due = tonumber(redis.call('GET', KEYS[1]) or '0')
if due < now then due = now end
due = due + ARGV[1]
if due > now + ARGV[2] then return 0 end
redis.call('SET', KEYS[1], string.format('%.0f', due), 'PX', math.ceil((due - now) / 1000))
return 1
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Tidegate,
    EvalSha,
    Incr,
}

impl Contender {
    const ALL: [Self; 3] = [Self::Tidegate, Self::EvalSha, Self::Incr];

    fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "Tidegate, exact",
            Self::EvalSha => "one EVALSHA per check",
            Self::Incr => "INCR",
        }
    }
}

/// The store, and a plain connection for the other contenders.
#[derive(Clone)]
struct BenchTarget {
    store: RedisStore,
    limit: Arc<Limit>,
    connection: MultiplexedConnection,
    hash: Arc<str>,
}

impl BenchTarget {
    async fn check(&self, contender: Contender, number: u64) {
        match contender {
            Contender::Tidegate => {
                let key =
                    Key::from_u128(u128::from(number) * 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                let shared = Key::from_u128(0);
                let charge = Charge {
                    key,
                    overflow_key: shared,
                    limit: &self.limit,
                    cost: 1,
                    independent: false,
                };
                let answers = self.store.charge(&[charge], ChargeMode::Spend).await;
                assert!(matches!(answers[..], [ChargeResult::Outcome(_)]), "{answers:?}");
            }
            Contender::EvalSha => {
                let mut command = redis::cmd("EVALSHA");
                command.arg(&*self.hash).arg(1).arg(format!("gcra:{number:022}"));
                command.arg(60_000).arg(60_000_000);
                let _: i64 = command.query_async(&mut self.connection.clone()).await.unwrap();
            }
            Contender::Incr => {
                let mut command = redis::cmd("INCR");
                command.arg(format!("incr:{number:022}"));
                let _: i64 = command.query_async(&mut self.connection.clone()).await.unwrap();
            }
        }
    }
}

/// Distribution of the checks over a million clients.
#[derive(Clone, Copy)]
enum ClientDistribution {
    Uniform,
    /// A few clients send most of the checks.
    Skewed,
}

impl ClientDistribution {
    fn pick(self, random: &mut u64) -> u64 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        match self {
            Self::Uniform => *random % 1_000_000,
            Self::Skewed => {
                // Approximates Zipf with exponent 1: the logarithm of the rank is uniform.
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    clippy::cast_precision_loss,
                    clippy::as_conversions,
                    reason = "a rank below a million"
                )]
                let rank = 1_000_000f64.powf((*random >> 11) as f64 / (1u64 << 53) as f64) as u64;
                rank
            }
        }
    }
}

struct Sample {
    per_second: f64,
    per_cpu_second: f64,
    /// Received and sent by Redis.
    network_bytes: f64,
    /// In microseconds.
    p50: f64,
    p99: f64,
}

/// Runs callers that each send the next check when the previous one is answered.
fn closed_loop(
    runtime: &tokio::runtime::Runtime,
    server: &Redis,
    target: &BenchTarget,
    contender: Contender,
    distribution: ClientDistribution,
    callers: u64,
    duration: Duration,
) -> Sample {
    let (before, bytes_before) = (cpu_seconds(server), network_bytes(server));
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let target = target.clone();
            runtime.spawn(async move {
                let mut random = 0x2545_f491_4f6c_dd1d ^ (caller + 1) << 32;
                let mut latencies = Vec::new();
                while start.elapsed() < duration {
                    let number = distribution.pick(&mut random);
                    let started = Instant::now();
                    target.check(contender, number).await;
                    latencies.push(started.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies: Vec<Duration> =
        tasks.into_iter().flat_map(|task| runtime.block_on(task).unwrap()).collect();
    let elapsed = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds(server) - before;
    latencies.sort_unstable();
    let count = latencies.len() as f64;
    Sample {
        per_second: count / elapsed,
        per_cpu_second: count / cpu,
        network_bytes: (network_bytes(server) - bytes_before) / count,
        p50: percentile_micros(&latencies, 0.50),
        p99: percentile_micros(&latencies, 0.99),
    }
}

/// Sends `rate` checks per second in steps of a millisecond, whether or not earlier ones were answered. Returns the sorted
/// latencies.
fn open_loop(
    runtime: &tokio::runtime::Runtime,
    target: &BenchTarget,
    contender: Contender,
    rate: u64,
    duration: Duration,
) -> Vec<Duration> {
    let start = Instant::now();
    let mut random = 0x1234_5678_9abc_def1;
    let (mut sent, mut tasks) = (0, Vec::new());
    let mut due_at = start;
    while due_at - start < duration {
        // The system timer has a higher resolution than the timer of the runtime.
        due_at += Duration::from_millis(1);
        std::thread::sleep(due_at.saturating_duration_since(Instant::now()));
        let due = u64::try_from((due_at - start).as_micros()).unwrap() * rate / 1_000_000;
        while sent < due {
            sent += 1;
            let number = ClientDistribution::Uniform.pick(&mut random);
            let target = target.clone();
            tasks.push(runtime.spawn(async move {
                target.check(contender, number).await;
                due_at.elapsed()
            }));
        }
    }
    let mut latencies: Vec<Duration> =
        tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
    latencies.sort_unstable();
    latencies
}

fn cpu_seconds(server: &Redis) -> f64 {
    let seconds = |field| server.info(field).unwrap().parse::<f64>().unwrap();
    seconds("used_cpu_user") + seconds("used_cpu_sys")
}

fn network_bytes(server: &Redis) -> f64 {
    let bytes = |field| server.info(field).unwrap().parse::<f64>().unwrap();
    bytes("total_net_input_bytes") + bytes("total_net_output_bytes")
}

/// A benchmark on one Redis.
struct RedisBench {
    server: Redis,
    runtime: tokio::runtime::Runtime,
    target: BenchTarget,
    rounds: usize,
    duration: Duration,
    /// Conditions of the run, for the captions of the tables.
    conditions: String,
}

impl RedisBench {
    fn start(quick: bool) -> Self {
        let (rounds, duration) =
            if quick { (3, Duration::from_millis(500)) } else { (7, Duration::from_secs(2)) };
        let server = Redis::start();
        let process: u32 = server.info("process_id").unwrap().parse().unwrap();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pinned = cores > 1
            && host::pin(process, host::SERVER_CORE)
            && host::pin(std::process::id(), host::LOAD_CORE);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(if pinned { 1 } else { cores })
            .enable_all()
            .build()
            .unwrap();
        let config: RedisConfig = server.url().parse().unwrap();
        let config = config.with_timeout(TIMEOUT).unwrap();
        let target = runtime.block_on(async {
            let store = RedisStore::connect(config).await.unwrap();
            let client = redis::Client::open(server.url()).unwrap();
            let config = AsyncConnectionConfig::new().set_response_timeout(Some(TIMEOUT));
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            let mut connection = connection.unwrap();
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(PLAIN_GCRA_LUA);
            let hash: String = load.query_async(&mut connection).await.unwrap();
            let limit = Limit::new(Algorithm::TokenBucket, Quota::per_minute(1000)).unwrap();
            BenchTarget { store, limit: Arc::new(limit), connection, hash: hash.into() }
        });
        let version = server.info("redis_version").unwrap();
        let place = if pinned { "pinned to a core each" } else { "not pinned" };
        let conditions = format!(
            "Redis {version}, {rounds} rounds of {duration:?}; Redis and all callers {place}."
        );
        Self { server, runtime, target, rounds, duration, conditions }
    }

    /// Runs the contenders in turns. Returns their samples, and the checks per script call of Tidegate.
    fn sample(
        &self,
        contenders: &[Contender],
        distribution: ClientDistribution,
        callers: u64,
    ) -> (Vec<Vec<Sample>>, f64) {
        let mut samples: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
        let before = self.target.store.counts();
        for round in 1..=self.rounds {
            for (contender, samples) in contenders.iter().zip(&mut samples) {
                progress(&format!(
                    "{callers} callers: round {round} of {}, {}",
                    self.rounds,
                    contender.name()
                ));
                samples.push(closed_loop(
                    &self.runtime,
                    &self.server,
                    &self.target,
                    *contender,
                    distribution,
                    callers,
                    self.duration,
                ));
            }
        }
        progress("");
        let after = self.target.store.counts();
        let (carried, calls) = (after.carried - before.carried, after.calls - before.calls);
        (samples, carried as f64 / calls as f64)
    }

    fn print_closed_loop(&self, contenders: &[Contender]) {
        let mut table = Table::new(
            "redis_closed_loop",
            &format!("{} Closed loop: median (min to max).", self.conditions),
            [
                "traffic",
                "callers",
                "",
                "decisions/s",
                "per second of Redis CPU",
                "ratio to EVALSHA, by round",
                "checks per script call",
                "network bytes per check",
                "p50 us",
                "p99 us",
            ],
        );
        let mut lines = vec![Vec::new(); contenders.len()];
        let cases = [
            (ClientDistribution::Uniform, "uniform 1M", 1),
            (ClientDistribution::Uniform, "uniform 1M", 16),
            (ClientDistribution::Uniform, "uniform 1M", 256),
            (ClientDistribution::Uniform, "uniform 1M", 1024),
            (ClientDistribution::Skewed, "Zipf 1M", 256),
        ];
        for (distribution, traffic, callers) in cases {
            let (samples, per_call) = self.sample(contenders, distribution, callers);
            let values = |index: usize, value: fn(&Sample) -> f64| -> Vec<f64> {
                samples[index].iter().map(value).collect()
            };
            let base = contenders.iter().position(|it| *it == Contender::EvalSha);
            for (index, contender) in contenders.iter().enumerate() {
                let of = |value: fn(&Sample) -> f64| Spread::from_values(values(index, value));
                let rate = of(|sample| sample.per_second);
                let core = of(|sample| sample.per_cpu_second);
                let ratio = base.map(|base| {
                    let rates = |index| values(index, |sample| sample.per_second);
                    Spread::of_ratios(&rates(index), &rates(base))
                });
                let is_tidegate = *contender == Contender::Tidegate;
                let carried = if is_tidegate { per_call } else { 1.0 };
                table.add_row([
                    traffic.to_owned(),
                    callers.to_string(),
                    contender.name().to_owned(),
                    rate.divided_by(1e3).format(0, "k"),
                    core.divided_by(1e3).format(0, "k"),
                    ratio.map_or_else(String::new, |ratio| ratio.format(2, "")),
                    format!("{carried:.1}"),
                    format!("{:.0}", of(|sample| sample.network_bytes).median),
                    of(|sample| sample.p50).format(0, ""),
                    of(|sample| sample.p99).format(0, ""),
                ]);
                if matches!(distribution, ClientDistribution::Uniform) {
                    lines[index].push((callers as f64, rate.median));
                    if is_tidegate {
                        record(callers, core.median, ratio.map(|ratio| ratio.median));
                    }
                }
            }
        }
        table.print();
        let mut chart =
            LineChart::new("Exact checks through one Redis", "callers", "decisions per second");
        for (contender, points) in contenders.iter().zip(lines) {
            chart.add_series(contender.name(), points);
        }
        chart.save("redis_closed_loop");
    }

    fn print_open_loop(&self, contenders: &[Contender]) {
        let mut table = Table::new(
            "redis_open_loop",
            &format!("{} Open loop, latency from the time a check was due.", self.conditions),
            ["checks/s", "", "p50 us", "p99 us", "p99.9 us"],
        );
        for rate in [5_000, 20_000, 50_000] {
            for contender in contenders {
                progress(&format!("{rate} checks per second, {}", contender.name()));
                let latencies =
                    open_loop(&self.runtime, &self.target, *contender, rate, self.duration * 2);
                let percentile = |share| format!("{:.0}", percentile_micros(&latencies, share));
                table.add_row([
                    rate.to_string(),
                    contender.name().to_owned(),
                    percentile(0.5),
                    percentile(0.99),
                    percentile(0.999),
                ]);
            }
        }
        progress("");
        table.print();
    }
}

/// Records the goals of exact checks.
fn record(callers: u64, per_cpu_second: f64, ratio_to_evalsha: Option<f64>) {
    if let Some(ratio) = ratio_to_evalsha {
        record_goal(
            &format!("exact through one Redis, {callers} callers"),
            "at least one EVALSHA per check",
            &format!("{ratio:.2} x"),
            ratio >= 1.0,
        );
    }
    if callers == 256 {
        record_goal(
            "exact through one Redis, 256 callers, Redis core",
            "at least 300k decisions per second of Redis CPU",
            &format!("{:.0}k", per_cpu_second / 1e3),
            per_cpu_second >= 300e3,
        );
    }
}

fn main() {
    let tidegate_only = std::env::args().any(|argument| argument == "--tidegate");
    let contenders = if tidegate_only { &Contender::ALL[..1] } else { &Contender::ALL[..] };
    let bench = RedisBench::start(measure::is_quick());
    bench.print_closed_loop(contenders);
    bench.print_open_loop(contenders);
}
