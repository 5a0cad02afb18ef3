//! What an Envoy that asks the gRPC listener is promised.

use tidegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tidegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_proto::envoy::r#type::v3::RateLimitUnit;
use tidegate_testkit::Port;

use crate::grpc_caller::{Caller, descriptor, given_back, hits, user};
use crate::kit::Server;

/// Limits so slow that no test is long enough to see a refill.
const RULES: &str = "
rules:
  - name: per-user
    match: {domain: edge, user: {present: true}}
    per: [user]
    limit: 5 per 365 days
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

fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let found = answer.response_headers_to_add.iter().find(|header| header.key == name);
    found.map(|header| header.value.as_str())
}

fn metadata(answer: &RateLimitResponse) -> String {
    format!("{:?}", answer.dynamic_metadata)
}

#[test]
fn statuses_are_complete_and_in_the_order_of_the_descriptors() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let asked = [descriptor(&[("path", "/a")]), descriptor(&[("other", "x")]), user("alice")];
    let answer = caller.ask("edge", &asked);
    assert_eq!(answer.overall_code(), Code::Ok);
    let [path, other, alice] = answer.statuses.as_slice() else { panic!("{answer:?}") };
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
    assert_eq!(answer.response_headers_to_add, []);
    assert_eq!(answer.dynamic_metadata, None);
}

#[test]
fn a_denied_descriptor_charges_none_of_the_others() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    assert_eq!(caller.left("edge", hits(5, user("alice"))), Some(0));
    for _ in 0..3 {
        let answer =
            caller.ask("edge", &[descriptor(&[("path", "/a")]), user("alice"), user("bob")]);
        assert_eq!(answer.overall_code(), Code::OverLimit);
        let codes: Vec<Code> = answer.statuses.iter().map(|status| status.code()).collect();
        assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok]);
    }
    assert_eq!(caller.left("edge", descriptor(&[("path", "/a")])), Some(1));
    assert_eq!(caller.left("edge", user("bob")), Some(4));
}

#[test]
fn hits_are_the_descriptors_own_or_the_calls_or_one() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let ask = |hits_addend, descriptor| {
        let (domain, descriptors) = ("edge".to_owned(), vec![descriptor]);
        let asked = RateLimitRequest { domain, descriptors, hits_addend };
        caller.should_rate_limit(asked).unwrap().statuses[0].limit_remaining
    };
    assert_eq!(ask(0, user("alice")), 4);
    assert_eq!(ask(2, user("alice")), 2);
    assert_eq!(ask(2, hits(1, user("alice"))), 1);
    assert_eq!(ask(2, hits(0, user("alice"))), 1);
    assert_eq!(ask(1, user("alice")), 0);
    // Nothing is spent, and it is told that one more would not pass.
    let status = caller.ask_one("edge", hits(0, user("alice")));
    assert_eq!(status.code(), Code::OverLimit);
}

#[test]
fn negative_hits_give_back_and_never_above_full() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    assert_eq!(caller.left("edge", hits(5, user("alice"))), Some(0));
    assert_eq!(caller.left("edge", user("alice")), None);
    assert_eq!(caller.left("edge", given_back(hits(2, user("alice")))), Some(2));
    assert_eq!(caller.left("edge", hits(2, user("alice"))), Some(0));
    assert_eq!(caller.left("edge", given_back(hits(1_000, user("alice")))), Some(5));
    assert_eq!(caller.left("edge", user("alice")), Some(4));
    assert_eq!(caller.left("edge", given_back(user("new"))), Some(5));
}

#[test]
fn a_denied_call_gives_nothing_back() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    assert_eq!(caller.left("edge", hits(5, user("alice"))), Some(0));
    assert_eq!(caller.left("edge", hits(3, user("bob"))), Some(2));
    let answer = caller.ask("edge", &[given_back(hits(3, user("bob"))), user("alice")]);
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!((answer.statuses[0].code(), answer.statuses[0].limit_remaining), (Code::Ok, 2));
    assert_eq!(caller.left("edge", user("bob")), Some(1));
}

#[test]
fn every_limit_of_a_descriptor_counts_and_the_strictest_is_told() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let name = |status: &tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus| {
        status.current_limit.as_ref().unwrap().name.clone()
    };
    let status = caller.ask_one("both", user("alice"));
    assert_eq!((name(&status), status.limit_remaining), ("narrow".to_owned(), 1));
    assert_eq!(caller.left("both", user("alice")), Some(0));
    let status = caller.ask_one("both", user("alice"));
    assert_eq!((name(&status), status.code()), ("narrow".to_owned(), Code::OverLimit));
    let status = caller.ask_one("both", user("bob"));
    assert_eq!((name(&status), status.limit_remaining), ("wide".to_owned(), 0));
    let status = caller.ask_one("both", user("carol"));
    assert_eq!((name(&status), status.code()), ("wide".to_owned(), Code::OverLimit));
    // A window of ten days has no name.
    assert_eq!(status.current_limit.unwrap().unit(), Unit::Unknown);
}

