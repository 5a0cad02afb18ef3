//! Rules files that change while a server runs.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use tidegate_testkit::wait_for;

use crate::kit::{Folder, Server, tidegate, wait_for_rules_copy};

fn rules_with_limit(limit: u64) -> String {
    format!(
        "rules: [{{name: api, per: [user], limit: {limit} per 10 days, algorithm: fixed_window}}]\n"
    )
}

/// Returns the limit that the server enforces for a user.
fn enforced_limit(server: &Server, user: &str) -> u64 {
    let body = format!(r#"{{"rule":"api","client":"{user}","cost":0}}"#);
    server.check(&body).json()["limit"].as_u64().unwrap()
}

fn rules_status(server: &Server) -> Value {
    server.request_admin("GET", "/v1/rules/status", "").json()
}

fn wait_for_limit(server: &Server, wanted: u64) {
    wait_for("the new limit is enforced", || {
        (enforced_limit(server, "probe") == wanted).then_some(())
    });
}

/// Replaces a file by a rename, so that no reader finds half of the text.
fn replace_file(path: &str, text: &str) {
    let draft = format!("{path}.new");
    std::fs::write(&draft, text).unwrap();
    std::fs::rename(draft, path).unwrap();
}

#[test]
fn changed_file_is_enforced_and_keeps_the_spent_quota() {
    let folder = Folder::new();
    let path = folder.file("rules.yaml", &rules_with_limit(5));
    let server = Server::with_arguments(&["--rules", &path, "--http", "127.0.0.1:0"]);
    let spend = |times| {
        let spent = (0..times).map(|_| server.check(r#"{"rule":"api","client":"alice"}"#).status);
        spent.filter(|status| *status == 200).count()
    };
    assert_eq!(spend(3), 3);
    std::fs::write(&path, rules_with_limit(7)).unwrap();
    wait_for_limit(&server, 7);
    assert_eq!(spend(10), 4);
    replace_file(&path, &rules_with_limit(9));
    wait_for_limit(&server, 9);
    assert_eq!(spend(10), 2);
    assert_eq!(rules_status(&server)["version"], 3);
    assert_eq!(rules_status(&server)["behind"], false);
}

/// Regression: internal rules were counted as well, so a file of one rule was logged as three.
#[test]
fn log_counts_only_the_rules_of_the_file() {
    let folder = Folder::new();
    let path = folder.file("rules.yaml", &rules_with_limit(5));
    let server = Server::with_arguments(&["--rules", &path, "--http", "127.0.0.1:0"]);
    replace_file(&path, &rules_with_limit(7));
    let line = server.wait_for_log("rules activated");
    assert!(line.contains("rules=1 "), "{line}");
}

#[test]
fn rules_with_an_error_leave_the_old_ones_active() {
    let folder = Folder::new();
    let path = folder.file("rules.yaml", &rules_with_limit(5));
    let server = Server::with_arguments(&["--rules", &path, "--http", "127.0.0.1:0"]);
    for (broken, expected) in [
        ("rules: [{name: api, per: [user], limt: 9/s}]\n", "no key \"limt\""),
        ("rules:\n  - name: [\n", "rules.yaml:"),
        ("", "rules.yaml:"),
    ] {
        replace_file(&path, broken);
        let problem = wait_for("the node reports that it is behind", || {
            let status = rules_status(&server);
            let problem = status["problem"].as_str().unwrap_or_default().to_owned();
            (status["behind"] == true && problem.contains(expected)).then_some(problem)
        });
        assert!(problem.contains("rules.yaml:"), "{problem}");
        assert_eq!(enforced_limit(&server, "alice"), 5);
    }
    server.wait_for_log("new rules rejected, the active rules stay");
    // Restoring the text of the active rules creates no new version.
    replace_file(&path, &rules_with_limit(5));
    wait_for("the node is no longer behind", || {
        (rules_status(&server)["behind"] == false).then_some(())
    });
    assert_eq!(rules_status(&server)["version"], 1);
    std::fs::remove_file(&path).unwrap();
    wait_for("the missing file is reported", || {
        rules_status(&server)["problem"].is_string().then_some(())
    });
    assert_eq!(
        (enforced_limit(&server, "alice"), &rules_status(&server)["behind"]),
        (5, &Value::Bool(false))
    );
    replace_file(&path, &rules_with_limit(6));
    wait_for_limit(&server, 6);
}

#[test]
fn update_of_a_kubernetes_volume_is_enforced() {
    let folder = Folder::new();
    let update_volume = |version: &str, limit| {
        let data = Path::new(folder.path()).join(version);
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("rules.yaml"), rules_with_limit(limit)).unwrap();
        let (link, draft) = (Path::new(folder.path()).join("..data"), "..data_tmp");
        let draft = Path::new(folder.path()).join(draft);
        symlink(version, &draft).unwrap();
        std::fs::rename(draft, link).unwrap();
    };
    update_volume("..2026_01", 5);
    let path = Path::new(folder.path()).join("rules.yaml");
    symlink("..data/rules.yaml", &path).unwrap();
    // Polled once an hour, so only a file system event can be the reason for a reload.
    let config = folder.file(
        "tidegate.yaml",
        &format!("rules: {{file: {}, poll: 1h}}\nlisten: {{http: 127.0.0.1:0}}\n", path.display()),
    );
    let server = Server::with_arguments(&["--config", &config]);
    assert_eq!(enforced_limit(&server, "alice"), 5);
    for round in 6..9 {
        update_volume(&format!("..2026_0{round}"), round);
        wait_for_limit(&server, round);
    }
}

#[test]
fn new_rules_read_new_headers_and_keep_counters_by_name() {
    let folder = Folder::new();
    let path = folder.file("rules.yaml", "rules: [{name: all, limit: 1000 per 10 days}]");
    let server = Server::with_arguments(&["--rules", &path, "--http", "127.0.0.1:0"]);
    let authorize = |tenant: &str| {
        let mut connection = server.connect();
        let head = format!("x-original-uri: /a\r\nx-original-method: GET\r\nx-tenant: {tenant}");
        connection
            .write(format!("GET /v1/authorize HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n").as_bytes());
        connection.receive(false).status
    };
    for _ in 0..3 {
        assert_eq!(authorize("acme"), 200);
    }
    let tenants = "{name: tenants, per: [header.x-tenant], limit: 2 per 10 days}";
    replace_file(&path, &format!("rules: [{tenants}, {{name: all, limit: 1000 per 10 days}}]"));
    wait_for("the new rule is in force", || {
        let rules = server.request_admin("GET", "/v1/rules", "").json();
        (rules["rules"].as_array().unwrap().len() == 2).then_some(())
    });
    assert_eq!([authorize("acme"), authorize("acme"), authorize("acme")], [200, 200, 429]);
    assert_eq!(authorize("other"), 200);
    let metrics = server.request_admin("GET", "/metrics", "").body;
    for line in [
        r#"tidegate_decisions_total{rule="all",outcome="allowed"} 7"#,
        r#"tidegate_decisions_total{rule="tenants",outcome="allowed"} 3"#,
        r#"tidegate_decisions_total{rule="tenants",outcome="denied"} 1"#,
        "tidegate_rules_number 2",
        "tidegate_rules_behind 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
}

#[test]
fn changed_envoy_file_is_enforced() {
    let limits = |amount: u64| {
        format!(
            "domain: edge\ndescriptors:\n  - key: user\n    rate_limit: {{unit: year, requests_per_unit: {amount}}}\n"
        )
    };
    let folder = Folder::new();
    let path = folder.file("edge.yaml", &limits(3));
    let server = Server::with_arguments(&["--rules-envoy", folder.path(), "--http", "127.0.0.1:0"]);
    let list_limits = || server.request_admin("GET", "/rlconfig", "").body;
    assert!(list_limits().contains("requests_per_unit=3"), "{}", list_limits());
    replace_file(&path, &limits(8));
    wait_for("the new limit is listed", || {
        list_limits().contains("requests_per_unit=8").then_some(())
    });
    replace_file(&path, "domain: edge\ndescriptors: 7\n");
    wait_for("the node is behind", || (rules_status(&server)["behind"] == true).then_some(()));
    assert!(list_limits().contains("requests_per_unit=8"), "{}", list_limits());
}

#[test]
fn push_is_rejected_if_the_rules_come_from_a_file() {
    let folder = Folder::new();
    let path = folder.file("rules.yaml", &rules_with_limit(5));
    let server = Server::with_arguments(&["--rules", &path, "--http", "127.0.0.1:0"]);
    let rejected =
        server.request_admin_with("PUT", "/v1/rules", &[("if-match", "*")], &rules_with_limit(6));
    assert_eq!(rejected.status, 409);
    let detail = rejected.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(&path) && detail.contains("rules: {redis: true}"), "{detail}");
    assert_eq!(server.request_admin("GET", "/v1/rules/history", "").status, 409);
    let document =
        server.request_admin_with("GET", "/v1/rules", &[("accept", "application/yaml")], "");
    assert_eq!(document.body, rules_with_limit(5));
    assert_eq!(document.header("tidegate-rules-version"), Some("1"));
}

#[test]
fn missing_file_at_the_start_is_replaced_by_its_local_copy() {
    let folder = Folder::new();
    let path = folder.file("rules.yaml", &rules_with_limit(5));
    let config = folder.file(
        "tidegate.yaml",
        "rules: {file: rules.yaml, copy: copies}\nlisten: {http: 127.0.0.1:0}\n",
    );
    let serve = || {
        let mut command = tidegate();
        command.args(["serve", "--config", &config]);
        Server::launch_command(command)
    };
    let server = serve();
    replace_file(&path, &rules_with_limit(6));
    wait_for_limit(&server, 6);
    assert_eq!(rules_status(&server)["version"], 2);
    wait_for_rules_copy(&format!("{}/copies", folder.path()), 2);
    drop(server);
    std::fs::remove_file(&path).unwrap();
    let server = serve();
    assert_eq!(
        (enforced_limit(&server, "alice"), &rules_status(&server)["version"]),
        (6, &Value::from(2))
    );
    server.wait_for_log("started with a copy of the rules");
    replace_file(&path, &rules_with_limit(7));
    wait_for_limit(&server, 7);
    assert_eq!(rules_status(&server)["version"], 3);
}
