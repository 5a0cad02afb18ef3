//! How exact and how fast each accuracy is across a fleet: real processes, one real Redis.
//!
//! `make frontier`, or `frontier leased split` for some of them, `frontier classic` for the last
//!
//! Each node is a process of its own that is offered checks by the clock, whether or not earlier ones
//! were answered. What was admitted is compared with the bound of the algorithm over the time that
//! passed on the server's own clock, client by client; utilisation is what was admitted of what could
//! have been. Round trips are script calls per check. Last comes the classic case of a stale cache.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks and waits")]
#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on has failed")]

mod classic;
mod kept;
mod node;
mod row;
mod traffic;

use std::io::{IsTerminal, Write};
use std::time::Instant;

use crate::kept::Kept;
use crate::traffic::Traffic;

const FLEETS: [u64; 2] = [3, 8];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("node") => node::run(&arguments[1..]),
        Some("classic-node") => classic::run_node(&arguments[1..]),
        Some("classic") => classic::table(&Kept::ALL),
        _ => table(&arguments),
    }
}

fn table(wanted: &[String]) {
    let is_wanted =
        |kept: &Kept| wanted.is_empty() || wanted.iter().any(|name| name == kept.name());
    let all: Vec<Kept> = Kept::ALL.into_iter().filter(is_wanted).collect();
    let rows = all.len() * FLEETS.len() * Traffic::ALL.len();
    println!(
        "| traffic | nodes | accuracy | admitted / bound | overshoot | utilisation | round trips per check | p50 | p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let (began, mut done) = (Instant::now(), 0);
    for traffic in Traffic::ALL {
        for nodes in FLEETS {
            for kept in &all {
                progress(began, done, rows);
                println!("{}", row::row(traffic, nodes, *kept));
                done += 1;
            }
        }
    }
    println!();
    progress(began, done, rows);
    classic::table(&all);
    progress(began, done, 0);
}

/// How far it is, for who looks at it.
fn progress(began: Instant, done: usize, of: usize) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = |width: usize| "#".repeat(width * done / of.max(1));
    let left = match done {
        0 => String::new(),
        _ => {
            let each = began.elapsed().as_secs_f64() / done as f64;
            format!(", {:.0} s left", each * (of.saturating_sub(done)) as f64)
        }
    };
    match of {
        0 => eprint!("\r\x1b[K"),
        _ => eprint!("\r\x1b[K[{:30}] {done} of {of}{left}\r", bar(30)),
    }
    std::io::stderr().flush().unwrap();
}
