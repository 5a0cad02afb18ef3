//! Invalid requests: the response contains where the error is, what was found and what is wanted.

use std::fmt::Write;

use serde_json::json;

use crate::kit::Server;

const RULES: &str = "
rules:
  - {name: api, per: [user], limit: 5 per 10 days}
  - {name: pair, per: [user | ip, path], limit: 5 per 10 days}
  - {name: anyone, match: {path: /login}, limit: 5 per 10 days}
";

const WHOLE_NUMBER: &str = "a whole number from 0 to 18446744073709551615";
const CHECK_FIELDS: &str = "rule, client, attributes or cost";
const WANTED_USER: &str = r#"the value of user, by which rule "api" counts"#;
const WANTED_PAIR: &str = r#"an object with user | ip and path, by which rule "pair" counts"#;

#[test]
fn invalid_check_gets_where_found_and_wanted_and_charges_nothing() {
    let server = Server::with_rules(RULES);
    let rule_names = "one of api, pair, anyone";
    let object = format!("an object of {CHECK_FIELDS}");
    for (body, status, place, found, wanted) in [
        ("", 400, "body", "nothing", "a JSON object"),
        ("null", 400, "body", "null", &*object),
        ("[]", 400, "body", "a list", &object),
        (r#""text""#, 400, "body", r#""text""#, &object),
        ("{}", 400, "body", "neither rule nor attributes", "one of them"),
        (r#"{"rule":"nobody","client":"a"}"#, 404, "rule", r#""nobody""#, rule_names),
        (r#"{"rule":"","client":"a"}"#, 404, "rule", r#""""#, rule_names),
        (r#"{"rule":5,"client":"a"}"#, 400, "rule", "5", "a text"),
        (r#"{"rule":["api"]}"#, 400, "rule", "a list", "a text"),
        (r#"{"rule":"api"}"#, 400, "client", "nothing", WANTED_USER),
        (r#"{"rule":"api","client":null}"#, 400, "client", "nothing", WANTED_USER),
        (r#"{"rule":"api","client":7}"#, 400, "client", "7", "a text or an object of texts"),
        (r#"{"rule":"api","client":{}}"#, 400, "client", "too little", WANTED_USER),
        (r#"{"rule":"api","client":{"ip":"a"}}"#, 400, "client.ip", "a value", WANTED_USER),
        (r#"{"rule":"api","client":{"user":1}}"#, 400, "client.user", "1", "a text"),
        (r#"{"rule":"pair","client":"a"}"#, 400, "client", "a text", WANTED_PAIR),
        (r#"{"rule":"pair","client":{"user":"a"}}"#, 400, "client", "too little", WANTED_PAIR),
        (
            r#"{"rule":"anyone","client":{"user":"a"}}"#,
            400,
            "client.user",
            "a value",
            r#"none, because rule "anyone" has one bucket for all"#,
        ),
        (
            r#"{"rule":"api","client":"a","attributes":{"user":"b"}}"#,
            400,
            "attributes.user",
            "another value",
            "none, because client names it",
        ),
        (
            r#"{"client":"a","attributes":{}}"#,
            400,
            "rule",
            "nothing",
            "the rule that client belongs to",
        ),
        (r#"{"attributes":[]}"#, 400, "attributes", "a list", "an object of texts"),
        (r#"{"attributes":{"a":1}}"#, 400, "attributes.a", "1", "a text"),
        (r#"{"attributes":{"a":{"b":{"c":1}}}}"#, 400, "attributes.a", "an object", "a text"),
        (r#"{"attributes":{"a":"1","a":"2"}}"#, 400, "attributes.a", "it twice", "it once"),
        (r#"{"attributes":{"":"1"}}"#, 400, "attributes", "a name of 0 bytes", "1 to 128 bytes"),
        (r#"{"rule":"api","client":"a","cost":-1}"#, 400, "cost", "-1", WHOLE_NUMBER),
        (r#"{"rule":"api","client":"a","cost":1.5}"#, 400, "cost", "1.5", WHOLE_NUMBER),
        (r#"{"rule":"api","client":"a","cost":"1"}"#, 400, "cost", r#""1""#, WHOLE_NUMBER),
        (r#"{"rule":"api","client":"a","cost":true}"#, 400, "cost", "true", WHOLE_NUMBER),
        (r#"{"rule":"api","client":"a","cost":{}}"#, 400, "cost", "an object", WHOLE_NUMBER),
        (
            r#"{"rule":"api","client":"a","cost":18446744073709551616}"#,
            400,
            "cost",
            "1.8446744073709552e19",
            WHOLE_NUMBER,
        ),
        (r#"{"rule":"api","client":"a","cost":1e3}"#, 400, "cost", "1000.0", WHOLE_NUMBER),
        (r#"{"rule":"api","clint":"a"}"#, 400, "clint", "an unknown field", CHECK_FIELDS),
        (r#"{"rule":"api","rule":"b"}"#, 400, "rule", "it twice", "it once"),
    ] {
        let response = server.check(body);
        assert_eq!(response.status, status, "{body}: {response:?}");
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        let json = response.json();
        assert_eq!(json["status"], status);
        let error = [&json["where"], &json["found"], &json["wanted"]];
        assert_eq!(error, [place, found, wanted], "{body}");
        assert_eq!(json["detail"], format!("{place}: found {found}, wanted {wanted}"));
    }
    let peek = server.check(r#"{"rule":"api","client":"a","cost":0}"#);
    assert_eq!(peek.json()["remaining"], 5);
}

#[test]
fn invalid_json_is_reported_with_line_and_column() {
    let server = Server::with_rules(RULES);
    for body in ["{", "{\"rule\": api}", "{} {}", "{\"rule\":\"\u{1}\"}", &"[".repeat(10_000)] {
        let response = server.check(body);
        assert_eq!(response.status, 400, "{body}");
        let found = response.json()["found"].as_str().unwrap().to_owned();
        assert!(found.starts_with("bytes that are no JSON ("), "{found}");
        assert!(found.contains("at line 1 column "), "{found}");
    }
}

#[test]
fn long_values_are_truncated_in_errors() {
    let server = Server::with_rules(RULES);
    let long = "x".repeat(10_000);
    for (body, place) in [
        (json!({"rule": long}), "rule".to_owned()),
        (json!({"rule": "api", long.clone(): 1}), format!("{}…", "x".repeat(64))),
        (json!({"attributes": {"path": long}}), "attributes.path".to_owned()),
        (json!({"attributes": {long.clone(): "a"}}), "attributes".to_owned()),
        (json!({"rule": "api", "client": long}), "client".to_owned()),
    ] {
        let response = server.check(&body.to_string());
        assert!(matches!(response.status, 400 | 404), "{response:?}");
        assert_eq!(response.json()["where"], place);
        assert!(response.body.len() < 1_000, "{response:?}");
    }
    let mut many = serde_json::Map::new();
    for index in 0..65 {
        many.insert(format!("a{index}"), "x".into());
    }
    let response = server.check(&json!({"attributes": many}).to_string());
    assert_eq!(response.json()["wanted"], "at most 64 attributes");
}

#[test]
fn batch_is_a_list_of_at_most_1000_checks() {
    let server = Server::with_rules(RULES);
    let batch = |count: usize| {
        let checks = vec![json!({"attributes": {}}); count];
        server.request("POST", "/v1/check/batch", &json!({"checks": checks}).to_string())
    };
    assert_eq!(batch(1_000).json()["decisions"].as_array().unwrap().len(), 1_000);
    for (response, place, found) in [
        (batch(1_001), "checks", "1001 checks"),
        (server.request("POST", "/v1/check/batch", "{}"), "checks", "nothing"),
        (server.request("POST", "/v1/check/batch", r#"{"checks":{}}"#), "checks", "an object"),
        (server.request("POST", "/v1/check/batch", r#"{"check":[]}"#), "check", "an unknown field"),
        (server.request("POST", "/v1/check/batch", "[]"), "body", "a list"),
    ] {
        assert_eq!(response.status, 400);
        assert_eq!([&response.json()["where"], &response.json()["found"]], [place, found]);
    }
}

#[test]
fn invalid_calls_are_counted_by_reason_and_logged_and_charge_nothing() {
    let server = Server::with_rules(RULES);
    let item = r#"{"rule":"api","client":"alice"}"#;
    let long = format!(r#"{{"rule":"api","client":"{}"}}"#, "x".repeat(9_000));
    let many = format!(r#"{{"checks":[{}]}}"#, vec![item; 1_001].join(","));
    for (path, body) in [
        ("/v1/check", "{"),
        ("/v1/check", r#"{"rule":"api","client":"s3cret","cost":-1}"#),
        ("/v1/check", &long),
        ("/v1/check/batch", "{"),
        ("/v1/check/batch", &many),
        ("/v1/acquire", "["),
        ("/v1/acquire", r#"{"client":"s3cret"}"#),
        ("/v1/renew", r#"{"slot":"s3cret"}"#),
        ("/v1/release", "{}"),
    ] {
        assert_eq!(server.request("POST", path, body).status, 400, "{path} {body:.40}");
    }
    // Two of three items are invalid.
    let batch = format!(r#"{{"checks":[{{}},{{"rule":"api","client":"alice","cost":0}},{long}]}}"#);
    assert_eq!(server.request("POST", "/v1/check/batch", &batch).status, 200);
    let metrics = server.request_admin("GET", "/metrics", "").body;
    for (reason, count) in [("undecodable", 3), ("malformed", 5), ("too_large", 3)] {
        let line = format!(
            "tidegate_invalid_calls_total{{listener=\"http\",reason=\"{reason}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let line = server.wait_for_log("invalid call listener=\"http\"");
    assert!(!line.contains("s3cret"), "{line}");
    let peek = server.check(r#"{"rule":"api","client":"alice","cost":0}"#).json();
    assert_eq!(peek["remaining"], 5);
}

#[test]
fn oversized_body_is_413() {
    let server = Server::with_rules(RULES);
    let body = |length: usize| {
        let blank = length - r#"{"attributes":{}}"#.len();
        format!(r#"{{"attributes":{{{}}}}}"#, " ".repeat(blank))
    };
    assert_eq!(server.check(&body(64 * 1024)).status, 200);
    let response = server.check(&body(64 * 1024 + 1));
    assert_eq!(response.status, 413);
    assert_eq!(response.json()["detail"], "body: found 65537 bytes, wanted at most 65536 bytes");
    let batch = r#"{"checks":[]}"#.to_owned() + &" ".repeat(1024 * 1024);
    assert_eq!(server.request("POST", "/v1/check/batch", &batch).status, 413);
    // A chunked body has no Content-Length, so the limit applies while it is read.
    let mut connection = server.connect();
    connection.write(b"POST /v1/check HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = format!("{:x}\r\n{}\r\n", 65_537, " ".repeat(65_537));
    connection.write(chunk.as_bytes());
    assert_eq!(connection.receive(false).status, 413);
}

#[test]
fn unknown_path_or_method_gets_the_list_of_valid_ones() {
    let server = Server::with_rules(RULES);
    let response = server.request("GET", "/v1/chek", "");
    assert_eq!(response.status, 404);
    assert_eq!(
        response.json()["detail"],
        "path: found \"/v1/chek\", wanted POST /v1/check, POST /v1/check/batch, POST /v1/acquire, \
         POST /v1/renew, POST /v1/release, POST /json, /v1/authorize, GET /openapi.json, GET /healthz, GET /readyz and GET /healthcheck"
    );
    for (method, path, allow) in [
        ("GET", "/v1/check", "POST, OPTIONS"),
        ("HEAD", "/v1/check", "POST, OPTIONS"),
        ("PUT", "/v1/check/batch", "POST, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
    ] {
        let response = server.request(method, path, "");
        assert_eq!((response.status, response.header("allow")), (405, Some(allow)));
    }
    for (path, allow) in [("/v1/check", "POST, OPTIONS"), ("*", "GET, POST, OPTIONS")] {
        let response = server.request("OPTIONS", path, "");
        assert_eq!((response.status, response.header("allow")), (204, Some(allow)));
    }
}

#[test]
fn compressed_body_is_415_and_names_content_encoding() {
    let server = Server::with_rules(RULES);
    let mut connection = server.connect();
    connection.write(
        b"POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n",
    );
    let response = connection.receive(false);
    assert_eq!(response.status, 415);
    assert!(response.body.contains("content-encoding"), "{response:?}");
}

#[test]
fn invalid_http_gets_an_error_and_the_server_keeps_serving() {
    let server = Server::with_rules(RULES);
    let mut headers = String::new();
    for index in 0..200 {
        write!(headers, "x-{index}: {}\r\n", "y".repeat(200)).unwrap();
    }
    let long_head = format!("GET /healthz HTTP/1.1\r\n{headers}\r\n");
    for (bytes, status) in [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".as_slice(), "400"),
        (b"GET\r\n\r\n", "400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
        (b"POST /v1/check HTTP/1.1\r\ncontent-length: -5\r\n\r\n", "400"),
        (long_head.as_bytes(), "431"),
    ] {
        let mut connection = server.connect();
        connection.write(bytes);
        let response = connection.read_to_end();
        // Any response to the HTTP/2 preface is accepted, also none: hyper chooses it.
        assert!(response.contains(status), "{:?}: {response:?}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(server.request("GET", "/healthz", "").status, 200);
}
