//! Envoy's rate limit service (RLS) on the gRPC listener.

use tidegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tidegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_proto::envoy::r#type::v3::RateLimitUnit;
use tidegate_testkit::Port;

use crate::grpc_caller::{GrpcCaller, as_refund, descriptor, user, with_hits};
use crate::kit::{Folder, Server};

/// Limits that refill no token during a test.
const RULES: &str = "
rules:
  - name: per-user
    match: {domain: edge, user: {present: true}}
    per: [user]
    limit: 5 per 365 days
    caller_refunds: allow
  - name: per-path
    match: {domain: edge, path: {present: true}}
    per: [path]
    limit: 2 per 30 days
    algorithm: sliding_window
  - name: burst
    match: {domain: bursty}
    per: [user]
    limit: 1 per 7 days
    burst: 3
  - name: narrow
    match: {domain: both}
    per: [user]
    limit: 2 per 10 days
  - name: wide
    match: {domain: both}
    limit: 3 per 10 days
  - name: second-group
    match: {domain: groups, 'group#2': b}
    limit: 1 per 10 days
  - name: trial
    match: {domain: trial}
    limit: 1 per 10 days
    mode: shadow
";

fn header<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let found = response.response_headers_to_add.iter().find(|header| header.key == name);
    found.map(|header| header.value.as_str())
}

fn metadata(response: &RateLimitResponse) -> String {
    format!("{:?}", response.dynamic_metadata)
}

#[test]
fn statuses_are_complete_and_in_the_order_of_the_descriptors() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let request = [descriptor(&[("path", "/a")]), descriptor(&[("other", "x")]), user("alice")];
    let response = caller.rate_limit("edge", &request);
    assert_eq!(response.overall_code(), Code::Ok);
    let [path, other, alice] = response.statuses.as_slice() else { panic!("{response:?}") };
    let limit = path.current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("per-path", 2));
    assert_eq!((limit.unit(), path.limit_remaining), (Unit::Month, 1));
    assert!(path.duration_until_reset.unwrap().seconds > 0);
    let limit = alice.current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("per-user", 5));
    assert_eq!((limit.unit(), alice.limit_remaining), (Unit::Year, 4));
    assert!(alice.duration_until_reset.unwrap().seconds > 0);
    assert_eq!((other.code(), other.limit_remaining), (Code::Ok, 0));
    assert_eq!((&other.current_limit, &other.duration_until_reset), (&None, &None));
    assert_eq!(response.response_headers_to_add, []);
    assert_eq!(response.dynamic_metadata, None);
}

#[test]
fn denied_descriptor_charges_none_of_the_others() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    assert_eq!(caller.remaining("edge", with_hits(5, user("alice"))), Some(0));
    for _ in 0..3 {
        let response =
            caller.rate_limit("edge", &[descriptor(&[("path", "/a")]), user("alice"), user("bob")]);
        assert_eq!(response.overall_code(), Code::OverLimit);
        let codes: Vec<Code> = response.statuses.iter().map(|status| status.code()).collect();
        assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok]);
    }
    assert_eq!(caller.remaining("edge", descriptor(&[("path", "/a")])), Some(1));
    assert_eq!(caller.remaining("edge", user("bob")), Some(4));
}

#[test]
fn hits_default_to_those_of_the_call_and_then_to_one() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let remaining_after = |hits_addend, descriptor| {
        let (domain, descriptors) = ("edge".to_owned(), vec![descriptor]);
        let request = RateLimitRequest { domain, descriptors, hits_addend };
        caller.should_rate_limit(request).unwrap().statuses[0].limit_remaining
    };
    assert_eq!(remaining_after(0, user("alice")), 4);
    assert_eq!(remaining_after(2, user("alice")), 2);
    assert_eq!(remaining_after(2, with_hits(1, user("alice"))), 1);
    assert_eq!(remaining_after(2, with_hits(0, user("alice"))), 1);
    assert_eq!(remaining_after(1, user("alice")), 0);
    // Zero hits charge nothing, and the code is that of one more hit.
    let status = caller.rate_limit_one("edge", with_hits(0, user("alice")));
    assert_eq!(status.code(), Code::OverLimit);
}