#[test]
fn a_token_bucket_admits_its_burst_on_a_descriptor() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let left: Vec<_> = (0..4).map(|_| caller.left("bursty", user("alice"))).collect();
    assert_eq!(left, [Some(2), Some(1), Some(0), None]);
    let limit = caller.ask_one("bursty", user("alice")).current_limit.unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (1, Unit::Week));
}

#[test]
fn a_key_that_comes_again_is_an_attribute_with_a_number() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let groups = |values: [&str; 2]| descriptor(&values.map(|value| ("group", value)));
    assert_eq!(caller.left("groups", groups(["a", "b"])), Some(0));
    assert_eq!(caller.left("groups", groups(["c", "b"])), None);
    assert_eq!(caller.ask_one("groups", groups(["b", "a"])).current_limit, None);
}

fn brought(
    amount: u32,
    unit: RateLimitUnit,
    descriptor: RateLimitDescriptor,
) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit: amount, unit: unit.into() };
    RateLimitDescriptor { limit: Some(limit), ..descriptor }
}

#[test]
fn a_limit_that_a_descriptor_brings_is_its_own() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let status = caller.ask_one("free", brought(3, RateLimitUnit::Year, user("alice")));
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (3, Unit::Year));
    assert_eq!((limit.name.as_str(), status.limit_remaining), ("", 2));
    assert!(status.duration_until_reset.unwrap().seconds > 0);
    let ask = |amount, unit, descriptor| caller.left("free", brought(amount, unit, descriptor));
    assert_eq!(ask(3, RateLimitUnit::Year, user("bob")), Some(2));
    // Another number meets the same counter, another unit has one of its own.
    assert_eq!(ask(5, RateLimitUnit::Year, user("alice")), Some(3));
    assert_eq!(ask(2, RateLimitUnit::Year, user("alice")), None);
    assert_eq!(ask(9, RateLimitUnit::Month, user("alice")), Some(8));
    assert_eq!(ask(0, RateLimitUnit::Year, user("carol")), None);
    let turned = descriptor(&[("user", "alice"), ("path", "/")]);
    assert_eq!(ask(3, RateLimitUnit::Year, turned), Some(2));
    assert_eq!(ask(5, RateLimitUnit::Year, given_back(hits(9, user("alice")))), Some(5));
    // Without one it has no limit, in this domain.
    assert_eq!(caller.ask_one("free", user("alice")).current_limit, None);
}

#[test]
fn a_limit_that_a_descriptor_brings_comes_to_the_rules_that_match() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let asked = || brought(2, RateLimitUnit::Year, user("alice"));
    assert_eq!(caller.left("edge", asked()), Some(1));
    assert_eq!(caller.left("edge", asked()), Some(0));
    assert_eq!(caller.left("edge", asked()), None);
    assert_eq!(caller.left("edge", user("alice")), Some(2));
}

#[test]
fn a_denial_tells_when_to_come_back_and_leaves_x_ratelimit_to_envoy() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    caller.ask("edge", &[hits(5, user("alice"))]);
    let answer = caller.ask("edge", &[user("alice")]);
    let wait: u64 = header(&answer, "retry-after").unwrap().parse().unwrap();
    assert!((6_000_000..=73 * 86_400).contains(&wait), "{wait}");
    let state = format!("\"per-user\";r=0;t={wait}");
    assert_eq!(header(&answer, "ratelimit"), Some(&*state));
    assert_eq!(header(&answer, "ratelimit-policy"), Some("\"per-user\";q=5;w=31536000"));
    let names = answer.response_headers_to_add.iter().map(|header| header.key.as_str());
    assert!(!names.into_iter().any(|name| name.starts_with("x-ratelimit")), "{answer:?}");
    let notes = metadata(&answer);
    assert!(notes.contains("tidegate") && notes.contains("per-user"), "{notes}");
}

#[test]
fn which_headers_envoy_adds_is_the_configurations() {
    let serve = |headers: &str| {
        let rules = "[{name: api, limit: 1 per 10 days}]";
        Server::with_config(&format!(
            "listen: {{http: 127.0.0.1:0}}\nheaders: {{rls: {headers}}}\nrules: {{inline: {rules}}}\n"
        ))
    };
    let names = |answer: &RateLimitResponse| -> Vec<String> {
        answer.response_headers_to_add.iter().map(|header| header.key.clone()).collect()
    };
    let server = serve("all");
    let caller = Caller::to(&server);
    assert_eq!(names(&caller.ask("a", &[user("a")])), ["ratelimit-policy", "ratelimit"]);
    let denied = names(&caller.ask("a", &[user("a")]));
    assert_eq!(denied, ["retry-after", "ratelimit-policy", "ratelimit"]);
    let server = serve("off");
    let caller = Caller::to(&server);
    assert_eq!(names(&caller.ask("a", &[hits(2, user("a"))])), [""; 0]);
}

