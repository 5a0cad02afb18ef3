//! Time to load very many rules, to match requests against them, and to replace them under load.
//!
//! `make bench-reload`
//!
//! Uses 10,000 rules, and 100,000 overrides of one of them. Measures the phases of loading, matching compared with ten
//! rules, and the duration of single checks on two threads, without reloads and while a third thread reloads continuously.
//! Each round measures all variants, so that other load on the machine affects all of them. Figures are medians of the
//! rounds.
#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::{Limiter, LiveLimiter, Request, RuleSet, Timestamp};
use tidegate_bench::measure::now;
use tidegate_bench::table::{Spread, Table};

const RULES: usize = 10_000;
const OVERRIDES: usize = 100_000;
const LOAD_ROUNDS: usize = 7;
const ROUNDS: usize = 7;
const MEASUREMENT_TIME: Duration = Duration::from_millis(200);
const CHECK_TIME: Duration = Duration::from_secs(2);

fn main() {
    let yaml = document(RULES, OVERRIDES);
    println!(
        "{RULES} rules and {OVERRIDES} overrides: {:.1} MB of YAML",
        yaml.len() as f64 / 1_000_000.0
    );
    print_loading(&yaml);
    print_matching(&yaml);
    print_reloading(&yaml);
}

fn measure_millis<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = now();
    let done = work();
    (start.elapsed().as_secs_f64() * 1_000.0, done)
}

#[allow(clippy::expect_used, reason = "the document is generated here")]
fn parse_rules(yaml: &str) -> RuleSet {
    RuleSet::parse("bench", yaml).expect("the document is a valid one")
}

fn print_loading(yaml: &str) {
    let empty = Limiter::builder().build();
    let (mut reads, mut assembles, mut drops, mut memory_growth) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut cpu_times = Vec::new();
    for _ in 0..LOAD_ROUNDS {
        let (before, began) = (resident_megabytes(), cpu_millis());
        let (parse_time, rules) = measure_millis(|| parse_rules(yaml));
        cpu_times.push(cpu_millis() - began);
        let (assemble, limiter) = measure_millis(|| empty.with_rules(rules));
        memory_growth.push(resident_megabytes() - before);
        let (drop, ()) = measure_millis(|| drop(limiter));
        reads.push(parse_time);
        assembles.push(assemble);
        drops.push(drop);
    }
    let mut table = Table::new(
        "reload_loading",
        &format!(
            "{RULES} rules and {OVERRIDES} overrides, {LOAD_ROUNDS} rounds: median (min to max)."
        ),
        ["", "ms"],
    );
    let times =
        [("read", reads), ("read, CPU time", cpu_times), ("assemble", assembles), ("drop", drops)];
    for (name, times) in times {
        table.add_row([name.to_owned(), Spread::from_values(times).format(1, "")]);
    }
    // Only the first load does not reuse memory of an earlier one.
    let resident = memory_growth.first().copied().unwrap_or_default();
    table.add_row(["resident memory, MB".to_owned(), format!("{resident:.1}")]);
    table.print();
}

fn print_matching(yaml: &str) {
    let (small, large) = (parse_rules(&document(10, 10)), parse_rules(yaml));
    let sets = [
        ("10 rules, 10 overrides", &small, requests(10, 10)),
        ("all rules and overrides", &large, requests(RULES, OVERRIDES)),
    ];
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for ((_, rules, requests), costs) in sets.iter().zip(&mut costs) {
            costs.push(measure_matching(rules, requests));
        }
    }
    let mut table = Table::new(
        "reload_matching",
        &format!("{ROUNDS} rounds: median (min to max)."),
        ["", "ns to find rules and limits"],
    );
    for ((name, _, _), costs) in sets.iter().zip(costs) {
        table.add_row([(*name).to_owned(), Spread::from_values(costs).format(0, "")]);
    }
    table.print();
}

