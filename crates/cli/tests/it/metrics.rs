//! Metrics of a real server in the formats of Prometheus, and the alerts and the dashboard in `deploy/` that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Folder, Response, Server, tidegate};

const RULES: &str = "
rules:
  - {name: api, per: [user], limit: 3 per 10 days}
  - {name: trial, per: [user], limit: 1 per 10 days, mode: shadow}
  - {name: pay, match: {path: /pay}, per: [user], limit: 3 per 10 days, on_store_failure: deny}
  - {name: own, match: {path: /own}, per: [user], limit: 3 per 10 days, on_store_failure: local}
";

/// One scrape: its text, and each value by name and labels.
struct Scrape {
    text: String,
    values: BTreeMap<String, f64>,
}

impl Scrape {
    fn fetch(server: &Server) -> Self {
        let response = server.request_admin("GET", "/metrics", "");
        assert_eq!(response.status, 200);
        assert_eq!(
            response.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
        Self::parse(response)
    }

    fn parse(response: Response) -> Self {
        let samples = response.body.lines().filter(|line| !line.starts_with('#'));
        let values = samples.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        let values: BTreeMap<String, f64> = values.collect();
        Self { values, text: response.body }
    }

    fn value(&self, name: &str) -> f64 {
        *self.values.get(name).unwrap_or_else(|| panic!("no {name} in {}", self.text))
    }

    /// Returns the names of all samples, without labels.
    fn names(&self) -> BTreeSet<String> {
        let name = |sample: &String| sample.split('{').next().unwrap().to_owned();
        self.values.keys().map(name).collect()
    }
}

fn check_status(server: &Server, attributes: &Value) -> u16 {
    server.check(&json!({"attributes": attributes}).to_string()).status
}

/// Runs promtool, and panics unless it succeeds.
fn run_promtool(arguments: &[&str], input: Option<&str>) {
    let mut command = Command::new(Tool::Promtool.path().unwrap());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.unwrap_or_default().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let output_text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "promtool {arguments:?}: {output_text:?}");
}

fn deploy_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

