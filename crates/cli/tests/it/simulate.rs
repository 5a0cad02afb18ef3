//! `tidegate simulate` compared with a real fleet on Redis: both admit the same number of requests.

use serde_json::Value;
use tidegate::Clock;
use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Folder, Server, run, tidegate};

const NODES: usize = 3;

/// Limits per 10 days do not refill during the test, so the speed of the machine does not matter.
///
/// The window of the split rule is short: a new node has no share of the current window.
const RULES: &str = "
rules:
  - {name: exact, per: [user], limit: 400 per 10 days, algorithm: fixed_window}
  - {name: leased, per: [user], limit: 400 per 10 days, algorithm: fixed_window, accuracy: leased}
  - {name: synced, per: [user], limit: 6000 per 10 days, algorithm: fixed_window, accuracy: synced, max_ahead: 20}
  - {name: split, per: [user], limit: 100 per 5 seconds, algorithm: fixed_window, accuracy: split, on_store_failure: deny}
";
/// Window of the rule `split`.
const SPLIT_WINDOW_SECONDS: u64 = 5;

/// Returns how many of `offered` requests are admitted in virtual time.
fn simulate_admissions(limit: &str, accuracy: &[&str], offered: usize) -> u64 {
    let rate = format!("{offered}/s");
    let load = ["simulate", "--limit", limit, "--algorithm", "fixed_window", "--nodes", "3"];
    let rest = ["--rate", &rate, "--for", "1s", "--json", "--accuracy"];
    let (code, stdout, stderr) = run(&[&load[..], &rest, accuracy].concat());
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["lines"][0]["offered"], offered);
    report["lines"][0]["admitted"].as_u64().unwrap()
}

/// Sends `offered` requests to the servers in turn, and returns how many are admitted.
fn count_admitted(servers: &[Server], rule: &str, client: &str, offered: usize) -> u64 {
    let body = format!(r#"{{"rule":"{rule}","client":"{client}"}}"#);
    let statuses = (0..offered).map(|number| servers[number % NODES].check(&body).status);
    let admitted = statuses.filter(|status| {
        assert!([200, 429].contains(status), "{rule}: {status}");
        *status == 200
    });
    admitted.count() as u64
}

fn is_within_one_percent(found: u64, wanted: u64) -> bool {
    found.abs_diff(wanted) * 100 <= wanted
}

#[test]
fn fleet_admits_as_many_requests_as_simulated() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let (url, rules) = (format!("{}?timeout=5s", redis.url()), folder.file("rules.yaml", RULES));
    let launch = |_| {
        let mut command = tidegate();
        command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules, "--redis", &url]);
        Server::launch_command(command)
    };
    let servers: Vec<Server> = (0..NODES).map(launch).collect();
    for server in &servers {
        let probe = r#"{"rule":"split","client":"probe"}"#;
        wait_for("the node has its share", || (server.check(probe).status == 200).then_some(()));
    }
    let limit = "400 per 10 days";
    let wanted = simulate_admissions(limit, &["exact"], 1_200);
    assert_eq!(count_admitted(&servers, "exact", "alice", 1_200), wanted);

    let wanted = simulate_admissions("6000 per 10 days", &["synced", "--max-ahead", "20"], 6_600);
    let found = count_admitted(&servers, "synced", "alice", 6_600);
    assert!(is_within_one_percent(found, wanted), "synced: {found}, simulated {wanted}");

    // A lease expires if the machine stalls for seconds, so one of five clients has to match.
    let wanted = simulate_admissions(limit, &["leased"], 1_200);
    let found =
        (0..5).map(|client| count_admitted(&servers, "leased", &format!("c{client}"), 1_200));
    let found: Vec<u64> = found.inspect(|found| assert!(*found <= 400, "{found}")).collect();
    let is_close = found.iter().any(|found| is_within_one_percent(*found, wanted));
    assert!(is_close, "leased: {found:?}, simulated {wanted}");

    let wanted = simulate_admissions("100 per 5 seconds", &["split"], 300);
    let clock = Clock::system();
    let window = || clock.now().as_micros() / 1_000_000 / SPLIT_WINDOW_SECONDS;
    // A node admits less in a window in which the fleet has grown.
    wait_for("a window in which the nodes admit what was simulated", || {
        let started_in = window();
        let found = count_admitted(&servers, "split", &format!("w{started_in}"), 300);
        let is_one_window = started_in == window();
        assert!(!is_one_window || found <= 100, "{found}");
        (is_one_window && is_within_one_percent(found, wanted)).then_some(())
    });
}