#[test]
fn negative_hits_refund_up_to_the_limit() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    assert_eq!(caller.remaining("edge", with_hits(5, user("alice"))), Some(0));
    assert_eq!(caller.remaining("edge", user("alice")), None);
    assert_eq!(caller.remaining("edge", as_refund(with_hits(2, user("alice")))), Some(2));
    assert_eq!(caller.remaining("edge", with_hits(2, user("alice"))), Some(0));
    assert_eq!(caller.remaining("edge", as_refund(with_hits(1_000, user("alice")))), Some(5));
    assert_eq!(caller.remaining("edge", user("alice")), Some(4));
    assert_eq!(caller.remaining("edge", as_refund(user("new"))), Some(5));
}

#[test]
fn denied_call_refunds_nothing() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    assert_eq!(caller.remaining("edge", with_hits(5, user("alice"))), Some(0));
    assert_eq!(caller.remaining("edge", with_hits(3, user("bob"))), Some(2));
    let response =
        caller.rate_limit("edge", &[as_refund(with_hits(3, user("bob"))), user("alice")]);
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!((response.statuses[0].code(), response.statuses[0].limit_remaining), (Code::Ok, 2));
    assert_eq!(caller.remaining("edge", user("bob")), Some(1));
}

#[test]
fn every_limit_of_a_descriptor_is_charged_and_the_strictest_is_reported() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let name = |status: &tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus| {
        status.current_limit.as_ref().unwrap().name.clone()
    };
    let status = caller.rate_limit_one("both", user("alice"));
    assert_eq!((name(&status), status.limit_remaining), ("narrow".to_owned(), 1));
    assert_eq!(caller.remaining("both", user("alice")), Some(0));
    let status = caller.rate_limit_one("both", user("alice"));
    assert_eq!((name(&status), status.code()), ("narrow".to_owned(), Code::OverLimit));
    let status = caller.rate_limit_one("both", user("bob"));
    assert_eq!((name(&status), status.limit_remaining), ("wide".to_owned(), 0));
    let status = caller.rate_limit_one("both", user("carol"));
    assert_eq!((name(&status), status.code()), ("wide".to_owned(), Code::OverLimit));
    // A window of ten days has no unit in RLS.
    assert_eq!(status.current_limit.unwrap().unit(), Unit::Unknown);
}

#[test]
fn token_bucket_admits_its_burst() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let left: Vec<_> = (0..4).map(|_| caller.remaining("bursty", user("alice"))).collect();
    assert_eq!(left, [Some(2), Some(1), Some(0), None]);
    let limit = caller.rate_limit_one("bursty", user("alice")).current_limit.unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (1, Unit::Week));
}

#[test]
fn repeated_descriptor_key_becomes_a_numbered_attribute() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let groups = |values: [&str; 2]| descriptor(&values.map(|value| ("group", value)));
    assert_eq!(caller.remaining("groups", groups(["a", "b"])), Some(0));
    assert_eq!(caller.remaining("groups", groups(["c", "b"])), None);
    assert_eq!(caller.rate_limit_one("groups", groups(["b", "a"])).current_limit, None);
}

/// Adds a limit override to a descriptor.
fn with_override(
    amount: u32,
    unit: RateLimitUnit,
    descriptor: RateLimitDescriptor,
) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit: amount, unit: unit.into() };
    RateLimitDescriptor { limit: Some(limit), ..descriptor }
}

#[test]
fn limit_override_of_a_descriptor_has_its_own_counter() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let status =
        caller.rate_limit_one("free", with_override(3, RateLimitUnit::Year, user("alice")));
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (3, Unit::Year));
    assert_eq!((limit.name.as_str(), status.limit_remaining), ("", 2));
    assert!(status.duration_until_reset.unwrap().seconds > 0);
    let remaining = |amount, unit, descriptor| {
        caller.remaining("free", with_override(amount, unit, descriptor))
    };
    assert_eq!(remaining(3, RateLimitUnit::Year, user("bob")), Some(2));
    // Overrides with the same unit share a counter; another unit has its own.
    assert_eq!(remaining(5, RateLimitUnit::Year, user("alice")), Some(3));
    assert_eq!(remaining(2, RateLimitUnit::Year, user("alice")), None);
    assert_eq!(remaining(9, RateLimitUnit::Month, user("alice")), Some(8));
    assert_eq!(remaining(0, RateLimitUnit::Year, user("carol")), None);
    let other = descriptor(&[("user", "alice"), ("path", "/")]);
    assert_eq!(remaining(3, RateLimitUnit::Year, other), Some(2));
    assert_eq!(remaining(5, RateLimitUnit::Year, as_refund(with_hits(9, user("alice")))), Some(5));
    // Without an override this domain has no limit.
    assert_eq!(caller.rate_limit_one("free", user("alice")).current_limit, None);
}

