//! `tidegate bench` against real listeners: what it counts is what the server counts.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_testkit::{Certificates, Port, Tool, Upstream, lacking, wait_for};

use crate::kit::{Folder, Server, run, shown, tidegate};

const RULES: &str = "
rules:
  - {name: api, per: [user], limit: 5 per 10 days}
";

fn server() -> Server {
    Server::with_rules(RULES)
}

/// How many checks of a listener had an answer, as the server tells it.
fn counted(server: &Server, listener: &str, answer: &str) -> u64 {
    let name = format!(r#"tidegate_checks_total{{listener="{listener}",answer="{answer}"}} "#);
    let metrics = server.manage("GET", "/metrics", "").body;
    metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

fn count(report: &Value, what: &str) -> u64 {
    report[what].as_u64().unwrap_or_else(|| panic!("no {what} in {report}"))
}

fn assert_same_counts(server: &Server, listener: &str, report: &Value) {
    for what in ["allowed", "denied", "unavailable"] {
        assert_eq!(
            count(report, what),
            counted(server, listener, what),
            "{listener} {what}: {report}"
        );
    }
}

/// What a bench that can measure found.
fn bench(arguments: &[&str]) -> Value {
    let (status, report, notes) =
        shown(tidegate().args(["bench", "--json"]).args(arguments).output().unwrap());
    assert_eq!(status, 0, "{notes}");
    serde_json::from_str(&report).unwrap()
}

#[test]
fn every_listener_is_counted_as_the_server_counts_it() {
    for listener in ["http", "grpc", "resp"] {
        let server = server();
        let url = format!("{listener}://{}", server.listener(listener));
        let report = bench(&[&url, "--rule", "api", "-n", "300", "--clients", "10", "-c", "7"]);
        assert_eq!((count(&report, "allowed"), count(&report, "denied")), (50, 250), "{report}");
        assert_eq!((count(&report, "sent"), count(&report, "failed")), (300, 0));
        assert_same_counts(&server, listener, &report);
        let bars = report["histogram"].as_array().unwrap().iter();
        assert_eq!(bars.map(|bar| count(bar, "count")).sum::<u64>(), 300);
        let micros = |name: &str| count(&report["latencyMicros"], name);
        let percentiles = ["p50", "p90", "p99", "p99.9", "max"].map(micros);
        assert!(percentiles.is_sorted() && percentiles[4] > 0, "{percentiles:?}");
    }
}

#[test]
fn attributes_are_checked_with_the_clients_name_in_them() {
    for listener in ["http", "grpc"] {
        let server = server();
        let url = format!("{listener}://{}", server.listener(listener));
        let report = bench(&[&url, "-a", "user={client}", "-n", "40", "--clients", "4"]);
        assert_eq!((count(&report, "allowed"), count(&report, "denied")), (20, 20), "{report}");
    }
    let server = server();
    let url = format!("resp://{}", server.listener("resp"));
    let arguments = ["-a", "user={client}", "--rule", "api", "--cost", "5", "-n", "40"];
    let report = bench(&[&[url.as_str(), "--clients", "4"], &arguments[..]].concat());
    assert_eq!((count(&report, "allowed"), count(&report, "denied")), (4, 36), "{report}");
}

#[test]
fn a_gateway_is_counted_as_it_counts_itself() {
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
    let report = bench(&["--get", &url, "-H", key, "-n", "100", "--clients", "5"]);
    assert_eq!((count(&report, "allowed"), count(&report, "denied")), (25, 75), "{report}");
    assert_same_counts(&server, "gateway", &report);
}

#[test]
fn listeners_with_tls_and_a_password_are_measured_too() {
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
        let (status, report, notes) = shown(command.output().unwrap());
        assert_eq!(status, 0, "{notes}");
        let report = serde_json::from_str(&report).unwrap();
        assert_eq!(count(&report, "sent"), 50);
        assert_same_counts(&server, listener, &report);
    }
    let url = format!("resps://{}", server.listener("resp"));
    let mut command = tidegate();
    command.env("TIDEGATE_CA", ca).env("TIDEGATE_RESP_PASSWORD", "guess");
    let (status, _, notes) =
        shown(command.args(["bench", &url, "--rule", "api"]).output().unwrap());
    assert!(status == 2 && notes.contains("the password was rejected"), "{notes}");
}

#[test]
fn a_schedule_is_kept_to_its_last_request() {
    let server = server();
    let rate = ["--rule", "api", "--rate", "2000/s", "-n", "400", "--spread", "zipf"];
    let report = bench(&[&[server.url().as_str()], &rate[..]].concat());
    let schedule = &report["schedule"];
    assert_eq!((count(schedule, "due"), count(schedule, "unsent")), (400, 0), "{report}");
    assert_eq!(schedule["rate"], "2000 per second");
    assert!(schedule["behindMicros"]["max"].is_u64());
    assert_same_counts(&server, "http", &report);
}

#[test]
fn who_interrupts_it_is_told_what_was_measured_so_far() {
    let server = server();
    let mut command = tidegate();
    command.args(["bench", &server.url(), "--rule", "api", "--for", "1h", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("some checks were made", || (counted(&server, "http", "denied") > 100).then_some(()));
    let id = child.id().to_string();
    assert!(
        Command::new("sh").args(["-c", &format!("kill -INT {id}")]).status().unwrap().success()
    );
    let (status, report, notes) = shown(child.wait_with_output().unwrap());
    assert_eq!(status, 0, "{notes}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["interrupted"], true);
    assert_same_counts(&server, "http", &report);
}

#[test]
fn a_report_for_people_has_counts_percentiles_and_bars() {
    let server = server();
    let (status, report, notes) = run(&["bench", &server.url(), "--rule", "api", "-n", "50"]);
    assert_eq!((status, notes.as_str()), (0, ""));
    for text in ["16 connections, as fast as it answers", "allowed", "p99.9", "  < ", "#"] {
        assert!(report.contains(text), "{text}: {report}");
    }
}

#[test]
fn what_could_not_be_measured_is_a_failure_that_says_why() {
    let server = server();
    let (status, report, notes) = run(&["bench", &server.url(), "--rule", "nope", "-n", "20"]);
    assert_eq!(status, 2, "{notes}");
    assert!(report.contains("20 x status 404: ") && report.contains("nope"), "{report}");
    assert!(notes.contains("nothing could be measured"), "{notes}");
    let nobody = Port::free();
    for listener in ["http", "grpc", "resp"] {
        let url = format!("{listener}://127.0.0.1:{}", nobody.number());
        let (status, _, notes) = run(&["bench", &url, "--rule", "api"]);
        assert_eq!(status, 2, "{notes}");
        assert!(notes.contains("can't connect") && notes.contains("hint: "), "{notes}");
    }
}

#[test]
fn a_server_elsewhere_is_left_alone_unless_told_otherwise() {
    let (status, _, notes) = run(&["bench", "http://192.0.2.1:8080", "-n", "1"]);
    assert_eq!(status, 2);
    assert!(notes.contains("not on this machine") && notes.contains("--yes-remote"), "{notes}");
}
