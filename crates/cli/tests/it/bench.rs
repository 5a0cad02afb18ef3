//! `tidegate bench` against real listeners: its counts match the metrics of the server.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_testkit::{Certificates, Port, Tool, Upstream, lacking, wait_for};

use crate::kit::{Folder, Server, exit_code_and_output, run, tidegate};

const RULES: &str = "
rules:
  - {name: api, per: [user], limit: 5 per 10 days}
";

fn start_server() -> Server {
    Server::with_rules(RULES)
}

/// Returns the number of checks with this answer on a listener, from the metrics of the server.
fn server_count(server: &Server, listener: &str, answer: &str) -> u64 {
    let name = format!(r#"tidegate_checks_total{{listener="{listener}",answer="{answer}"}} "#);
    let metrics = server.request_admin("GET", "/metrics", "").body;
    metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// Returns a number of the report.
fn report_count(report: &Value, field: &str) -> u64 {
    report[field].as_u64().unwrap_or_else(|| panic!("no {field} in {report}"))
}

fn assert_same_counts(server: &Server, listener: &str, report: &Value) {
    for answer in ["allowed", "denied", "unavailable"] {
        assert_eq!(
            report_count(report, answer),
            server_count(server, listener, answer),
            "{listener} {answer}: {report}"
        );
    }
}

/// Runs `tidegate bench --json`, which must succeed, and returns its report.
fn run_bench(arguments: &[&str]) -> Value {
    let (status, report, notes) = exit_code_and_output(
        tidegate().args(["bench", "--json"]).args(arguments).output().unwrap(),
    );
    assert_eq!(status, 0, "{notes}");
    serde_json::from_str(&report).unwrap()
}

#[test]
fn bench_counts_match_the_server_on_every_listener() {
    for listener in ["http", "grpc", "resp"] {
        let server = start_server();
        let url = format!("{listener}://{}", server.listener(listener));
        let report = run_bench(&[&url, "--rule", "api", "-n", "300", "--clients", "10", "-c", "7"]);
        assert_eq!(
            (report_count(&report, "allowed"), report_count(&report, "denied")),
            (50, 250),
            "{report}"
        );
        assert_eq!((report_count(&report, "sent"), report_count(&report, "failed")), (300, 0));
        assert_same_counts(&server, listener, &report);
        let bars = report["histogram"].as_array().unwrap().iter();
        assert_eq!(bars.map(|bar| report_count(bar, "count")).sum::<u64>(), 300);
        let micros = |name: &str| report_count(&report["latencyMicros"], name);
        let percentiles = ["p50", "p90", "p99", "p99.9", "max"].map(micros);
        assert!(percentiles.is_sorted() && percentiles[4] > 0, "{percentiles:?}");
    }
}

#[test]
fn client_placeholder_in_attributes_is_replaced_by_the_client_name() {
    for listener in ["http", "grpc"] {
        let server = start_server();
        let url = format!("{listener}://{}", server.listener(listener));
        let report = run_bench(&[&url, "-a", "user={client}", "-n", "40", "--clients", "4"]);
        assert_eq!(
            (report_count(&report, "allowed"), report_count(&report, "denied")),
            (20, 20),
            "{report}"
        );
    }
    let server = start_server();
    let url = format!("resp://{}", server.listener("resp"));
    let arguments = ["-a", "user={client}", "--rule", "api", "--cost", "5", "-n", "40"];
    let report = run_bench(&[&[url.as_str(), "--clients", "4"], &arguments[..]].concat());
    assert_eq!(
        (report_count(&report, "allowed"), report_count(&report, "denied")),
        (4, 36),
        "{report}"
    );
}

#[test]
fn bench_counts_match_the_gateway() {
    let (upstream, folder) = (Upstream::start(), Folder::new());
    let rules =
        folder.file("rules.yaml", "rules: [{name: per-key, per: [api_key], limit: 5 per 10 days}]");
    let upstream = format!("http://{}", upstream.address());
    let server = Server::with_arguments(&[
        "--rules",
        &rules,
        "--http",
        "127.0.0.1:0",
        "--gateway",
        "127.0.0.1:0",
        "--upstream",
        &upstream,
    ]);
    let url = format!("http://{}/bytes/100?of={{client}}", server.listener("gateway"));
    let key = "X-API-Key: {client}";
    let report = run_bench(&["--get", &url, "-H", key, "-n", "100", "--clients", "5"]);
    assert_eq!(
        (report_count(&report, "allowed"), report_count(&report, "denied")),
        (25, 75),
        "{report}"
    );
    assert_same_counts(&server, "gateway", &report);
}

#[test]
fn bench_connects_with_tls_and_a_password() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let [ca, certificate, key] = [&certificates.ca, &certificates.certificate, &certificates.key]
        .map(|path| path.to_str().unwrap());
    let rules = folder.file("rules.yaml", RULES);
    let server = Server::with_config(&format!(
        "listen: {{http: '127.0.0.1:0'}}
rules: {{file: {rules}}}
resp: {{password: open-sesame}}
tls: {{certificate: {certificate}, key: {key}, listeners: [http, grpc, resp]}}"
    ));
    for (scheme, listener) in [("https", "http"), ("grpcs", "grpc"), ("resps", "resp")] {
        let mut command = tidegate();
        command.env("TIDEGATE_CA", ca).env("TIDEGATE_RESP_PASSWORD", "open-sesame");
        let url = format!("{scheme}://{}", server.listener(listener));
        command.args(["bench", &url, "--json", "--rule", "api", "-n", "50"]);
        let (status, report, notes) = exit_code_and_output(command.output().unwrap());
        assert_eq!(status, 0, "{notes}");
        let report = serde_json::from_str(&report).unwrap();
        assert_eq!(report_count(&report, "sent"), 50);
        assert_same_counts(&server, listener, &report);
    }
    let url = format!("resps://{}", server.listener("resp"));
    let mut command = tidegate();
    command.env("TIDEGATE_CA", ca).env("TIDEGATE_RESP_PASSWORD", "guess");
    let (status, _, notes) =
        exit_code_and_output(command.args(["bench", &url, "--rule", "api"]).output().unwrap());
    assert!(status == 2 && notes.contains("the password was rejected"), "{notes}");
}

#[test]
fn fixed_rate_sends_every_scheduled_request() {
    let server = start_server();
    let rate = ["--rule", "api", "--rate", "2000/s", "-n", "400", "--spread", "zipf"];
    let report = run_bench(&[&[server.url().as_str()], &rate[..]].concat());
    let schedule = &report["schedule"];
    assert_eq!(
        (report_count(schedule, "due"), report_count(schedule, "unsent")),
        (400, 0),
        "{report}"
    );
    assert_eq!(schedule["rate"], "2000 per second");
    assert!(schedule["behindMicros"]["max"].is_u64());
    assert_same_counts(&server, "http", &report);
}

#[test]
fn interrupted_bench_reports_the_results_so_far() {
    let server = start_server();
    let mut command = tidegate();
    command.args(["bench", &server.url(), "--rule", "api", "--for", "1h", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the bench has sent checks", || {
        (server_count(&server, "http", "denied") > 100).then_some(())
    });
    let id = child.id().to_string();
    assert!(
        Command::new("sh").args(["-c", &format!("kill -INT {id}")]).status().unwrap().success()
    );
    let (status, report, notes) = exit_code_and_output(child.wait_with_output().unwrap());
    assert_eq!(status, 0, "{notes}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["interrupted"], true);
    assert_same_counts(&server, "http", &report);
}

#[test]
fn text_report_has_counts_percentiles_and_histogram() {
    let server = start_server();
    let (status, report, notes) = run(&["bench", &server.url(), "--rule", "api", "-n", "50"]);
    assert_eq!((status, notes.as_str()), (0, ""));
    for text in ["16 connections, as fast as it answers", "allowed", "p99.9", "  < ", "#"] {
        assert!(report.contains(text), "{text}: {report}");
    }
}

#[test]
fn bench_without_any_decision_fails_with_the_reason() {
    let server = start_server();
    let (status, report, notes) = run(&["bench", &server.url(), "--rule", "nope", "-n", "20"]);
    assert_eq!(status, 2, "{notes}");
    assert!(report.contains("20 x status 404: ") && report.contains("nope"), "{report}");
    assert!(notes.contains("nothing was measured"), "{notes}");
    let unused = Port::free();
    for listener in ["http", "grpc", "resp"] {
        let url = format!("{listener}://127.0.0.1:{}", unused.number());
        let (status, _, notes) = run(&["bench", &url, "--rule", "api"]);
        assert_eq!(status, 2, "{notes}");
        assert!(notes.contains("can't connect") && notes.contains("hint: "), "{notes}");
    }
}

#[test]
fn remote_server_requires_yes_remote() {
    let (status, _, notes) = run(&["bench", "http://192.0.2.1:8080", "-n", "1"]);
    assert_eq!(status, 2);
    assert!(notes.contains("not on this machine") && notes.contains("--yes-remote"), "{notes}");
}
