//! Rules documents that a fleet shares through Redis.

use serde_json::{Value, json};
use tidegate_testkit::{FaultProxy, Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Folder, Response, Server, tidegate, wait_for_rules_copy};

const REDIS: Tool = Tool::Server(Flavour::Redis);

fn rules_with_limit(limit: u64) -> String {
    format!(
        "rules: [{{name: api, per: [user], limit: {limit} per 10 days, algorithm: fixed_window}}]\n"
    )
}

/// Starts a node with rules and counters in the Redis at `url`.
///
/// The store timeout is long, so that a busy machine does not count as a store failure. With `poll` of 1h, only a
/// notification can be the reason for a reload.
fn start_node(folder: &Folder, url: &str, poll: &str) -> Server {
    let config = folder.file(
        "tidegate.yaml",
        &format!(
            "store: {{redis: {{url: '{url}', timeout: 5s}}}}\n\
             rules: {{redis: true, poll: {poll}}}\nlisten: {{http: 127.0.0.1:0}}\n"
        ),
    );
    let mut command = tidegate();
    command.args(["serve", "--config", &config]).env("STATE_DIRECTORY", folder.path());
    Server::launch_command(command)
}

fn push(server: &Server, version: &str, text: &str) -> Response {
    let headers =
        [("if-match", version), ("tidegate-by", "ann%40laptop"), ("tidegate-note", "a%20test")];
    server.request_admin_with("PUT", "/v1/rules", &headers, text)
}

fn rules_status(server: &Server) -> Value {
    server.request_admin("GET", "/v1/rules/status", "").json()
}

fn enforced_limit(server: &Server) -> Option<u64> {
    server.check(r#"{"rule":"api","client":"probe","cost":0}"#).json()["limit"].as_u64()
}

fn wait_for_version(server: &Server, version: u64) {
    wait_for("the version is in force", || {
        (rules_status(server)["version"] == version).then_some(())
    });
}

#[test]
fn push_to_one_node_is_enforced_by_the_whole_fleet() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folders = [Folder::new(), Folder::new(), Folder::new()];
    let nodes = folders.each_ref().map(|folder| start_node(folder, &redis.url(), "1h"));
    // Version 0: no rules are stored, and every request is allowed.
    assert_eq!(rules_status(&nodes[0])["version"], 0);
    let pushed = push(&nodes[0], "\"0\"", &rules_with_limit(30));
    assert_eq!(pushed.status, 200, "{pushed:?}");
    assert_eq!(pushed.header("etag"), Some("\"1\""));
    for node in &nodes {
        wait_for_version(node, 1);
        assert_eq!(enforced_limit(node), Some(30));
    }
    let spend = |node: &Server| node.check(r#"{"rule":"api","client":"alice"}"#).status;
    let admitted = nodes.iter().cycle().take(60).filter(|node| spend(node) == 200).count();
    assert_eq!(admitted, 30);
    // A raised limit keeps the spent quota: 10 more are admitted.
    assert_eq!(push(&nodes[1], "\"1\"", &rules_with_limit(40)).status, 200);
    nodes.iter().for_each(|node| wait_for_version(node, 2));
    let admitted = nodes.iter().cycle().take(60).filter(|node| spend(node) == 200).count();
    assert_eq!(admitted, 10);
    let history = nodes[2].request_admin("GET", "/v1/rules/history", "").json();
    let versions = history["versions"].as_array().unwrap();
    assert_eq!(versions.iter().map(|item| &item["version"]).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(
        (&versions[0]["by"], &versions[0]["note"]),
        (&json!("ann@laptop"), &json!("a test"))
    );
    let first = nodes[2].request_admin("GET", "/v1/rules?version=1", "");
    assert_eq!(first.body, rules_with_limit(30));
    let difference = nodes[2].request_admin("GET", "/v1/rules/diff?from=1&to=2", "").json();
    assert_eq!(difference["changed"][0]["fields"][0]["field"], "limit");
    wait_for("every node has reported version 2", || {
        let all = rules_status(&nodes[0]);
        let reported = all["nodes"].as_array().unwrap();
        let current = |node: &Value| node["version"] == 2 && node["behind"] == false;
        (reported.len() == 3 && reported.iter().all(current)).then_some(())
    });
}

#[test]
fn invalid_document_is_rejected_and_one_of_two_concurrent_pushes_wins() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folders = [Folder::new(), Folder::new()];
    let nodes = folders.each_ref().map(|folder| start_node(folder, &redis.url(), "1h"));
    assert_eq!(push(&nodes[0], "*", &rules_with_limit(5)).status, 200);
    nodes.iter().for_each(|node| wait_for_version(node, 1));
    let broken = "rules:\n  - name: api\n    per: [user]\n    limit: 5 per fortnight\n";
    let rejected = push(&nodes[0], "\"1\"", broken);
    assert_eq!(rejected.status, 422);
    let error = &rejected.json()["errors"][0];
    assert_eq!(error["line"], 4);
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("rule \"api\": ") && message.contains("fortnight"), "{message}");
    let reserved_name = "rules: [{name: cl.throttle, limit: 1/s}]";
    assert_eq!(push(&nodes[0], "\"1\"", reserved_name).status, 422);
    assert_eq!(nodes[0].request_admin("PUT", "/v1/rules", &rules_with_limit(6)).status, 428);
    assert_eq!(push(&nodes[0], "seven", &rules_with_limit(6)).status, 400);
    for round in 1..6 {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let pushers = nodes.iter().enumerate().map(|(index, node)| {
                let limit = round * 10 + u64::try_from(index).unwrap();
                scope.spawn(move || {
                    push(node, &format!("\"{round}\""), &rules_with_limit(limit)).status
                })
            });
            let pushers: Vec<_> = pushers.collect();
            pushers.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut sorted = statuses.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [200, 412], "round {round}");
        let winner =
            u64::try_from(statuses.iter().position(|status| *status == 200).unwrap()).unwrap();
        for node in &nodes {
            wait_for_version(node, round + 1);
            assert_eq!(enforced_limit(node), Some(round * 10 + winner));
        }
    }
    let late = push(&nodes[0], "\"1\"", &rules_with_limit(7));
    assert_eq!((late.status, &late.json()["version"]), (412, &json!(6)));
    let history = nodes[0].request_admin("GET", "/v1/rules/history", "").json();
    assert_eq!(history["versions"].as_array().unwrap().len(), 6);
}

