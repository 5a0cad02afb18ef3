//! Growth with the number of rules that match the same request: all are charged, or none.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::store::Store;
use tidegate::{Limiter, Request, RuleSet};
use tidegate_bench::chart::LineChart;
use tidegate_bench::fleet::connect_limiter;
use tidegate_bench::measure::{self, progress};
use tidegate_bench::table::{Spread, Table};
use tidegate_testkit::Redis;

const STACKED: [usize; 4] = [1, 2, 4, 8];
const CLIENTS: u64 = 100_000;
/// Concurrent callers of each limiter.
const CALLERS: u64 = 256;
/// Checks between two readings of the clock.
const CHECKS_PER_STEP: u64 = 16;

/// Prints decisions per second for requests that match 1 to 8 rules, in memory and through Redis.
pub(crate) fn print_table(quick: bool) {
    let (rounds, time) =
        if quick { (3, Duration::from_millis(500)) } else { (7, Duration::from_secs(2)) };
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let limiters: Vec<_> = STACKED
        .into_iter()
        .map(|count| {
            let rules = rules(count);
            let local = Limiter::builder().rules(RuleSet::parse("bench", &rules).unwrap()).build();
            (local, runtime.block_on(connect_limiter(&redis.url(), &rules)))
        })
        .collect();
    let mut rates = vec![(Vec::new(), Vec::new()); STACKED.len()];
    for round in 1..=rounds {
        for ((count, (local, shared)), rates) in STACKED.iter().zip(&limiters).zip(&mut rates) {
            progress(&format!("{count} rules per request: round {round} of {rounds}"));
            rates.0.push(runtime.block_on(decisions_per_second(local, time)));
            rates.1.push(runtime.block_on(decisions_per_second(shared, time)));
        }
    }
    progress("");
    let mut table = Table::new(
        "growth_stacked",
        &format!(
            "{CALLERS} callers, {CLIENTS} clients, {rounds} rounds of {time:?}; all threads and Redis share the cores. Decisions per second: median (min to max)."
        ),
        [
            "rules per request",
            "in memory",
            "ratio to 1 rule",
            "exact through one Redis",
            "ratio to 1 rule",
        ],
    );
    let mut lines = [Vec::new(), Vec::new()];
    for (count, (local, shared)) in STACKED.into_iter().zip(&rates) {
        let [in_memory, exact] = [local, shared].map(|rates| Spread::from_values(rates.clone()));
        table.add_row([
            count.to_string(),
            in_memory.divided_by(1e3).format(0, "k"),
            Spread::of_ratios(local, &rates[0].0).format(2, ""),
            exact.divided_by(1e3).format(0, "k"),
            Spread::of_ratios(shared, &rates[0].1).format(2, ""),
        ]);
        lines[0].push((count as f64, in_memory.median));
        lines[1].push((count as f64, exact.median));
    }
    table.print();
    let [in_memory, exact] = lines;
    let mut chart = LineChart::new(
        "Growth with rules per request",
        "rules that match each request",
        "decisions per second",
    )
    .with_log_y();
    chart.add_series("in memory", in_memory);
    chart.add_series("exact, one Redis", exact);
    chart.save("growth_stacked");
}

/// Returns rules that all match every request, each with its own counter per client.
fn rules(count: usize) -> String {
    let mut yaml = String::from("rules:\n");
    for n in 1..=count {
        let _ = writeln!(yaml, "- {{name: r{n}, per: [user], limit: {n}000 per minute}}");
    }
    yaml
}

/// Returns the decisions per second of all callers together.
async fn decisions_per_second<S: Store>(limiter: &Limiter<S>, time: Duration) -> f64 {
    let (start, count) = (measure::now(), Arc::new(AtomicU64::new(0)));
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (limiter, count) = (limiter.clone(), Arc::clone(&count));
        callers.spawn(async move {
            let mut client = caller * 7_919;
            while start.elapsed() < time {
                for _ in 0..CHECKS_PER_STEP {
                    client = (client + 104_729) % CLIENTS;
                    let name = client.to_string();
                    let request = Request::new().with("user", name.as_str()).unwrap();
                    limiter.check(&request).await;
                }
                count.fetch_add(CHECKS_PER_STEP, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    while callers.join_next().await.is_some() {}
    count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}
