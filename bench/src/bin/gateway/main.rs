//! Requests through the gateway, compared with NGINX with its limiter, NGINX without it, and no proxy, in one interleaved
//! run.
//!
//! `make bench-gateway`, or `cargo run --profile dist -p tidegate-bench --bin gateway [-- --quick]`
//!
//! Requires the binary `tidegate` in the same folder (the make target builds it), wrk and NGINX. Every proxy forwards to
//! the same NGINX, which returns 68 bytes. Each proxy has one thread or worker per core, and no request is denied. No
//! process is pinned: load, proxy and upstream share all cores. Each round measures all contenders, in a different order.
//! The table contains medians with the minimum and maximum; ratios are within the same round. CPU is the time of all
//! threads of the proxy, or of the upstream when there is no proxy.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

mod contender;
mod load;
mod table;

use std::io::{IsTerminal, Write};

use contender::Contender;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, seconds) = if quick { (3, 1) } else { (9, 3) };
    let contenders = Contender::all();
    for contender in &contenders {
        progress(&format!("warming up {}", contender.name));
        // Not measured: connections are opened and caches filled.
        load::run(contender, 1);
    }
    let mut results: Vec<Vec<load::LoadResult>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for offset in 0..contenders.len() {
            let index = (round + offset) % contenders.len();
            let name = contenders[index].name;
            progress(&format!("round {} of {rounds}: {name}", round + 1));
            results[index].push(load::run(&contenders[index], seconds));
        }
    }
    progress("");
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name).collect();
    println!("### {rounds} rounds of {seconds} s, {} connections\n", load::CONNECTIONS);
    print!("{}", table::markdown_table(&names, &results));
}

/// Prints the progress if stderr is a terminal.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
        std::io::stderr().flush().unwrap();
    }
}
