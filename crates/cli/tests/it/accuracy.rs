//! The `accuracy` of a rule: the fleet bounds that commands print, and their enforcement by two servers.

use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Folder, Server, run, tidegate};

const RULES: &str = "
rules:
  - {name: leased, per: [ip], limit: 100/s, accuracy: leased}
  - {name: synced, per: [ip], limit: 100/s, accuracy: synced, max_ahead: 20}
  - name: tiered
    per: [ip]
    limit: 100/s
    accuracy: synced
    sync: 1s
    tiers: {by: plan, limits: {pro: 1000/s}}
  - {name: loose, per: [ip], limit: 60/s, algorithm: fixed_window, accuracy: synced, max_ahead: unbounded}
  - {name: fixed, per: [ip], limit: 100/s, algorithm: fixed_window, accuracy: synced, max_ahead: 20}
  - {name: sliding, per: [ip], limit: 100/s, algorithm: sliding_window, accuracy: synced, max_ahead: 20}
  - {name: split, per: [ip], limit: 100/s, accuracy: split}
  - {name: windows, per: [ip], limit: 100/s, algorithm: fixed_window, accuracy: split}
  - {name: sharded, per: [ip], limit: 100/s, shards: 4}
  - {name: hot, per: [ip], limit: 100/s, hot: leased}
";

#[test]
fn validate_prints_the_bound_with_n_nodes_for_each_accuracy() {
    let folder = Folder::new();
    let (code, stdout, stderr) = run(&["validate", &folder.file("rules.yaml", RULES)]);
    assert_eq!(code, 0, "{stderr}");
    let wanted = "\
leased: 100 per 1 s (token_bucket): at most 200 in any 1 s
  leased: the same bound, whatever the number of nodes
synced: 100 per 1 s (token_bucket): at most 200 in any 1 s
  synced every 200 ms: with N nodes up to N x 20 more than that
tiered: 100 per 1 s (token_bucket): at most 200 in any 1 s
  synced every 1 s: with N nodes up to N x 10 more than that
  plan \"pro\": 1000 per 1 s (token_bucket): at most 2000 in any 1 s; synced every 1 s: with N nodes up to N x 100 more than that
loose: 60 per 1 s (fixed_window): at most 120 in any 1 s, 60 in each window aligned to the clock
  synced every 200 ms: without max_ahead each of N nodes can admit all of that
fixed: 100 per 1 s (fixed_window): at most 200 in any 1 s, 100 in each window aligned to the clock
  synced every 200 ms: with N nodes up to N x 40 more than that, N x 20 in each window
sliding: 100 per 1 s (sliding_window): at most 199 in any 1 s, 100 in each window aligned to the clock
  synced every 200 ms: with N nodes up to N x 40 more than that, N x 20 in each window
split: 100 per 1 s (token_bucket): at most 200 in any 1 s
  split: the same bound, each of N live nodes keeps an N-th of it
windows: 100 per 1 s (fixed_window): at most 200 in any 1 s, 100 in each window aligned to the clock
  split: the same bound, each of N live nodes keeps an N-th of it in windows by its own clock
sharded: 100 per 1 s (token_bucket): at most 200 in any 1 s
  4 shards: the same bound, each client's limit in 4 parts
hot: 100 per 1 s (token_bucket): at most 200 in any 1 s
  leased when hot: the same bound, whatever the number of nodes
";
    assert_eq!(stdout, wanted);
}

#[test]
fn explain_prints_the_fleet_bound_of_the_limit_that_applies() {
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let (code, stdout, stderr) = run(&["explain", "--rules", &rules, "-a", "plan=pro", "/"]);
    assert_eq!(code, 0, "{stderr}");
    let wanted = "  fleet    synced every 1 s: with N nodes up to N x 100 more than that\n";
    assert!(stdout.contains(wanted), "{stdout}");
    assert!(stdout.contains("  fleet    4 shards: the same bound"), "{stdout}");
}

const ENFORCED_RULES: &str = "
rules:
  - {name: leased, per: [user], limit: 400 per 10 days, accuracy: leased}
  - {name: synced, per: [user], limit: 400 per 10 days, accuracy: synced, max_ahead: 50}
  - {name: split, per: [user], limit: 1000 per second, accuracy: split, on_store_failure: deny}
  - {name: sharded, per: [user], limit: 400 per 10 days, shards: 4}
  - {name: hot, per: [user], limit: 400 per 10 days, hot: leased}
";

fn check(server: &Server, rule: &str) -> u16 {
    server.check(&format!(r#"{{"rule":"{rule}","client":"alice"}}"#)).status
}

#[test]
fn two_servers_enforce_a_limit_with_each_accuracy() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let (url, rules) =
        (format!("{}?timeout=5s", redis.url()), folder.file("rules.yaml", ENFORCED_RULES));
    let launch = || {
        let mut command = tidegate();
        command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules, "--redis", &url]);
        Server::launch_command(command)
    };
    let servers = [launch(), launch()];
    // The window of ten days refills nothing during the test. A rule without leases admits at least the whole limit.
    // Leased tokens may expire unused on a busy machine, so leased rules may admit less.
    let admitted_by_rule =
        [("sharded", 400..=400), ("synced", 400..=500), ("leased", 1..=400), ("hot", 1..=400)];
    for (rule, wanted) in admitted_by_rule {
        let statuses: Vec<u16> = (0..700).map(|number| check(&servers[number % 2], rule)).collect();
        assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{rule}");
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        assert!(wanted.contains(&admitted), "{rule}: {admitted}");
    }
    // A node starts without tokens of a split limit, and admits once it has its share.
    for server in &servers {
        wait_for("the node has its share of the limit", || {
            (check(server, "split") == 200).then_some(())
        });
    }
    let metrics = servers[0].request_admin("GET", "/metrics", "").body;
    let asks = metrics.lines().find_map(|line| line.strip_prefix("tidegate_redis_asks_total "));
    assert!(asks.unwrap().parse::<f64>().unwrap() > 0.0, "{metrics}");
}
