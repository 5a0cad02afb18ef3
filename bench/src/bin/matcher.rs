//! Time to find the matching rules of a request among 10, 100, 1,000 and 10,000 rules, and of a path of 8 KB among 1,000
//! rules with patterns like `**/x/**`.
//!
//! `cargo run --profile dist -p tidegate-bench --bin matcher`
//!
//! Each round measures all sizes, so that other load on the machine affects all of them. The ratio of a size is the median
//! of its ratios to 10 rules within the same round.
#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use tidegate::{Request, RuleSet};

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 11;
const MEASUREMENT_TIME: Duration = Duration::from_millis(200);

fn main() {
    let sets: Vec<(usize, RuleSet, Vec<Request<'static>>)> = SIZES
        .into_iter()
        .filter_map(|size| match RuleSet::parse("bench", &document(size)) {
            Ok(rules) => Some((size, rules, requests(size))),
            Err(errors) => {
                println!("{errors}");
                None
            }
        })
        .collect();
    let mut costs: Vec<Vec<f64>> = vec![Vec::new(); sets.len()];
    for _ in 0..ROUNDS {
        for ((_, rules, requests), costs) in sets.iter().zip(&mut costs) {
            costs.push(measure(rules, requests));
        }
    }
    println!("   rules   ns median      min      max   ratio to 10   rules found");
    let base = costs.first().cloned().unwrap_or_default();
    for ((size, rules, requests), costs) in sets.iter().zip(&costs) {
        let ratios = costs.iter().zip(&base).map(|(cost, base)| cost / base).collect();
        let (median, min, max) = spread(costs.clone());
        let (ratio, _, _) = spread(ratios);
        let found: usize = requests.iter().map(|request| rules.matching(request).len()).sum();
        let found = found as f64 / requests.len() as f64;
        println!("{size:8}   {median:9.0} {min:8.0} {max:8.0}   {ratio:11.2}   {found:11.2}");
    }
    print_long_paths();
}

/// Patterns of which every path contains all literals or none.
const LONG_PATH_PATTERNS: [&str; 4] =
    ["**/x{n}/**", "**/x{n}/*", "/v1/**/x{n}/*/z", "**/x{n}/**/y{n}/**"];

/// Prints the cost of a long path among 1,000 patterns that start and end with a star.
fn print_long_paths() {
    println!(
        "\n1,000 patterns            path of 8 KB                    us median      min      max   rules found"
    );
    let all: String = (0..1_000).map(|n| format!("/x{n}")).collect();
    let paths = [
        ("without their texts", "/v1".to_owned() + &"/segment".repeat(1_000)),
        ("prefixes of their texts", "/v1".to_owned() + &"/x".repeat(4_000)),
        ("all texts", format!("/v1{all}{}/", "/x".repeat((8_000 - all.len()) / 2))),
    ];
    for pattern in LONG_PATH_PATTERNS {
        let mut yaml = String::from("rules:\n");
        for n in 0..1_000 {
            let path = pattern.replace("{n}", &n.to_string());
            let _ = writeln!(yaml, "- {{name: r{n}, limit: 10/s, match: {{path: \"{path}\"}}}}");
        }
        let rules = match RuleSet::parse("bench", &yaml) {
            Ok(rules) => rules,
            Err(errors) => return println!("{errors}"),
        };
        for (name, path) in &paths {
            let Ok(request) = Request::new().with("path", path.as_str()) else { continue };
            let requests = [request];
            let costs = (0..ROUNDS).map(|_| measure(&rules, &requests) / 1e3).collect();
            let (median, min, max) = spread(costs);
            let found: usize = requests.iter().map(|request| rules.matching(request).len()).sum();
            println!("{pattern:24}  {name:30}  {median:9.1} {min:8.1} {max:8.1}   {found:11}");
        }
    }
}

/// Returns the average nanoseconds per request over one measurement.
#[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
fn measure(rules: &RuleSet, requests: &[Request<'_>]) -> f64 {
    let start = Instant::now();
    let mut count = 0_u32;
    loop {
        for request in requests {
            black_box(rules.matching(black_box(request)));
            count += 1;
        }
        let elapsed = start.elapsed();
        if elapsed >= MEASUREMENT_TIME {
            return elapsed.as_nanos() as f64 / f64::from(count);
        }
    }
}

/// Returns the median, the minimum and the maximum.
fn spread(mut costs: Vec<f64>) -> (f64, f64, f64) {
    costs.sort_by(f64::total_cmp);
    let at = |index: usize| costs.get(index).copied().unwrap_or(f64::NAN);
    (at(costs.len() / 2), at(0), at(costs.len().saturating_sub(1)))
}

/// Returns rules as gateways use them: tenants by path, exact routes, customers by key, offices by network, and hosts by
/// suffix. Most also match a method or a shared prefix.
fn document(size: usize) -> String {
    let mut yaml = String::from("rules:\n");
    for n in 0..size {
        let matching = match n % 5 {
            0 => format!("{{path: /v1/tenant-{n}/**, method: GET}}"),
            1 => format!("{{path: /v1/routes/route-{n}, method: [GET, POST]}}"),
            2 => format!("{{path: /v1/**, api_key: key-{n}}}"),
            3 => format!("{{ip: {{in: [10.{}.{}.0/24]}}, method: GET}}", n / 256, n % 256),
            _ => format!("{{host: \"*.customer-{n}.example.com\", user: {{present: true}}}}"),
        };
        let _ = writeln!(yaml, "- {{name: r{n}, limit: 10/s, per: [ip], match: {matching}}}");
    }
    yaml
}

/// Returns requests with typical HTTP attributes that match rules of every kind, and some that match none.
fn requests(size: usize) -> Vec<Request<'static>> {
    (0..1_000)
        .filter_map(|n| {
            // A fixed stride visits all rules in an order that caches cannot predict.
            let n = n * 7_919 % (size + size / 10);
            let path = match n % 5 {
                0 => format!("/v1/tenant-{n}/orders/{n}"),
                1 => format!("/v1/routes/route-{n}"),
                _ => format!("/v1/orders/{n}"),
            };
            Request::new()
                .with("method", "GET")
                .and_then(|request| request.with("host", format!("api.customer-{n}.example.com")))
                .and_then(|request| request.with("path", path))
                .and_then(|request| request.with("ip", format!("10.{}.{}.7", n / 256, n % 256)))
                .and_then(|request| request.with("user", format!("user-{n}")))
                .and_then(|request| request.with("api_key", format!("key-{n}")))
                .and_then(|request| request.with("header.user-agent", "bench/1.0"))
                .and_then(|request| request.with("header.accept", "*/*"))
                .ok()
        })
        .collect()
}