#[test]
fn node_without_notifications_catches_up_by_polling() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    // The access list does not permit SUBSCRIBE.
    let _: String = redis.query(&["ACL", "SETUSER", "default", "-subscribe"]);
    let folders = [Folder::new(), Folder::new()];
    let (pushing_node, polling_node) =
        (start_node(&folders[0], &redis.url(), "1h"), start_node(&folders[1], &redis.url(), "1s"));
    for version in 1..4 {
        assert_eq!(push(&pushing_node, "*", &rules_with_limit(version)).status, 200);
        wait_for_version(&polling_node, version);
    }
}

#[test]
fn disconnected_node_keeps_its_rules_and_catches_up() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let folders = [Folder::new(), Folder::new()];
    let near = start_node(&folders[0], &redis.url(), "1h");
    let far = start_node(&folders[1], &proxy.url(), "1h");
    assert_eq!(push(&near, "*", &rules_with_limit(5)).status, 200);
    wait_for_version(&far, 1);
    for round in 2..4 {
        proxy.refuse();
        proxy.drop_connections();
        assert_eq!(push(&near, "*", &rules_with_limit(round)).status, 200);
        // The rule is still active, and applies its `on_store_failure`.
        assert_eq!(rules_status(&far)["version"], round - 1);
        assert_eq!(far.check(r#"{"rule":"api","client":"a"}"#).status, 200);
        proxy.pass();
        // A node reads the rules each time it has subscribed again.
        wait_for_version(&far, round);
    }
}

#[test]
fn rules_survive_a_redis_outage_and_a_restart_uses_the_local_copy() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let (folder, empty) = (Folder::new(), Folder::new());
    let server = start_node(&folder, &redis.url(), "1s");
    assert_eq!(push(&server, "*", &rules_with_limit(5)).status, 200);
    redis.kill();
    wait_for("the outage is reported", || {
        rules_status(&server)["problem"].is_string().then_some(())
    });
    assert_eq!(rules_status(&server)["version"], 1);
    assert_eq!(server.request_admin("GET", "/v1/rules", "").json()["rules"][0]["name"], "api");
    assert_eq!(push(&server, "*", &rules_with_limit(6)).status, 503);
    wait_for_rules_copy(folder.path(), 1);
    drop(server);
    let server = start_node(&folder, &redis.url(), "1s");
    assert_eq!(rules_status(&server)["version"], 1);
    server.wait_for_log("started with a copy of the rules");
    let unready = start_node(&empty, &redis.url(), "1s");
    assert_eq!(unready.request("GET", "/readyz", "").status, 503);
    // A Redis that restarts empty gets the rules back from a node.
    redis.restart();
    let wait_for_restored_rules = |server: &Server| {
        wait_for("the rules are restored", || {
            (enforced_limit(server) == Some(5) && rules_status(server)["problem"].is_null())
                .then_some(())
        });
    };
    wait_for_restored_rules(&server);
    wait_for_restored_rules(&unready);
    assert_eq!(push(&unready, "\"1\"", &rules_with_limit(6)).status, 200);
    wait_for_version(&server, 2);
}

