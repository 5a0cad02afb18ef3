//! Overshoot, utilisation and latency of each accuracy, on a fleet of real processes and one real Redis.
//!
//! `make frontier`, or `frontier leased split` for some accuracies, `frontier classic` for the stale-cache case only.
//!
//! Each node is a process that sends checks at a fixed rate, whether or not earlier ones were answered (an open loop). The
//! admissions of each client are compared with the bound of the algorithm for the time that passed on the server clock.
//! Utilisation is the share of the possible admissions. Round trips are script calls per check. The last table is the
//! stale-cache case.
#![allow(clippy::print_stdout, reason = "the table is the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks and waits")]
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

mod accuracy;
mod node;
mod row;
mod stale_cache;
mod traffic;

use std::time::Instant;

use tidegate_bench::measure::progress;
use tidegate_bench::table::Table;

use crate::accuracy::FleetAccuracy;
use crate::traffic::Traffic;

const FLEET_SIZES: [u64; 2] = [3, 8];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("node") => node::run(&arguments[1..]),
        Some("classic-node") => stale_cache::run_node(&arguments[1..]),
        Some("classic") => stale_cache::print_table(&FleetAccuracy::ALL),
        _ => print_table(&arguments),
    }
}

fn print_table(wanted: &[String]) {
    let is_wanted = |accuracy: &FleetAccuracy| {
        wanted.is_empty() || wanted.iter().any(|name| name == accuracy.name())
    };
    let accuracies: Vec<FleetAccuracy> = FleetAccuracy::ALL.into_iter().filter(is_wanted).collect();
    let rows = accuracies.len() * FLEET_SIZES.len() * Traffic::ALL.len();
    let mut table = Table::new(
        "frontier",
        "Nodes are processes on one Redis, and send at a fixed rate. Nothing is pinned.",
        [
            "traffic",
            "nodes",
            "accuracy",
            "admitted / bound",
            "overshoot",
            "utilisation",
            "round trips per check",
            "p50 us",
            "p99 us",
        ],
    );
    let (started, mut done) = (Instant::now(), 0);
    for traffic in Traffic::ALL {
        for nodes in FLEET_SIZES {
            for accuracy in &accuracies {
                show_progress(started, done, rows);
                table.add_row(row::measure_row(traffic, nodes, *accuracy));
                done += 1;
            }
        }
    }
    show_progress(started, done, 0);
    table.print();
    stale_cache::print_table(&accuracies);
}

/// Prints a progress bar if stderr is a terminal.
fn show_progress(started: Instant, done: usize, total: usize) {
    let bar = "#".repeat(30 * done / total.max(1));
    let left = match done {
        0 => String::new(),
        _ => {
            let each = started.elapsed().as_secs_f64() / done as f64;
            format!(", {:.0} s left", each * (total.saturating_sub(done)) as f64)
        }
    };
    match total {
        0 => progress(""),
        _ => progress(&format!("[{bar:30}] {done} of {total}{left}\r")),
    }
}
