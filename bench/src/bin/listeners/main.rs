//! Each listener, compared with an empty server of the same framework and with peers, in one interleaved run.
//!
//! `make bench-listeners`, or `cargo run --profile dist -p tidegate-bench --bin listeners [-- --quick] [NAME ...]`. Names of
//! tables: `http`, `grpc`, `resp`, `redis`, `end_to_end`, `latency`, `overshoot`; `redis_grpc_50x1` is one of `redis`.
//!
//! Requires the binaries `tidegate` and `empty` in the same folder (the make target builds them), wrk, h2load,
//! redis-benchmark and redis-server. Peers are measured if they are installed. Unless a table states otherwise, servers are
//! pinned to the first core and the load to the second. Each round measures all contenders. `TIDEGATE_BEFORE=PATH` adds an
//! earlier build.
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

mod contender;
mod latency;
mod load;
mod overshoot;
mod peers;
mod tables;

use tidegate_bench::measure;

fn main() {
    let quick = measure::is_quick();
    let names = measure::names();
    let is_wanted = |name: &str| {
        names.is_empty() || names.iter().any(|wanted| name.starts_with(wanted.as_str()))
    };
    for listener in tables::ALL.iter().filter(|listener| is_wanted(listener.name)) {
        contender::print_table(listener, quick);
    }
    if is_wanted("latency") {
        latency::print_table(quick);
    }
    if is_wanted("overshoot") {
        overshoot::print_table();
    }
}
