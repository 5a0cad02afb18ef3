//! `tidegate simulate --log` compared with real servers: a replay of the same requests admits as many.

use std::fmt::Write;

use serde_json::Value;
use tidegate::{Clock, Span, Timestamp};
use tidegate_testkit::{Flavour, Redis, Tool, lacking};

use crate::kit::{Connection, Folder, Server, run, tidegate};

const ALGORITHMS: [&str; 4] = ["token_bucket", "fixed_window", "sliding_window", "sliding_log"];
const CLIENTS: [&str; 2] = ["alice", "bob"];
/// Duration of the load on the servers.
const LOAD_DURATION: Span = Span::from_millis(2_500);
/// A slower response leaves the instant of the decision open, so the simulator may decide otherwise.
const MAX_RESPONSE_TIME: Span = Span::from_millis(5);

/// Returns one rule for each algorithm. At 100 per second, an error of 1 ms is a tenth of a request.
fn rules() -> String {
    ALGORITHMS.iter().fold("rules:\n".to_owned(), |mut rules, algorithm| {
        let rule = format!("name: {algorithm}, match: {{kind: {algorithm}}}, per: [user]");
        let limit = format!("limit: 100 per second, algorithm: {algorithm}");
        writeln!(rules, "  - {{{rule}, {limit}, on_store_failure: deny}}").unwrap();
        rules
    })
}

/// A request and its decision.
struct AnsweredRequest {
    at: Timestamp,
    algorithm: &'static str,
    client: &'static str,
    admitted: bool,
    is_late: bool,
}

/// Sends one request after another until an instant.
fn send_requests(
    mut connection: Connection,
    clock: &Clock,
    until: Timestamp,
) -> Vec<AnsweredRequest> {
    let mut answered = Vec::new();
    let requests = ALGORITHMS.iter().flat_map(|kind| CLIENTS.map(|client| (*kind, client)));
    for (algorithm, client) in requests.cycle() {
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
        // The decision was made between request and response: assume the middle.
        let took = clock.now().since(sent);
        let half = Span::from_micros(took.as_micros() / 2);
        answered.push(AnsweredRequest {
            at: sent + half,
            algorithm,
            client,
            admitted,
            is_late: took > MAX_RESPONSE_TIME,
        });
    }
    answered
}

/// Sends load to the servers, replays it in the simulator, and compares the admitted requests.
fn assert_replay_admits_the_same(servers: &[Server], rules: &str, folder: &Folder) {
    let clock = Clock::system();
    let connections: Vec<Connection> =
        (0..3).map(|number| servers[number % servers.len()].connect()).collect();
    let until = clock.now() + LOAD_DURATION;
    let answered: Vec<AnsweredRequest> = std::thread::scope(|scope| {
        let threads = connections.into_iter().map(|connection| {
            let clock = &clock;
            scope.spawn(move || send_requests(connection, clock, until))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let log = answered.iter().fold(String::new(), |mut log, request| {
        let AnsweredRequest { at, algorithm, client, .. } = request;
        let (seconds, micros) = (at.as_micros() / 1_000_000, at.as_micros() % 1_000_000);
        let time = format!("{seconds}.{micros:06}");
        writeln!(log, r#"{{"time":{time},"kind":"{algorithm}","user":"{client}"}}"#).unwrap();
        log
    });
    // The lines are grouped by thread. The simulator accepts only small disorder, as in logs of servers.
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let log = folder.file("access.log", &lines.join("\n"));
    let (code, stdout, stderr) = run(&["simulate", "--log", &log, "--rules", rules, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    for algorithm in ALGORITHMS {
        let of_algorithm = || answered.iter().filter(|request| request.algorithm == algorithm);
        let (offered, real) =
            (of_algorithm().count(), of_algorithm().filter(|request| request.admitted).count());
        let by_rule = report["outcome"]["byRule"].as_array().unwrap();
        let rule = by_rule.iter().find(|rule| rule["rule"] == algorithm).unwrap();
        assert_eq!(rule["offered"], offered, "{algorithm}");
        let simulated = rule["admitted"].as_u64().unwrap();
        let difference = simulated.abs_diff(real as u64);
        let late = of_algorithm().filter(|request| request.is_late).count();
        let summary = format!("{algorithm}: {real} of {offered} admitted, simulated {simulated}");
        assert!(difference * 100 <= (real + 100 * late) as u64, "{summary}, {late} late");
    }
}

#[test]
fn replay_of_one_server_admits_the_same_within_one_percent() {
    let folder = Folder::new();
    let server = Server::with_rules(&rules());
    let path = folder.file("rules.yaml", &rules());
    assert_replay_admits_the_same(&[server], &path, &folder);
}

#[test]
fn replay_of_three_servers_on_redis_admits_the_same_within_one_percent() {
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
    assert_replay_admits_the_same(&servers, &path, &folder);
}
