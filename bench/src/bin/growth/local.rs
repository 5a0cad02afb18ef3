//! Growth inside one process: clients, rules and threads.

use std::hint::black_box;
use std::time::Duration;

use tidegate::{Limiter, Request, RuleSet};
use tidegate_bench::chart::LineChart;
use tidegate_bench::contender::{
    BareTableContender, Contender, ContenderLimit, Governor, Tidegate,
};
use tidegate_bench::documents;
use tidegate_bench::keys::{Key, key, uniform};
use tidegate_bench::measure::{nanos_per_call, progress};
use tidegate_bench::table::{Spread, Table};

const LIMIT: ContenderLimit = ContenderLimit::DEFAULT;
const KEYS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const RULES: [usize; 4] = [10, 100, 1_000, 10_000];
const THREADS: [usize; 4] = [1, 2, 4, 8];
const THREADS_KEYS: u64 = 1_000_000;
const MEASUREMENT_TIME: Duration = Duration::from_millis(200);

/// Prints nanoseconds per decision for 10^3 to 10^7 clients.
pub(crate) fn print_keys(quick: bool) {
    let (rounds, checks) = if quick { (3, 500_000) } else { (7, 2_000_000) };
    let sizes = &KEYS[..if quick { 4 } else { 5 }];
    let mut table = Table::new(
        "growth_keys",
        &format!(
            "One thread, random keys, 1,000 per minute for each. {rounds} rounds. Nanoseconds per decision: median (min to max)."
        ),
        std::iter::once("clients".to_owned())
            .chain(contenders(1).iter().map(|it| it.name().to_owned())),
    );
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for &size in sizes {
        let contenders = contenders(size);
        let keys = [uniform(size, checks, 1)];
        for contender in &contenders {
            progress(&format!("{size} clients: filling {}", contender.name()));
            for part in (0..size).collect::<Vec<_>>().chunks(1_000_000) {
                contender.check_all(&part.iter().map(|number| key(*number)).collect::<Vec<Key>>());
            }
        }
        let mut costs = vec![Vec::new(); contenders.len()];
        for round in 1..=rounds {
            progress(&format!("{size} clients: round {round} of {rounds}"));
            for (contender, costs) in contenders.iter().zip(&mut costs) {
                costs.push(contender.measure(&keys));
            }
        }
        let spreads: Vec<Spread> = costs.into_iter().map(Spread::from_values).collect();
        let cells = spreads.iter().map(|spread| spread.format(0, ""));
        table.add_row(std::iter::once(size.to_string()).chain(cells));
        lines.resize_with(contenders.len(), Default::default);
        for ((contender, spread), line) in contenders.iter().zip(spreads).zip(&mut lines) {
            line.0 = contender.name();
            line.1.push((size as f64, spread.median));
        }
    }
    progress("");
    table.print();
    let mut chart =
        LineChart::new("Growth with clients", "clients", "nanoseconds per decision, one thread");
    lines.into_iter().for_each(|(name, points)| chart.add_series(name, points));
    chart.save("growth_keys");
}

fn contenders(keys: u64) -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(Tidegate::with_batches_of_256(LIMIT)),
        Box::new(Tidegate::with_cached_clock(LIMIT)),
        Box::new(BareTableContender::new(LIMIT, keys as usize)),
        Box::new(Governor::new(LIMIT)),
    ]
}

