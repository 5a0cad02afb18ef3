//! A request through the gateway beside NGINX with its limiter, NGINX without it, and no proxy, in one
//! interleaved run.
//!
//! `make bench-gateway`, or `cargo run --profile dist -p tidegate-bench --bin gateway [-- --quick]`
//!
//! Wants the binary `tidegate` beside it (the make target builds it), wrk and NGINX. Every proxy stands
//! before the same NGINX, which answers 68 bytes, has as many threads or workers as there are
//! cores, and never has to deny anybody. Nobody is pinned: load, proxy and upstream share all cores. Each
//! round measures everybody, in another order each time; the table has medians with the smallest and the largest, and ratios
//! are of the same round. CPU is the time of the proxy's processes with all their threads; without a
//! proxy it is the upstream's.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on has failed")]

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
        // Not counted: connections are made, caches fill.
        load::run(contender, 1);
    }
    let mut results: Vec<Vec<load::Measured>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let place = (round + turn) % contenders.len();
            let name = contenders[place].name;
            progress(&format!("round {} of {rounds}: {name}", round + 1));
            results[place].push(load::run(&contenders[place], seconds));
        }
    }
    progress("");
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name).collect();
    println!("### {rounds} rounds of {seconds} s, {} connections\n", load::CONNECTIONS);
    print!("{}", table::table(&names, &results));
}

/// How far it is, for who looks at it.
fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{what}");
        std::io::stderr().flush().unwrap();
    }
}
