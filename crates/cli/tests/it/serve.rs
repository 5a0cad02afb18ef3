//! Starting and stopping.

use std::net::TcpStream;
use std::process::Command;

use serde_json::json;
use tidegate_testkit as testkit;

use crate::kit::{Folder, Server, run};

#[test]
fn a_taken_port_names_the_address_and_the_flag() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let address = server.address.to_string();
    let (code, stdout, stderr) = run(&["serve", "--http", &address]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        format!(
            "error: http can't listen on {address}: the address is already in use\n\
             hint: --http 127.0.0.1:0 takes any free port\n"
        )
    );
}

#[test]
fn a_taken_admin_port_names_its_own_flag() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let address = server.admin_url().replace("http://", "");
    let (code, stdout, stderr) =
        run(&["serve", "--http", "127.0.0.1:0", "--resp", "off", "--admin", &address]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        format!(
            "error: admin can't listen on {address}: the address is already in use\n\
             hint: --admin 127.0.0.1:0 takes any free port\n\
             hint: --admin off does without the listener\n"
        )
    );
}

#[test]
fn an_admin_listener_that_others_can_reach_needs_a_token() {
    let serve = ["serve", "--http", "127.0.0.1:0", "--resp", "off", "--admin", "0.0.0.0:0"];
    let (code, stdout, stderr) = run(&serve);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        "error: admin can't listen on 0.0.0.0:0 without a token: whoever reaches it could block anybody\n\
         hint: admin: {token: …} in the configuration sets one, or TIDEGATE_TOKEN\n\
         hint: --admin 127.0.0.1:9090 keeps the listener on this machine\n"
    );
    let mut command = crate::kit::tidegate();
    command.env("TIDEGATE_TOKEN", "too short").args(serve);
    let (code, _, stderr) = crate::kit::shown(command.output().unwrap());
    assert_eq!(code, 1);
    assert!(stderr.starts_with("TIDEGATE_TOKEN: must be letters, digits and signs"), "{stderr}");
    assert!(!stderr.contains("too short"), "{stderr}");
}

#[test]
fn nothing_to_serve_is_an_error() {
    let (code, stdout, stderr) = run(&["serve", "--http", "off", "--grpc", "off", "--resp", "off"]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        "error: every listener is off, there is nothing to serve\nhint: --http 127.0.0.1:8080 opens one\n"
    );
}

#[test]
fn an_address_that_is_none_is_refused_with_what_is_wanted() {
    for address in ["8080", ":8080", "127.0.0.1", "127.0.0.1:99999", "::1:8080", ""] {
        let (code, _, stderr) = run(&["serve", "--http", address]);
        assert_eq!(code, 2, "{address}");
        assert!(stderr.contains("must be an address like 127.0.0.1:8080, or off"), "{stderr}");
    }
}

#[test]
fn a_gateway_without_an_upstream_is_an_error_that_says_how_to_name_one() {
    let folder = Folder::new();
    let listen = folder.file("listen.yaml", "listen: {gateway: '127.0.0.1:0'}");
    let settings = folder.file("settings.yaml", "gateway: {max_wait: 5s}");
    for (arguments, place) in [
        (["--gateway", "127.0.0.1:0"], "--gateway"),
        (["--config", &listen], "listen.gateway"),
        (["--config", &settings], "gateway"),
    ] {
        let (code, stdout, stderr) = run(&[&["serve"], &arguments[..]].concat());
        assert_eq!((code, &*stdout), (2, ""));
        assert_eq!(
            stderr,
            format!(
                "error: {place}: an upstream is wanted, found none\n\
                 hint: --upstream http://127.0.0.1:3000 names one, as gateway.upstreams does in the \
                 configuration\n"
            )
        );
    }
}

