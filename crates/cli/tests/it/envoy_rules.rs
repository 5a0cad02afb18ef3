//! Compatibility with envoyproxy/ratelimit: its configuration files and its responses.

use serde_json::{Value, json};

use crate::kit::{Folder, Response, Server, run, without_excerpts};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../service/tests/envoy_examples");

fn serve_envoy_files(folder: &str) -> Server {
    Server::with_arguments(&["--rules-envoy", folder, "--http", "127.0.0.1:0"])
}

/// Calls `/json`. A descriptor is written as `key=value,key=value`.
fn call_json(server: &Server, domain: &str, hits: u32, descriptors: &[&str]) -> Response {
    let descriptor = |text: &&str| {
        let entries = text.split(',').map(|entry| {
            let (key, value) = entry.split_once('=').unwrap();
            json!({"key": key, "value": value})
        });
        json!({"entries": entries.collect::<Vec<_>>()})
    };
    let descriptors: Vec<Value> = descriptors.iter().map(descriptor).collect();
    let body = json!({"domain": domain, "hitsAddend": hits, "descriptors": descriptors});
    server.request("POST", "/json", &body.to_string())
}

/// Summarizes a response as `200 OK: OK 5/DAY`, with one code and limit for each descriptor.
fn summarize(response: &Response) -> String {
    let json = response.json();
    let statuses = json["statuses"].as_array().unwrap().iter().map(|status| {
        let limit = &status["currentLimit"];
        let limit_text = match limit["unit"].as_str() {
            Some(unit) => format!(" {}/{unit}", limit["requestsPerUnit"].as_u64().unwrap_or(0)),
            None => String::new(),
        };
        format!("{}{limit_text}", status["code"].as_str().unwrap())
    });
    let statuses = statuses.collect::<Vec<_>>().join(", ");
    format!("{} {}: {statuses}", response.status, json["overallCode"].as_str().unwrap())
}

#[test]
fn documented_calls_get_the_documented_responses() {
    let server = serve_envoy_files(EXAMPLES);
    for (domain, hits, descriptors, wanted) in [
        ("mongo_cps", 1, ["database=users"].as_slice(), "200 OK: OK 500/SECOND"),
        ("mongo_cps", 501, &["database=users"], "429 OVER_LIMIT: OVER_LIMIT 500/SECOND"),
        ("mongo_cps", 501, &["database=other"], "200 OK: OK"),
        (
            "messaging",
            1,
            &["message_type=marketing,to_number=2061111111", "to_number=2061111111"],
            "200 OK: OK 5/DAY, OK 100/DAY",
        ),
        ("messaging", 101, &["to_number=2062222222"], "429 OVER_LIMIT: OVER_LIMIT 100/DAY"),
        ("edge_proxy_per_ip", 1, &["remote_address=50.0.0.1"], "200 OK: OK 10/SECOND"),
        (
            "edge_proxy_per_ip",
            1,
            &["remote_address=50.0.0.5"],
            "429 OVER_LIMIT: OVER_LIMIT 0/SECOND",
        ),
        ("example4", 1, &["key=value,subkey=subvalue"], "200 OK: OK 300/SECOND"),
        ("example4", 301, &["flat=value,subkey=subvalue"], "200 OK: OK"),
        ("internal", 1_000_000, &["ldap=x"], "200 OK: OK"),
        ("internal", 101, &["azure=x"], "429 OVER_LIMIT: OVER_LIMIT 100/MINUTE"),
        ("example6", 11, &["service=auth-service,user=user-a"], "200 OK: OK 10/SECOND"),
        (
            "example6",
            21,
            &["service=auth-service,user=user-b"],
            "429 OVER_LIMIT: OVER_LIMIT 20/SECOND",
        ),
        ("example7", 6, &["key_1=value_1,user=bkthomps"], "429 OVER_LIMIT: OVER_LIMIT 5/SECOND"),
        (
            "example7",
            6,
            &["key_1=value_1,user=bkthomps", "key_2=value_2,user=bkthomps"],
            "200 OK: OK, OK 10/SECOND",
        ),
        ("example8", 11, &["key1=unspecified"], "429 OVER_LIMIT: OVER_LIMIT 10/MINUTE"),
        ("example8", 11, &["key1=value1"], "200 OK: OK 20/MINUTE"),
        ("example9", 21, &["key1=value_1"], "429 OVER_LIMIT: OVER_LIMIT 20/MINUTE"),
        ("example10", 101, &["files=files/a.pdf"], "429 OVER_LIMIT: OVER_LIMIT 100/HOUR"),
        ("quota", 2, &["service=service_1"], "200 OK: OVER_LIMIT 1/YEAR"),
        ("nowhere", 1, &["a=b"], "200 OK: OK"),
    ] {
        let response = call_json(&server, domain, hits, descriptors);
        assert_eq!(
            summarize(&response),
            wanted,
            "{domain} {hits} {descriptors:?}: {}",
            response.body
        );
    }
    let unlimited = call_json(&server, "internal", 1, &["ldap=x"]).json();
    assert_eq!(unlimited["statuses"][0]["limitRemaining"], json!(u32::MAX));
}

#[test]
fn denied_descriptor_charges_no_other_descriptor() {
    let folder = Folder::new();
    folder.file(
        "limits.yaml",
        "{domain: d, descriptors: [
           {key: a, rate_limit: {unit: year, requests_per_unit: 5}},
           {key: b, rate_limit: {unit: year, requests_per_unit: 10}},
           {key: q, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}]}",
    );
    let server = serve_envoy_files(folder.path());
    let denied = call_json(&server, "d", 6, &["a=x", "b=x"]);
    assert_eq!(summarize(&denied), "429 OVER_LIMIT: OVER_LIMIT 5/YEAR, OK 10/YEAR");
    // An exceeded limit with `quota_mode` does not prevent the charge of other descriptors.
    let counted = call_json(&server, "d", 2, &["q=x", "b=x"]);
    assert_eq!(summarize(&counted), "200 OK: OVER_LIMIT 1/YEAR, OK 10/YEAR");
    assert_eq!(counted.json()["statuses"][1]["limitRemaining"], json!(8));
}

