//! The admin API: rules, usage of clients, refunds, top clients, block list, token and Lab.

use serde_json::{Value, json};

use crate::kit::{Response, Server};

const RULES: &str = "
rules:
  - {name: per-ip, per: [ip], limit: 5 per 10 days}
  - {name: per-key, per: [api_key], limit: 3 per 10 days, match: {api_key: [sk-live-1, sk-live-2]}}
  - {name: per-page, per: [ip, path], limit: 4 per 10 days, mode: shadow}
  - {name: either, match: {path: /either}, per: [user | ip], limit: 2 per 10 days}
  - {name: all, match: {path: /all}, limit: 9 per 10 days}
";

fn read_json(server: &Server, path: &str) -> Value {
    let response = server.request_admin("GET", path, "");
    assert_eq!(response.status, 200, "{path}: {response:?}");
    assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
    response.json()
}

fn spend_tokens(server: &Server, rule: &str, client: &Value, times: usize) {
    let body = json!({"rule": rule, "client": client}).to_string();
    for _ in 0..times {
        server.check(&body);
    }
}

/// Returns the status and the `detail` of an error response.
fn status_and_detail(response: &Response) -> (u16, String) {
    (response.status, response.json()["detail"].as_str().unwrap().to_owned())
}

#[test]
fn reading_a_client_charges_nothing_and_delete_resets_its_usage() {
    let server = Server::with_rules(RULES);
    let path = "/v1/clients/per-ip/192.0.2.7";
    spend_tokens(&server, "per-ip", &json!("192.0.2.7"), 7);
    for _ in 0..3 {
        let client = read_json(&server, path);
        assert_eq!(client["rule"], "per-ip");
        assert_eq!(
            (&client["id"], &client["client"]),
            (&json!("192.0.2.7/32"), &json!("192.0.2.7"))
        );
        assert_eq!((&client["limit"], &client["remaining"]), (&json!(5), &json!(0)));
        assert_eq!(client["allowed"], false);
        assert!(client["resetTime"].as_u64().unwrap() > 1_700_000_000, "{client}");
        assert!(client["retryAfter"].as_u64().unwrap() > 0, "{client}");
    }
    let reset = server.request_admin("DELETE", path, "");
    assert_eq!((reset.status, &reset.json()["remaining"]), (200, &json!(5)));
    let line = server.wait_for_log("client reset by operator");
    assert!(line.contains("192.0.2.7/32") && line.contains("127.0.0.1:"), "{line}");
    assert_eq!(server.check(r#"{"rule":"per-ip","client":"192.0.2.7"}"#).status, 200);
    assert_eq!(read_json(&server, path)["remaining"], 4);
}

#[test]
fn client_with_several_attributes_is_addressed_by_json_object_or_query() {
    let server = Server::with_rules(RULES);
    spend_tokens(&server, "per-page", &json!({"ip": "192.0.2.7", "path": "/a b&c"}), 1);
    let object = "%7B%22ip%22%3A%22192.0.2.7%22%2C%22path%22%3A%22%2Fa%20b%26c%22%7D";
    for path in [
        format!("/v1/clients/per-page/{object}"),
        "/v1/clients/per-page?ip=192.0.2.7&path=/a+b%26c".to_owned(),
        "/v1/clients/per-page?path=%2Fa%20b%26c&ip=192.0.2.7".to_owned(),
    ] {
        let client = read_json(&server, &path);
        assert_eq!((&client["limit"], &client["remaining"]), (&json!(4), &json!(3)), "{path}");
        assert_eq!(client["client"], json!({"ip": "192.0.2.7", "path": "/a b&c"}));
    }
    // A rule per `user | ip` is addressed by its second attribute, and a rule with one bucket by none.
    spend_tokens(&server, "either", &json!({"ip": "192.0.2.7"}), 1);
    assert_eq!(read_json(&server, "/v1/clients/either?ip=192.0.2.7")["remaining"], 1);
    assert_eq!(read_json(&server, "/v1/clients/either/192.0.2.7")["remaining"], 2);
    spend_tokens(&server, "all", &json!("anybody"), 2);
    let all = read_json(&server, "/v1/clients/all");
    assert_eq!((&all["remaining"], &all["id"]), (&json!(7), &Value::Null));
}

#[test]
fn api_key_can_be_looked_up_but_is_never_shown_or_logged() {
    let server = Server::with_rules(RULES);
    spend_tokens(&server, "per-key", &json!("sk-live-1"), 2);
    let read = server.request_admin("GET", "/v1/clients/per-key/sk-live-1", "");
    let client = read.json();
    assert_eq!((&client["remaining"], &client["client"]), (&json!(1), &Value::Null));
    assert!(client["id"].as_str().unwrap().starts_with("api_key#"), "{client}");
    assert_eq!(server.request_admin("DELETE", "/v1/clients/per-key/sk-live-1", "").status, 200);
    let line = server.wait_for_log("client reset by operator");
    assert!(line.contains(client["id"].as_str().unwrap()), "{line}");
    for text in [&read.body, &line] {
        assert!(!text.contains("sk-live"), "{text}");
    }
}

#[test]
fn client_values_with_special_characters_are_plain_text() {
    let server = Server::with_rules(RULES);
    for value in ["{\"ip\":\"1\"}", "../../rules", "<script>", "a/b%2f", "%00", "💧", "'; --"] {
        spend_tokens(&server, "per-key", &json!(value), 1);
        let escaped: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let response = server.request_admin("GET", &format!("/v1/clients/per-key/{escaped}"), "");
        assert_eq!(response.status, 200, "{value}: {response:?}");
        assert_eq!(response.json()["remaining"], 2, "{value}");
        assert_eq!(response.header("content-type"), Some("application/json"));
    }
}

#[test]
fn refund_restores_tokens_up_to_the_limit() {
    let server = Server::with_rules(RULES);
    spend_tokens(&server, "per-ip", &json!("192.0.2.7"), 4);
    let refund = |body: Value| server.request_admin("POST", "/v1/refund", &body.to_string());
    let refunded = refund(json!({"rule": "per-ip", "client": "192.0.2.7", "cost": 3}));
    assert_eq!((refunded.status, &refunded.json()["remaining"]), (200, &json!(4)));
    let line = server.wait_for_log("client refunded by operator");
    assert!(line.contains("192.0.2.7/32") && line.contains('3'), "{line}");
    let refunded = refund(json!({"rule": "per-ip", "client": "192.0.2.7", "cost": 1_000_000}));
    assert_eq!((refunded.status, &refunded.json()["remaining"]), (200, &json!(5)));
    let refunded = refund(json!({"rule": "per-ip", "client": "192.0.2.7"}));
    assert_eq!((refunded.status, &refunded.json()["remaining"]), (200, &json!(5)));
    for (body, status, detail) in [
        (json!({"client": "a"}), 400, "rule: found nothing, wanted the name of a rule"),
        (
            json!({"rule": "per-ip", "client": "::1", "cost": 0}),
            400,
            "cost: found 0, wanted the tokens to refund, 1 or more",
        ),
        (
            json!({"rule": "per-ip", "client": "::1", "cost": -1}),
            400,
            "cost: found -1, wanted a whole number from 0 to 18446744073709551615",
        ),
        (
            json!({"rule": "nope", "client": "a"}),
            404,
            "rule: found \"nope\", wanted one of per-ip, per-key, per-page, either, all",
        ),
        (
            json!({"rule": "per-page", "client": "a"}),
            400,
            "client: found a text, wanted an object with ip and path, by which rule \"per-page\" counts",
        ),
    ] {
        assert_eq!(status_and_detail(&refund(body)), (status, detail.to_owned()));
    }
}

#[test]
fn invalid_admin_requests_get_400_404_or_405_with_a_detail() {
    let server = Server::with_rules(RULES);
    for (path, status, detail) in [
        ("/v1/clients/", 400, "rule: found \"\", wanted /v1/clients/RULE/CLIENT"),
        (
            "/v1/clients/nope/a",
            404,
            "rule: found \"nope\", wanted one of per-ip, per-key, per-page, either, all",
        ),
        (
            "/v1/clients/per-ip",
            400,
            "client: found nothing, wanted the value of ip, by which rule \"per-ip\" counts",
        ),
        (
            "/v1/clients/per-ip/a?ip=b",
            400,
            "query: found a client, as in the path, wanted one of them",
        ),
        (
            "/v1/clients/per-page?ip=::1&user=a",
            400,
            "client.user: found a value, wanted an object with ip and path, by which rule \"per-page\" counts",
        ),
        (
            "/v1/clients/per-ip/%ff",
            400,
            "client: found bytes that are no text, wanted text in UTF-8",
        ),
        ("/v1/top?by=size", 400, "by: found \"size\", wanted traffic or denials"),
        ("/v1/top?limit=0", 400, "limit: found \"0\", wanted a whole number from 1 to 1000"),
        ("/v1/top?top=1", 400, "query: found \"top\", wanted by, rule or limit"),
    ] {
        assert_eq!(
            status_and_detail(&server.request_admin("GET", path, "")),
            (status, detail.to_owned()),
            "{path}"
        );
    }
    for (method, path, allowed) in [
        ("POST", "/v1/clients/per-ip/a", "GET, HEAD, DELETE, OPTIONS"),
        ("GET", "/v1/refund", "POST, OPTIONS"),
        ("POST", "/v1/rules", "GET, HEAD, PUT, OPTIONS"),
        ("PUT", "/v1/rules/diff", "GET, HEAD, POST, OPTIONS"),
        ("POST", "/v1/rules/status", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/top", "GET, HEAD, OPTIONS"),
        ("DELETE", "/metrics", "GET, HEAD, OPTIONS"),
    ] {
        let response = server.request_admin(method, path, "");
        assert_eq!((response.status, response.header("allow")), (405, Some(allowed)), "{path}");
    }
}

#[test]
fn active_rules_are_listed_without_secret_values() {
    let server = Server::with_rules(RULES);
    let response = server.request_admin("GET", "/v1/rules", "");
    let rules = response.json();
    let version = format!("{}.{}", rules["version"], rules["hash"].as_str().unwrap());
    assert_eq!(response.header("etag"), Some(&*format!("\"{version}\"")));
    assert_eq!(
        rules["rules"][0],
        json!({
            "name": "per-ip",
            "mode": "enforce",
            "match": [],
            "per": ["ip"],
            "limit": "5 per 10 days (token_bucket)",
            "algorithm": "token_bucket",
            "bound": "at most 10 in any 10 days",
            "accuracy": "exact",
            "onStoreFailure": "allow",
            "callerRefunds": "deny"
        })
    );
    assert_eq!(
        rules["rules"][1]["match"],
        json!([{"attribute": "api_key", "wanted": "one of 2 values that are not shown"}])
    );
    assert_eq!(rules["rules"][2]["mode"], "shadow");
    assert_eq!(rules["rules"][3]["match"], json!([{"attribute": "path", "wanted": "\"/either\""}]));
    assert_eq!(rules["rules"][3]["per"], json!(["user | ip"]));
    assert!(!response.body.contains("sk-live"), "{response:?}");
    // A client that sends the current ETag gets 304.
    let mut connection = server.connect_admin();
    let headers = format!("host: localhost\r\nif-none-match: \"{version}\"");
    connection.write(format!("GET /v1/rules HTTP/1.1\r\n{headers}\r\n\r\n").as_bytes());
    assert_eq!(connection.receive(true).status, 304);
}

#[test]
fn top_clients_can_be_looked_up_and_blocked_by_their_id() {
    let server = Server::with_rules(RULES);
    for (ip, times) in [("192.0.2.1", 2), ("192.0.2.2", 9), ("192.0.2.3", 6)] {
        spend_tokens(&server, "per-ip", &json!(ip), times);
    }
    spend_tokens(&server, "per-key", &json!("sk-live-1"), 4);
    let top = |query: &str| read_json(&server, &format!("/v1/top{query}"));
    let clients = top("?rule=per-ip&limit=2");
    assert_eq!(clients["by"], "traffic");
    assert!((60..=120).contains(&clients["seconds"].as_u64().unwrap()), "{clients}");
    assert_eq!(
        clients["clients"],
        json!([
            {"rule": "per-ip", "id": "192.0.2.2/32", "client": "192.0.2.2", "requests": 9, "atLeast": 9},
            {"rule": "per-ip", "id": "192.0.2.3/32", "client": "192.0.2.3", "requests": 6, "atLeast": 6},
        ])
    );
    let denied = top("?by=denials")["clients"].as_array().unwrap().clone();
    let counts: Vec<u64> = denied.iter().map(|row| row["denials"].as_u64().unwrap()).collect();
    assert_eq!(counts, [4, 1, 1]);
    let secret = denied.iter().find(|row| row["rule"] == "per-key").unwrap();
    assert_eq!(secret["client"], Value::Null);
    assert!(!top("").to_string().contains("sk-live"));

    // Each row contains the path of its client and the id for a block.
    let row = &clients["clients"][0];
    let path = format!(
        "/v1/clients/{}/{}",
        row["rule"].as_str().unwrap(),
        row["client"].as_str().unwrap()
    );
    assert_eq!(read_json(&server, &path)["remaining"], 0);
    for row in [row, secret] {
        let body = json!({"id": row["id"], "for": "10m"}).to_string();
        let blocked = server.request_admin("POST", "/v1/block", &body);
        assert_eq!((blocked.status, &blocked.json()["id"]), (200, &row["id"]));
    }
    for (rule, client) in [("per-ip", "192.0.2.2"), ("per-key", "sk-live-1")] {
        let body = json!({"rule": rule, "client": client}).to_string();
        assert_eq!(server.check(&body).json()["blocked"], true, "{rule}");
    }
    let blocked = read_json(&server, &path);
    assert_eq!((&blocked["blocked"], &blocked["remaining"]), (&json!(true), &json!(0)));
    let wrong = server.request_admin("POST", "/v1/block", r#"{"id":"api_key#12","for":"1h"}"#);
    assert_eq!(
        status_and_detail(&wrong),
        (
            400,
            r##"id: found "api_key#12", wanted an id as /v1/top and /v1/block show it"##.to_owned()
        )
    );
}

#[test]
fn block_list_is_paginated() {
    let server = Server::with_rules(RULES);
    for subject in [
        json!({"ip": "192.0.2.0/24"}),
        json!({"ip": "198.51.100.7"}),
        json!({"ip": "2001:db8::/32"}),
        json!({"attribute": "user", "value": "mallory"}),
        json!({"attribute": "api_key", "value": "sk-live-1"}),
    ] {
        let mut body = subject;
        body["for"] = json!("1h");
        assert_eq!(server.request_admin("POST", "/v1/block", &body.to_string()).status, 200);
    }
    let ids = |list: &Value| -> Vec<String> {
        let entries = list["entries"].as_array().unwrap().iter();
        entries.map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = read_json(&server, "/v1/block");
    assert_eq!((ids(&all).len(), &all["next"]), (5, &Value::Null));
    let (mut path, mut pages) = ("/v1/block?limit=2".to_owned(), Vec::new());
    loop {
        let page = read_json(&server, &path);
        pages.extend(ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/block?limit=2&after={}", next.replace('#', "%23"));
    }
    assert_eq!(pages, ids(&all));
    let wrong = server.request_admin("GET", "/v1/block?after=nobody", "");
    assert_eq!(
        status_and_detail(&wrong),
        (400, r#"after: found "nobody", wanted the id of a network or client"#.to_owned())
    );
}

#[test]
fn admin_paths_require_the_token_and_exist_only_on_the_admin_listener() {
    let server = Server::with_config(
        "listen: {http: 127.0.0.1:0}\nadmin: {token: 0123456789abcdef}\n\
         rules: {inline: [{name: api, per: [user], limit: 1 per day}]}\n",
    );
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/v1/rules"),
        ("PUT", "/v1/rules"),
        ("POST", "/v1/rules/diff"),
        ("GET", "/v1/rules/history"),
        ("GET", "/v1/rules/status"),
        ("GET", "/v1/top"),
        ("GET", "/v1/clients/api/alice"),
        ("DELETE", "/v1/clients/api/alice"),
        ("POST", "/v1/refund"),
        ("GET", "/v1/block"),
    ] {
        let unauthorized = server.request_admin(method, path, "");
        assert_eq!(unauthorized.status, 401, "{method} {path}");
        assert_eq!(unauthorized.header("cache-control"), Some("no-store"));
        assert!(!unauthorized.body.contains("tidegate_"), "{unauthorized:?}");
        let mut connection = server.connect_admin();
        let token = "authorization: Bearer 0123456789abcdef";
        connection.write(format!("GET /v1/rules HTTP/1.1\r\n{token}\r\n\r\n").as_bytes());
        assert_eq!(connection.receive(false).status, 200);
        assert_eq!(server.request(method, path, "").status, 404, "{method} {path}");
    }
}

#[test]
#[cfg(feature = "simulate")]
fn lab_simulates_and_rejects_too_large_or_unsupported_requests() {
    let server = Server::with_rules(RULES);
    let found = server.request_admin("POST", "/v1/lab", "{}");
    assert_eq!(found.status, 200, "{found:?}");
    let found = found.json();
    let admitted: Vec<_> = found["lines"].as_array().unwrap().iter().collect();
    assert_eq!((&admitted[0]["admitted"], &admitted[1]["admitted"]), (&json!(40), &json!(20)));
    assert_eq!(admitted[0]["withinSeconds"], json!(0.15));
    assert!(found["tookMicros"].is_u64(), "{found}");
    let long = r#"{"traffic":"steady","rate":100000,"lengthMillis":3600000}"#;
    let (status, detail) = status_and_detail(&server.request_admin("POST", "/v1/lab", long));
    assert!(status == 400 && detail.contains("wanted at most 500000"), "{detail}");
    let unsupported = r#"{"nodes":2,"accuracy":"synced"}"#;
    let (status, detail) = status_and_detail(&server.request_admin("POST", "/v1/lab", unsupported));
    assert!(status == 400 && detail.contains("found sliding_log"), "{detail}");
    assert_eq!(server.request_admin("GET", "/v1/lab", "").status, 405);
}
