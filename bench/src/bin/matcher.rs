//! Time to find the matching rules of a request among 10, 100, 1,000 and 10,000 rules, of a path of 8 KB among 1,000
//! rules with patterns like `**/x/**`, and to match such a path with 1,000 patterns together and one by one.
//!
//! `cargo run --profile dist -p tidegate-bench --bin matcher`
//!
//! Each round measures all sizes, so that other load on the machine affects all of them. The ratio of a size is the median
//! of its ratios to 10 rules within the same round.
#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use tidegate::rules::{PatternSet, ValuePattern, ValuePatterns, ValueTest};
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
    print_pattern_lists();
}

/// Patterns of which every path contains all literals or none.
const LONG_PATH_PATTERNS: [&str; 5] =
    ["**/x{n}/**", "**/x{n}/*", "/v1/**/x{n}/*/z", "**/x{n}/**/y{n}/**", "**/x{n}/*/y{n}/**"];

/// Prints the cost of a long path among 1,000 patterns that start and end with a star.
fn print_long_paths() {
    println!(
        "\n1,000 patterns            path of 8 KB                    us median      min      max   rules found"
    );
    let paths = long_paths();
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

/// Returns paths of 8 KB. The last one has all texts of patterns with two texts, the second ones first.
fn long_paths() -> [(&'static str, String); 4] {
    let all = |letter: char, count: usize| -> String {
        (0..count).map(|n| format!("/{letter}{n}")).collect()
    };
    let first = all('x', 1_000);
    [
        ("without their texts", "/v1".to_owned() + &"/segment".repeat(1_000)),
        ("prefixes of their texts", "/v1".to_owned() + &"/x".repeat(4_000)),
        ("all texts", format!("/v1{first}{}/", "/x".repeat((8_000 - first.len()) / 2))),
        ("all texts of 800, y before x", format!("/v1{}{}/", all('y', 800), all('x', 800))),
    ]
}

/// Prints the cost of 1,000 patterns that are matched together: as alternatives of one condition, and as the first of
/// many that matches, which routes of a gateway and files of envoyproxy/ratelimit use. The base is a comparison with each
/// pattern, in the same rounds.
fn print_pattern_lists() {
    println!(
        "\n1,000 patterns            path of 8 KB                    us one by one   one condition   first match   ratio"
    );
    for pattern in LONG_PATH_PATTERNS {
        let patterns: Vec<ValuePattern> = (0..1_000)
            .map(|n| ValuePattern::like(&pattern.replace("{n}", &n.to_string())))
            .collect();
        let set = PatternSet::new(patterns.iter().enumerate());
        let condition = ValueTest::OneOf(ValuePatterns::new(patterns.clone()));
        for (name, path) in long_paths() {
            let path = path.as_str();
            let (mut each, mut one, mut first) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                each.push(time(|| {
                    patterns.iter().filter(|it| it.matches(black_box(path))).count()
                }));
                one.push(time(|| condition.passes(Some(black_box(path)))));
                first.push(time(|| set.first(black_box(path))));
            }
            let ratios = each.iter().zip(&first).map(|(each, first)| each / first).collect();
            let [(each, ..), (one, ..), (first, ..), (ratio, ..)] =
                [each, one, first, ratios].map(spread);
            let (each, one, first) = (each / 1e3, one / 1e3, first / 1e3);
            println!(
                "{pattern:24}  {name:30}  {each:13.1}   {one:13.1}   {first:11.1}   {ratio:5.0}"
            );
        }
    }
}

/// Returns the average nanoseconds per request over one measurement.
fn measure(rules: &RuleSet, requests: &[Request<'_>]) -> f64 {
    let per_round = time(|| {
        for request in requests {
            black_box(rules.matching(black_box(request)));
        }
    });
    per_round / requests.len() as f64
}

/// Returns the average nanoseconds per call over one measurement.
#[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
fn time<T>(call: impl Fn() -> T) -> f64 {
    let start = Instant::now();
    let mut count = 0_u32;
    loop {
        black_box(call());
        count += 1;
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
