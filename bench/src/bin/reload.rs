//! What it costs to load very many rules, to match among them, and to replace them under load.
//!
//! `make bench-reload`
//!
//! Ten thousand rules, and a hundred thousand overrides of one of them. Loading is timed in its parts;
//! matching beside ten rules; and the time of single checks on two threads while nothing is reloaded
//! and while a third thread reloads all the time. What is compared takes turns within each round, so
//! that whatever else the machine does falls on all of it alike. Figures are medians of the rounds.
#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate::{Limiter, LiveLimiter, Request, RuleSet, Timestamp};

const RULES: usize = 10_000;
const OVERRIDES: usize = 100_000;
const LOADS: usize = 7;
const ROUNDS: usize = 7;
const TURN: Duration = Duration::from_millis(200);
const QUIET: Duration = Duration::from_secs(2);

fn main() {
    let yaml = document(RULES, OVERRIDES);
    println!(
        "{RULES} rules and {OVERRIDES} overrides: {:.1} MB of YAML",
        yaml.len() as f64 / 1_000_000.0
    );
    loading(&yaml);
    matching(&yaml);
    reloading(&yaml);
}

#[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
fn now() -> Instant {
    Instant::now()
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = now();
    let done = work();
    (start.elapsed().as_secs_f64() * 1_000.0, done)
}

#[allow(clippy::expect_used, reason = "the document is ours")]
fn read(yaml: &str) -> RuleSet {
    RuleSet::parse("bench", yaml).expect("the document is a valid one")
}

fn loading(yaml: &str) {
    let empty = Limiter::builder().build();
    let (mut reads, mut assembles, mut drops, mut held) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut busy = Vec::new();
    for _ in 0..LOADS {
        let (before, began) = (resident(), on_processor());
        let (read, rules) = timed(|| read(yaml));
        busy.push(on_processor() - began);
        let (assemble, limiter) = timed(|| empty.with_rules(rules));
        held.push(resident() - before);
        let (drop, ()) = timed(|| drop(limiter));
        reads.push(read);
        assembles.push(assemble);
        drops.push(drop);
    }
    println!("\n             ms median      min      max");
    let times = [("read", reads), ("  of it busy", busy), ("assemble", assembles), ("drop", drops)];
    for (name, times) in times {
        let (median, min, max) = spread(times);
        println!("{name:<12} {median:9.1} {min:8.1} {max:8.1}");
    }
    // The first load finds no memory that an earlier one gave back.
    println!("memory       {:9.1} MB resident", held.first().copied().unwrap_or_default());
}

fn matching(yaml: &str) {
    let (few, many) = (read(&document(10, 10)), read(yaml));
    let sets = [
        ("10 rules, 10 overrides", &few, requests(10, 10)),
        ("all of them", &many, requests(RULES, OVERRIDES)),
    ];
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for ((_, rules, requests), costs) in sets.iter().zip(&mut costs) {
            costs.push(turn(rules, requests));
        }
    }
    println!("\nmatch and limit           ns median      min      max");
    for ((name, _, _), costs) in sets.iter().zip(costs) {
        let (median, min, max) = spread(costs);
        println!("{name:<25} {median:9.0} {min:8.0} {max:8.0}");
    }
}