#[test]
fn document_with_a_field_of_a_later_release_leaves_the_old_rules_active() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folder = Folder::new();
    let server = start_node(&folder, &redis.url(), "1s");
    assert_eq!(push(&server, "*", &rules_with_limit(5)).status, 200);
    // A later release may write a field that this one does not know.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let put = |text: &str| {
        runtime.block_on(async {
            let config = redis.url().parse().unwrap();
            let document = tidegate::redis::RedisDocument::start(config, "rules").await.unwrap();
            let (by, note, expected) = ("later", "", tidegate::redis::Expected::Any);
            document
                .put(tidegate::redis::NewVersion { text, by, note, expected, above: 0 })
                .await
                .unwrap()
        })
    };
    put("rules: [{name: api, per: [user], limit: 9 per 10 days, colour: red}]");
    wait_for("the node is behind", || (rules_status(&server)["behind"] == true).then_some(()));
    let report = rules_status(&server);
    assert_eq!((&report["version"], &report["latest"]), (&json!(1), &json!(2)));
    assert!(report["problem"].as_str().unwrap().contains("colour"), "{report}");
    assert_eq!(enforced_limit(&server), Some(5));
    let metrics = server.request_admin("GET", "/metrics", "").body;
    assert!(metrics.contains("tidegate_rules_behind 1\n"), "{metrics}");
    // A restart does not change that.
    wait_for_rules_copy(folder.path(), 1);
    drop(server);
    let server = start_node(&folder, &redis.url(), "1s");
    assert_eq!(
        (enforced_limit(&server), &rules_status(&server)["behind"]),
        (Some(5), &json!(true))
    );
    put(&rules_with_limit(7));
    wait_for_version(&server, 3);
    assert_eq!(rules_status(&server)["behind"], false);
}

/// Redis key of the document.
const DOCUMENT_KEY: &str = "tg::{document:rules}";

fn stored_version(redis: &Redis) -> Option<u64> {
    redis.query(&["HGET", DOCUMENT_KEY, "latest"])
}

/// Restores an earlier state of the document, as from a backup.
fn restore_backup(redis: &Redis, backup: &[String]) {
    redis.query::<()>(&["DEL", DOCUMENT_KEY]);
    let fields = backup.iter().map(String::as_str);
    redis.query::<()>(&["HSET", DOCUMENT_KEY].into_iter().chain(fields).collect::<Vec<_>>());
}

fn history(server: &Server) -> Vec<Value> {
    let history = server.request_admin("GET", "/v1/rules/history", "").json();
    history["versions"].as_array().unwrap().clone()
}

