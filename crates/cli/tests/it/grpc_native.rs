//! The native gRPC API `tidegate.v1`: checks, peeks, batches and errors.

use std::collections::HashMap;

use tidegate_proto::tidegate::v1::check_batch_response::answer::Answer;
use tidegate_proto::tidegate::v1::check_request::{Named, Parts};
use tidegate_proto::tidegate::v1::{CheckBatchRequest, CheckRequest, CheckResponse};
use tidegate_testkit::Port;
use tonic::{Code, Status};

use crate::grpc_caller::GrpcCaller;
use crate::kit::Server;

const RULES: &str = "
rules:
  - {name: api, match: {path: '/v1/**'}, per: [user], limit: 5 per 10 days}
  - {name: pair, match: {path: /pair}, per: [user, path], limit: 2 per 10 days}
  - {name: paced, match: {path: /paced}, limit: 1 per 10 days, algorithm: leaky_bucket, queue: 1}
";

fn text_map(texts: &[(&str, &str)]) -> HashMap<String, String> {
    texts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Returns a check of one rule for a client.
fn rule_check(rule: &str, client: &str) -> CheckRequest {
    let named = Some(Named::Client(client.to_owned()));
    CheckRequest { rule: rule.to_owned(), named, ..CheckRequest::default() }
}

/// Returns a check of all rules that match these attributes.
fn attribute_check(attributes: &[(&str, &str)]) -> CheckRequest {
    CheckRequest { attributes: text_map(attributes), ..CheckRequest::default() }
}

impl GrpcCaller {
    fn check(&self, request: CheckRequest) -> Result<CheckResponse, Status> {
        self.runtime.block_on(self.native().check(request)).map(tonic::Response::into_inner)
    }

    fn peek(&self, request: CheckRequest) -> Result<CheckResponse, Status> {
        self.runtime.block_on(self.native().peek(request)).map(tonic::Response::into_inner)
    }
}

#[test]
fn check_has_the_same_answer_as_over_http() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let first = caller.check(rule_check("api", "alice")).unwrap();
    assert!(first.allowed && first.reset_time.unwrap() > 1_700_000_000, "{first:?}");
    assert_eq!((first.rule.as_str(), first.limit), ("api", Some(5)));
    assert_eq!((first.remaining, first.retry_after), (Some(4), Some(0)));
    let over_http = server.check(r#"{"rule":"api","client":"alice"}"#).json();
    assert_eq!(over_http["remaining"], 3);
    let by_attributes = attribute_check(&[("user", "alice"), ("path", "/v1/orders")]);
    assert_eq!(caller.check(by_attributes).unwrap().remaining, Some(2));
    let denied =
        caller.check(CheckRequest { cost: Some(3), ..rule_check("api", "alice") }).unwrap();
    assert!(!denied.allowed && denied.retry_after.unwrap() > 0, "{denied:?}");
    assert_eq!(denied.remaining, Some(2));
    let never = caller.check(CheckRequest { cost: Some(6), ..rule_check("api", "alice") }).unwrap();
    assert_eq!((never.allowed, never.retry_after), (false, None));
    let parts = Parts { values: text_map(&[("user", "a"), ("path", "/pair")]) };
    let parts = CheckRequest { named: Some(Named::Parts(parts)), ..rule_check("pair", "") };
    assert_eq!(caller.check(parts).unwrap().remaining, Some(1));
    let unlimited = caller.check(attribute_check(&[("path", "/elsewhere")])).unwrap();
    assert_eq!(unlimited, CheckResponse { allowed: true, ..CheckResponse::default() });
    caller.check(attribute_check(&[("path", "/paced")])).unwrap();
    assert!(caller.check(attribute_check(&[("path", "/paced")])).unwrap().delay_millis > 0);
}

#[test]
fn check_of_an_allowed_client_is_marked() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let entry = r#"{"attribute":"user","value":"alice","action":"allow","for":"1h"}"#;
    assert_eq!(server.request_admin("POST", "/v1/block", entry).status, 200);
    let allowed = CheckResponse { allowed: true, allow_listed: true, ..CheckResponse::default() };
    for _ in 0..10 {
        assert_eq!(caller.check(rule_check("api", "alice")).unwrap(), allowed);
    }
    let other = caller.check(rule_check("api", "bob")).unwrap();
    assert_eq!((other.allow_listed, other.remaining), (false, Some(4)));
}