fn send_traffic(server: &Server) {
    for _ in 0..5 {
        check_status(server, &json!({"user": "alice"}));
    }
    assert_eq!(check_status(server, &json!({"user": "bob"})), 200);
    let call = |body: &str| server.check(body).status;
    assert_eq!(call("{"), 400);
    assert_eq!(call(r#"{"rule":"nope","client":"a"}"#), 404);
    let block = r#"{"attribute":"user","value":"mallory","for":"1h"}"#;
    assert_eq!(server.request_admin("POST", "/v1/block", block).status, 200);
    assert_eq!(check_status(server, &json!({"user": "mallory"})), 429);
    let batch = json!({"checks": [{"rule": "api", "client": "carol"}, {"cost": 1}]});
    assert_eq!(server.request("POST", "/v1/check/batch", &batch.to_string()).status, 200);
}

/// The log of one client could take any amount of memory up to its limit before there was a budget in bytes.
#[test]
fn memory_store_stays_within_its_bytes_and_denies_a_log_that_cannot_grow() {
    let folder = Folder::new();
    let config = folder.file(
        "tidegate.yaml",
        "listen: {grpc: off}\nstore: {memory: {max_bytes: 10_000}}\nrules:\n  inline:\n    \
         - {name: api, per: [user], limit: 2000 per day, algorithm: sliding_log}\n",
    );
    let server = Server::with_arguments(&["--config", &config, "--http", "127.0.0.1:0"]);
    let allowed = (0..600).filter(|_| check_status(&server, &json!({"user": "alice"})) == 200);
    // 512 entries of 16 bytes fit, twice as many do not.
    assert_eq!(allowed.count(), 512);
    let denied = server.check(&json!({"attributes": {"user": "alice"}}).to_string());
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    let scrape = Scrape::fetch(&server);
    assert_eq!(scrape.value("tidegate_memory_bytes_limit"), 10_000.0);
    let bytes = scrape.value("tidegate_memory_bytes");
    assert!((8_192.0..=10_000.0).contains(&bytes), "{bytes}");
    assert_eq!(scrape.value("tidegate_memory_growth_denied_total"), 89.0);
    assert_eq!(scrape.value("tidegate_memory_overflowed_total"), 0.0);
}

#[test]
fn every_check_is_counted_once_by_listener_answer_and_rule() {
    let server = Server::with_rules(RULES);
    send_traffic(&server);
    let scrape = Scrape::fetch(&server);
    for (answer, count) in [
        ("allowed", 5.0),
        ("denied", 2.0),
        ("blocked", 1.0),
        ("invalid", 2.0),
        ("unknown_rule", 1.0),
        ("unavailable", 0.0),
    ] {
        let name = format!(r#"tidegate_checks_total{{listener="http",answer="{answer}"}}"#);
        assert_eq!(scrape.value(&name), count, "{answer}");
    }
    for (rule, outcome, count) in [
        ("api", "allowed", 5.0),
        ("api", "denied", 2.0),
        ("api", "failed_open", 0.0),
        ("trial", "shadow_allowed", 2.0),
        ("trial", "shadow_denied", 4.0),
        ("pay", "failed_closed", 0.0),
        ("(operator)", "blocked", 1.0),
    ] {
        let name = format!(r#"tidegate_decisions_total{{rule="{rule}",outcome="{outcome}"}}"#);
        assert_eq!(scrape.value(&name), count, "{rule} {outcome}");
    }
    // Only valid checks are timed.
    let timed = r#"tidegate_check_duration_seconds_count{listener="http"}"#;
    assert_eq!(scrape.value(timed), 8.0);
    let all = r#"tidegate_check_duration_seconds_bucket{le="+Inf",listener="http"}"#;
    assert_eq!(scrape.value(all), 8.0);
    assert_eq!(scrape.value(r#"tidegate_check_duration_seconds_count{listener="resp"}"#), 0.0);
    assert_eq!(scrape.value("tidegate_ready"), 1.0);
    assert_eq!(scrape.value("tidegate_rules"), 4.0);
    assert_eq!(scrape.value("tidegate_blocked_clients"), 1.0);
    // Rule `api` has keys for Alice, Bob and Carol; the shadow rule for Alice and Bob.
    assert_eq!(scrape.value("tidegate_memory_keys"), 5.0);
    // The connection of the block request may close shortly after its response.
    wait_for("the scrape has the only admin connection", || {
        let connections = Scrape::fetch(&server).value(r#"tidegate_connections{listener="admin"}"#);
        (connections == 1.0).then_some(())
    });
    assert!(scrape.value(r#"tidegate_connections_accepted_total{listener="http"}"#) >= 10.0);
    assert!(scrape.value("process_resident_memory_bytes") > 1e6);
    assert!(scrape.value("process_open_fds") > 3.0);
    assert!(scrape.value("process_start_time_seconds") > 1.7e9);
    for secret in ["alice", "mallory"] {
        assert!(!scrape.text.contains(secret), "{}", scrape.text);
    }
    let version = server.request_admin("GET", "/v1/rules", "").json();
    let info = format!("tidegate_rules_version_info{{version={}}}", version["hash"]);
    assert_eq!(scrape.value(&info), 1.0);
}

#[test]
fn accept_header_selects_openmetrics() {
    let server = Server::with_rules(RULES);
    let mut connection = server.connect_admin();
    let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    connection
        .write(format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\n{accept}\r\n\r\n").as_bytes());
    let response = connection.receive(false);
    assert_eq!(
        response.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(response.body.contains("# TYPE tidegate_checks counter\n"), "{}", response.body);
    assert!(response.body.ends_with("# EOF\n"), "{}", response.body);
    // OpenMetrics permits each metric family once.
    let families: Vec<&str> =
        response.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let unique: BTreeSet<&str> =
        families.iter().map(|family| family.split(' ').next().unwrap()).collect();
    assert_eq!(unique.len(), families.len());
}

#[test]
fn store_failures_are_counted_by_rule_and_fallback() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let rules = folder.file("rules.yaml", RULES);
    let mut command = tidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules, "--redis", &redis.url()]);
    let server = Server::launch_command(command);
    wait_for("the server is ready", || {
        (server.request("GET", "/readyz", "").status == 200).then_some(())
    });
    let address = redis.address();
    let by_server = |name: &str| format!(r#"{name}{{server="{address}"}}"#);
    let up = by_server("tidegate_redis_up");
    assert_eq!(Scrape::fetch(&server).value(&up), 1.0);
    assert_eq!(Scrape::fetch(&server).value("tidegate_fleet_nodes"), 1.0);
    redis.pause();
    wait_for("the breaker opens", || {
        check_status(&server, &json!({"user": "a"}));
        (Scrape::fetch(&server).value(&up) == 0.0).then_some(())
    });
    let before = Scrape::fetch(&server);
    assert_eq!(check_status(&server, &json!({"user": "a"})), 200);
    assert_eq!(check_status(&server, &json!({"user": "a", "path": "/pay"})), 503);
    assert_eq!(check_status(&server, &json!({"user": "a", "path": "/own"})), 200);
    let after = Scrape::fetch(&server);
    let increase = |name: &str| after.value(name) - before.value(name);
    for (rule, answer, count) in
        [("api", "allow", 3.0), ("pay", "deny", 1.0), ("own", "local", 1.0)]
    {
        let name = format!(r#"tidegate_store_failures_total{{rule="{rule}",answer="{answer}"}}"#);
        assert_eq!(increase(&name), count, "{rule}");
    }
    for (name, count) in [
        (r#"tidegate_decisions_total{rule="api",outcome="failed_open"}"#, 3.0),
        (r#"tidegate_decisions_total{rule="pay",outcome="failed_closed"}"#, 1.0),
        (r#"tidegate_decisions_total{rule="own",outcome="allowed"}"#, 1.0),
        (r#"tidegate_checks_total{listener="http",answer="unavailable"}"#, 1.0),
    ] {
        assert_eq!(increase(name), count, "{name}");
    }
    assert!(after.value(&by_server("tidegate_redis_breaker_opened_total")) >= 1.0);
    assert!(after.value(&by_server("tidegate_redis_timeouts_total")) >= 1.0);
    let calls = by_server("tidegate_redis_call_duration_seconds_count");
    assert!(after.value(&calls) >= 1.0, "{}", after.text);
    redis.resume();
    wait_for("the breaker closes", || (Scrape::fetch(&server).value(&up) == 1.0).then_some(()));
    assert!(Scrape::fetch(&server).value(&by_server("tidegate_redis_connections_total")) >= 2.0);
}

/// Returns the names of the metrics in an expression.
fn metric_names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let metric = |word: &&str| word.starts_with("tidegate_") || word.starts_with("process_");
    words.filter(metric).map(str::to_owned).collect()
}

/// Collects every text under a key called `name`, at any depth.
fn collect_texts<'v>(json: &'v Value, name: &str, found: &mut Vec<&'v str>) {
    match json {
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, name, found)),
        Value::Object(entries) => {
            for (key, value) in entries {
                match value {
                    Value::String(text) if key == name => found.push(text),
                    value => collect_texts(value, name, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn alerts_and_dashboard_use_only_exported_metrics() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let rules = folder.file("rules.yaml", RULES);
    let mut command = tidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules, "--redis", &redis.url()]);
    // One node uses Redis and one uses memory: together they export every metric.
    let servers = [Server::launch_command(command), Server::with_rules(RULES)];
    servers.iter().for_each(send_traffic);
    wait_for("the memory of Redis is sampled", || {
        Scrape::fetch(&servers[0])
            .names()
            .contains("tidegate_redis_used_memory_bytes")
            .then_some(())
    });
    let exported: BTreeSet<String> =
        servers.iter().flat_map(|server| Scrape::fetch(server).names()).collect();
    let alerts = std::fs::read_to_string(deploy_path("prometheus/alerts.yaml")).unwrap();
    let alerts: Value = serde_saphyr::from_str(&alerts).unwrap();
    let dashboard = std::fs::read_to_string(deploy_path("grafana/tidegate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut expressions = Vec::new();
    for document in [&alerts, &dashboard] {
        collect_texts(document, "expr", &mut expressions);
        collect_texts(document, "definition", &mut expressions);
    }
    assert!(expressions.len() > 40, "{}", expressions.len());
    for expression in expressions {
        for name in metric_names(expression) {
            assert!(exported.contains(&name), "{name} of {expression:?} is not in {exported:#?}");
        }
    }
}

#[test]
fn promtool_accepts_metrics_config_and_alerts() {
    if lacking(&[Tool::Promtool]) {
        return;
    }
    let server = Server::with_rules(RULES);
    send_traffic(&server);
    run_promtool(&["check", "metrics"], Some(&Scrape::fetch(&server).text));
    let file = |name: &str| deploy_path("prometheus").join(name).to_str().unwrap().to_owned();
    run_promtool(&["check", "config", &file("prometheus.yml")], None);
    run_promtool(&["check", "rules", &file("alerts.yaml")], None);
    run_promtool(&["test", "rules", &file("alerts_test.yaml")], None);
}

#[test]
fn guide_documents_every_alert() {
    let guide = include_str!("../../../../docs/guide/operating.md");
    let alerts = std::fs::read_to_string(deploy_path("prometheus/alerts.yaml")).unwrap();
    let alerts: Value = serde_saphyr::from_str(&alerts).unwrap();
    let mut names = Vec::new();
    collect_texts(&alerts, "alert", &mut names);
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(guide.lines().any(|line| line.starts_with(&format!("| `{name}`"))), "{name}");
    }
}