/// Returns the path of the local copy of a node.
fn local_copy_path(folder: &Folder) -> std::path::PathBuf {
    let mut entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_copy = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("rules-") && name.ends_with(".yaml")
    };
    entries.find(is_copy).unwrap()
}

#[test]
fn nodes_restarted_together_with_an_empty_redis_enforce_their_copies_and_restore_them() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folders = [Folder::new(), Folder::new()];
    let nodes = folders.each_ref().map(|folder| start_node(folder, &redis.url(), "1h"));
    for version in 1..=3 {
        assert_eq!(push(&nodes[0], "*", &rules_with_limit(version)).status, 200);
    }
    let pushed = history(&nodes[0]).swap_remove(0);
    for (node, folder) in nodes.iter().zip(&folders) {
        wait_for_version(node, 3);
        wait_for_rules_copy(folder.path(), 3);
    }
    drop(nodes);
    redis.restart();
    assert_eq!(stored_version(&redis), None);
    // Each node enforces version 3 from its first response on.
    for folder in &folders {
        let node = start_node(folder, &redis.url(), "1h");
        assert_eq!(rules_status(&node)["version"], 3);
        assert_eq!(enforced_limit(&node), Some(3));
        assert_eq!(
            (&rules_status(&node)["problem"], &rules_status(&node)["behind"]),
            (&Value::Null, &json!(false))
        );
        assert_eq!(stored_version(&redis), Some(3));
        // Author, note and time are those of the push.
        assert_eq!(history(&node), std::slice::from_ref(&pushed));
        drop(node);
        redis.restart();
    }
    let node = start_node(&folders[0], &redis.url(), "1h");
    node.wait_for_log("started with a copy of the rules");
    let line = node.wait_for_log("redis lost the latest rules, this node restored them");
    assert!(line.contains("version=3"), "{line}");
    let pushed = push(&node, "\"3\"", &rules_with_limit(4));
    assert_eq!((pushed.status, pushed.header("etag")), (200, Some("\"4\"")));
}

#[test]
fn redis_restored_from_a_backup_gets_the_newest_local_copy_of_any_node() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folders = [Folder::new(), Folder::new()];
    let start = |index: usize| start_node(&folders[index], &redis.url(), "1h");
    let (newer, older) = (start(0), start(1));
    assert_eq!(push(&newer, "*", &rules_with_limit(1)).status, 200);
    assert_eq!(push(&newer, "*", &rules_with_limit(2)).status, 200);
    let backup: Vec<String> = redis.query(&["HGETALL", DOCUMENT_KEY]);
    assert_eq!(push(&newer, "*", &rules_with_limit(3)).status, 200);
    wait_for_version(&older, 3);
    wait_for_rules_copy(folders[1].path(), 3);
    drop(older);
    assert_eq!(push(&newer, "*", &rules_with_limit(4)).status, 200);
    assert_eq!(push(&newer, "*", &rules_with_limit(5)).status, 200);
    wait_for_rules_copy(folders[0].path(), 5);
    drop(newer);
    restore_backup(&redis, &backup);

    let older = start(1);
    assert_eq!((&rules_status(&older)["version"], enforced_limit(&older)), (&json!(3), Some(3)));
    assert_eq!(stored_version(&redis), Some(3));
    let newer = start(0);
    assert_eq!((&rules_status(&newer)["version"], enforced_limit(&newer)), (&json!(5), Some(5)));
    assert_eq!(stored_version(&redis), Some(5));
    wait_for_version(&older, 5);
    wait_for_rules_copy(folders[1].path(), 5);
    let versions: Vec<Value> =
        history(&older).iter().map(|version| version["version"].clone()).collect();
    assert_eq!(versions, [5, 3, 2, 1]);
    // The number of a lost version is not reused.
    let pushed = push(&older, "\"5\"", &rules_with_limit(6));
    assert_eq!((pushed.status, pushed.header("etag")), (200, Some("\"6\"")));
    wait_for_version(&newer, 6);
}

