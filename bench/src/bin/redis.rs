//! Exact checks through one Redis, beside one script call per check and beside a bare INCR.
//!
//! `cargo run --profile dist -p tidegate-bench --bin redis [-- --quick]`
//!
//! A Redis of its own on a free loopback port, pinned to the first core; the load is pinned to the
//! second (without two cores or `taskset`, neither is). Contenders take turns within each round. The
//! first table is closed-loop: so many callers ask as fast as they are answered. Decisions per second
//! of Redis's own CPU time tell what one Redis core can do when callers have more cores than here. The
//! second is open-loop: checks arrive by the clock whether or not earlier ones were answered.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the tables are the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks and waits")]
#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on has failed")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tidegate::{
    Algorithm, Charge, ChargeMode, ChargeResult, Key, Limit, Quota, RedisConfig, RedisStore, Store,
};
use tidegate_testkit::Redis;

/// What people write by hand: one counter, one call.
const PLAIN_GCRA: &str = "
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
            Self::Tidegate => "tidegate, exact",
            Self::EvalSha => "one EVALSHA per check",
            Self::Incr => "INCR",
        }
    }
}

/// Who is asked.
#[derive(Clone)]
struct Asked {
    store: RedisStore,
    limit: Arc<Limit>,
    connection: MultiplexedConnection,
    hash: Arc<str>,
}

