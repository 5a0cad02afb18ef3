//! Each listener beside an empty server of the same framework and beside peers, in one interleaved run.
//!
//! `make bench-listeners`, or `cargo run --profile dist -p tidegate-bench --bin listeners [-- --quick] [http|grpc|resp]`
//!
//! Wants the binaries `tidegate` and `empty` beside it (the make target builds them), wrk, h2load,
//! redis-benchmark and redis-server; NGINX and throttlecrab-server are measured if they are there.
//! Servers are pinned to the first core and the load to the second. Contenders take turns in each
//! round; the tables have medians with the lowest and highest round, the ratio to the first line of
//! the same table, and the server's own CPU time per request. `TIDEGATE_BEFORE=PATH` adds an earlier build.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the tables are the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks and waits")]
#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on has failed")]

mod load;
mod server;

use load::Load;
use server::Server;

/// One line of a table.
struct Contender {
    name: &'static str,
    server: Server,
    load: Load,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let (rounds, seconds) = if quick { (3, 1) } else { (9, 2) };
    let wanted = |table: &str| {
        let named = arguments.iter().any(|argument| !argument.starts_with("--"));
        !named || arguments.iter().any(|argument| table.starts_with(argument.as_str()))
    };
    for (title, contenders) in tables() {
        if wanted(title) {
            table(title, contenders, rounds, seconds);
        }
    }
}

fn tables() -> Vec<(&'static str, Vec<Contender>)> {
    let line = |name, server: Option<Server>, load| Some(Contender { name, server: server?, load });
    let http = vec![
        line("empty hyper", Server::empty("http"), Load::http("/v1/check", load::CHECK)),
        line("tidegate", Server::tidegate("http"), Load::http("/v1/check", load::CHECK)),
        line(
            "tidegate before",
            Server::tidegate_before("http"),
            Load::http("/v1/check", load::CHECK),
        ),
        line("tidegate authorize", Server::tidegate("http"), Load::authorize()),
        line("throttlecrab", Server::throttlecrab("http"), Load::http("/throttle", load::THROTTLE)),
        line("nginx limit_req", Server::nginx(), Load::get()),
    ];
    let grpc = |connections, streams| {
        let rls = || Load::grpc(load::RLS_PATH, load::rate_limit_request(), connections, streams);
        let crab = Load::grpc(load::CRAB_PATH, load::throttle_request(), connections, streams);
        vec![
            line("empty tonic", Server::empty("grpc"), rls()),
            line("tidegate", Server::tidegate("grpc"), rls()),
            line("tidegate before", Server::tidegate_before("grpc"), rls()),
            line("throttlecrab", Server::throttlecrab("grpc"), crab),
        ]
    };
    let resp = |pipeline| {
        let tidegate = |command| line("tidegate CL.THROTTLE", Server::tidegate("resp"), command);
        vec![
            line("redis GET", Server::redis(), Load::resp(pipeline, load::GET)),
            tidegate(Load::resp(pipeline, load::CL_THROTTLE)),
            line(
                "tidegate TG.CHECK",
                Server::tidegate("resp"),
                Load::resp(pipeline, load::TG_CHECK),
            ),
            line(
                "tidegate TG.CHECK before",
                Server::tidegate_before("resp"),
                Load::resp(pipeline, load::TG_CHECK),
            ),
            line("throttlecrab", Server::throttlecrab("redis"), Load::resp(pipeline, load::CRAB)),
        ]
    };
    let tables = [
        ("http: HTTP/1.1, 50 connections", http),
        ("grpc: 50 connections x 1 stream", grpc(50, 1)),
        ("grpc: 4 connections x 64 streams", grpc(4, 64)),
        ("resp: 50 connections, no pipelining", resp(1)),
        ("resp: 50 connections, pipeline of 16", resp(16)),
    ];
    tables
        .into_iter()
        .map(|(title, lines)| (title, lines.into_iter().flatten().collect()))
        .collect()
}

fn table(title: &str, contenders: Vec<Contender>, rounds: usize, seconds: u64) {
    eprintln!("{title}: {} contenders, {rounds} rounds of about {seconds} s", contenders.len());
    let mut results: Vec<Vec<load::Measured>> = contenders.iter().map(|_| Vec::new()).collect();
    for contender in &contenders {
        // Not counted: caches fill, tables grow.
        contender.load.run(&contender.server, 1);
    }
    for round in 1..=rounds {
        for (contender, results) in contenders.iter().zip(&mut results) {
            results.push(contender.load.run(&contender.server, seconds));
            eprint!("\rround {round} of {rounds}, {:<24}", contender.name);
        }
    }
    eprintln!("\r{:60}\r", "");
    println!("### {title}\n");
    println!("| | requests/s (min-max) | of the first | CPU us per request |\n|---|---|---|---|");
    let base = median(results[0].iter().map(|measured| measured.rate));
    for (contender, results) in contenders.iter().zip(&results) {
        let rate = median(results.iter().map(|measured| measured.rate));
        let least = results.iter().map(|measured| measured.rate).fold(f64::MAX, f64::min);
        let most = results.iter().map(|measured| measured.rate).fold(0.0, f64::max);
        let cpu = median(results.iter().map(|measured| measured.cpu_micros));
        println!(
            "| {} | {:.0}k ({:.0}-{:.0}) | {:.2} | {cpu:.2} |",
            contender.name,
            rate / 1e3,
            least / 1e3,
            most / 1e3,
            rate / base
        );
    }
    println!();
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