#[test]
fn peek_charges_nothing_at_any_cost() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    for _ in 0..10 {
        let peeked =
            caller.peek(CheckRequest { cost: Some(4), ..rule_check("api", "alice") }).unwrap();
        assert_eq!((peeked.allowed, peeked.remaining), (true, Some(5)));
    }
}

#[test]
fn batch_checks_are_independent() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let big = CheckRequest { cost: Some(5), ..rule_check("api", "alice") };
    let checks = vec![big.clone(), big, rule_check("none", "x"), rule_check("api", "bob")];
    let answer = caller.runtime.block_on(caller.native().check_batch(CheckBatchRequest { checks }));
    let answers: Vec<Answer> = answer
        .unwrap()
        .into_inner()
        .answers
        .into_iter()
        .map(|answer| answer.answer.unwrap())
        .collect();
    let [
        Answer::Decision(first),
        Answer::Decision(second),
        Answer::Fault(third),
        Answer::Decision(last),
    ] = answers.as_slice()
    else {
        panic!("{answers:?}")
    };
    assert_eq!((first.allowed, second.allowed, last.remaining), (true, false, Some(4)));
    assert_eq!((third.code, third.r#where.as_str()), (5, "checks[2].rule"));
    assert_eq!(third.found, "\"none\"");
    let many = CheckBatchRequest { checks: vec![CheckRequest::default(); 1_001] };
    let status = caller.runtime.block_on(caller.native().check_batch(many)).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "checks: found 1001 checks, wanted at most 1000");
}

#[test]
fn invalid_calls_are_counted_by_reason_and_logged_and_charge_nothing() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let long = rule_check("api", &"x".repeat(9_000));
    for request in [CheckRequest::default(), rule_check("pair", "s3cret"), long.clone()] {
        assert_eq!(caller.check(request).unwrap_err().code(), Code::InvalidArgument);
    }
    let batch = |checks| {
        let request = CheckBatchRequest { checks };
        caller.runtime.block_on(caller.native().check_batch(request))
    };
    batch(vec![CheckRequest::default(), long]).unwrap();
    batch(vec![rule_check("api", "alice"); 1_001]).unwrap_err();
    let metrics = server.request_admin("GET", "/metrics", "").body;
    for (reason, count) in [("malformed", 3), ("too_large", 3), ("undecodable", 0)] {
        let line = format!(
            "tidegate_invalid_calls_total{{listener=\"grpc\",reason=\"{reason}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let line = server.wait_for_log("invalid call listener=\"grpc\"");
    assert!(!line.contains("s3cret"), "{line}");
    assert_eq!(caller.peek(rule_check("api", "alice")).unwrap().remaining, Some(5));
}

#[test]
fn invalid_request_gets_a_status_with_where_found_and_wanted() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let code_and_message = |request| {
        let status = caller.check(request).unwrap_err();
        (status.code(), status.message().to_owned())
    };
    let (code, message) = code_and_message(rule_check("none", "x"));
    assert_eq!(code, Code::NotFound);
    assert_eq!(message, "rule: found \"none\", wanted one of api, pair, paced");
    let (code, message) = code_and_message(CheckRequest::default());
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(message, "message: found neither rule nor attributes, wanted one of them");
    let long = "x".repeat(9_000);
    let (code, message) = code_and_message(attribute_check(&[("path", &long)]));
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(message, "attributes.path: found 9000 bytes, wanted at most 8192 bytes");
}

#[test]
fn on_store_failure_deny_is_unavailable() {
    let port = Port::free();
    let server = Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\nstore: {{redis: {{url: 'redis://127.0.0.1:{}'}}}}\nrules:\n  inline: [{{name: closed, limit: 5 per day, on_store_failure: deny}}]\n",
        port.number()
    ));
    let caller = GrpcCaller::connect(&server);
    let status = caller.check(attribute_check(&[("user", "a")])).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("closed: "), "{status:?}");
    let checks = vec![attribute_check(&[("user", "a")])];
    let answer = caller.runtime.block_on(caller.native().check_batch(CheckBatchRequest { checks }));
    let Some(Answer::Decision(decision)) = answer.unwrap().into_inner().answers.remove(0).answer
    else {
        panic!("no decision")
    };
    assert!(!decision.allowed && decision.unavailable);
    assert_eq!(decision.retry_after, Some(1));
}
