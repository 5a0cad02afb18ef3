//! The block list: the admin API, the `block` command, and the denials that blocked clients get.

use serde_json::{Value, json};

use crate::kit::{Folder, Response, Server, exit_code_and_output, run, tidegate};

const RULES: &str = "
rules:
  - name: login
    per: [ip]
    limit: 3 per 10 days
    penalty: {after: 2x, within: 10 days, block: 10m}
  - {name: per-key, per: [api_key], limit: 1000 per 10 days}
";

/// Returns the body of a check of a client with this address.
fn check_from(ip: &str) -> String {
    json!({"attributes": {"ip": ip, "api_key": "k1"}}).to_string()
}

fn block_entries(server: &Server) -> Vec<Value> {
    let list = server.request_admin("GET", "/v1/block", "");
    assert_eq!((list.status, list.header("content-type")), (200, Some("application/json")));
    assert_eq!(list.header("cache-control"), Some("no-store"));
    list.json()["entries"].as_array().unwrap().clone()
}

#[test]
fn client_with_many_denials_is_blocked_until_an_operator_unblocks_it() {
    let server = Server::with_rules(RULES);
    let statuses: Vec<u16> =
        (0..9).map(|_| server.check(&check_from("192.0.2.7")).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429, 429, 429]);
    let refused = server.check(&check_from("192.0.2.7"));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.header("x-ratelimit-limit"), None);
    let wait = refused.header("retry-after").unwrap();
    assert!((1..=600).contains(&wait.parse().unwrap()), "{wait}");
    assert_eq!(
        refused.body,
        format!(
            r#"{{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal usage detected","status":429,"detail":"blocked for going on after \"login\" had denied, try again in {wait} seconds","violated-policies":["login"],"allowed":false,"blocked":true,"retryAfter":{wait}}}"#
        )
    );
    // The block also applies to checks of another rule and to checks in a batch.
    let named = r#"{"rule":"per-key","client":"k1","attributes":{"ip":"192.0.2.7"}}"#;
    assert_eq!(server.check(named).json()["blocked"], true);
    let batch = json!({"checks": [{"attributes": {"ip": "192.0.2.7"}}, {"rule": "per-key", "client": "k1"}]});
    let batch = server.request("POST", "/v1/check/batch", &batch.to_string()).json();
    let first = &batch["decisions"][0];
    assert_eq!((&first["allowed"], &first["blocked"]), (&json!(false), &json!(true)));
    assert!(first["retryAfter"].is_u64() && first["limit"].is_null(), "{first}");
    assert_eq!(batch["decisions"][1]["allowed"], true);

    let [entry] = &block_entries(&server)[..] else { panic!("one entry is wanted") };
    assert_eq!(entry["id"], "192.0.2.7/32");
    assert_eq!((&entry["by"], &entry["rule"]), (&json!("penalty"), &json!("login")));
    let [until, added] = ["until", "added"].map(|field| entry[field].as_u64().unwrap());
    assert_eq!(until - added, 600);
    let unblocked = server.request_admin("DELETE", "/v1/block", r#"{"ip":"192.0.2.7"}"#);
    assert_eq!((unblocked.status, &unblocked.json()["id"]), (200, &entry["id"]));
    let denied = server.check(&check_from("192.0.2.7"));
    assert_eq!((denied.status, &denied.json()["rule"]), (429, &json!("login")));
    assert!(block_entries(&server).is_empty());
}

