//! Growth with nodes: processes on one Redis, as fast as they can, with every admission counted.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tidegate::Request;
use tidegate_bench::chart::LineChart;
use tidegate_bench::fleet::{connect_limiter, print_line, read_line};
use tidegate_bench::keys::SeededBits;
use tidegate_bench::measure::{self, progress};
use tidegate_bench::results::record_goal;
use tidegate_bench::table::{Spread, Table};
use tidegate_testkit::{Process, Redis};

/// Time at the start of a run in which nothing but admissions is counted: leases are taken.
const WARM_UP: Duration = Duration::from_secs(1);
const NODES: [u64; 4] = [1, 2, 4, 8];
/// Concurrent callers of each node.
const CALLERS: u64 = 256;
/// Checks of a caller between two readings of the clock. The last one of them is timed.
const CHECKS_PER_STEP: u64 = 16;
/// Maximum number of latencies that a node reports.
const MAX_LATENCIES: usize = 2_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeAccuracy {
    Exact,
    Leased,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeTraffic {
    /// No client reaches its limit.
    Under,
    /// Zipf: the frequent clients exceed their limit.
    Over,
}

/// Every combination, in the order of the table. The index of a case is the argument of a node.
const CASES: [(NodeTraffic, NodeAccuracy); 4] = [
    (NodeTraffic::Under, NodeAccuracy::Exact),
    (NodeTraffic::Under, NodeAccuracy::Leased),
    (NodeTraffic::Over, NodeAccuracy::Exact),
    (NodeTraffic::Over, NodeAccuracy::Leased),
];

impl NodeAccuracy {
    fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Leased => "leased",
        }
    }
}

impl NodeTraffic {
    fn name(self) -> &'static str {
        match self {
            Self::Under => "1,000 clients below 20,000 per second",
            Self::Over => "10,000 clients, Zipf, 1,000 per second each",
        }
    }

    fn clients(self) -> u64 {
        match self {
            Self::Under => 1_000,
            Self::Over => 10_000,
        }
    }

    /// Returns the limit per second of each client, which is also its burst.
    fn limit(self) -> u64 {
        match self {
            Self::Under => 20_000,
            Self::Over => 1_000,
        }
    }

    fn rules(self, accuracy: NodeAccuracy) -> String {
        let (limit, accuracy) = (self.limit(), accuracy.name());
        format!(
            "rules: [{{name: api, per: [user], limit: {limit} per second, burst: {limit}, on_store_failure: deny, accuracy: {accuracy}}}]"
        )
    }

    /// Draws the client of the next check.
    fn pick(self, bits: &mut SeededBits) -> usize {
        let clients = self.clients();
        let client = match self {
            Self::Under => bits.next_bits() % clients,
            // Approximates Zipf with exponent 1: the logarithm of the rank is uniform.
            Self::Over => (clients as f64).powf(bits.next_part()) as u64 - 1,
        };
        client.min(clients - 1) as usize
    }
}

/// Counts of one run, of one node or of all.
#[derive(Default)]
struct RunStats {
    /// All checks, those of the warm-up included.
    checks: u64,
    /// Checks after the warm-up.
    measured: u64,
    /// Script calls after the warm-up.
    calls: u64,
    /// Admissions of each client.
    admitted: Vec<u64>,
    /// Latencies of a sample of the checks.
    latencies: Vec<Duration>,
}

impl RunStats {
    /// Adds the checks of one step, with the latency of the last one.
    fn record_step(&mut self, latency: Duration, is_measured: bool) {
        self.checks += CHECKS_PER_STEP;
        if is_measured {
            self.measured += CHECKS_PER_STEP;
            self.latencies.push(latency);
        }
    }

    /// Formats the counts as one line.
    fn write(&self) -> String {
        let Self { checks, measured, calls, admitted, latencies } = self;
        let mut line =
            format!("stats {checks} {measured} {calls} {} {}", admitted.len(), latencies.len());
        admitted.iter().for_each(|count| line += &format!(" {count}"));
        latencies.iter().for_each(|latency| line += &format!(" {}", latency.as_nanos()));
        line
    }

