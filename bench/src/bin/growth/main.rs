//! Growth of the cost of a check with clients, rules, rules that match the same request, threads, and nodes.
//!
//! `cargo run --profile dist -p tidegate-bench --bin growth [-- --quick] [keys|rules|stacked|threads|nodes]`
//!
//! Each round measures all contenders of a part. Nodes are processes on one real Redis; the admissions of each client are
//! counted and compared with the bound of its limit.
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

mod local;
mod nodes;
mod stacked;

use tidegate_bench::measure;

fn main() {
    let names = measure::names();
    if names.first().is_some_and(|name| name == "node") {
        return nodes::run_node(&names[1..]);
    }
    let print_part = |name: &str, print: fn(bool)| {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            print(measure::is_quick());
        }
    };
    print_part("keys", local::print_keys);
    print_part("rules", local::print_rules);
    print_part("stacked", stacked::print_table);
    print_part("threads", local::print_threads);
    print_part("nodes", nodes::print_table);
}