/// Nanoseconds to find the rules and limits of one request, on average over a turn.
fn turn(rules: &RuleSet, requests: &[Request<'static>]) -> f64 {
    let (start, mut count) = (now(), 0_u32);
    loop {
        for request in requests {
            for rule in rules.matching(black_box(request)) {
                black_box(rule.limit_for(request, Timestamp::EPOCH));
            }
            count += 1;
        }
        let spent = start.elapsed();
        if spent >= TURN {
            return spent.as_nanos() as f64 / f64::from(count);
        }
    }
}

fn reloading(yaml: &str) {
    let limiter = LiveLimiter::new(Limiter::builder().rules(read(yaml)).build());
    let requests = requests(RULES, OVERRIDES);
    let names = ["nobody reloads", "a thread is busy", "rules are reloaded"];
    let mut found: [Vec<[f64; 4]>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    let reloads = AtomicU32::new(0);
    for _ in 0..ROUNDS {
        for (kind, found) in found.iter_mut().enumerate() {
            let done = AtomicBool::new(false);
            let times = thread::scope(|scope| {
                let checkers: Vec<_> = (0..2)
                    .map(|part| {
                        let (limiter, requests) = (limiter.clone(), &requests);
                        scope.spawn(move || checks(&limiter, requests, part))
                    })
                    .collect();
                let other = scope.spawn(|| {
                    // A check that began before may hold the old rules: who drops them last pays for
                    // it, and that must not be the check.
                    let mut old = None;
                    while !done.load(Ordering::Relaxed) {
                        match kind {
                            0 => thread::yield_now(),
                            // As much work, and nothing replaced: what sharing two cores costs.
                            1 => drop(black_box(read(yaml))),
                            _ => {
                                drop(old.replace(limiter.replace(read(yaml))));
                                reloads.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        if kind == 0 {
                            return;
                        }
                    }
                });
                let mut times: Vec<u32> = Vec::new();
                for checker in checkers {
                    times.extend(checker.join().unwrap_or_default());
                }
                done.store(true, Ordering::Relaxed);
                let _ = other.join();
                times
            });
            found.push(percentiles(times));
        }
    }
    println!("\none check, two threads     us p50      p99    p99.9      max");
    for (name, found) in names.into_iter().zip(found) {
        let median = |place: usize| spread(found.iter().map(|row| row[place]).collect()).0;
        println!(
            "{name:<22} {:10.2} {:8.2} {:8.2} {:8.0}",
            median(0),
            median(1),
            median(2),
            median(3)
        );
    }
    println!("{} reloads", reloads.load(Ordering::Relaxed));
}

/// Nanoseconds of each check for a while.
#[allow(clippy::expect_used, reason = "a runtime that does nothing needs nothing")]
fn checks(limiter: &LiveLimiter, requests: &[Request<'static>], part: usize) -> Vec<u32> {
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
            if end - start >= QUIET || times.len() == times.capacity() {
                return;
            }
            last = end;
        }
    });
    times
}

/// The median, two high percentiles and the maximum, in microseconds.
fn percentiles(mut times: Vec<u32>) -> [f64; 4] {
    times.sort_unstable();
    let at = |per_mille: usize| {
        let place = (times.len() * per_mille / 1_000).min(times.len().saturating_sub(1));
        f64::from(times.get(place).copied().unwrap_or(0)) / 1_000.0
    };
    [at(500), at(990), at(999), at(1_000)]
}

/// Median, least and most.
fn spread(mut costs: Vec<f64>) -> (f64, f64, f64) {
    costs.sort_by(f64::total_cmp);
    let at = |index: usize| costs.get(index).copied().unwrap_or(f64::NAN);
    (at(costs.len() / 2), at(0), at(costs.len().saturating_sub(1)))
}

/// Megabytes that the process holds; 0 where the system does not say.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1_000.0
}

/// Milliseconds that the first thread ran so far, not counting those in which others had the
/// processor; 0 where the system does not say.
fn on_processor() -> f64 {
    let status = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = status.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    nanos.unwrap_or_default() / 1_000_000.0
}

/// Rules by tenant and route, and one for every customer by key, with a limit for some of them.
fn document(rules: usize, overrides: usize) -> String {
    let mut yaml = String::from("rules:\n");
    for n in 1..rules {
        let matching = match n % 2 {
            0 => format!("{{path: /v1/tenant-{n}/**, method: GET}}"),
            _ => format!("{{path: /v1/routes/route-{n}, method: [GET, POST]}}"),
        };
        let _ = writeln!(
            yaml,
            "- name: rule-{n}\n  match: {matching}\n  per: [api_key]\n  limit: {} per second\n",
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
            // Fixed strides walk all rules and overrides in an order that no cache foresees.
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
