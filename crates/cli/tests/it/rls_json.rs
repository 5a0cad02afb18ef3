//! `POST /json`: Envoy's rate limit service as JSON instead of gRPC.

use serde_json::{Value, json};

use crate::kit::{Response, Server};

const RULES: &str = "
rules:
  - {name: per-user, match: {domain: edge}, per: [user], limit: 2 per 30 days}
";

fn post_json(server: &Server, body: &Value) -> Response {
    server.request("POST", "/json", &body.to_string())
}

#[test]
fn rate_limit_request_as_json_gets_a_json_response() {
    let server = Server::with_rules(RULES);
    let body = json!({
        "domain": "edge",
        "descriptors": [
            {"entries": [{"key": "user", "value": "alice"}]},
            {"entries": [{"key": "perday"}], "limit": {"requestsPerUnit": 7, "unit": "DAY"}},
        ],
        "hitsAddend": 1,
    });
    let response = post_json(&server, &body);
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
    let mut json = response.json();
    assert_eq!(json["overallCode"], "OK");
    let statuses = json["statuses"].as_array_mut().unwrap();
    for status in &mut *statuses {
        let reset = status["durationUntilReset"].take();
        assert!(reset.as_str().unwrap().ends_with('s'), "{reset}");
    }
    assert_eq!(statuses[0]["code"], "OK");
    let limit = json!({"requestsPerUnit": 2, "unit": "MONTH", "name": "per-user"});
    assert_eq!(statuses[0]["currentLimit"], limit);
    assert_eq!(statuses[0]["limitRemaining"], 1);
    assert_eq!(statuses[1]["code"], "OK");
    let denied = post_json(
        &server,
        &json!({
            "domain": "edge",
            "descriptors": [{"entries": [{"key": "user", "value": "alice"}], "hits_addend": "2"}],
        }),
    );
    assert_eq!((denied.status, &denied.json()["overallCode"]), (429, &json!("OVER_LIMIT")));
    let headers = denied.json()["responseHeadersToAdd"].to_string();
    assert!(headers.contains("retry-after"), "{headers}");
    assert_eq!(denied.json()["dynamicMetadata"]["tidegate"]["rule"], "per-user");
}

#[test]
fn both_field_spellings_quoted_numbers_and_numeric_units_are_accepted() {
    let server = Server::with_rules(RULES);
    let body = json!({
        "domain": "free",
        "hits_addend": "2",
        "descriptors": [
            {"entries": [{"key": "a", "value": "b"}], "limit": {"requests_per_unit": "5", "unit": 6}},
            {"entries": [{"key": "c"}], "limit": {"requestsPerUnit": 5, "unit": "YEAR"}, "hitsAddend": 0, "isNegativeHits": false},
        ],
    });
    let json = post_json(&server, &body).json();
    assert_eq!(json["statuses"][0]["limitRemaining"], 3);
    assert_eq!(json["statuses"][1]["limitRemaining"], 5);
}

#[test]
fn invalid_body_is_denied_unless_on_invalid_call_admits_it() {
    let server = Server::with_rules(RULES);
    let large = format!(r#"{{"domain":"{}"}}"#, "x".repeat(100_000));
    for body in ["", "{\"domain\":\"\\xff\"", r#"{"domain":"a"}"#, &large] {
        let response = server.request("POST", "/json", body);
        assert_eq!(response.status, 429, "{body:.100}");
        assert_eq!(response.json()["overallCode"], "OVER_LIMIT");
    }
    let server = Server::with_config("{on_invalid_call: allow, listen: {http: '127.0.0.1:0'}}");
    assert_eq!(server.request("POST", "/json", "").status, 200);
}

#[test]
fn error_of_an_invalid_body_names_the_field() {
    let server = Server::with_config("{on_invalid_call: error, listen: {http: '127.0.0.1:0'}}");
    let detail = |body: &str| {
        let response = server.request("POST", "/json", body);
        assert_eq!(response.status, 400, "{body}");
        response.json()["detail"].as_str().unwrap().to_owned()
    };
    assert!(detail("").starts_with("body: found nothing"));
    assert!(detail("[]").starts_with("body: found a list"));
    assert_eq!(detail(r#"{"descriptors":[]}"#), "domain: found nothing, wanted a name");
    assert!(detail(r#"{"domain":"a"}"#).starts_with("descriptors: found nothing"));
    assert!(
        detail(r#"{"domain":"a","descriptor":[]}"#).starts_with("descriptor: found an unknown")
    );
    assert_eq!(
        detail(
            r#"{"domain":"a","descriptors":[{"entries":[{"key":"k"}],"limit":{"unit":"WEEK"}}]}"#
        ),
        "descriptors[0].limit.unit: found \"WEEK\", wanted a unit from SECOND to YEAR"
    );
    assert_eq!(
        detail(r#"{"domain":"a","descriptors":[{"entries":[{"key":1}]}]}"#),
        "descriptors[0].entries[0].key: found 1, wanted a text"
    );
    assert_eq!(
        detail(r#"{"domain":"a","hitsAddend":-1,"descriptors":[]}"#),
        "hitsAddend: found -1, wanted a whole number from 0 to 4294967295"
    );
    assert_eq!(server.request("GET", "/json", "").status, 405);
}