#[test]
fn a_rule_in_shadow_denies_nobody_and_is_noted() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    caller.ask("trial", &[user("a")]);
    let answer = caller.ask("trial", &[user("a")]);
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(answer.statuses[0].current_limit, None);
    let notes = metadata(&answer);
    assert!(notes.contains("shadow") && notes.contains("trial"), "{notes}");
}

#[test]
fn a_client_on_the_block_list_is_over_its_limit() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let block = r#"{"attribute":"user","value":"alice","for":"1h"}"#;
    let blocked = server.manage("POST", "/v1/block", block);
    assert!((200..300).contains(&blocked.status), "{blocked:?}");
    let answer = caller.ask("elsewhere", &[user("bob"), user("alice")]);
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(answer.statuses[0].code(), Code::Ok);
    assert_eq!(answer.statuses[1].code(), Code::OverLimit);
    assert!(answer.statuses[1].duration_until_reset.unwrap().seconds > 3_000);
    assert!(header(&answer, "retry-after").is_some());
}

#[test]
fn a_rule_that_cannot_be_decided_and_denies_still_denies_through_envoy() {
    let port = Port::free();
    let rules = "
      - {name: closed, match: {domain: closed}, limit: 5 per day, on_store_failure: deny}
      - {name: open, match: {domain: open}, limit: 5 per day}";
    let server = Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\nstore: {{redis: {{url: 'redis://127.0.0.1:{}'}}}}\nrules:\n    inline:{rules}\n",
        port.number()
    ));
    let caller = Caller::to(&server);
    let answer = caller.ask("closed", &[user("alice")]);
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(answer.statuses[0].code(), Code::OverLimit);
    assert_eq!(header(&answer, "x-tidegate-denied"), Some("store-unavailable"));
    assert_eq!(header(&answer, "retry-after"), Some("1"));
    let answer = caller.ask("open", &[user("alice")]);
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(header(&answer, "x-tidegate-denied"), None);
    assert!(metadata(&answer).contains("undecided"), "{answer:?}");
}

#[test]
fn a_call_that_cannot_be_understood_is_told_where() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let refused = |domain: &str, descriptors: Vec<RateLimitDescriptor>| {
        let asked = RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 };
        let status = caller.should_rate_limit(asked).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        status.message().to_owned()
    };
    assert_eq!(refused("", vec![user("a")]), "domain: found nothing, wanted a name");
    assert!(refused("edge", vec![]).starts_with("descriptors: found nothing"));
    assert!(refused("edge", vec![user("a"); 101]).starts_with("descriptors: found 101"));
    assert_eq!(
        refused("edge", vec![user("a"), descriptor(&[])]),
        "descriptors[1].entries: found nothing, wanted at least one"
    );
    assert_eq!(
        refused("edge", vec![brought(5, RateLimitUnit::Unknown, user("a"))]),
        "descriptors[0].limit.unit: found 0, wanted a unit from SECOND to YEAR"
    );
    // Nothing of all this was charged.
    assert_eq!(caller.left("edge", user("a")), Some(4));
}

#[test]
fn concurrent_calls_never_exceed_the_limit() {
    let server = Server::with_rules(
        "rules: [{name: api, per: [user], limit: 100 per 10 days, algorithm: fixed_window}]",
    );
    let callers = (0..4).map(|_| {
        let caller = Caller::to(&server);
        std::thread::spawn(move || {
            (0..50).filter(|_| caller.left("edge", user("alice")).is_some()).count()
        })
    });
    let callers: Vec<_> = callers.collect();
    let admitted: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    assert_eq!(admitted, 100);
}

#[test]
fn calls_are_counted_by_listener_and_decisions_by_rule() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    caller.ask("both", &[user("alice"), user("bob")]);
    caller.ask("both", &[hits(3, user("alice"))]);
    let metrics = server.manage("GET", "/metrics", "").body;
    let count = |wanted: &[&str]| {
        let line = metrics.lines().find(|line| wanted.iter().all(|part| line.contains(part)));
        line.and_then(|line| line.rsplit_once(' ')).map(|(_, count)| count.to_owned())
    };
    let calls = |ending| count(&["_checks_total{", "listener=\"grpc\"", ending]);
    assert_eq!(calls("\"allowed\"").as_deref(), Some("1"), "{metrics}");
    assert_eq!(calls("\"denied\"").as_deref(), Some("1"), "{metrics}");
}
