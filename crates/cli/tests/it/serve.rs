//! `tidegate serve`: arguments, start, logs, connections and stop.

use std::net::TcpStream;
use std::process::Command;

use serde_json::json;
use tidegate_testkit as testkit;

use crate::kit::{Folder, Server, run};

#[test]
fn error_of_a_used_port_names_the_address_and_the_flag() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let address = server.address.to_string();
    let (code, stdout, stderr) = run(&["serve", "--http", &address]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        format!(
            "error: http can't listen on {address}: the address is already in use\n\
             hint: --http 127.0.0.1:0 uses any free port\n"
        )
    );
}

#[test]
fn error_of_a_used_admin_port_names_its_flag() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let address = server.admin_url().replace("http://", "");
    let (code, stdout, stderr) =
        run(&["serve", "--http", "127.0.0.1:0", "--resp", "off", "--admin", &address]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        format!(
            "error: admin can't listen on {address}: the address is already in use\n\
             hint: --admin 127.0.0.1:0 uses any free port\n\
             hint: --admin off disables the listener\n"
        )
    );
}

#[test]
fn admin_listener_on_a_public_address_needs_a_token() {
    let serve = ["serve", "--http", "127.0.0.1:0", "--resp", "off", "--admin", "0.0.0.0:0"];
    let (code, stdout, stderr) = run(&serve);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        "error: admin can't listen on 0.0.0.0:0 without a token: any machine could change rules and blocks\n\
         hint: set admin: {token: …} in the configuration, or TIDEGATE_TOKEN\n\
         hint: --admin 127.0.0.1:9090 accepts only connections of this machine\n"
    );
    let mut command = crate::kit::tidegate();
    command.env("TIDEGATE_TOKEN", "too short").args(serve);
    let (code, _, stderr) = crate::kit::exit_code_and_output(command.output().unwrap());
    assert_eq!(code, 1);
    assert!(stderr.starts_with("TIDEGATE_TOKEN: must be letters, digits and signs"), "{stderr}");
    assert!(!stderr.contains("too short"), "{stderr}");
}

#[test]
fn start_without_any_listener_is_an_error() {
    let (code, stdout, stderr) = run(&["serve", "--http", "off", "--grpc", "off", "--resp", "off"]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        "error: every listener is off, at least one is wanted\nhint: --http 127.0.0.1:8080 opens the HTTP listener\n"
    );
}

#[test]
fn error_of_an_invalid_address_names_the_wanted_form() {
    for address in ["8080", ":8080", "127.0.0.1", "127.0.0.1:99999", "::1:8080", ""] {
        let (code, _, stderr) = run(&["serve", "--http", address]);
        assert_eq!(code, 2, "{address}");
        assert!(stderr.contains("must be an address like 127.0.0.1:8080, or off"), "{stderr}");
    }
}

#[test]
fn gateway_without_an_upstream_is_an_error_with_a_hint() {
    let folder = Folder::new();
    let listen = folder.file("listen.yaml", "listen: {gateway: '127.0.0.1:0'}");
    let settings = folder.file("settings.yaml", "gateway: {max_wait: 5s}");
    for (arguments, setting) in [
        (["--gateway", "127.0.0.1:0"], "--gateway"),
        (["--config", &listen], "listen.gateway"),
        (["--config", &settings], "gateway"),
    ] {
        let (code, stdout, stderr) = run(&[&["serve"], &arguments[..]].concat());
        assert_eq!((code, &*stdout), (2, ""));
        assert_eq!(
            stderr,
            format!(
                "error: {setting}: an upstream is wanted, found none\n\
                 hint: name one with --upstream http://127.0.0.1:3000, or with gateway.upstreams in the \
                 configuration\n"
            )
        );
    }
}

#[test]
fn error_of_an_invalid_upstream_hides_the_password() {
    for (url, found) in [
        ("127.0.0.1:3000", "127.0.0.1:3000"),
        ("http://127.0.0.1:3000/api", "http://127.0.0.1:3000/api"),
        ("http://ann:hunter2@127.0.0.1", "a URL with a user"),
    ] {
        let (code, stdout, stderr) = run(&["serve", "--gateway", "off", "--upstream", url]);
        assert_eq!((code, &*stdout), (2, ""));
        let wanted = "must be a URL like http://127.0.0.1:3000, https:// or h2c://";
        assert_eq!(stderr, format!("error: --upstream: {wanted}, found \"{found}\"\n"));
    }
}

