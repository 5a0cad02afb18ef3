//! What is simulated is what processes do: as much is admitted by a fleet in virtual time as by one on a real Redis.

use serde_json::Value;
use tidegate::Clock;
use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Folder, Server, run, tidegate};

const NODES: usize = 3;

/// In days nothing comes back, so it does not matter how fast this machine is. A node that is new to a split
/// limit has nothing of a window that is going on: those are short.
const RULES: &str = "
rules:
  - {name: exact, per: [user], limit: 400 per 10 days, algorithm: fixed_window}
  - {name: leased, per: [user], limit: 400 per 10 days, algorithm: fixed_window, accuracy: leased}
  - {name: synced, per: [user], limit: 6000 per 10 days, algorithm: fixed_window, accuracy: synced, max_ahead: 20}
  - {name: split, per: [user], limit: 100 per 5 seconds, algorithm: fixed_window, accuracy: split, on_store_failure: deny}
";
const WINDOW: u64 = 5;

/// How many of so many requests are admitted in virtual time.
fn simulated(limit: &str, accuracy: &[&str], offered: usize) -> u64 {
    let rate = format!("{offered}/s");
    let load = ["simulate", "--limit", limit, "--algorithm", "fixed_window", "--nodes", "3"];
    let rest = ["--rate", &rate, "--for", "1s", "--json", "--accuracy"];
    let (code, stdout, stderr) = run(&[&load[..], &rest, accuracy].concat());
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["lines"][0]["offered"], offered);
    report["lines"][0]["admitted"].as_u64().unwrap()
}

/// How many of so many requests are admitted by servers in turn.
fn admitted(servers: &[Server], rule: &str, client: &str, offered: usize) -> u64 {
    let body = format!(r#"{{"rule":"{rule}","client":"{client}"}}"#);
    let statuses = (0..offered).map(|number| servers[number % NODES].check(&body).status);
    let admitted = statuses.filter(|status| {
        assert!([200, 429].contains(status), "{rule}: {status}");
        *status == 200
    });
    admitted.count() as u64
}

fn is_within_a_hundredth(found: u64, wanted: u64) -> bool {
    found.abs_diff(wanted) * 100 <= wanted
}

#[test]
fn a_fleet_admits_what_was_simulated() {
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
        let part = r#"{"rule":"split","client":"nobody"}"#;
        wait_for("the node has its part", || (server.check(part).status == 200).then_some(()));
    }
    let days = "400 per 10 days";
    let wanted = simulated(days, &["exact"], 1_200);
    assert_eq!(admitted(&servers, "exact", "alice", 1_200), wanted);

    let wanted = simulated("6000 per 10 days", &["synced", "--max-ahead", "20"], 6_600);
    let found = admitted(&servers, "synced", "alice", 6_600);
    assert!(is_within_a_hundredth(found, wanted), "synced: {found}, simulated {wanted}");

    // On a machine that stalls for seconds what is held is lost; then somebody else comes.
    let wanted = simulated(days, &["leased"], 1_200);
    let found = (0..5).map(|client| admitted(&servers, "leased", &format!("c{client}"), 1_200));
    let found: Vec<u64> = found.inspect(|found| assert!(*found <= 400, "{found}")).collect();
    let close = found.iter().any(|found| is_within_a_hundredth(*found, wanted));
    assert!(close, "leased: {found:?}, simulated {wanted}");

    let wanted = simulated("100 per 5 seconds", &["split"], 300);
    let clock = Clock::system();
    let window = || clock.now().as_micros() / 1_000_000 / WINDOW;
    // A node has less in a window in which the fleet grew.
    wait_for("a window in which the nodes admit what was simulated", || {
        let begun = window();
        let found = admitted(&servers, "split", &format!("w{begun}"), 300);
        let whole = begun == window();
        assert!(!whole || found <= 100, "{found}");
        (whole && is_within_a_hundredth(found, wanted)).then_some(())
    });
}