    /// Adds the counts of a line.
    fn read(&mut self, line: &str) {
        let mut numbers = line.split(' ').skip(1).map(|text| text.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        self.checks += next();
        self.measured += next();
        self.calls += next();
        let (clients, latencies) = (next(), next());
        self.admitted.resize(clients as usize, 0);
        self.admitted.iter_mut().for_each(|count| *count += next());
        self.latencies.extend((0..latencies).map(|_| Duration::from_nanos(next())));
    }
}

/// Result of one run of a fleet.
struct FleetRun {
    per_second: f64,
    calls_per_check: f64,
    admitted_part: f64,
    /// The most admissions of a client above the bound of its limit.
    overshoot: u64,
    p50_micros: f64,
    p99_micros: f64,
    redis_cpu_micros: f64,
    /// Received and sent by Redis, per decision.
    network_bytes: f64,
}

fn run_fleet(case: usize, nodes: u64, seconds: u64) -> FleetRun {
    let (traffic, _) = CASES[case];
    let redis = Redis::start();
    let fleet: Vec<Process> = (0..nodes)
        .map(|index| {
            let mut command = Process::command(std::env::current_exe().unwrap());
            command.args(["node", &redis.url(), &case.to_string(), &index.to_string()]);
            Process::spawn(command)
        })
        .collect();
    fleet.iter().for_each(|node| drop(node.stdout().find("ready")));
    let sum = |fields: [&str; 2]| {
        fields
            .map(|field| redis.info(field).unwrap().parse::<f64>().unwrap())
            .into_iter()
            .sum::<f64>()
    };
    let cpu = || sum(["used_cpu_user", "used_cpu_sys"]);
    let bytes = || sum(["total_net_input_bytes", "total_net_output_bytes"]);
    let (cpu_before, bytes_before, started_at) = (cpu(), bytes(), redis.time_micros());
    fleet.iter().for_each(|node| node.say(&seconds.to_string()));
    let mut stats = RunStats::default();
    fleet.iter().for_each(|node| stats.read(&node.stdout().find("stats ")));
    let elapsed = redis.time_micros() - started_at;
    // One more for a fraction of a token.
    let bound = traffic.limit() + traffic.limit() * elapsed / 1_000_000 + 1;
    stats.latencies.sort_unstable();
    let checks = stats.checks as f64;
    FleetRun {
        per_second: stats.measured as f64 / seconds as f64,
        calls_per_check: stats.calls as f64 / stats.measured as f64,
        admitted_part: stats.admitted.iter().sum::<u64>() as f64 / checks,
        overshoot: stats.admitted.iter().map(|count| count.saturating_sub(bound)).max().unwrap(),
        p50_micros: measure::percentile_micros(&stats.latencies, 0.5),
        p99_micros: measure::percentile_micros(&stats.latencies, 0.99),
        redis_cpu_micros: (cpu() - cpu_before) * 1e6 / checks,
        network_bytes: (bytes() - bytes_before) / checks,
    }
}

/// Prints a row for each accuracy, traffic and number of nodes.
pub(crate) fn print_table(quick: bool) {
    let (rounds, seconds) = if quick { (1, 1) } else { (5, 4) };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut table = Table::new(
        "growth_nodes",
        &format!(
            "Processes with one thread and {CALLERS} callers each, and one Redis, on {cores} cores without pinning. {rounds} rounds of {seconds} s after a second of warm-up; medians (min to max)."
        ),
        [
            "traffic",
            "accuracy",
            "nodes",
            "decisions/s of all nodes",
            "admitted",
            "script calls per decision",
            "Redis CPU us per decision",
            "network bytes per decision",
            "p50 us",
            "p99 us",
            "over the limit",
        ],
    );
    let mut results: Vec<Vec<Vec<FleetRun>>> =
        CASES.iter().map(|_| NODES.iter().map(|_| Vec::new()).collect()).collect();
    for round in 1..=rounds {
        for (case, results) in results.iter_mut().enumerate() {
            for (nodes, results) in NODES.into_iter().zip(results) {
                let (_, accuracy) = CASES[case];
                progress(&format!("{nodes} nodes, {}: round {round} of {rounds}", accuracy.name()));
                results.push(run_fleet(case, nodes, seconds));
            }
        }
    }
    progress("");
    let mut chart = LineChart::new(
        "Growth with nodes on one Redis",
        "nodes",
        "decisions per second of all nodes",
    )
    .with_log_y();
    for ((traffic, accuracy), results) in CASES.iter().zip(&results) {
        let mut points = Vec::new();
        for (nodes, runs) in NODES.into_iter().zip(results) {
            let of = |value: fn(&FleetRun) -> f64| Spread::from_values(runs.iter().map(value));
            let rate = of(|run| run.per_second);
            points.push((nodes as f64, rate.median));
            let overshoot = runs.iter().map(|run| run.overshoot).max().unwrap();
            table.add_row([
                traffic.name().to_owned(),
                accuracy.name().to_owned(),
                nodes.to_string(),
                rate.divided_by(1e3).format(0, "k"),
                format!("{:.0} %", of(|run| run.admitted_part).median * 100.0),
                format!("{:.4}", of(|run| run.calls_per_check).median),
                format!("{:.2}", of(|run| run.redis_cpu_micros).median),
                format!("{:.1}", of(|run| run.network_bytes).median),
                format!("{:.1}", of(|run| run.p50_micros).median),
                format!("{:.0}", of(|run| run.p99_micros).median),
                overshoot.to_string(),
            ]);
        }
        let suffix = if *traffic == NodeTraffic::Under { "" } else { ", over" };
        chart.add_series(&format!("{}{suffix}", accuracy.name()), points);
    }
    table.print();
    chart.save("growth_nodes");
    record_goals(&results);
}

fn record_goals(results: &[Vec<Vec<FleetRun>>]) {
    let leased = &results[1][2];
    let rate = Spread::from_values(leased.iter().map(|run| run.per_second)).median;
    let calls = Spread::from_values(leased.iter().map(|run| run.calls_per_check)).median;
    record_goal(
        "leased, one Redis, four processes",
        "at least 1M decisions/s on two cores, at most 1 % script calls per decision",
        &format!("{:.0}k decisions/s, {:.2} % script calls", rate / 1e3, calls * 100.0),
        rate >= 1e6 && calls <= 0.01,
    );
    let overshoot = results.iter().flatten().flatten().map(|run| run.overshoot).max().unwrap();
    record_goal(
        "exact and leased, 1 to 8 nodes, admissions over the limit",
        "none",
        &overshoot.to_string(),
        overshoot == 0,
    );
}

/// Runs a node. Arguments: the URL of Redis, the index of the case, and the index of the node.
pub(crate) fn run_node(arguments: &[String]) {
    let [url, case, index] = arguments else {
        panic!("wanted URL CASE INDEX, found {arguments:?}")
    };
    let ((traffic, accuracy), index) =
        (CASES[case.parse::<usize>().unwrap()], index.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, send_checks(url, traffic, accuracy, index));
}

async fn send_checks(url: &str, traffic: NodeTraffic, accuracy: NodeAccuracy, index: u64) {
    let limiter = connect_limiter(url, &traffic.rules(accuracy)).await;
    limiter.store().announce().await;
    print_line("ready");
    // Heartbeats continue while the node waits for its parent.
    let seconds: u64 = tokio::task::spawn_blocking(read_line).await.unwrap().parse().unwrap();
    let names: Rc<Vec<String>> =
        Rc::new((0..traffic.clients()).map(|client| client.to_string()).collect());
    let stats =
        Rc::new(RefCell::new(RunStats { admitted: vec![0; names.len()], ..RunStats::default() }));
    let before = Rc::new(OnceCell::new());
    let (start, time) = (measure::now(), WARM_UP + Duration::from_secs(seconds));
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (limiter, names, stats) = (limiter.clone(), Rc::clone(&names), Rc::clone(&stats));
        let before = Rc::clone(&before);
        callers.spawn_local(async move {
            let mut bits = SeededBits::new(index << 32 | caller);
            while start.elapsed() < time {
                let mut started = start;
                for check in 1..=CHECKS_PER_STEP {
                    let client = traffic.pick(&mut bits);
                    let request = Request::new().with("user", names[client].as_str()).unwrap();
                    if check == CHECKS_PER_STEP {
                        started = measure::now();
                    }
                    let is_allowed = limiter.check(&request).await.is_allowed();
                    stats.borrow_mut().admitted[client] += u64::from(is_allowed);
                }
                let latency = started.elapsed();
                let is_measured = start.elapsed() >= WARM_UP;
                if is_measured {
                    before.get_or_init(|| limiter.store().counts());
                }
                stats.borrow_mut().record_step(latency, is_measured);
                tokio::task::yield_now().await;
            }
        });
    }
    while callers.join_next().await.is_some() {}
    let after = limiter.store().counts();
    let before = before.get().copied().unwrap_or(after);
    let mut stats = std::mem::take(&mut *stats.borrow_mut());
    stats.calls = after.calls + after.ask_calls - before.calls - before.ask_calls;
    let step = stats.latencies.len().div_ceil(MAX_LATENCIES).max(1);
    stats.latencies = stats.latencies.iter().copied().step_by(step).collect();
    print_line(&stats.write());
}
