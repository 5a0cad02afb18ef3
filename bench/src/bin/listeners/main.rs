//! Each listener, compared with an empty server of the same framework and with peers, in one interleaved run.
//!
//! `make bench-listeners`, or `cargo run --profile dist -p tidegate-bench --bin listeners [-- --quick] [http|grpc|resp]`
//!
//! Requires the binaries `tidegate` and `empty` in the same folder (the make target builds them), wrk, h2load,
//! redis-benchmark and redis-server. NGINX and throttlecrab-server are measured if they are installed. Servers are pinned
//! to the first core and the load to the second. Each round measures all contenders. The tables contain medians with the
//! minimum and maximum, the ratio to the first line of the same table, and the CPU time of the server per request.
//! `TIDEGATE_BEFORE=PATH` adds an earlier build.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the tables are the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks and waits")]
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

mod load;
mod server;

use load::ListenerLoad;
use server::Server;

/// One line of a table.
struct Contender {
    name: &'static str,
    server: Server,
    load: ListenerLoad,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let (rounds, seconds) = if quick { (3, 1) } else { (9, 2) };
    let wanted = |title: &str| {
        let named = arguments.iter().any(|argument| !argument.starts_with("--"));
        !named || arguments.iter().any(|argument| title.starts_with(argument.as_str()))
    };
    for (title, contenders) in tables() {
        if wanted(title) {
            print_table(title, contenders, rounds, seconds);
        }
    }
}

fn tables() -> Vec<(&'static str, Vec<Contender>)> {
    let contender =
        |name, server: Option<Server>, load| Some(Contender { name, server: server?, load });
    let http = vec![
        contender(
            "empty hyper",
            Server::empty("http"),
            ListenerLoad::http("/v1/check", load::CHECK_BODY),
        ),
        contender(
            "tidegate",
            Server::tidegate("http"),
            ListenerLoad::http("/v1/check", load::CHECK_BODY),
        ),
        contender(
            "tidegate before",
            Server::tidegate_before("http"),
            ListenerLoad::http("/v1/check", load::CHECK_BODY),
        ),
        contender("tidegate authorize", Server::tidegate("http"), ListenerLoad::authorize()),
        contender(
            "throttlecrab",
            Server::throttlecrab("http"),
            ListenerLoad::http("/throttle", load::THROTTLE_BODY),
        ),
        contender("nginx limit_req", Server::nginx(), ListenerLoad::get()),
    ];
    let grpc = |connections, streams| {
        let rls =
            || ListenerLoad::grpc(load::RLS_PATH, load::rate_limit_request(), connections, streams);
        let throttlecrab = ListenerLoad::grpc(
            load::THROTTLECRAB_PATH,
            load::throttle_request(),
            connections,
            streams,
        );
        vec![
            contender("empty tonic", Server::empty("grpc"), rls()),
            contender("tidegate", Server::tidegate("grpc"), rls()),
            contender("tidegate before", Server::tidegate_before("grpc"), rls()),
            contender("throttlecrab", Server::throttlecrab("grpc"), throttlecrab),
        ]
    };
    let resp = |pipeline| {
        let tidegate =
            |command| contender("tidegate CL.THROTTLE", Server::tidegate("resp"), command);
        vec![
            contender(
                "redis GET",
                Server::redis(),
                ListenerLoad::resp(pipeline, load::GET_COMMAND),
            ),
            tidegate(ListenerLoad::resp(pipeline, load::CL_THROTTLE_COMMAND)),
            contender(
                "tidegate TG.CHECK",
                Server::tidegate("resp"),
                ListenerLoad::resp(pipeline, load::TG_CHECK_COMMAND),
            ),
            contender(
                "tidegate TG.CHECK before",
                Server::tidegate_before("resp"),
                ListenerLoad::resp(pipeline, load::TG_CHECK_COMMAND),
            ),
            contender(
                "throttlecrab",
                Server::throttlecrab("redis"),
                ListenerLoad::resp(pipeline, load::THROTTLECRAB_COMMAND),
            ),
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

fn print_table(title: &str, contenders: Vec<Contender>, rounds: usize, seconds: u64) {
    eprintln!("{title}: {} contenders, {rounds} rounds of about {seconds} s", contenders.len());
    let mut results: Vec<Vec<load::LoadResult>> = contenders.iter().map(|_| Vec::new()).collect();
    for contender in &contenders {
        // Not measured: caches are filled and tables grow.
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
        let min = results.iter().map(|measured| measured.rate).fold(f64::MAX, f64::min);
        let max = results.iter().map(|measured| measured.rate).fold(0.0, f64::max);
        let cpu = median(results.iter().map(|measured| measured.cpu_micros));
        println!(
            "| {} | {:.0}k ({:.0}-{:.0}) | {:.2} | {cpu:.2} |",
            contender.name,
            rate / 1e3,
            min / 1e3,
            max / 1e3,
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