#[test]
fn share_threshold_counts_matching_values_together() {
    let folder = Folder::new();
    folder.file(
        "limits.yaml",
        "{domain: d, descriptors: [
           {key: f, value: 'files/*', share_threshold: true,
            rate_limit: {unit: year, requests_per_unit: 2}},
           {key: p, value: 'p*', rate_limit: {unit: year, requests_per_unit: 2}}]}",
    );
    let server = serve_envoy_files(folder.path());
    let status = |descriptor| call_json(&server, "d", 1, &[descriptor]).status;
    assert_eq!([status("f=files/a"), status("f=files/b"), status("f=files/c")], [200, 200, 429]);
    assert_eq!([status("p=pa"), status("p=pb"), status("p=pc"), status("p=pa")], [200; 4]);
    assert_eq!(status("p=pa"), 429);
}

#[test]
fn native_rules_apply_beside_envoy_files() {
    let folder = Folder::new();
    let rules = folder.file(
        "native.rules",
        "rules: [{name: all, match: {domain: internal}, limit: 50 per year}]",
    );
    let server = Server::with_arguments(&[
        "--rules-envoy",
        EXAMPLES,
        "--rules",
        &rules,
        "--http",
        "127.0.0.1:0",
    ]);
    assert_eq!(call_json(&server, "internal", 50, &["azure=x"]).status, 200);
    assert_eq!(call_json(&server, "internal", 1, &["azure=x"]).status, 429);
    // A limit of an Envoy file can also be checked by its rule name.
    let check = server.check(r#"{"rule": "internal.azure", "client": "x", "cost": 0}"#);
    assert_eq!(check.json()["remaining"], json!(50), "{check:?}");
}

#[test]
fn envoy_directory_is_relative_to_the_configuration_file() {
    let folder = Folder::new();
    std::fs::create_dir(format!("{}/limits", folder.path())).unwrap();
    folder.file(
        "limits/a.yaml",
        "{domain: a, descriptors: [{key: k, rate_limit: {unlimited: true}}]}",
    );
    let config =
        folder.file("tidegate.yaml", "rules: {envoy: limits}\nlisten: {http: '127.0.0.1:0'}");
    let server = Server::with_arguments(&["--config", &config]);
    assert_eq!(
        server.request_admin("GET", "/rlconfig", "").body,
        "a.k: unit=UNKNOWN requests_per_unit=0, shadow_mode: false\n"
    );
}

#[test]
fn rlconfig_is_served_only_on_the_admin_listener() {
    let server = serve_envoy_files(EXAMPLES);
    let listed = server.request_admin("GET", "/rlconfig", "");
    assert_eq!(listed.status, 200);
    let line = "mongo_cps.database_users: unit=SECOND requests_per_unit=500, shadow_mode: false\n";
    assert!(listed.body.starts_with(line), "{}", listed.body);
    assert_eq!(server.request_admin("POST", "/rlconfig", "").status, 405);
    assert_eq!(server.request("GET", "/rlconfig", "").status, 404);
}

#[test]
fn healthcheck_answers_like_envoyproxy_ratelimit() {
    let server = serve_envoy_files(EXAMPLES);
    let healthy = server.request("GET", "/healthcheck", "");
    assert_eq!((healthy.status, healthy.body.as_str()), (200, "OK"));
    assert_eq!(server.request("POST", "/healthcheck", "").status, 405);
    server.signal("TERM");
    let shutdown_status =
        tidegate_testkit::wait_for("the health check reports the shutdown", || {
            let response = server.request("GET", "/healthcheck", "");
            (response.status != 200).then_some(response.status)
        });
    assert_eq!(shutdown_status, 500);
}

#[test]
fn validate_accepts_a_directory_or_one_of_its_files() {
    let (code, rules, notes) = run(&["validate", EXAMPLES]);
    assert_eq!(code, 0, "{notes}");
    assert!(rules.contains("messaging.to_number: 100 per 24 h (fixed_window): "), "{rules}");
    assert!(notes.ends_with("rules, valid\n"), "{notes}");
    let (code, rules, notes) = run(&["validate", &format!("{EXAMPLES}/02-messages.yaml")]);
    assert_eq!((code, rules.lines().count()), (0, 2), "{notes}");
}

#[test]
fn invalid_envoy_file_is_reported_with_its_line() {
    let folder = Folder::new();
    let file = folder.file("limits.yaml", "domain: d\ndescriptors:\n  - key: ''\n");
    for arguments in
        [["validate", folder.path()], ["validate", &file], ["serve", "--rules-envoy"]].iter()
    {
        let mut arguments = arguments.to_vec();
        if arguments[0] == "serve" {
            arguments.push(folder.path());
        }
        let (code, _, notes) = run(&arguments);
        assert_eq!(
            (code, without_excerpts(&notes)),
            (1, format!("{file}:3: key must be a text, found nothing\n"))
        );
    }
    let empty = Folder::new();
    let (code, _, notes) = run(&["validate", empty.path()]);
    let wanted = format!("error: {}: *.yaml or *.yml files are wanted, found none\n", empty.path());
    assert_eq!((code, notes), (2, wanted));
}