#[test]
fn limit_override_applies_beside_matching_rules() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let request = || with_override(2, RateLimitUnit::Year, user("alice"));
    assert_eq!(caller.remaining("edge", request()), Some(1));
    assert_eq!(caller.remaining("edge", request()), Some(0));
    assert_eq!(caller.remaining("edge", request()), None);
    assert_eq!(caller.remaining("edge", user("alice")), Some(2));
}

#[test]
fn denial_has_retry_after_and_no_x_ratelimit_headers() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    caller.rate_limit("edge", &[with_hits(5, user("alice"))]);
    let response = caller.rate_limit("edge", &[user("alice")]);
    let wait: u64 = header(&response, "retry-after").unwrap().parse().unwrap();
    assert!((6_000_000..=73 * 86_400).contains(&wait), "{wait}");
    let state = format!("\"per-user\";r=0;t={wait}");
    assert_eq!(header(&response, "ratelimit"), Some(&*state));
    assert_eq!(header(&response, "ratelimit-policy"), Some("\"per-user\";q=5;w=31536000"));
    let names = response.response_headers_to_add.iter().map(|header| header.key.as_str());
    assert!(!names.into_iter().any(|name| name.starts_with("x-ratelimit")), "{response:?}");
    let metadata = metadata(&response);
    assert!(metadata.contains("tidegate") && metadata.contains("per-user"), "{metadata}");
}

#[test]
fn headers_rls_setting_selects_the_response_headers() {
    let serve = |headers: &str| {
        let rules = "[{name: api, limit: 1 per 10 days}]";
        Server::with_config(&format!(
            "listen: {{http: 127.0.0.1:0}}\nheaders: {{rls: {headers}}}\nrules: {{inline: {rules}}}\n"
        ))
    };
    let names = |response: &RateLimitResponse| -> Vec<String> {
        response.response_headers_to_add.iter().map(|header| header.key.clone()).collect()
    };
    let server = serve("all");
    let caller = GrpcCaller::connect(&server);
    assert_eq!(names(&caller.rate_limit("a", &[user("a")])), ["ratelimit-policy", "ratelimit"]);
    let denied = names(&caller.rate_limit("a", &[user("a")]));
    assert_eq!(denied, ["retry-after", "ratelimit-policy", "ratelimit"]);
    let server = serve("off");
    let caller = GrpcCaller::connect(&server);
    assert_eq!(names(&caller.rate_limit("a", &[with_hits(2, user("a"))])), [""; 0]);
}

#[test]
fn shadow_rule_denies_nothing_and_is_in_the_metadata() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    caller.rate_limit("trial", &[user("a")]);
    let response = caller.rate_limit("trial", &[user("a")]);
    assert_eq!(response.overall_code(), Code::Ok);
    assert_eq!(response.statuses[0].current_limit, None);
    let metadata = metadata(&response);
    assert!(metadata.contains("shadow") && metadata.contains("trial"), "{metadata}");
}

#[test]
fn blocked_client_is_over_limit() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let block = r#"{"attribute":"user","value":"alice","for":"1h"}"#;
    let blocked = server.request_admin("POST", "/v1/block", block);
    assert!((200..300).contains(&blocked.status), "{blocked:?}");
    let response = caller.rate_limit("elsewhere", &[user("bob"), user("alice")]);
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(response.statuses[0].code(), Code::Ok);
    assert_eq!(response.statuses[1].code(), Code::OverLimit);
    assert!(response.statuses[1].duration_until_reset.unwrap().seconds > 3_000);
    assert!(header(&response, "retry-after").is_some());
}

#[test]
fn on_store_failure_selects_over_limit_or_ok() {
    let port = Port::free();
    let rules = "
      - {name: closed, match: {domain: closed}, limit: 5 per day, on_store_failure: deny}
      - {name: open, match: {domain: open}, limit: 5 per day}";
    let server = Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\nstore: {{redis: {{url: 'redis://127.0.0.1:{}'}}}}\nrules:\n    inline:{rules}\n",
        port.number()
    ));
    let caller = GrpcCaller::connect(&server);
    let response = caller.rate_limit("closed", &[user("alice")]);
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(response.statuses[0].code(), Code::OverLimit);
    assert_eq!(header(&response, "x-tidegate-denied"), Some("store-unavailable"));
    assert_eq!(header(&response, "retry-after"), Some("1"));
    let response = caller.rate_limit("open", &[user("alice")]);
    assert_eq!(response.overall_code(), Code::Ok);
    assert_eq!(header(&response, "x-tidegate-denied"), None);
    assert!(metadata(&response).contains("undecided"), "{response:?}");
}

