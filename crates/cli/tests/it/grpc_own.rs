//! What a caller of `tidegate.v1` is promised.

use std::collections::HashMap;

use tidegate_proto::tidegate::v1::check_batch_response::answer::Answer;
use tidegate_proto::tidegate::v1::check_request::{Named, Parts};
use tidegate_proto::tidegate::v1::{CheckBatchRequest, CheckRequest, CheckResponse};
use tidegate_testkit::Port;
use tonic::{Code, Status};

use crate::grpc_caller::Caller;
use crate::kit::Server;

const RULES: &str = "
rules:
  - {name: api, match: {path: '/v1/**'}, per: [user], limit: 5 per 10 days}
  - {name: pair, match: {path: /pair}, per: [user, path], limit: 2 per 10 days}
  - {name: paced, match: {path: /paced}, limit: 1 per 10 days, algorithm: leaky_bucket, queue: 1}
";

fn texts(texts: &[(&str, &str)]) -> HashMap<String, String> {
    texts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn named(rule: &str, client: &str) -> CheckRequest {
    let named = Some(Named::Client(client.to_owned()));
    CheckRequest { rule: rule.to_owned(), named, ..CheckRequest::default() }
}

fn described(attributes: &[(&str, &str)]) -> CheckRequest {
    CheckRequest { attributes: texts(attributes), ..CheckRequest::default() }
}

impl Caller {
    fn check(&self, asked: CheckRequest) -> Result<CheckResponse, Status> {
        self.runtime.block_on(self.own().check(asked)).map(tonic::Response::into_inner)
    }

    fn peek(&self, asked: CheckRequest) -> Result<CheckResponse, Status> {
        self.runtime.block_on(self.own().peek(asked)).map(tonic::Response::into_inner)
    }
}

#[test]
fn a_check_is_answered_as_over_http() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let first = caller.check(named("api", "alice")).unwrap();
    assert!(first.allowed && first.reset_time.unwrap() > 1_700_000_000, "{first:?}");
    assert_eq!((first.rule.as_str(), first.limit), ("api", Some(5)));
    assert_eq!((first.remaining, first.retry_after), (Some(4), Some(0)));
    let over_http = server.check(r#"{"rule":"api","client":"alice"}"#).json();
    assert_eq!(over_http["remaining"], 3);
    let by_attributes = described(&[("user", "alice"), ("path", "/v1/orders")]);
    assert_eq!(caller.check(by_attributes).unwrap().remaining, Some(2));
    let denied = caller.check(CheckRequest { cost: Some(3), ..named("api", "alice") }).unwrap();
    assert!(!denied.allowed && denied.retry_after.unwrap() > 0, "{denied:?}");
    assert_eq!(denied.remaining, Some(2));
    let never = caller.check(CheckRequest { cost: Some(6), ..named("api", "alice") }).unwrap();
    assert_eq!((never.allowed, never.retry_after), (false, None));
    let parts = Parts { values: texts(&[("user", "a"), ("path", "/pair")]) };
    let parts = CheckRequest { named: Some(Named::Parts(parts)), ..named("pair", "") };
    assert_eq!(caller.check(parts).unwrap().remaining, Some(1));
    let unlimited = caller.check(described(&[("path", "/elsewhere")])).unwrap();
    assert_eq!(unlimited, CheckResponse { allowed: true, ..CheckResponse::default() });
    caller.check(described(&[("path", "/paced")])).unwrap();
    assert!(caller.check(described(&[("path", "/paced")])).unwrap().delay_millis > 0);
}

#[test]
fn a_peek_spends_nothing_whatever_it_says_it_costs() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    for _ in 0..10 {
        let seen = caller.peek(CheckRequest { cost: Some(4), ..named("api", "alice") }).unwrap();
        assert_eq!((seen.allowed, seen.remaining), (true, Some(5)));
    }
}

#[test]
fn checks_of_a_batch_are_independent() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let big = CheckRequest { cost: Some(5), ..named("api", "alice") };
    let checks = vec![big.clone(), big, named("none", "x"), named("api", "bob")];
    let answer = caller.runtime.block_on(caller.own().check_batch(CheckBatchRequest { checks }));
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
    let status = caller.runtime.block_on(caller.own().check_batch(many)).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "checks: found 1001 checks, wanted at most 1000");
}

#[test]
fn what_is_wrong_is_a_status_with_where_found_and_wanted() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let refused = |asked| {
        let status = caller.check(asked).unwrap_err();
        (status.code(), status.message().to_owned())
    };
    let (code, message) = refused(named("none", "x"));
    assert_eq!(code, Code::NotFound);
    assert_eq!(message, "rule: found \"none\", wanted one of api, pair, paced");
    let (code, message) = refused(CheckRequest::default());
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(message, "message: found neither rule nor attributes, wanted one of them");
    let long = "x".repeat(9_000);
    let (code, message) = refused(described(&[("path", &long)]));
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(message, "attributes.path: found 9000 bytes, wanted at most 8192 bytes");
}

#[test]
fn a_rule_that_denies_without_its_store_is_unavailable() {
    let port = Port::free();
    let server = Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\nstore: {{redis: {{url: 'redis://127.0.0.1:{}'}}}}\nrules:\n  inline: [{{name: closed, limit: 5 per day, on_store_failure: deny}}]\n",
        port.number()
    ));
    let caller = Caller::to(&server);
    let status = caller.check(described(&[("user", "a")])).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("closed: "), "{status:?}");
    let checks = vec![described(&[("user", "a")])];
    let answer = caller.runtime.block_on(caller.own().check_batch(CheckBatchRequest { checks }));
    let Some(Answer::Decision(decision)) = answer.unwrap().into_inner().answers.remove(0).answer
    else {
        panic!("no decision")
    };
    assert!(!decision.allowed && decision.unavailable);
    assert_eq!(decision.retry_after, Some(1));
}