#[test]
fn an_upstream_that_is_no_server_is_refused_and_its_password_not_shown() {
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
fn the_printed_curl_lines_work_when_pasted() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: there is no curl here");
        return;
    }
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    server.note("No rules were given, so these are enforced:");
    let paste = |line: &str| {
        let output = Command::new("sh").args(["-c", line.trim()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let one = server.note("curl -i ");
    let first = paste(&one);
    assert!(first.starts_with("HTTP/1.1 200 OK"), "{first}");
    assert!(first.contains("\r\nx-ratelimit-remaining: 4\r\n"), "{first}");
    // A machine may be too slow for six within ten seconds now and then, but not always.
    let six = server.note("for i in ");
    while !paste(&six).contains("429\n") {}
    let refused = loop {
        let again = paste(&one);
        if again.starts_with("HTTP/1.1 429 Too Many Requests") {
            break again;
        }
    };
    assert!(refused.contains("\r\nretry-after: "), "{refused}");
    assert!(refused.contains("\r\nx-ratelimit-remaining: 0\r\n"), "{refused}");
}

#[test]
fn a_request_under_way_is_answered_before_the_end() {
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
    // The server asks for the body once it handles the request.
    assert_eq!(busy.receive(false).status, 100);
    server.signal("TERM");
    server.note("told to stop");
    assert_eq!(idle.rest(), "");
    busy.write(body.as_bytes());
    assert_eq!(busy.receive(false).status, 200);
    assert_eq!(busy.rest(), "");
    assert_eq!(server.wait().code(), Some(0));
    server.note("every request under way was answered");
}

#[test]
fn an_interrupt_ends_an_idle_server_with_success() {
    let mut server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_server_that_is_told_to_stop_says_so_before_it_closes() {
    let config = "listen: {http: '127.0.0.1:0'}\ndrain: {delay: 1h}";
    let mut server = Server::with_config(config);
    assert_eq!(server.ask("GET", "/readyz", "").status, 200);
    let mut kept = server.connect();
    server.signal("TERM");
    server.note("told to stop");
    testkit::wait_for("the server to be unready", || {
        (server.ask("GET", "/readyz", "").status == 503).then_some(())
    });
    let said = server.ask("GET", "/readyz", "").body;
    assert_eq!(said, "not ready: it is about to stop\n");
    // Whoever has not noticed yet is still served, on connections old and new.
    assert_eq!(server.ask("GET", "/healthz", "").status, 200);
    assert_eq!(server.check(r#"{"attributes":{"ip":"192.0.2.7"}}"#).status, 200);
    kept.send("POST", "/v1/check", r#"{"attributes":{"ip":"192.0.2.7"}}"#);
    assert_eq!(kept.receive(false).status, 200);
    server.signal("TERM");
    assert_eq!(kept.rest(), "");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn log_lines_are_objects_when_asked_for() {
    let mut command = crate::kit::tidegate();
    command.env("TIDEGATE_LOG_FORMAT", "json").env("TIDEGATE_LOG", "debug");
    command.args(["serve", "--http", "127.0.0.1:0"]);
    let server = Server::launch_command(command);
    server.check(r#"{"rule":"per-key","client":"alice"}"#);
    let line: serde_json::Value = serde_json::from_str(&server.note("checked")).unwrap();
    assert_eq!(line["level"], "DEBUG");
    assert_eq!((&line["message"], &line["rule"]), (&json!("checked"), &json!("per-key")));
    assert_eq!(line["remaining"], 4);
}

#[test]
fn flags_beat_the_configuration_whose_paths_are_relative_to_it() {
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
fn rules_or_settings_that_are_wrong_are_told_with_file_and_line() {
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
fn the_log_says_what_was_decided_and_never_for_whom() {
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
        server.manage(method, "/v1/block", &body.to_string());
    }
    server.signal("TERM");
    let mut log = String::new();
    loop {
        let line = server.note("");
        log.push_str(&line);
        if line.contains("stopping") {
            break;
        }
    }
    assert!(log.contains("checked") && log.contains("per-key"), "{log}");
    assert!(
        log.contains("client blocked") && log.contains("client unblocked by operator"),
        "{log}"
    );
    assert!(!log.contains(secret), "{log}");
}

/// More connections than fit a backlog of 128, the default of the standard library.
const QUEUED_CONNECTIONS: usize = 500;

/// Connects while the server is stopped: only the kernel's queue has room for a connection.
fn connections_wait_to_be_accepted(listener: &str) {
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
fn http_connections_wait_to_be_accepted() {
    connections_wait_to_be_accepted("http");
}

#[test]
fn grpc_connections_wait_to_be_accepted() {
    connections_wait_to_be_accepted("grpc");
}

#[test]
fn resp_connections_wait_to_be_accepted() {
    connections_wait_to_be_accepted("resp");
}

#[test]
fn admin_connections_wait_to_be_accepted() {
    connections_wait_to_be_accepted("admin");
}

#[test]
fn gateway_connections_wait_to_be_accepted() {
    connections_wait_to_be_accepted("gateway");
}
