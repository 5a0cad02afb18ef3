//! Requests through the gateway, compared with other proxies that limit, NGINX without a limit, and no proxy, in one
//! interleaved run.
//!
//! `make bench-gateway`, or `cargo run --profile dist -p tidegate-bench --bin gateway [-- --quick]`
//!
//! Requires the binary `tidegate` in the same folder (the make target builds it), wrk and NGINX. Every proxy forwards to
//! the same NGINX, which returns 68 bytes. Each proxy has one thread or worker per core, and no request is denied. No
//! process is pinned: load, proxy and upstream share all cores. Each round measures all contenders, in a different order.
//! Ratios are within the same round. CPU is the time of all threads of the proxy, or of the upstream when there is no proxy.
//! Then one client exceeds its limit at each proxy, and the admitted requests are counted.
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

mod contender;
mod load;
mod proxy;

use contender::{Contender, GatewayLimit};
use load::LoadResult;
use tidegate_bench::chart::BarChart;
use tidegate_bench::measure::{self, progress};
use tidegate_bench::overshoot::{OvershootRun, OvershootTable};
use tidegate_bench::results::record_goal;
use tidegate_bench::table::{Spread, Table};

/// The contender that ratios are relative to.
const BASE: &str = "NGINX `limit_req`, `proxy_pass`";
const TIDEGATE: &str = "Tidegate";

fn main() {
    let (rounds, seconds) = if measure::is_quick() { (3, 1) } else { (9, 3) };
    let contenders = Contender::all(GatewayLimit::NeverReached);
    let running: Vec<&Contender> = contenders.iter().filter(|it| it.is_installed()).collect();
    for contender in &running {
        progress(&format!("warming up {}", contender.name));
        // Not measured: connections are opened and caches filled.
        load::run(contender, 1);
    }
    let mut results: Vec<Vec<LoadResult>> = running.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for offset in 0..running.len() {
            let index = (round + offset) % running.len();
            let name = running[index].name;
            progress(&format!("round {} of {rounds}: {name}", round + 1));
            results[index].push(load::run(running[index], seconds));
        }
    }
    progress("");
    let names: Vec<&str> = running.iter().map(|contender| contender.name).collect();
    print_results(&names, &results, rounds, seconds);
    drop(contenders);
    let mut table = OvershootTable::new("gateway_overshoot");
    for contender in Contender::all(GatewayLimit::Hourly) {
        if contender.has_limit {
            progress(&format!("overshoot: {}", contender.name));
            let count =
                contender.is_installed().then(|| OvershootRun::over_http(&[contender.url()]));
            table.add(contender.name, 1, count);
        }
    }
    progress("");
    table.print("gateway, admissions over the limit");
}

fn print_results(names: &[&str], results: &[Vec<LoadResult>], rounds: usize, seconds: u32) {
    let mut table = Table::new(
        "gateway",
        &format!(
            "{rounds} rounds of {seconds} s, {} connections; load, proxy and upstream share all cores. Medians (min to max). Ratios are relative to NGINX with its limiter, by round.",
            load::CONNECTIONS
        ),
        ["", "requests/s", "ratio", "CPU us per request", "ratio", "p99 ms"],
    );
    let values = |name: &str, value: fn(&LoadResult) -> f64| -> Vec<f64> {
        let index = names.iter().position(|other| *other == name).unwrap();
        results[index].iter().map(value).collect()
    };
    let rate: fn(&LoadResult) -> f64 = |result| result.rate;
    let cpu: fn(&LoadResult) -> f64 = |result| result.cpu_micros;
    let mut chart = BarChart::new("Gateway, HTTP/1.1", "requests per second, more is better");
    for name in names {
        let (own_rate, own_cpu) = (values(name, rate), values(name, cpu));
        let rates = Spread::from_values(own_rate.clone());
        chart.add_bar(&name.replace('`', ""), rates);
        table.add_row([
            (*name).to_owned(),
            rates.divided_by(1e3).format(1, "k"),
            Spread::of_ratios(&own_rate, &values(BASE, rate)).format(2, ""),
            Spread::from_values(own_cpu.clone()).format(1, ""),
            Spread::of_ratios(&own_cpu, &values(BASE, cpu)).format(2, ""),
            Spread::from_values(values(name, |result| result.p99_millis)).format(1, ""),
        ]);
    }
    for name in Contender::NAMES.iter().filter(|name| !names.contains(name)) {
        table.add_row([*name, "not installed"]);
    }
    table.print();
    chart.save("gateway");
    let ratio = Spread::of_ratios(&values(TIDEGATE, rate), &values(BASE, rate)).median;
    record_goal(
        "gateway, HTTP/1.1",
        "at least NGINX with limit_req",
        &format!("{ratio:.2} x"),
        ratio >= 1.0,
    );
}