#[test]
fn invalid_call_is_denied_counted_and_logged_and_charges_nothing() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let call = |domain: &str, descriptors: Vec<RateLimitDescriptor>| {
        let request = RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 };
        caller.should_rate_limit(request).unwrap()
    };
    for response in [
        call("", vec![user("s3cret")]),
        call("edge", vec![]),
        call("edge", vec![user("a"); 101]),
        call("edge", vec![user("a"), descriptor(&[])]),
        call("edge", vec![with_override(5, RateLimitUnit::Unknown, user("a"))]),
    ] {
        assert_eq!(response.overall_code(), Code::OverLimit);
        assert_eq!(header(&response, "x-tidegate-denied"), Some("invalid-call"));
    }
    assert_eq!(caller.remaining("edge", user("a")), Some(4));
    let metrics = server.request_admin("GET", "/metrics", "").body;
    for (reason, count) in [("malformed", 4), ("too_large", 1), ("undecodable", 0)] {
        let line = format!(
            "tidegate_invalid_calls_total{{listener=\"grpc\",reason=\"{reason}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let note = server.wait_for_log("invalid call");
    assert!(note.contains("domain") && !note.contains("s3cret"), "{note}");
}

#[test]
fn on_invalid_call_allow_admits_an_invalid_call() {
    let server = Server::with_config("{on_invalid_call: allow, listen: {http: '127.0.0.1:0'}}");
    let response =
        GrpcCaller::connect(&server).should_rate_limit(RateLimitRequest::default()).unwrap();
    assert_eq!(response.overall_code(), Code::Ok);
    assert_eq!(response.response_headers_to_add, []);
}

#[test]
fn on_invalid_call_error_reports_the_invalid_field_and_charges_nothing() {
    let folder = Folder::new();
    folder.file("rules.yaml", RULES);
    let config = folder.file("tidegate.yaml", "on_invalid_call: error\nrules: {file: rules.yaml}");
    let server = Server::with_arguments(&["--config", &config, "--http", "127.0.0.1:0"]);
    let caller = GrpcCaller::connect(&server);
    let error_message = |domain: &str, descriptors: Vec<RateLimitDescriptor>| {
        let request = RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 };
        let status = caller.should_rate_limit(request).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        status.message().to_owned()
    };
    assert_eq!(error_message("", vec![user("a")]), "domain: found nothing, wanted a name");
    assert!(error_message("edge", vec![]).starts_with("descriptors: found nothing"));
    assert!(error_message("edge", vec![user("a"); 101]).starts_with("descriptors: found 101"));
    assert_eq!(
        error_message("edge", vec![user("a"), descriptor(&[])]),
        "descriptors[1].entries: found nothing, wanted at least one"
    );
    assert_eq!(
        error_message("edge", vec![with_override(5, RateLimitUnit::Unknown, user("a"))]),
        "descriptors[0].limit.unit: found 0, wanted a unit from SECOND to YEAR"
    );
    // No invalid call was charged.
    assert_eq!(caller.remaining("edge", user("a")), Some(4));
}

#[test]
fn concurrent_calls_never_exceed_the_limit() {
    let server = Server::with_rules(
        "rules: [{name: api, per: [user], limit: 100 per 10 days, algorithm: fixed_window}]",
    );
    let callers = (0..4).map(|_| {
        let caller = GrpcCaller::connect(&server);
        std::thread::spawn(move || {
            (0..50).filter(|_| caller.remaining("edge", user("alice")).is_some()).count()
        })
    });
    let callers: Vec<_> = callers.collect();
    let admitted: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    assert_eq!(admitted, 100);
}

#[test]
fn metrics_count_grpc_calls_by_answer() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    caller.rate_limit("both", &[user("alice"), user("bob")]);
    caller.rate_limit("both", &[with_hits(3, user("alice"))]);
    let metrics = server.request_admin("GET", "/metrics", "").body;
    let count = |wanted: &[&str]| {
        let line = metrics.lines().find(|line| wanted.iter().all(|part| line.contains(part)));
        line.and_then(|line| line.rsplit_once(' ')).map(|(_, count)| count.to_owned())
    };
    let calls = |ending| count(&["_checks_total{", "listener=\"grpc\"", ending]);
    assert_eq!(calls("\"allowed\"").as_deref(), Some("1"), "{metrics}");
    assert_eq!(calls("\"denied\"").as_deref(), Some("1"), "{metrics}");
}