#[test]
fn operator_blocks_networks_and_clients() {
    let server = Server::with_rules(RULES);
    let add = |body: Value| server.request_admin("POST", "/v1/block", &body.to_string());
    let network = add(json!({"ip": "198.51.100.0/24", "for": "10m", "reason": "scans"}));
    assert_eq!(network.status, 200);
    let entry = network.json();
    assert_eq!(
        [&entry["id"], &entry["ip"], &entry["by"]],
        ["198.51.100.0/24", "198.51.100.0/24", "operator"]
    );
    assert_eq!((&entry["reason"], &entry["secondsLeft"]), (&json!("scans"), &json!(600)));
    let client = add(json!({"attribute": "api_key", "value": "sk-live-1", "for": "1 hour"})).json();
    let id = client["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("api_key#") && id.len() == 8 + 32, "{id}");
    assert_eq!((&client["attributes"], &client["ip"]), (&json!(["api_key"]), &Value::Null));
    add(json!({"attribute": "ip", "value": "198.51.101.0/24", "for": "1h"}));
    add(json!({"ip": "2001:db8::/32", "for": "1d"}));

    assert_eq!(server.check(&check_from("198.51.100.77")).json()["blocked"], true);
    assert_eq!(server.check(&check_from("::ffff:198.51.100.77")).json()["blocked"], true);
    assert_eq!(server.check(&check_from("198.51.99.77")).status, 200);
    let by_key = r#"{"rule":"per-key","client":"sk-live-1"}"#;
    assert_eq!(server.check(by_key).json()["blocked"], true);
    assert_eq!(server.check(r#"{"rule":"per-key","client":"sk-live-2"}"#).status, 200);

    let plain = server.request_admin("GET", "/v1/block?format=plain", "");
    assert_eq!(plain.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(plain.body, "198.51.100.0/23\n2001:db8::/32\n");
    let list = server.request_admin("GET", "/v1/block?format=json", "");
    assert!(!list.body.contains("sk-live"), "{list:?}");
    assert_eq!(block_entries(&server).len(), 4);

    let unblocked = server.request_admin("DELETE", "/v1/block", &json!({"id": id}).to_string());
    assert_eq!(unblocked.status, 200);
    assert_eq!(server.check(by_key).status, 200);
    // A second block of the same network replaces the first and extends it.
    let again = add(json!({"ip": "198.51.100.0/24", "for": "2h"})).json();
    assert_eq!((&again["secondsLeft"], block_entries(&server).len()), (&json!(7200), 3));
}

#[test]
fn allowed_client_is_never_limited_and_metrics_count_its_checks() {
    let server = Server::with_rules(RULES);
    let body =
        r#"{"attribute":"api_key","value":"k1","action":"allow","for":"1h","reason":"load test"}"#;
    let entry = server.request_admin("POST", "/v1/block", body).json();
    assert_eq!((&entry["action"], &entry["by"]), (&json!("allow"), &json!("operator")));
    let check = r#"{"rule":"per-key","client":"k1"}"#;
    for _ in 0..50 {
        let reply = server.check(check);
        assert_eq!((reply.status, &*reply.body), (200, r#"{"allowed":true,"allowListed":true}"#));
    }
    let listed = block_entries(&server);
    assert_eq!((listed.len(), &listed[0]["action"]), (1, &json!("allow")));
    let metrics = server.request_admin("GET", "/metrics", "").body;
    for sample in [
        "tidegate_checks_total{listener=\"http\",answer=\"allow_listed\"} 50",
        "tidegate_checks_total{listener=\"http\",answer=\"allowed\"} 0",
        "tidegate_allow_listed_clients 1",
        "tidegate_blocked_clients 0",
    ] {
        assert!(metrics.lines().any(|line| line == sample), "{sample}: {metrics}");
    }
    let live = server.request_admin("GET", "/v1/live", "").json();
    assert_eq!(live["blocked"], 0);
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let url = server.url();
    let explain = ["explain", "--rules", &rules, "--server", &url, "-a", "api_key=k1", "/"];
    let (_, stdout, _) = run(&explain);
    assert_eq!(stdout.matches("any, the client is on the allow list").count(), 2, "{stdout}");
    // A block by an operator applies to an allowed client.
    server.request_admin("POST", "/v1/block", r#"{"ip":"192.0.2.0/24","for":"1h"}"#);
    let from_network = r#"{"rule":"per-key","client":"k1","attributes":{"ip":"192.0.2.7"}}"#;
    assert_eq!(server.check(from_network).json()["blocked"], true);
    // Without the entry the whole limit is left, because nothing was counted.
    let id = json!({"id": entry["id"]}).to_string();
    assert_eq!(server.request_admin("DELETE", "/v1/block", &id).status, 200);
    assert_eq!(server.check(check).json()["remaining"], 999);
}

#[test]
fn block_list_exists_only_on_the_admin_listener() {
    let server = Server::with_rules(RULES);
    for method in ["GET", "POST", "DELETE"] {
        assert_eq!(
            server.request(method, "/v1/block", r#"{"ip":"192.0.2.7","for":"1h"}"#).status,
            404
        );
    }
    assert_eq!(server.request_admin("POST", "/v1/check", &check_from("192.0.2.7")).status, 404);
    assert!(block_entries(&server).is_empty());
}

#[test]
fn invalid_block_request_gets_where_found_and_wanted() {
    let server = Server::with_rules(RULES);
    let time = "a duration like 10m or 1 hour";
    let network = "an address or a network like 10.0.0.0/8";
    let fields = "ip, attribute, value, id, action, for or reason";
    let long = json!({"ip": "192.0.2.7", "for": "1h", "reason": "x".repeat(257)}).to_string();
    for (method, body, place, found, wanted) in [
        ("POST", "", "body", "nothing", "a JSON object"),
        (
            "POST",
            "[]",
            "body",
            "a list",
            "an object of ip, attribute, value, id, action, for or reason",
        ),
        ("POST", "{}", "body", "neither ip nor attribute", "one of them"),
        ("POST", r#"{"ip":"a","for":"1h"}"#, "ip", r#""a""#, network),
        ("POST", r#"{"ip":7,"for":"1h"}"#, "ip", "7", "a text"),
        (
            "POST",
            r#"{"ip":"10.0.0.1/8","for":"1h"}"#,
            "ip",
            r#""10.0.0.1/8""#,
            "no bits after the prefix, as in 10.0.0.0/8",
        ),
        (
            "POST",
            r#"{"ip":"0.0.0.0/0","for":"1h"}"#,
            "ip",
            r#""0.0.0.0/0""#,
            "a network with a prefix of at least 1 bit, because /0 contains all clients",
        ),
        (
            "POST",
            r#"{"ip":"192.0.2.7","action":"permit","for":"1h"}"#,
            "action",
            r#""permit""#,
            "block or allow",
        ),
        ("POST", r#"{"ip":"192.0.2.7"}"#, "for", "nothing", time),
        ("POST", r#"{"ip":"192.0.2.7","for":"soon"}"#, "for", r#""soon""#, time),
        ("POST", r#"{"ip":"192.0.2.7","for":"0s"}"#, "for", r#""0s""#, time),
        ("POST", r#"{"ip":"192.0.2.7","for":60}"#, "for", "60", "a text"),
        ("POST", r#"{"ip":"192.0.2.7","until":1}"#, "until", "an unknown field", fields),
        ("POST", r#"{"ip":"192.0.2.7","ip":"192.0.2.8"}"#, "ip", "it twice", "it once"),
        (
            "POST",
            r#"{"ip":"192.0.2.7","attribute":"user"}"#,
            "body",
            "both ip and another attribute",
            "one of them",
        ),
        (
            "POST",
            r#"{"attribute":"user","for":"1h"}"#,
            "value",
            "nothing",
            "the value of the attribute",
        ),
        (
            "POST",
            r#"{"value":"a","for":"1h"}"#,
            "attribute",
            "nothing",
            "the attribute of the value",
        ),
        (
            "POST",
            r#"{"attribute":"user","value":"","for":"1h"}"#,
            "value",
            "0 bytes",
            "1 to 8192 bytes",
        ),
        (
            "POST",
            r#"{"attribute":"","value":"a","for":"1h"}"#,
            "attribute",
            r#""""#,
            "1 to 128 bytes of text",
        ),
        (
            "POST",
            &long,
            "reason",
            "reason must be at most 256 bytes long, found 257",
            "at most 256 bytes on one line",
        ),
        (
            "DELETE",
            r#"{"ip":"192.0.2.7","for":"1h"}"#,
            "for",
            "an unknown field",
            "ip, attribute, value or id",
        ),
        (
            "DELETE",
            r#"{"ip":"192.0.2.7","id":"a"}"#,
            "body",
            "an id and other fields",
            "an id, or ip, or attribute and value",
        ),
    ] {
        let response = server.request_admin(method, "/v1/block", body);
        assert_eq!(response.status, 400, "{body}: {response:?}");
        let json = response.json();
        assert_eq!(
            [&json["where"], &json["found"], &json["wanted"]],
            [place, found, wanted],
            "{body}"
        );
    }
    let response = server.request_admin("GET", "/v1/block?format=xml", "");
    assert_eq!(response.json()["detail"], r#"format: found "xml", wanted json or plain"#);
    let long = json!({"ip": "x".repeat(20_000)}).to_string();
    assert_eq!(server.request_admin("POST", "/v1/block", &long).status, 413);
    let response = server.request_admin("PUT", "/v1/block", "");
    assert_eq!(
        (response.status, response.header("allow")),
        (405, Some("GET, HEAD, POST, DELETE, OPTIONS"))
    );
    let response = server.request_admin("GET", "/v1/blocks", "");
    // openapi.rs compares the whole list of paths with the OpenAPI document.
    let detail = response.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with(r#"path: found "/v1/blocks", wanted /, /metrics, "#), "{detail}");
    assert!(block_entries(&server).is_empty());
}

#[test]
fn removing_an_unlisted_address_names_the_blocked_network_that_contains_it() {
    let server = Server::with_rules(RULES);
    server.request_admin("POST", "/v1/block", r#"{"ip":"192.0.2.0/24","for":"1h"}"#);
    let remove = |body: &str| -> Response { server.request_admin("DELETE", "/v1/block", body) };
    let response = remove(r#"{"ip":"192.0.2.7"}"#);
    assert_eq!(response.status, 404);
    assert_eq!(
        response.json()["detail"],
        "192.0.2.7/32 is not on the list, but 192.0.2.0/24 is, which contains it"
    );
    for body in
        [r#"{"ip":"198.51.100.7"}"#, r#"{"id":"user#00"}"#, r#"{"attribute":"user","value":"a"}"#]
    {
        assert_eq!(remove(body).status, 404);
    }
    assert_eq!(block_entries(&server).len(), 1);
}

#[test]
fn foreign_host_or_origin_is_403() {
    let server = Server::with_rules(RULES);
    let body = r#"{"ip":"192.0.2.7","for":"1h"}"#;
    for headers in [
        "host: evil.example",
        "host: localhost\r\norigin: http://evil.example",
        "host: localhost\r\norigin: null",
    ] {
        let mut connection = server.connect_admin();
        let length = body.len();
        connection.write(
            format!(
                "POST /v1/block HTTP/1.1\r\n{headers}\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        );
        assert_eq!(connection.receive(false).status, 403, "{headers}");
    }
    assert!(block_entries(&server).is_empty());
}

#[test]
fn configured_token_is_required_for_every_path() {
    let server = Server::with_config(
        "listen: {http: 127.0.0.1:0}\nadmin: {token: 0123456789abcdef}\n\
         rules: {inline: [{name: api, per: [user], limit: 1 per day}]}\n",
    );
    let refused = server.request_admin("GET", "/v1/block", "");
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert!(!refused.body.contains("0123456789abcdef"), "{refused:?}");
    assert_eq!(server.request_admin("GET", "/nothing", "").status, 401);
    let block = |token: &str, arguments: &[&str]| {
        let mut command = tidegate();
        command.env("TIDEGATE_TOKEN", token).args(["block", "--server", &server.admin_url()]);
        exit_code_and_output(command.args(arguments).output().unwrap())
    };
    let (code, stdout, stderr) = block("another-token-0123", &["list"]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        "error: authorization: found another token, wanted Bearer and the token of this listener\n\
         hint: set TIDEGATE_TOKEN to the admin token\n"
    );
    assert_eq!(block("0123456789abcdef", &["add", "user=mallory"]).0, 0);
    let (code, stdout, _) = block("0123456789abcdef", &["list"]);
    assert_eq!(code, 0);
    assert!(
        stdout.starts_with("user#") && stdout.ends_with(" s left, by an operator\n"),
        "{stdout}"
    );
    assert!(!stdout.contains("mallory"), "{stdout}");
}

#[test]
fn block_command_adds_lists_and_removes_entries() {
    let server = Server::with_rules(RULES);
    let url = server.admin_url();
    let block = |arguments: &[&str]| run(&[&["block", "--server", &url], arguments].concat());
    let (code, stdout, stderr) = block(&["list"]);
    assert_eq!((code, &*stdout, &*stderr), (0, "", "no client is blocked or allowed\n"));

    let (code, stdout, stderr) =
        block(&["add", "192.0.2.0/24", "--for", "100 days", "--reason", "password guessing"]);
    assert_eq!((code, &*stderr), (0, "192.0.2.0/24 is blocked for 8640000 s\n"));
    let entry: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&entry["ip"], &entry["reason"]),
        (&json!("192.0.2.0/24"), &json!("password guessing"))
    );
    let (code, stdout, stderr) = block(&["add", "user=mallory"]);
    assert_eq!(code, 0);
    let client: Value = serde_json::from_str(&stdout).unwrap();
    let id = client["id"].as_str().unwrap();
    assert_eq!(stderr, format!("{id} is blocked for 3600 s\n"));
    while !server.check(&check_from("203.0.113.9")).body.contains("blocked") {}

    let (code, stdout, stderr) = block(&["list"]);
    assert_eq!((code, &*stderr), (0, "3 entries\n"));
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("192.0.2.0/24, blocked, 86"), "{stdout}");
    assert!(lines[0].ends_with(" s left, by an operator: password guessing"), "{stdout}");
    assert!(lines[1].starts_with("203.0.113.9/32, "), "{stdout}");
    assert!(lines[1].ends_with(" s left, by rule \"login\""), "{stdout}");
    assert!(lines[2].starts_with(id), "{stdout}");
    let (code, stdout, _) = block(&["list", "--plain"]);
    assert_eq!((code, &*stdout), (0, "192.0.2.0/24\n203.0.113.9/32\n"));
    let (code, stdout, _) = block(&["list", "--json"]);
    assert_eq!(code, 0);
    let list: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(list["entries"][2]["attributes"], json!(["user"]));
    assert!(!stdout.contains("mallory"), "{stdout}");

    let (code, _, stderr) = block(&["remove", "user=mallory"]);
    assert_eq!((code, stderr), (0, format!("{id} is no longer blocked\n")));
    assert_eq!(block(&["add", "user=mallory"]).0, 0);
    assert_eq!(block(&["remove", id]).0, 0);
    assert_eq!(block(&["remove", "203.0.113.9"]).0, 0);
    let (code, _, stderr) = block(&["remove", "203.0.113.9"]);
    assert_eq!(code, 1);
    assert_eq!(
        stderr,
        "error: 203.0.113.9/32 is not on the list\nhint: tidegate block list shows the blocked and allowed clients\n"
    );
    let (code, stdout, stderr) = block(&["add", "198.51.100.7", "--allow"]);
    assert_eq!((code, &*stderr), (0, "198.51.100.7/32 is allowed for 3600 s\n"), "{stdout}");
    let (_, stdout, _) = block(&["list"]);
    let line = stdout.lines().find(|line| line.starts_with("198.51.100.7/32")).unwrap();
    assert!(line.starts_with("198.51.100.7/32, allowed, 3"), "{stdout}");
    let (_, stdout, _) = block(&["list", "--plain"]);
    assert!(!stdout.contains("198.51.100.7"), "{stdout}");
    let checked = run(&["check", "--server", &server.url(), "login", "198.51.100.7"]);
    assert_eq!((checked.0, &*checked.2), (0, "allowed, the client is on the allow list\n"));
    let (code, _, stderr) = block(&["remove", "198.51.100.7"]);
    assert_eq!((code, &*stderr), (0, "198.51.100.7/32 is no longer allowed\n"));
    let (code, _, stderr) = block(&["add", "192.0.2.7/24"]);
    assert_eq!(code, 1);
    assert_eq!(
        stderr,
        "error: ip: found \"192.0.2.7/24\", wanted no bits after the prefix, as in 192.0.2.0/24\n"
    );
}

#[test]
fn block_command_hints_at_the_admin_listener() {
    let server = Server::with_rules(RULES);
    let (code, _, stderr) = run(&["block", "list", "--server", &server.url()]);
    assert_eq!(code, 2);
    assert!(stderr.contains("hint: use the URL of the admin listener"), "{stderr}");
    // The system does not assign a port that was just closed to another socket.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, _, stderr) = run(&["block", "list", "--server", &format!("http://{address}")]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with(&format!("error: {address} can't be reached")), "{stderr}");
    for command in ["add", "remove", "list"] {
        let (code, stdout, _) = run(&["block", command, "--help"]);
        assert_eq!(code, 0);
        assert!(stdout.contains("--server <URL>"), "{stdout}");
    }
}

#[test]
fn check_and_explain_report_a_blocked_client() {
    let server = Server::with_rules(RULES);
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    server.request_admin("POST", "/v1/block", r#"{"ip":"192.0.2.7","for":"100 days"}"#);
    let (code, stdout, stderr) = run(&["check", "login", "192.0.2.7", "--server", &server.url()]);
    assert_eq!(code, 1);
    assert!(stdout.contains("\"blocked\":true"), "{stdout}");
    assert!(stderr.starts_with("denied, the client is blocked, try again in 86"), "{stderr}");
    let (code, stdout, _) =
        run(&["explain", "--rules", &rules, "--server", &server.url(), "-a", "ip=192.0.2.7", "/"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("  left     nothing, the client is blocked for 86"), "{stdout}");
}
