//! Latency at a fixed rate: `tidegate bench --rate` at 10, 50 and 80 % of the capacity.

use serde_json::Value;
use tidegate_bench::chart::LineChart;
use tidegate_bench::host::{self, LOAD_CORE};
use tidegate_bench::measure::progress;
use tidegate_bench::results::record_goal;
use tidegate_bench::server::BenchServer;
use tidegate_bench::table::{Spread, Table};

use crate::peers::{self, PeerLimit};

const CONNECTIONS: &str = "64";
/// Runs without a rate. The capacity is their median.
const CAPACITY_RUNS: usize = 3;
/// Parts of the capacity, in percent.
const PARTS: [u64; 3] = [10, 50, 80];
const EXACT: &str = "HTTP, exact through Redis";

/// A server, and the arguments of `tidegate bench` for it.
struct LatencyContender {
    name: &'static str,
    _server: BenchServer,
    arguments: Vec<String>,
}

/// Latencies of one run in microseconds.
struct LatencyRun {
    p50: f64,
    p99: f64,
    p999: f64,
    /// Delay of the load generator itself, 99th percentile.
    behind_p99: f64,
    /// Requests that were due and never sent.
    unsent: f64,
}

fn contenders() -> Vec<LatencyContender> {
    let own = |name, server: BenchServer, scheme: &str| {
        let url = format!("{scheme}://127.0.0.1:{}", server.port());
        let arguments = [url.as_str(), "--rule", "api"].map(str::to_owned).to_vec();
        LatencyContender { name, _server: server, arguments }
    };
    let redis = peers::redis(None);
    let exact = peers::tidegate_on_redis("http", redis.port(), PeerLimit::NeverReached);
    let mut contenders = vec![
        own("HTTP", peers::tidegate("http").unwrap(), "http"),
        own("gRPC", peers::tidegate("grpc").unwrap(), "grpc"),
        own("RESP", peers::tidegate("resp").unwrap(), "resp"),
        own(EXACT, exact.with_resource(redis), "http"),
    ];
    if let Some(server) = peers::nginx() {
        let url = format!("http://127.0.0.1:{}/?user={{client}}", server.port());
        let arguments = vec!["--get".to_owned(), url];
        contenders.push(LatencyContender { name: "NGINX limit_req", _server: server, arguments });
    }
    contenders
}

impl LatencyContender {
    /// Runs `tidegate bench` for some seconds, at a rate or as fast as possible.
    fn run(&self, seconds: u64, rate: Option<u64>) -> Value {
        let mut command = host::command(host::sibling_binary("tidegate"), Some(LOAD_CORE));
        command.arg("bench").args(&self.arguments).args(["--json", "-c", CONNECTIONS]);
        command.args(["--for", &format!("{seconds}s"), "--clients", "100000"]);
        if let Some(rate) = rate {
            command.args(["--rate", &format!("{rate}/s")]);
        }
        let output = command.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{command:?}: {error}: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    fn measure_latency(&self, seconds: u64, rate: u64) -> LatencyRun {
        let report = self.run(seconds, Some(rate));
        let latency = |field: &str| report["latencyMicros"][field].as_f64().unwrap();
        LatencyRun {
            p50: latency("p50"),
            p99: latency("p99"),
            p999: latency("p99.9"),
            behind_p99: report["schedule"]["behindMicros"]["p99"].as_f64().unwrap(),
            unsent: report["schedule"]["unsent"].as_f64().unwrap(),
        }
    }
}

pub(crate) fn print_table(quick: bool) {
    let (rounds, seconds) = if quick { (1, 1) } else { (5, 4) };
    let contenders = contenders();
    let capacities: Vec<f64> = contenders
        .iter()
        .map(|contender| {
            progress(&format!("latency: capacity of {}", contender.name));
            let runs = (0..CAPACITY_RUNS).map(|_| contender.run(seconds, None));
            Spread::from_values(runs.map(|run| run["perSecond"].as_f64().unwrap())).median
        })
        .collect();
    let mut table = Table::new(
        "latency",
        &format!(
            "Open loop by `tidegate bench`, {CONNECTIONS} connections. Server pinned to one core, load to the other; the server with Redis is not pinned. The capacity is that of server and load generator together. {rounds} rounds of {seconds} s; medians (min to max), from the time when a request was due."
        ),
        [
            "",
            "capacity/s",
            "rate/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "of p99, before it was sent, us",
            "never sent",
        ],
    );
    let mut chart =
        LineChart::new("Latency by load", "percent of capacity", "99th percentile in microseconds")
            .with_log_y();
    let mut lines = vec![Vec::new(); contenders.len()];
    for part in PARTS {
        let mut runs: Vec<Vec<LatencyRun>> = contenders.iter().map(|_| Vec::new()).collect();
        for round in 1..=rounds {
            for ((contender, capacity), runs) in contenders.iter().zip(&capacities).zip(&mut runs) {
                progress(&format!(
                    "latency at {part} %: round {round} of {rounds}, {}",
                    contender.name
                ));
                runs.push(contender.measure_latency(seconds, rate(*capacity, part)));
            }
        }
        for (index, (contender, runs)) in contenders.iter().zip(&runs).enumerate() {
            let of = |value: fn(&LatencyRun) -> f64| Spread::from_values(runs.iter().map(value));
            let p99 = of(|run| run.p99);
            table.add_row([
                format!("{}, {part} %", contender.name),
                format!("{:.0}", capacities[index]),
                rate(capacities[index], part).to_string(),
                of(|run| run.p50).format(0, ""),
                p99.format(0, ""),
                of(|run| run.p999).format(0, ""),
                of(|run| run.behind_p99).format(0, ""),
                format!("{:.0}", of(|run| run.unsent).median),
            ]);
            lines[index].push((part as f64, p99.median));
            if contender.name == EXACT && part == 50 {
                record_goal(
                    "p99 of an exact check through Redis over HTTP at 50 % of capacity",
                    "below 1 ms",
                    &format!("{:.2} ms", p99.median / 1e3),
                    p99.median < 1_000.0,
                );
            }
        }
    }
    progress("");
    table.print();
    for (contender, points) in contenders.iter().zip(lines) {
        chart.add_series(contender.name, points);
    }
    chart.save("latency");
}

/// Returns a part of the capacity, in whole requests per second.
fn rate(capacity: f64, percent: u64) -> u64 {
    (capacity * percent as f64 / 100.0) as u64
}