#[test]
fn push_restores_lost_rules_before_it_compares_the_version() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folder = Folder::new();
    let server = start_node(&folder, &redis.url(), "1h");
    for version in 1..=5 {
        assert_eq!(push(&server, "*", &rules_with_limit(version)).status, 200);
    }
    redis.query::<()>(&["DEL", DOCUMENT_KEY]);
    let first = push(&server, "\"0\"", &rules_with_limit(9));
    assert_eq!((first.status, &first.json()["version"]), (412, &json!(5)));
    redis.query::<()>(&["DEL", DOCUMENT_KEY]);
    let next = push(&server, "\"5\"", &rules_with_limit(6));
    assert_eq!((next.status, next.header("etag")), (200, Some("\"6\"")));
    assert_eq!(history(&server).len(), 2);
}

#[test]
fn two_documents_with_one_version_get_a_new_version_number() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folders = [Folder::new(), Folder::new()];
    let first = start_node(&folders[0], &redis.url(), "1h");
    assert_eq!(push(&first, "*", &rules_with_limit(1)).status, 200);
    let backup: Vec<String> = redis.query(&["HGETALL", DOCUMENT_KEY]);
    assert_eq!(push(&first, "*", &rules_with_limit(20)).status, 200);
    wait_for_rules_copy(folders[0].path(), 2);
    drop(first);
    restore_backup(&redis, &backup);
    let second = start_node(&folders[1], &redis.url(), "1h");
    let pushed = push(&second, "\"1\"", &rules_with_limit(30));
    assert_eq!((pushed.status, pushed.header("etag")), (200, Some("\"2\"")));

    let first = start_node(&folders[0], &redis.url(), "1h");
    let line = first.wait_for_log("two documents had one version after redis lost rules");
    assert!(line.contains("version=2") && line.contains("renumbered=3"), "{line}");
    for node in [&first, &second] {
        wait_for_version(node, 3);
        assert_eq!(enforced_limit(node), Some(30));
    }
    let latest = history(&first).swap_remove(0);
    assert_eq!((&latest["version"], &latest["by"]), (&json!(3), &json!("ann@laptop")));
    assert_eq!(latest["note"], "a test (version 2 again: two documents had it)");
    // A push based on version 2 is rejected, since two documents had that version.
    assert_eq!(push(&second, "\"2\"", &rules_with_limit(4)).status, 412);
}

#[test]
fn damaged_copy_is_reported_and_a_node_without_other_rules_is_not_ready() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folder = Folder::new();
    let server = start_node(&folder, &redis.url(), "1s");
    assert_eq!(push(&server, "*", &rules_with_limit(5)).status, 200);
    wait_for_rules_copy(folder.path(), 1);
    drop(server);
    let copy = local_copy_path(&folder);
    let text = std::fs::read_to_string(&copy).unwrap();
    let damage = || std::fs::write(&copy, text.replace("limit: 5", "limit: 6")).unwrap();
    damage();

    // The rules in Redis are enforced, and the copy is written again.
    let server = start_node(&folder, &redis.url(), "1s");
    let line = server.wait_for_log("local copy of the rules can't be used");
    assert!(line.contains("must have checksum") && line.contains(copy.to_str().unwrap()), "{line}");
    assert_eq!(enforced_limit(&server), Some(5));
    wait_for("the copy is intact", || (std::fs::read_to_string(&copy).ok()? == text).then_some(()));
    drop(server);

    damage();
    redis.restart();
    let server = start_node(&folder, &redis.url(), "1s");
    let report = rules_status(&server);
    let problem = report["problem"].as_str().unwrap();
    assert!(problem.contains("every request is allowed"), "{report}");
    assert!(problem.contains("must have checksum"), "{report}");
    assert_eq!(server.request("GET", "/readyz", "").status, 503);
    // A reload from the empty Redis does not make the node ready.
    server.signal("HUP");
    server.wait_for_log("reload: rules not changed");
    assert_eq!(server.request("GET", "/readyz", "").status, 503);
    assert_eq!(push(&server, "*", &rules_with_limit(7)).status, 200);
    assert_eq!(server.request("GET", "/readyz", "").status, 200);
    assert_eq!(rules_status(&server)["problem"], Value::Null);
}