/// Returns the average nanoseconds to find the rules and limits of one request.
fn measure_matching(rules: &RuleSet, requests: &[Request<'static>]) -> f64 {
    let (start, mut count) = (now(), 0_u32);
    loop {
        for request in requests {
            for rule in rules.matching(black_box(request)) {
                black_box(rule.limit_for(request, Timestamp::EPOCH));
            }
            count += 1;
        }
        let elapsed = start.elapsed();
        if elapsed >= MEASUREMENT_TIME {
            return elapsed.as_nanos() as f64 / f64::from(count);
        }
    }
}

fn print_reloading(yaml: &str) {
    let limiter = LiveLimiter::new(Limiter::builder().rules(parse_rules(yaml)).build());
    let requests = requests(RULES, OVERRIDES);
    let names = ["no reloads", "busy thread", "rules are reloaded"];
    let mut results: [Vec<[f64; 4]>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    let reloads = AtomicU32::new(0);
    for _ in 0..ROUNDS {
        for (variant, results) in results.iter_mut().enumerate() {
            let done = AtomicBool::new(false);
            let times = thread::scope(|scope| {
                let checkers: Vec<_> = (0..2)
                    .map(|part| {
                        let (limiter, requests) = (limiter.clone(), &requests);
                        scope.spawn(move || measure_checks(&limiter, requests, part))
                    })
                    .collect();
                let background = scope.spawn(|| {
                    // A running check may hold the old rules. Keep them until the next reload, so that this thread and
                    // not the check drops them.
                    let mut old = None;
                    while !done.load(Ordering::Relaxed) {
                        match variant {
                            0 => thread::yield_now(),
                            // The same work without a replacement: the cost of sharing two cores.
                            1 => drop(black_box(parse_rules(yaml))),
                            _ => {
                                drop(old.replace(limiter.replace(parse_rules(yaml))));
                                reloads.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        if variant == 0 {
                            return;
                        }
                    }
                });
                let mut times: Vec<u32> = Vec::new();
                for checker in checkers {
                    times.extend(checker.join().unwrap_or_default());
                }
                done.store(true, Ordering::Relaxed);
                let _ = background.join();
                times
            });
            results.push(percentiles(times));
        }
    }
    let reloads = reloads.load(Ordering::Relaxed);
    let mut table = Table::new(
        "reload_checks",
        &format!("One check, two threads, {ROUNDS} rounds, {reloads} reloads in all; medians."),
        ["", "p50 us", "p99 us", "p99.9 us", "longest us"],
    );
    for (name, results) in names.into_iter().zip(results) {
        let median =
            |column: usize| Spread::from_values(results.iter().map(|row| row[column])).median;
        let cells =
            [median(0), median(1), median(2), median(3)].map(|micros| format!("{micros:.2}"));
        table.add_row(std::iter::once(name.to_owned()).chain(cells));
    }
    table.print();
}

/// Sends checks for [`CHECK_TIME`], and returns the nanoseconds of each.
#[allow(clippy::expect_used, reason = "a runtime without drivers cannot fail to build")]
fn measure_checks(limiter: &LiveLimiter, requests: &[Request<'static>], part: usize) -> Vec<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut times = Vec::with_capacity(8_000_000);
    runtime.block_on(async {
        let start = now();
        let mut last = start;
        for request in requests.iter().cycle().skip(part * 500) {
            let decision = limiter.check(request).await;
            black_box(decision);
            let end = now();
            times.push(u32::try_from((end - last).as_nanos()).unwrap_or(u32::MAX));
            if end - start >= CHECK_TIME || times.len() == times.capacity() {
                return;
            }
            last = end;
        }
    });
    times
}

/// Returns the median, p99, p99.9 and the maximum, in microseconds.
fn percentiles(mut times: Vec<u32>) -> [f64; 4] {
    times.sort_unstable();
    let at = |per_mille: usize| {
        let column = (times.len() * per_mille / 1_000).min(times.len().saturating_sub(1));
        f64::from(times.get(column).copied().unwrap_or(0)) / 1_000.0
    };
    [at(500), at(990), at(999), at(1_000)]
}

/// Returns the resident memory of the process in megabytes, or 0 if the system does not report it.
fn resident_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1_000.0
}

/// Returns the CPU time of the first thread in milliseconds, or 0 if the system does not report it.
fn cpu_millis() -> f64 {
    let status = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = status.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    nanos.unwrap_or_default() / 1_000_000.0
}

/// Returns rules by tenant and route, and one rule per customer key with overrides.
fn document(rules: usize, overrides: usize) -> String {
    let mut yaml = String::from("rules:\n");
    for n in 1..rules {
        let conditions = match n % 2 {
            0 => format!("{{path: /v1/tenant-{n}/**, method: GET}}"),
            _ => format!("{{path: /v1/routes/route-{n}, method: [GET, POST]}}"),
        };
        let _ = writeln!(
            yaml,
            "- name: rule-{n}\n  match: {conditions}\n  per: [api_key]\n  limit: {} per second\n",
            100 + n % 7
        );
    }
    yaml.push_str("- name: customers\n  per: [api_key]\n  limit: 100 per second\n  overrides:\n");
    for n in 0..overrides {
        let limit = [200, 500, 1_000, 5_000][n % 4];
        let _ = writeln!(yaml, "  - {{match: {{api_key: key-{n}}}, limit: {limit} per second}}");
    }
    yaml
}

fn requests(rules: usize, overrides: usize) -> Vec<Request<'static>> {
    (0..50_000)
        .filter_map(|n| {
            // Fixed strides visit all rules and overrides in an order that caches cannot predict.
            let (rule, key) = (n * 7_919 % rules, n * 104_729 % overrides);
            let path = match rule % 2 {
                0 => format!("/v1/tenant-{rule}/orders/{n}"),
                _ => format!("/v1/routes/route-{rule}"),
            };
            Request::new()
                .with("method", "GET")
                .and_then(|request| request.with("host", "api.example.com"))
                .and_then(|request| request.with("path", path))
                .and_then(|request| request.with("ip", format!("10.0.{}.7", n % 256)))
                .and_then(|request| request.with("api_key", format!("key-{key}")))
                .and_then(|request| request.with("header.user-agent", "bench/1.0"))
                .ok()
        })
        .collect()
}