#[test]
fn printed_curl_commands_work() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: there is no curl here");
        return;
    }
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    server.wait_for_log("No --rules, serving sample rules:");
    let run_in_shell = |line: &str| {
        let output = Command::new("sh").args(["-c", line.trim()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let single_command = server.wait_for_log("curl -i ");
    let first = run_in_shell(&single_command);
    assert!(first.starts_with("HTTP/1.1 200 OK"), "{first}");
    assert!(first.contains("\r\nx-ratelimit-remaining: 4\r\n"), "{first}");
    // A slow machine may need more than ten seconds for six requests, so this is repeated.
    let loop_command = server.wait_for_log("for i in ");
    while !run_in_shell(&loop_command).contains("429\n") {}
    let denied = loop {
        let again = run_in_shell(&single_command);
        if again.starts_with("HTTP/1.1 429 Too Many Requests") {
            break again;
        }
    };
    assert!(denied.contains("\r\nretry-after: "), "{denied}");
    assert!(denied.contains("\r\nx-ratelimit-remaining: 0\r\n"), "{denied}");
}

#[test]
fn request_in_flight_is_answered_before_the_exit() {
    let mut server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut idle = server.connect();
    idle.send("GET", "/healthz", "");
    assert_eq!(idle.receive(false).status, 200);
    let body = r#"{"rule":"global"}"#;
    let mut busy = server.connect();
    let length = body.len();
    busy.write(
        format!(
            "POST /v1/check HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        )
        .as_bytes(),
    );
    // The server sends 100 Continue once it handles the request.
    assert_eq!(busy.receive(false).status, 100);
    server.signal("TERM");
    server.wait_for_log("stop signal");
    assert_eq!(idle.read_to_end(), "");
    busy.write(body.as_bytes());
    assert_eq!(busy.receive(false).status, 200);
    assert_eq!(busy.read_to_end(), "");
    assert_eq!(server.wait().code(), Some(0));
    server.wait_for_log("all requests completed");
}

#[test]
fn sigint_stops_an_idle_server_with_exit_code_0() {
    let mut server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn stopping_server_is_not_ready_but_serves_until_a_second_signal() {
    let config = "listen: {http: '127.0.0.1:0'}\ndrain: {delay: 1h}";
    let mut server = Server::with_config(config);
    assert_eq!(server.request("GET", "/readyz", "").status, 200);
    let mut open_connection = server.connect();
    server.signal("TERM");
    server.wait_for_log("stop signal");
    testkit::wait_for("the server to be unready", || {
        (server.request("GET", "/readyz", "").status == 503).then_some(())
    });
    let body = server.request("GET", "/readyz", "").body;
    assert_eq!(body, "not ready: it is about to stop\n");
    // Until the delay ends, requests are served on old and new connections.
    assert_eq!(server.request("GET", "/healthz", "").status, 200);
    assert_eq!(server.check(r#"{"attributes":{"ip":"192.0.2.7"}}"#).status, 200);
    open_connection.send("POST", "/v1/check", r#"{"attributes":{"ip":"192.0.2.7"}}"#);
    assert_eq!(open_connection.receive(false).status, 200);
    server.signal("TERM");
    assert_eq!(open_connection.read_to_end(), "");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn json_log_format_writes_objects() {
    let mut command = crate::kit::tidegate();
    command.env("TIDEGATE_LOG_FORMAT", "json").env("TIDEGATE_LOG", "debug");
    command.args(["serve", "--http", "127.0.0.1:0"]);
    let server = Server::launch_command(command);
    server.check(r#"{"rule":"per-key","client":"alice"}"#);
    let line: serde_json::Value = serde_json::from_str(&server.wait_for_log("checked")).unwrap();
    assert_eq!(line["level"], "DEBUG");
    assert_eq!((&line["message"], &line["rule"]), (&json!("checked"), &json!("per-key")));
    assert_eq!(line["remaining"], 4);
}

#[test]
fn flags_take_precedence_and_configured_paths_are_relative_to_the_file() {
    let folder = Folder::new();
    folder.file("rules.yaml", "rules: [{name: of-file, limit: 5 per day}]");
    let other = folder.file("other.yaml", "rules: [{name: of-flag, limit: 5 per day}]");
    let config = folder.file(
        "tidegate.yaml",
        "listen: {http: off, grpc: off}\nstore: {memory: {max_keys: 1000}}\nrules: {file: rules.yaml}\n",
    );
    let base = ["--config", &config, "--http", "127.0.0.1:0"];
    let server = Server::with_arguments(&base);
    assert_eq!(server.check(r#"{"rule":"of-file"}"#).json()["remaining"], 4);
    let server = Server::with_arguments(&[&base[..], &["--rules", &other]].concat());
    assert_eq!(server.check(r#"{"rule":"of-flag"}"#).json()["remaining"], 4);
    assert_eq!(server.check(r#"{"rule":"of-file"}"#).status, 404);
}

#[test]
fn errors_in_rules_and_settings_name_file_and_line() {
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", "rules:\n  - name: api\n    limit: 5 per fortnight\n");
    let (code, stdout, stderr) = run(&["serve", "--rules", &rules]);
    assert_eq!((code, &*stdout), (1, ""));
    assert!(stderr.starts_with(&format!("{rules}:3: rule \"api\": unit of time")), "{stderr}");
    let config = folder.file("tidegate.yaml", "listen:\n  htpp: off\n");
    let (code, _, stderr) = run(&["serve", "--config", &config]);
    assert_eq!(code, 1);
    let keys = "http, grpc, resp, admin, gateway (did you mean http?)";
    assert_eq!(stderr, format!("{config}:2: there is no key \"htpp\", wanted {keys}\n"));
    let (code, _, stderr) = run(&["serve", "--rules", folder.path()]);
    assert_eq!(code, 2);
    let path = folder.path();
    assert_eq!(stderr, format!("error: {path}: a file is wanted, found a directory\n"));
}

#[test]
fn log_contains_decisions_but_no_client_keys() {
    let mut command = crate::kit::tidegate();
    let folder = Folder::new();
    let rules = folder.file(
        "rules.yaml",
        "rules: [{name: per-key, per: [api_key], limit: 1 per day, penalty: {after: 2, within: 1d, block: 1d}}]",
    );
    command.env("TIDEGATE_LOG", "trace");
    command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules]);
    let server = Server::launch_command(command);
    let secret = "sk-live-0123456789";
    for body in [
        json!({"attributes": {"api_key": secret, "ip": "192.0.2.7"}}),
        json!({"rule": "per-key", "client": secret, "cost": 6}),
        json!({"rule": "per-key", "client": secret, "cost": -6}),
        json!({"rule": secret, "client": secret}),
        json!({"attributes": {"api_key": secret, "ip": "192.0.2.7"}}),
        json!({"attributes": {"api_key": secret, "ip": "192.0.2.7"}}),
    ] {
        server.check(&body.to_string());
    }
    for (method, body) in [
        ("GET", json!(null)),
        ("POST", json!({"attribute": "api_key", "value": secret, "for": "1h"})),
        ("POST", json!({"attribute": "api_key", "value": secret, "for": secret})),
        ("DELETE", json!({"attribute": "api_key", "value": secret})),
        ("DELETE", json!({"attribute": "api_key", "value": secret})),
    ] {
        server.request_admin(method, "/v1/block", &body.to_string());
    }
    server.signal("TERM");
    let mut log = String::new();
    loop {
        let line = server.wait_for_log("");
        log.push_str(&line);
        if line.contains("stopping") {
            break;
        }
    }
    assert!(log.contains("checked") && log.contains("per-key"), "{log}");
    assert!(
        log.contains("block list entry added by operator")
            && log.contains("block list entry removed by operator"),
        "{log}"
    );
    assert!(!log.contains(secret), "{log}");
}

/// Exceeds a backlog of 128, the default of the standard library.
const QUEUED_CONNECTIONS: usize = 500;

/// Opens connections to a frozen server: the kernel must queue all of them.
fn assert_connections_are_queued(listener: &str) {
    let upstream = testkit::Upstream::start();
    let server = Server::with_arguments(&[
        "--http",
        "127.0.0.1:0",
        "--gateway",
        "127.0.0.1:0",
        "--upstream",
        &upstream.url(),
    ]);
    let address = server.listener(listener);
    server.freeze();
    let connections: Vec<TcpStream> = (0..QUEUED_CONNECTIONS)
        .map(|number| {
            let connected = TcpStream::connect_timeout(&address, testkit::WAIT_TIMEOUT);
            connected.unwrap_or_else(|error| panic!("{listener}: connection {number}: {error}"))
        })
        .collect();
    assert_eq!(connections.len(), QUEUED_CONNECTIONS);
}

#[test]
fn http_listener_queues_500_connections() {
    assert_connections_are_queued("http");
}

#[test]
fn grpc_listener_queues_500_connections() {
    assert_connections_are_queued("grpc");
}

#[test]
fn resp_listener_queues_500_connections() {
    assert_connections_are_queued("resp");
}

#[test]
fn admin_listener_queues_500_connections() {
    assert_connections_are_queued("admin");
}

#[test]
fn gateway_listener_queues_500_connections() {
    assert_connections_are_queued("gateway");
}
