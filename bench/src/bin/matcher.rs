//! Time to find the matching rules of a request among 10, 100, 1,000 and 10,000 rules, of a path of 8 KB among 1,000
//! rules with patterns like `**/x/**`, and to match such a path with 1,000 patterns together and one by one.
//!
//! `cargo run --profile dist -p tidegate-bench --bin matcher [-- --quick]`
//!
//! Each round measures all sizes, so that other load on the machine affects all of them. The ratio of a size is the median
//! of its ratios to 10 rules within the same round.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;

use tidegate::rules::{PatternSet, ValuePattern, ValuePatterns, ValueTest};
use tidegate::{Request, RuleSet};
use tidegate_bench::measure::nanos_per_call;
use tidegate_bench::table::{Spread, Table};
use tidegate_bench::{documents, measure};

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
const MEASUREMENT_TIME: Duration = Duration::from_millis(200);

fn main() {
    let rounds = if measure::is_quick() { 3 } else { 11 };
    print_sizes(rounds);
    print_long_paths(rounds);
    print_pattern_lists(rounds);
}

/// Prints the time to find the rules of a request.
fn print_sizes(rounds: usize) {
    let sets: Vec<(usize, RuleSet, Vec<Request<'static>>)> = SIZES
        .into_iter()
        .map(|size| {
            let rules = RuleSet::parse("bench", &documents::rules(size));
            (size, rules.expect("the document is valid"), documents::requests(size))
        })
        .collect();
    let mut costs: Vec<Vec<f64>> = vec![Vec::new(); sets.len()];
    for _ in 0..rounds {
        for ((_, rules, requests), costs) in sets.iter().zip(&mut costs) {
            costs.push(measure_matching(rules, requests));
        }
    }
    let mut table = Table::new(
        "matcher",
        &format!(
            "{rounds} rounds. Nanoseconds to find the rules of a request: median (min to max)."
        ),
        ["rules", "ns", "ratio to 10 rules", "rules found"],
    );
    for ((size, rules, requests), own) in sets.iter().zip(&costs) {
        let found: usize = requests.iter().map(|request| rules.matching(request).len()).sum();
        table.add_row([
            size.to_string(),
            Spread::from_values(own.clone()).format(0, ""),
            Spread::of_ratios(own, &costs[0]).format(2, ""),
            format!("{:.2}", found as f64 / requests.len() as f64),
        ]);
    }
    table.print();
}

/// Patterns of which every path contains all literals or none.
const LONG_PATH_PATTERNS: [&str; 5] =
    ["**/x{n}/**", "**/x{n}/*", "/v1/**/x{n}/*/z", "**/x{n}/**/y{n}/**", "**/x{n}/*/y{n}/**"];

/// Prints the cost of a long path among 1,000 patterns that start and end with a star.
fn print_long_paths(rounds: usize) {
    let mut table = Table::new(
        "matcher_long_paths",
        &format!("{rounds} rounds. A path of 8 KB among 1,000 patterns: median (min to max)."),
        ["pattern of each rule", "path", "us", "rules found"],
    );
    let paths = long_paths();
    for pattern in LONG_PATH_PATTERNS {
        let mut yaml = String::from("rules:\n");
        for n in 0..1_000 {
            let path = pattern.replace("{n}", &n.to_string());
            let _ = writeln!(yaml, "- {{name: r{n}, limit: 10/s, match: {{path: \"{path}\"}}}}");
        }
        let rules = RuleSet::parse("bench", &yaml).expect("the document is valid");
        for (name, path) in &paths {
            let Ok(request) = Request::new().with("path", path.as_str()) else { continue };
            let requests = [request];
            let costs = (0..rounds).map(|_| measure_matching(&rules, &requests));
            let found: usize = requests.iter().map(|request| rules.matching(request).len()).sum();
            table.add_row([
                format!("`{pattern}`"),
                (*name).to_owned(),
                Spread::from_values(costs).divided_by(1e3).format(1, ""),
                found.to_string(),
            ]);
        }
    }
    table.print();
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
fn print_pattern_lists(rounds: usize) {
    let mut table = Table::new(
        "matcher_lists",
        &format!("{rounds} rounds. Microseconds for a path of 8 KB and 1,000 patterns: medians."),
        [
            "pattern",
            "path",
            "one by one",
            "one condition",
            "first match",
            "one by one / first match",
        ],
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
            for _ in 0..rounds {
                each.push(nanos_per_call(MEASUREMENT_TIME, || {
                    patterns.iter().filter(|it| it.matches(black_box(path))).count()
                }));
                one.push(nanos_per_call(MEASUREMENT_TIME, || {
                    condition.passes(Some(black_box(path)))
                }));
                first.push(nanos_per_call(MEASUREMENT_TIME, || set.first(black_box(path))));
            }
            let ratio = Spread::of_ratios(&each, &first).median;
            let [each, one, first] =
                [each, one, first].map(|costs| Spread::from_values(costs).median / 1e3);
            table.add_row([
                format!("`{pattern}`"),
                name.to_owned(),
                format!("{each:.1}"),
                format!("{one:.1}"),
                format!("{first:.1}"),
                format!("{ratio:.0}"),
            ]);
        }
    }
    table.print();
}

/// Returns the average nanoseconds per request.
fn measure_matching(rules: &RuleSet, requests: &[Request<'_>]) -> f64 {
    let per_round = nanos_per_call(MEASUREMENT_TIME, || {
        for request in requests {
            black_box(rules.matching(black_box(request)));
        }
    });
    per_round / requests.len() as f64
}