/// Prints nanoseconds per lookup and per decision for 10 to 10,000 rules.
pub(crate) fn print_rules(quick: bool) {
    let rounds = if quick { 3 } else { 9 };
    let sets: Vec<(Limiter, RuleSet, Vec<Request<'static>>)> = RULES
        .into_iter()
        .map(|size| {
            let parse = || RuleSet::parse("bench", &documents::rules(size)).unwrap();
            let limiter = Limiter::builder().rules(parse()).build();
            (limiter, parse(), documents::requests(size))
        })
        .collect();
    let mut costs = vec![(Vec::new(), Vec::new()); sets.len()];
    for round in 1..=rounds {
        progress(&format!("rules: round {round} of {rounds}"));
        for ((limiter, rules, requests), (lookups, decisions)) in sets.iter().zip(&mut costs) {
            lookups.push(nanos_per_request(requests, |request| rules.matching(request).len()));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            decisions.push(nanos_per_request(requests, |request| {
                limiter
                    .check_now(request)
                    .unwrap_or_else(|| runtime.block_on(limiter.check(request)))
            }));
        }
    }
    progress("");
    let mut table = Table::new(
        "growth_rules",
        &format!(
            "{rounds} rounds. Nanoseconds per request: median (min to max). A decision includes the lookup and the charge in memory."
        ),
        ["rules", "lookup", "ratio to 10 rules", "decision", "ratio to 10 rules"],
    );
    let mut lines = [Vec::new(), Vec::new()];
    for (size, (lookups, decisions)) in RULES.into_iter().zip(&costs) {
        let [lookup, decision] =
            [lookups, decisions].map(|costs| Spread::from_values(costs.clone()));
        table.add_row([
            size.to_string(),
            lookup.format(0, ""),
            Spread::of_ratios(lookups, &costs[0].0).format(2, ""),
            decision.format(0, ""),
            Spread::of_ratios(decisions, &costs[0].1).format(2, ""),
        ]);
        lines[0].push((size as f64, lookup.median));
        lines[1].push((size as f64, decision.median));
    }
    table.print();
    let mut chart = LineChart::new("Growth with rules", "rules", "nanoseconds per request");
    let [lookups, decisions] = lines;
    chart.add_series("lookup", lookups);
    chart.add_series("decision", decisions);
    chart.save("growth_rules");
}

/// Returns the average nanoseconds per request.
fn nanos_per_request<T>(
    requests: &[Request<'static>],
    call: impl Fn(&Request<'static>) -> T,
) -> f64 {
    let all = nanos_per_call(MEASUREMENT_TIME, || {
        for request in requests {
            black_box(call(black_box(request)));
        }
    });
    all / requests.len() as f64
}

/// Prints decisions per second of 1 to 8 threads together.
pub(crate) fn print_threads(quick: bool) {
    let (rounds, checks) = if quick { (3, 300_000) } else { (7, 1_000_000) };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(Tidegate::with_batches_of_256(LIMIT)),
        Box::new(Tidegate::with_cached_clock(LIMIT)),
        Box::new(Governor::new(LIMIT)),
    ];
    let warm: Vec<Key> = (0..THREADS_KEYS).map(key).collect();
    for contender in &contenders {
        contender.check_all(&warm);
    }
    let keys: Vec<Vec<Key>> = (0..8).map(|thread| uniform(THREADS_KEYS, checks, thread)).collect();
    let names = contenders.iter().map(|contender| contender.name().to_owned());
    let mut table = Table::new(
        "growth_threads",
        &format!(
            "1,000,000 random keys, {cores} cores. {rounds} rounds. Decisions per second of all threads together: median (min to max)."
        ),
        std::iter::once("threads".to_owned()).chain(names),
    );
    let mut lines = vec![Vec::new(); contenders.len()];
    for threads in THREADS {
        let mut rates = vec![Vec::new(); contenders.len()];
        for round in 1..=rounds {
            progress(&format!("{threads} threads: round {round} of {rounds}"));
            for (contender, rates) in contenders.iter().zip(&mut rates) {
                rates.push(threads as f64 * 1e9 / contender.measure(&keys[..threads]));
            }
        }
        let spreads: Vec<Spread> = rates.into_iter().map(Spread::from_values).collect();
        for (line, spread) in lines.iter_mut().zip(&spreads) {
            line.push((threads as f64, spread.median));
        }
        let cells = spreads.iter().map(|spread| spread.divided_by(1e6).format(1, "M"));
        table.add_row(std::iter::once(threads.to_string()).chain(cells));
    }
    progress("");
    table.print();
    let title = format!("Growth with threads on {cores} cores");
    let mut chart = LineChart::new(&title, "threads", "decisions per second of all threads");
    for (contender, points) in contenders.iter().zip(lines) {
        chart.add_series(contender.name(), points);
    }
    chart.save("growth_threads");
}