impl Asked {
    async fn ask(&self, contender: Contender, number: u64) {
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

/// Which of a million clients comes next.
#[derive(Clone, Copy)]
enum Traffic {
    Uniform,
    /// A few clients come most of the time.
    Skewed,
}

impl Traffic {
    fn pick(self, random: &mut u64) -> u64 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        match self {
            Self::Uniform => *random % 1_000_000,
            Self::Skewed => {
                // Near enough to Zipf with exponent 1: the logarithm of the rank is uniform.
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
    /// In microseconds.
    p50: f64,
    p99: f64,
}

/// So many callers ask as fast as they are answered.
fn closed_loop(
    runtime: &tokio::runtime::Runtime,
    server: &Redis,
    asked: &Asked,
    contender: Contender,
    traffic: Traffic,
    callers: u64,
    lasting: Duration,
) -> Sample {
    let before = cpu_seconds(server);
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let asked = asked.clone();
            runtime.spawn(async move {
                let mut random = 0x2545_f491_4f6c_dd1d ^ (caller + 1) << 32;
                let mut took = Vec::new();
                while start.elapsed() < lasting {
                    let number = traffic.pick(&mut random);
                    let begun = Instant::now();
                    asked.ask(contender, number).await;
                    took.push(begun.elapsed());
                }
                took
            })
        })
        .collect();
    let mut took: Vec<Duration> =
        tasks.into_iter().flat_map(|task| runtime.block_on(task).unwrap()).collect();
    let elapsed = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds(server) - before;
    took.sort_unstable();
    let count = took.len() as f64;
    Sample {
        per_second: count / elapsed,
        per_cpu_second: count / cpu,
        p50: micros(&took, 0.50),
        p99: micros(&took, 0.99),
    }
}

/// Checks arrive every millisecond, `rate` of them per second, whether or not others wait.
fn open_loop(
    runtime: &tokio::runtime::Runtime,
    asked: &Asked,
    contender: Contender,
    rate: u64,
    lasting: Duration,
) -> Vec<Duration> {
    let start = Instant::now();
    let mut random = 0x1234_5678_9abc_def1;
    let (mut sent, mut tasks) = (0, Vec::new());
    let mut intended = start;
    while intended - start < lasting {
        // The system's timer is finer than the runtime's.
        intended += Duration::from_millis(1);
        std::thread::sleep(intended.saturating_duration_since(Instant::now()));
        let due = u64::try_from((intended - start).as_micros()).unwrap() * rate / 1_000_000;
        while sent < due {
            sent += 1;
            let number = Traffic::Uniform.pick(&mut random);
            let asked = asked.clone();
            tasks.push(runtime.spawn(async move {
                asked.ask(contender, number).await;
                intended.elapsed()
            }));
        }
    }
    let mut took: Vec<Duration> =
        tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
    took.sort_unstable();
    took
}

fn micros(sorted: &[Duration], share: f64) -> f64 {
    let place = ((sorted.len() as f64 - 1.0) * share) as usize;
    sorted.get(place).map_or(0.0, |took| took.as_secs_f64() * 1e6)
}

fn cpu_seconds(server: &Redis) -> f64 {
    let seconds = |field| server.info(field).unwrap().parse::<f64>().unwrap();
    seconds("used_cpu_user") + seconds("used_cpu_sys")
}

fn pin(process: u32, core: usize) -> bool {
    let mut taskset = std::process::Command::new("taskset");
    let pinned = taskset.args(["-a", "-p", "-c", &core.to_string(), &process.to_string()]).output();
    pinned.is_ok_and(|output| output.status.success())
}

fn median(mut numbers: Vec<f64>) -> (f64, f64, f64) {
    numbers.sort_unstable_by(f64::total_cmp);
    (numbers[numbers.len() / 2], numbers[0], numbers[numbers.len() - 1])
}

fn main() {
    let only = std::env::args().any(|argument| argument == "--tidegate");
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, lasting) =
        if quick { (3, Duration::from_millis(500)) } else { (7, Duration::from_secs(2)) };
    let server = Redis::start();
    let process: u32 = server.info("process_id").unwrap().parse().unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pinned = cores > 1 && pin(process, 0) && pin(std::process::id(), 1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(if pinned { 1 } else { cores })
        .enable_all()
        .build()
        .unwrap();
    let config: RedisConfig = server.url().parse().unwrap();
    let config = config.with_timeout(Duration::from_secs(10)).unwrap();
    let asked = runtime.block_on(async {
        let store = RedisStore::connect(config).await.unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(PLAIN_GCRA);
        let hash: String = load.query_async(&mut connection).await.unwrap();
        let limit = Limit::new(Algorithm::TokenBucket, Quota::per_minute(1000)).unwrap();
        Asked { store, limit: Arc::new(limit), connection, hash: hash.into() }
    });
    println!(
        "Redis {}, {} rounds of {lasting:?} each, Redis and load {}",
        server.info("redis_version").unwrap(),
        rounds,
        if pinned { "pinned to a core each" } else { "not pinned" },
    );
    println!("\nClosed loop: median (least to most) of the rounds\n");
    println!(
        "| traffic | callers | contender | decisions/s | per Redis core | x EVALSHA | requests per call | p50 us | p99 us |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let cases = [
        (Traffic::Uniform, "uniform 1M", 1),
        (Traffic::Uniform, "uniform 1M", 16),
        (Traffic::Uniform, "uniform 1M", 256),
        (Traffic::Skewed, "Zipf 1M", 256),
        (Traffic::Uniform, "uniform 1M", 1024),
    ];
    for (index, (traffic, name, callers)) in cases.into_iter().enumerate() {
        eprint!("\rcase {} of {}", index + 1, cases.len());
        let mut samples: Vec<Vec<Sample>> = Contender::ALL.iter().map(|_| Vec::new()).collect();
        let before = asked.store.counts();
        for _ in 0..rounds {
            for (place, contender) in Contender::ALL.into_iter().enumerate() {
                if only && contender != Contender::Tidegate && !samples[place].is_empty() {
                    continue;
                }
                let sample =
                    closed_loop(&runtime, &server, &asked, contender, traffic, callers, lasting);
                samples[place].push(sample);
            }
        }
        let after = asked.store.counts();
        for (place, contender) in Contender::ALL.into_iter().enumerate() {
            let of = |what: fn(&Sample) -> f64| median(samples[place].iter().map(what).collect());
            let (rate, least, most) = of(|sample| sample.per_second);
            let (core, ..) = of(|sample| sample.per_cpu_second);
            let ratios = samples[place].iter().zip(&samples[1]);
            let (ratio, ..) =
                median(ratios.map(|(mine, plain)| mine.per_second / plain.per_second).collect());
            let carried = match contender {
                Contender::Tidegate => {
                    let (carried, calls) =
                        (after.carried - before.carried, after.calls - before.calls);
                    format!("{:.1}", carried as f64 / calls as f64)
                }
                _ => "1".to_owned(),
            };
            let (p50, p99) = (of(|sample| sample.p50).0, of(|sample| sample.p99).0);
            println!(
                "| {name} | {callers} | {} | {:.0}k ({:.0}k-{:.0}k) | {:.0}k | {ratio:.2} | {carried} | {p50:.0} | {p99:.0} |",
                contender.name(),
                rate / 1e3,
                least / 1e3,
                most / 1e3,
                core / 1e3,
            );
        }
    }
    println!("\nOpen loop, from when a check was due\n");
    println!("| checks/s | contender | p50 us | p99 us | p99.9 us |\n|---|---|---|---|---|");
    for rate in [5_000, 20_000, 50_000] {
        for contender in Contender::ALL {
            let took = open_loop(&runtime, &asked, contender, rate, lasting * 2);
            println!(
                "| {rate} | {} | {:.0} | {:.0} | {:.0} |",
                contender.name(),
                micros(&took, 0.5),
                micros(&took, 0.99),
                micros(&took, 0.999),
            );
        }
    }
}
