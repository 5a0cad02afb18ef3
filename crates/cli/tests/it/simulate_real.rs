//! What `simulate` says beside what servers did: the same requests at the same instants, the same answers.

use std::fmt::Write;

use serde_json::Value;
use tidegate::{Clock, Span, Timestamp};
use tidegate_testkit::{Flavour, Redis, Tool, lacking};

use crate::kit::{Connection, Folder, Server, run, tidegate};

const ALGORITHMS: [&str; 4] = ["token_bucket", "fixed_window", "sliding_window", "sliding_log"];
const CLIENTS: [&str; 2] = ["alice", "bob"];
/// How long servers are under load.
const LOAD: Span = Span::from_millis(2_500);
/// An answer that takes longer leaves open when the request was decided: the simulator may decide it otherwise.
const LATE: Span = Span::from_millis(5);

/// One rule for each algorithm. A millisecond more or less is a tenth of a request.
fn rules() -> String {
    ALGORITHMS.iter().fold("rules:\n".to_owned(), |mut rules, algorithm| {
        let rule = format!("name: {algorithm}, match: {{kind: {algorithm}}}, per: [user]");
        let limit = format!("limit: 100 per second, algorithm: {algorithm}");
        writeln!(rules, "  - {{{rule}, {limit}, on_store_failure: deny}}").unwrap();
        rules
    })
}

/// A request that was answered.
struct Asked {
    at: Timestamp,
    algorithm: &'static str,
    client: &'static str,
    admitted: bool,
    late: bool,
}

/// Asks one thing after the other, as fast as answers come, until an instant.
fn hammer(mut connection: Connection, clock: &Clock, until: Timestamp) -> Vec<Asked> {
    let mut all = Vec::new();
    let kinds = ALGORITHMS.iter().flat_map(|kind| CLIENTS.map(|client| (*kind, client)));
    for (algorithm, client) in kinds.cycle() {
        let sent = clock.now();
        if sent >= until {
            break;
        }
        let attributes = format!(r#"{{"kind":"{algorithm}","user":"{client}"}}"#);
        connection.send("POST", "/v1/check", &format!(r#"{{"attributes":{attributes}}}"#));
        let admitted = match connection.receive(false).status {
            200 => true,
            429 => false,
            other => panic!("undecided: {other}"),
        };
        // It was decided at some instant between the two.
        let took = clock.now().since(sent);
        let half = Span::from_micros(took.as_micros() / 2);
        all.push(Asked { at: sent + half, algorithm, client, admitted, late: took > LATE });
    }
    all
}

/// Puts servers under load, and the same load to the simulator.
fn assert_simulated_as_served(servers: &[Server], rules: &str, folder: &Folder) {
    let clock = Clock::system();
    let connections: Vec<Connection> =
        (0..3).map(|number| servers[number % servers.len()].connect()).collect();
    let until = clock.now() + LOAD;
    let asked: Vec<Asked> = std::thread::scope(|scope| {
        let hammers = connections.into_iter().map(|connection| {
            let clock = &clock;
            scope.spawn(move || hammer(connection, clock, until))
        });
        let hammers: Vec<_> = hammers.collect();
        hammers.into_iter().flat_map(|hammer| hammer.join().unwrap()).collect()
    });
    let log = asked.iter().fold(String::new(), |mut log, asked| {
        let Asked { at, algorithm, client, .. } = asked;
        let (seconds, micros) = (at.as_micros() / 1_000_000, at.as_micros() % 1_000_000);
        let time = format!("{seconds}.{micros:06}");
        writeln!(log, r#"{{"time":{time},"kind":"{algorithm}","user":"{client}"}}"#).unwrap();
        log
    });
    // One thread's lines stand behind the other's: they are further apart than lines of servers ever are.
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let log = folder.file("access.log", &lines.join("\n"));
    let (code, stdout, stderr) = run(&["simulate", "--log", &log, "--rules", rules, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    for algorithm in ALGORITHMS {
        let of_it = || asked.iter().filter(|asked| asked.algorithm == algorithm);
        let (offered, real) = (of_it().count(), of_it().filter(|asked| asked.admitted).count());
        let by_rule = report["outcome"]["byRule"].as_array().unwrap();
        let rule = by_rule.iter().find(|rule| rule["rule"] == algorithm).unwrap();
        assert_eq!(rule["offered"], offered, "{algorithm}");
        let simulated = rule["admitted"].as_u64().unwrap();
        let apart = simulated.abs_diff(real as u64);
        let late = of_it().filter(|asked| asked.late).count();
        let told = format!("{algorithm}: {real} of {offered} admitted, simulated {simulated}");
        assert!(apart * 100 <= (real + 100 * late) as u64, "{told}, {late} late");
    }
}

#[test]
fn one_server_admits_what_is_simulated_within_a_hundredth() {
    let folder = Folder::new();
    let server = Server::with_rules(&rules());
    let path = folder.file("rules.yaml", &rules());
    assert_simulated_as_served(&[server], &path, &folder);
}

#[test]
fn three_servers_on_a_redis_admit_what_is_simulated_within_a_hundredth() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let path = folder.file("rules.yaml", &rules());
    let url = format!("{}?timeout=5s", redis.url());
    let launch = || {
        let mut command = tidegate();
        command.args(["serve", "--http", "127.0.0.1:0", "--rules", &path, "--redis", &url]);
        Server::launch_command(command)
    };
    let servers = [launch(), launch(), launch()];
    assert_simulated_as_served(&servers, &path, &folder);
}