#[test]
fn node_without_any_rules_reports_that_it_allows_everything() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folder = Folder::new();
    let server = start_node(&folder, &redis.url(), "1s");
    server
        .wait_for_log("source has no rules and no copy can restore them, every request is allowed");
    let report = rules_status(&server);
    let problem = "source has no rules, and this node has no copy: every request is allowed";
    assert_eq!((&report["problem"], &report["behind"]), (&json!(problem), &json!(false)));
    assert_eq!(server.request("GET", "/readyz", "").status, 200);
    redis.kill();
    wait_for("the outage is counted", || {
        let metrics = server.request_admin("GET", "/metrics", "").body;
        metrics.contains("tidegate_rules_source_up 0\n").then_some(())
    });
    redis.restart();
    wait_for("Redis answers", || {
        (push(&server, "*", &rules_with_limit(5)).status == 200).then_some(())
    });
    assert_eq!(
        (&rules_status(&server)["problem"], &rules_status(&server)["version"]),
        (&Value::Null, &json!(1))
    );
    wait_for("the store answers", || (enforced_limit(&server) == Some(5)).then_some(()));
}

#[test]
fn node_that_can_not_use_the_stored_rules_is_not_ready() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let put = |text: &str| {
        runtime.block_on(async {
            let config = redis.url().parse().unwrap();
            let document = tidegate::redis::RedisDocument::start(config, "rules").await.unwrap();
            let (by, note, expected) = ("later", "", tidegate::redis::Expected::Any);
            document
                .put(tidegate::redis::NewVersion { text, by, note, expected, above: 0 })
                .await
                .unwrap()
        })
    };
    put("rules: [{name: api, per: [user], limit: 9 per 10 days, colour: red}]");
    let folder = Folder::new();
    let server = start_node(&folder, &redis.url(), "1h");
    server.signal("HUP");
    server.wait_for_log("reload: rules not changed");
    assert_eq!(server.request("GET", "/readyz", "").status, 503);
    // The node restores a lost document even if it can't use it: other nodes may.
    redis.query::<()>(&["DEL", DOCUMENT_KEY]);
    server.signal("HUP");
    server.wait_for_log("redis lost the latest rules, this node restored them");
    assert_eq!(stored_version(&redis), Some(1));
    put(&rules_with_limit(5));
    wait_for_version(&server, 2);
    assert_eq!(server.request("GET", "/readyz", "").status, 200);
}

#[test]
fn no_check_fails_during_continuous_pushes() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let folder = Folder::new();
    let server = start_node(&folder, &redis.url(), "1h");
    assert_eq!(push(&server, "*", &rules_with_limit(1_000_000)).status, 200);
    let done = std::sync::atomic::AtomicBool::new(false);
    let (answered, pushed) = std::thread::scope(|scope| {
        let checkers = (0..4).map(|_| {
            let mut connection = server.connect();
            let done = &done;
            scope.spawn(move || {
                let mut answered = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    connection.send("POST", "/v1/check", r#"{"attributes":{"user":"alice"}}"#);
                    assert_eq!(connection.receive(false).status, 200);
                    answered += 1;
                }
                answered
            })
        });
        let checkers: Vec<_> = checkers.collect();
        for round in 0..30 {
            assert_eq!(push(&server, "*", &rules_with_limit(1_000_000 + round)).status, 200);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let answered: usize = checkers.into_iter().map(|thread| thread.join().unwrap()).sum();
        (answered, 31)
    });
    assert_eq!(rules_status(&server)["version"], pushed);
    assert!(answered > 30, "{answered}");
    // Every check is counted once, under the old or the new rules.
    let metrics = server.request_admin("GET", "/metrics", "").body;
    let line = format!(r#"tidegate_decisions_total{{rule="api",outcome="allowed"}} {answered}"#);
    assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
}
