//! A Python client with the messages that Envoy publishes, which are not ours.

use std::process::Command;

use serde_json::{Value, json};
use tidegate_testkit::{Tool, lacking};

use crate::kit::{Server, shown};

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/grpc_python.py");
const RULES: &str =
    "rules: [{name: per-user, match: {domain: edge}, per: [user], limit: 5 per 365 days}]";

#[test]
fn a_python_client_with_envoys_messages_is_understood() {
    if lacking(&[Tool::PythonEnvoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let mut client = Command::new(Tool::PythonEnvoy.path().unwrap());
    client.args([CLIENT, &server.listener("grpc").to_string()]);
    let (code, answers, errors) = shown(client.output().unwrap());
    assert_eq!(code, 0, "{errors}");
    let answers: Vec<Value> =
        answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let status = |code: &str, remaining: u32| {
        let limit = json!([5, "YEAR", "per-user"]);
        json!({"code": code, "limit": limit, "remaining": remaining, "resets": true})
    };
    let answer = |code: &str, statuses: &[Value]| json!({"code": code, "statuses": statuses, "headers": [], "metadata": false});
    assert_eq!(answers[0], answer("OK", &[status("OK", 4), status("OK", 5)]));
    assert_eq!(answers[1], answer("OK", &[status("OK", 1)]));
    assert_eq!(answers[2], answer("OK", &[status("OK", 0), status("OK", 4)]));
    assert_eq!(answers[3], answer("OK", &[status("OK", 2)]));
    assert_eq!(answers[4], answer("OK", &[status("OK", 1), status("OK", 3)]));
    let brought = json!({"code": "OK", "limit": [7, "MONTH", ""], "remaining": 6, "resets": true});
    assert_eq!(answers[5], answer("OK", &[brought]));
    let unlimited = json!({"code": "OK", "limit": null, "remaining": 0, "resets": false});
    assert_eq!(answers[6], answer("OK", &[unlimited]));
    assert_eq!(answers[7], json!({"error": "INVALID_ARGUMENT"}));
    assert_eq!(answers.len(), 8);
}
