//! Overshoot, utilisation and latency of each accuracy, on a fleet of real processes and one real Redis.
//!
//! `make frontier`, or `frontier leased split` for some accuracies, `frontier classic` for the stale-cache case only.
//!
//! Each node is a process that sends checks at a fixed rate, whether or not earlier ones were answered (an open loop). The
//! admissions of each client are compared with the bound of the algorithm for the time that passed on the server clock.
//! Utilisation is the share of the possible admissions. Round trips are script calls per check. The last table is the
//! stale-cache case.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks and waits")]
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

mod accuracy;
mod node;
mod row;
mod stale_cache;
mod traffic;

use std::io::{IsTerminal, Write};
use std::time::Instant;

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
    println!(
        "| traffic | nodes | accuracy | admitted / bound | overshoot | utilisation | round trips per check | p50 | p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let (started, mut done) = (Instant::now(), 0);
    for traffic in Traffic::ALL {
        for nodes in FLEET_SIZES {
            for accuracy in &accuracies {
                progress(started, done, rows);
                println!("{}", row::measure_row(traffic, nodes, *accuracy));
                done += 1;
            }
        }
    }
    println!();
    progress(started, done, rows);
    stale_cache::print_table(&accuracies);
    progress(started, done, 0);
}

/// Prints a progress bar if stderr is a terminal.
fn progress(started: Instant, done: usize, total: usize) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = |width: usize| "#".repeat(width * done / total.max(1));
    let left = match done {
        0 => String::new(),
        _ => {
            let each = started.elapsed().as_secs_f64() / done as f64;
            format!(", {:.0} s left", each * (total.saturating_sub(done)) as f64)
        }
    };
    match total {
        0 => eprint!("\r\x1b[K"),
        _ => eprint!("\r\x1b[K[{:30}] {done} of {total}{left}\r", bar(30)),
    }
    std::io::stderr().flush().unwrap();
}
